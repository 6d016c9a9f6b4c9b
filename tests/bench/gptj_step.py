"""One full training step of GPT-J at its published size on a small machine.

6.05 B parameters, bfloat16 weights and bfloat16 Adam moments (36 GB) in one file without second
copies, drawn stage by stage; a progress bar per stage; time and peak memory at the end. It takes
about 37 GB of disk, removed afterwards. A manual script: no row of it is checked.

    python tests/bench/gptj_step.py --folder /big/disk [--tokens 64] [--quick]
"""

import dataclasses
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import harness

from wafer.config import parse_config
from wafer.engines.cluster import swarmx_mesh
from wafer.engines.stagewise.core import make_core
from wafer.engines.stagewise.streaming.engine import Streaming
from wafer.engines.stagewise.streaming.memoryx import FileStore
from wafer.experiment import Experiment
from wafer.models import parameter_count

PUBLISHED = {"layers": 28, "width": 4096, "heads": 16, "filter": 16384, "vocab": 50400}
SMALL = {"layers": 3, "width": 64, "heads": 4, "filter": 256, "vocab": 512}


class Bar(list):
    """Turns recorded events into progress."""

    def __init__(self, progress, task, lanes):
        super().__init__()
        self.progress, self.task, self.lanes = progress, task, lanes

    def append(self, event):
        super().append(event)
        if event.lane in self.lanes:
            self.progress.update(self.task, advance=1, stage=f"{event.lane} {event.name}")


def build(sizes, tokens):
    cfg = {
        "model": {
            "name": "gptj",
            "vocab_size": sizes["vocab"],
            "hidden_size": sizes["width"],
            "num_hidden_layers": sizes["layers"],
            "num_heads": sizes["heads"],
            "filter_size": sizes["filter"],
            "rotary_dim": min(64, sizes["width"] // sizes["heads"]),
            "max_position_embeddings": 2048,
            "dropout_rate": 0.0,
            "mixed_precision": True,
            "fp16_type": "bfloat16",
        },
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 1e-4, "weight_decay": 0.01},
        "runconfig": {"max_steps": 1, "seed": 0},
        "train_input": {
            "data_processor": "SyntheticDataProcessor",
            "vocab_size": sizes["vocab"],
            "max_sequence_length": tokens,
            "batch_size": 1,
        },
    }
    return Experiment.from_config(parse_config(cfg))


def main():
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="with 37 GB of room")
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    sizes = SMALL if args.quick else PUBLISHED
    jax.config.update("jax_default_prng_impl", "unsafe_rbg")  # six billion draws
    experiment = build(sizes, args.tokens)
    half = lambda key: jax.tree.map(lambda x: x.astype(jnp.bfloat16), experiment.model.init(key))
    model = dataclasses.replace(experiment.model, init=half)
    print(harness.environment())
    print(f"{parameter_count(model):,} parameters, {args.tokens} tokens")
    stages = len(model.stages)
    columns = (TextColumn("{task.fields[stage]:32}"), BarColumn(), MofNCompleteColumn())
    with (
        tempfile.TemporaryDirectory(dir=args.folder) as folder,
        Progress(*columns, TimeElapsedColumn(), console=Console()) as progress,
    ):
        task = progress.add_task("step", total=2 * stages - 1, stage="drawing weights")
        bar = Bar(progress, task, {"forward", "backward"})
        store = FileStore(folder, durable=False)
        core = make_core(model, experiment.tx, experiment.sparsifier, experiment.scaler)
        run = Streaming(core, swarmx_mesh(1), store=store, events=bar)
        begin = time.perf_counter()
        state = run.init(jax.random.key(0))
        drawn = time.perf_counter() - begin
        shape = (1, 1, 1, args.tokens)
        ids = np.random.default_rng(0).integers(0, sizes["vocab"], shape).astype(np.int32)
        ones = np.ones(shape, np.int32)
        lengths = np.full(shape[:3], args.tokens, np.int32)
        batch = run.place(
            {"input_ids": ids, "labels": ids, "attention_mask": ones, "lengths": lengths}
        )
        begin = time.perf_counter()
        state, metrics = run.step(state, batch, topology=False)
        loss = float(metrics["loss"])
        seconds = time.perf_counter() - begin
        moved = run.mover.bytes_moved
        run.close()
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
    print(f"loss {loss:.3f}; {moved / 2**30:.1f} GiB read from the store")
    harness.report({"init_s": drawn, "step_s": seconds, "peak_gib": peak / 2**30})


if __name__ == "__main__":
    main()
