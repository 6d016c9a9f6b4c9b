"""How much faster is a whole training step when the zeros are skipped?

GPT, d=512, 4 layers, FFN 2048, vocabulary 512, 8 rows of 512 tokens, AdamW, all attention and FFN
weights sparse; the same attention, executor and data in every arm, interleaved in one process.

    python tests/bench/sparse_step.py [--quick]

Rows: ``s90``, ``s95``: dense step time over compressed step time; ``masked90``: the same for the
mask-multiply arm; ``bytes90``: weights + moments + pattern of the compressed arm over the dense
arm's weights + moments.
"""

import sys
from pathlib import Path

import jax
import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import harness

from wafer import malloc
from wafer.config import parse_config
from wafer.engines.cluster import swarmx_mesh
from wafer.engines.resident import Resident
from wafer.experiment import Experiment

VOCAB = 512


def executor(section, layers, width, **optimizer):
    """Return the executor of a GPT with a sparsity section, or None for a dense one."""
    cfg = {
        "model": {
            "name": "gpt2",
            "vocab_size": VOCAB,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_heads": width // 64,
            "filter_size": 4 * width,
            "max_position_embeddings": 512,
            "dropout_rate": 0.0,
            "nonlinearity": "gelu",
        },
        "optimizer": {
            "optimizer_type": "AdamW",
            "learning_rate": 1e-4,
            "weight_decay": 0.01,
            **optimizer,
        },
        "runconfig": {"max_steps": 1, "seed": 0},
        "train_input": {
            "data_processor": "SyntheticDataProcessor",
            "vocab_size": VOCAB,
            "max_sequence_length": 512,
            "batch_size": 8,
        },
    }
    if section:
        cfg["sparsity"] = section
    experiment = Experiment.from_config(parse_config(cfg))
    return Resident(
        experiment.model, experiment.tx, experiment.sparsifier, experiment.scaler, swarmx_mesh(1)
    )


def features(run, rows):
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB, (1, 1, rows, 513)).astype(np.int32)
    return run.place(
        {
            "input_ids": tokens[..., :-1],
            "labels": tokens[..., 1:],
            "attention_mask": np.ones((1, 1, rows, 512), np.int32),
            "lengths": np.full((1, 1, rows), 512, np.int32),
        }
    )


def state_bytes(state):
    parts = (state.params, state.opt_state, state.sparse.patterns, state.sparse.masks)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(parts))


def main():
    malloc.restart()  # as `wafer run` does, for every arm
    args = harness.arguments(__doc__.splitlines()[0]).parse_args()
    layers, width, rows, repeats = (2, 256, 2, 3) if args.quick else (4, 512, 8, 9)
    print(harness.environment())
    static = {"algorithm": "static", "sparsity": 0.9, "compute": "csr"}
    arms = {
        "dense": None,
        "masked90": static | {"compute": "masked"},
        "s90": static,
        "s95": static | {"sparsity": 0.95},
    }
    programs, size, losses = {}, {}, {}
    for name, section in arms.items():
        run = executor(section, layers, width)
        batch = features(run, rows)
        state = [run.init(jax.random.key(0))]
        size[name] = state_bytes(state[0])

        def once(run=run, batch=batch, state=state, name=name):
            state[0], metrics = run.step(state[0], batch, topology=False)
            losses.setdefault(name, []).append(float(metrics["loss"]))
            return state[0].params

        programs[name] = once
    for run in programs.values():
        run()
    harness.agree({name: losses[name] for name in ("masked90", "s90")}, 1e-5)
    times = harness.interleave(programs, repeats)
    harness.agree({name: losses[name] for name in ("masked90", "s90")}, 1e-3)
    for name, timing in times.items():
        ratio = harness.ratio(times, "dense", name)
        print(
            f"{name:9} {1e3 * timing.median:8.0f} ms  {ratio.median:5.2f}x by median "
            f"{ratio.least:5.2f}x by fastest {ratio.cpu:5.2f}x by CPU "
            f" {size[name] / 2**20:6.1f} MiB"
            f"  loss {losses[name][0]:.5f} .. {losses[name][-1]:.5f}"
        )
    table = {name: harness.ratio(times, "dense", name).median for name in arms if name != "dense"}
    harness.report(table | {"bytes90": size["s90"] / size["dense"]})


if __name__ == "__main__":
    main()
