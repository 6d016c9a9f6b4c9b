"""Do the two speed-ups multiply: no work on padding, and no work on zeros?

The training step of a GPT (d=512, 4 layers, AdamW) on a batch of 16 functions of the Python
standard library, the main job's corpus and tokenizer: padded rows of 512 or the stripped stream,
dense or 90 % sparse in all attention and FFN weights. All four arms share attention, executor and
data, and run in turn in one process.

    python tests/bench/vsl_sparse.py [--quick]

Rows: ``corpus_vsl``, ``corpus_s90``, ``corpus_both``: padded dense step over the step of that arm;
``corpus_ideal``: longest/mean; ``product``: what both give over the product of each alone.
"""

import copy
import pathlib
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).parents[2]), str(pathlib.Path(__file__).parent)]

import harness
import jax
import numpy as np
import yaml

from wafer import malloc
from wafer.config import parse_config
from wafer.experiment import Experiment
from wafer.session.build import build

CONFIG = pathlib.Path(__file__).parents[2] / "models" / "configs" / "gpt_pystdlib.yaml"


def configuration(folder, *, stripped, sparse, rows, width):
    """Return the main job's configuration with another model, batch and layout."""
    cfg = copy.deepcopy(yaml.safe_load(CONFIG.read_text()))
    cfg["train_input"] |= {"batch_size": rows, "use_vsl": False}
    cfg["model"] |= {
        "hidden_size": width,
        "num_hidden_layers": 4,
        "num_heads": width // 64,
        "filter_size": 4 * width,
        "rotary_dim": 64,
        "enable_vts": stripped,
    }
    section = cfg.pop("sparsity")
    if sparse:
        static = {"algorithm": "static", "sparsity": 0.9, "compute": "csr"}
        cfg["sparsity"] = static | {"param_filter": section["param_filter"]}
    cfg["runconfig"] = {"model_dir": folder, "max_steps": 1, "mode": "train", "seed": 1}
    return parse_config(cfg)


def typical_rows(job, count):
    """Of 51 batches, the one with the median number of tokens."""
    loader = job.train.loader(count, num_epochs=None)
    batches = [next(loader) for _ in range(51)]
    loader.close()
    return sorted(batches, key=lambda rows: rows["attention_mask"].sum())[25]


def main():
    malloc.restart()  # as `wafer run` does, for every arm
    args = harness.arguments(__doc__.splitlines()[0]).parse_args()
    rows, width, repeats = (4, 128, 3) if args.quick else (16, 512, 9)
    print(harness.environment())
    arms = {
        "padded": (False, False),
        "vsl": (True, False),
        "s90": (False, True),
        "both": (True, True),
    }
    programs, batch = {}, None
    with tempfile.TemporaryDirectory() as folder:
        for name, (stripped, sparse) in arms.items():
            cfg = configuration(folder, stripped=stripped, sparse=sparse, rows=rows, width=width)
            job = build(Experiment.from_config(cfg))
            batch = typical_rows(job, rows) if batch is None else batch
            features = job.place_batch(batch, job.experiment.batch("train"))
            state = [job.engine.init(jax.random.key(0))]

            def once(job=job, features=features, state=state):
                state[0], metrics = job.engine.step(state[0], features, topology=False)
                return metrics["loss"]

            programs[name] = once
        first = {name: run() for name, run in programs.items()}
        for padded, stripped in (("padded", "vsl"), ("s90", "both")):
            harness.agree({name: first[name] for name in (padded, stripped)}, 1e-5)
        times = harness.interleave(programs, repeats)
    tokens = int(np.sum(batch["attention_mask"]))
    ideal = batch["attention_mask"].size / tokens
    print(f"{rows} functions, {tokens} tokens, longest/mean {ideal:.2f}")
    ratios = {name: harness.ratio(times, "padded", name) for name in arms if name != "padded"}
    for name, ratio in ratios.items():
        print(
            f"{name:6} {1e3 * times[name].median:6.0f} ms  {ratio.median:5.2f}x by median "
            f"{ratio.least:5.2f}x by fastest {ratio.cpu:5.2f}x by CPU"
        )
    table = {f"corpus_{name}": ratio.median for name, ratio in ratios.items()}
    product = ratios["vsl"].median * ratios["s90"].median
    harness.report(table | {"corpus_ideal": ideal, "product": ratios["both"].median / product})


if __name__ == "__main__":
    main()
