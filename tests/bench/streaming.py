"""What does it cost to keep one layer's weights on the device instead of all?

``step_ratio``: time of a streamed step (weights in RAM) over a resident one, interleaved in one
process; GPT, 12 layers, d=768, vocabulary 50,257, 1,024 tokens, AdamW. ``memory_growth``: peak
memory of a run with the weights in a file, 32 layers over 8, each in a process of its own, what
the process took before it had a model subtracted; the backward sweep computes everything again.
``step_ratio_recompute``: the first row with that setting.

    python tests/bench/streaming.py [--quick]
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import harness

from wafer import malloc
from wafer.config import parse_config
from wafer.engines.cluster import swarmx_mesh
from wafer.engines.resident import Resident
from wafer.engines.stagewise.core import make_core
from wafer.engines.stagewise.streaming.engine import Streaming
from wafer.engines.stagewise.streaming.memoryx import FileStore
from wafer.experiment import Experiment

KEEP = 512 << 20  # runconfig.memoryx.residual_mib, as it is by default


def parts_of(layers, width, vocab, tokens):
    """Return what both executors are built from."""
    cfg = {
        "model": {
            "name": "gpt2",
            "vocab_size": vocab,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_heads": width // 64,
            "filter_size": 4 * width,
            "max_position_embeddings": tokens,
            "dropout_rate": 0.0,
            "nonlinearity": "gelu",
        },
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 1e-4, "weight_decay": 0.01},
        "runconfig": {"max_steps": 1, "seed": 0},
        "train_input": {
            "data_processor": "SyntheticDataProcessor",
            "vocab_size": vocab,
            "max_sequence_length": tokens,
            "batch_size": 1,
        },
    }
    p = Experiment.from_config(parse_config(cfg))
    return p.model, p.tx, p.sparsifier, p.scaler, swarmx_mesh(1)


def features(executor, vocab, tokens, systems=1):
    shape = (systems, 1, 1)  # one row on each
    ids = np.random.default_rng(0).integers(0, vocab, (*shape, tokens + 1)).astype(np.int32)
    return executor.place(
        {
            "input_ids": ids[..., :-1],
            "labels": ids[..., 1:],
            "attention_mask": np.ones((*shape, tokens), np.int32),
            "lengths": np.full(shape, tokens, np.int32),
        }
    )


def step_ratios(sizes, repeats):
    """Interleave resident and streamed steps."""
    _, _, vocab, tokens = sizes
    parts = parts_of(*sizes)
    core, mesh = make_core(*parts[:-1]), parts[-1]
    arms = {
        "resident": Resident(*parts),
        "streamed": Streaming(core, mesh, residual_bytes=KEEP),
        "recompute": Streaming(core, mesh),
    }
    states = {name: arm.init(jax.random.key(0)) for name, arm in arms.items()}
    batches = {name: features(arm, vocab, tokens) for name, arm in arms.items()}

    def step(name):
        def run():
            states[name], metrics = arms[name].step(states[name], batches[name], topology=False)
            jax.block_until_ready(states[name].step)
            return metrics

        return run

    programs = {name: step(name) for name in arms}
    harness.agree({name: run()["loss"] for name, run in programs.items()}, 1e-5)
    times = harness.interleave(programs, repeats, seconds=150)
    for name, timing in times.items():
        print(f"{name:10} {timing.median:8.3f} s a step (fastest {timing.least:.3f} s)")
    for arm in arms.values():
        arm.close()
    return {
        "step_ratio": times["streamed"].median / times["resident"].median,
        "step_ratio_recompute": times["recompute"].median / times["resident"].median,
    }


def status(key):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {key} in /proc/self/status")


def child(layers, width, vocab, tokens, folder):
    """Take two steps from a file and print the peak of this process."""
    jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))  # the runtime's own threads and arenas
    base = status("VmRSS")
    with tempfile.TemporaryDirectory(dir=folder) as store:
        *parts, mesh = parts_of(layers, width, vocab, tokens)
        run = Streaming(make_core(*parts), mesh, store=FileStore(store, durable=False))
        state = run.init(jax.random.key(0))
        batch = features(run, vocab, tokens)
        for _ in range(2):
            state, metrics = run.step(state, batch, topology=False)
        loss = float(metrics["loss"])
        run.close()
    print(json.dumps({"peak": status("VmHWM") - base, "base": base, "loss": loss}))


def memory_growth(width, vocab, tokens, folder):
    """Peak of 32 layers over peak of 8."""
    peaks = {}
    for layers in (8, 32):
        sizes = [str(x) for x in (layers, width, vocab, tokens, folder)]
        out = subprocess.run(
            [sys.executable, __file__, "--child", *sizes],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks[layers] = json.loads(out.stdout.splitlines()[-1])
        print(
            f"{layers:2} layers: {peaks[layers]['peak'] / 2**20:8.0f} MiB above the runtime's own"
        )
    return peaks[32]["peak"] / peaks[8]["peak"]


def main():
    if sys.argv[1:2] == ["--child"]:
        child(*map(int, sys.argv[2:6]), sys.argv[6])
        return
    malloc.restart()  # as `wafer run` does, for every arm
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="for the file stores")
    parser.add_argument("--only", choices=("time", "memory"), help="one half of the benchmark")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    print(harness.environment())
    rows = {}
    if args.only != "memory":
        sizes = (4, 256, 1024, 256) if args.quick else (12, 768, 50257, 1024)
        rows |= step_ratios(sizes, 3 if args.quick else 5)
    if args.only != "time":
        sizes = (128, 1024, 128) if args.quick else (768, 50257, 512)
        rows["memory_growth"] = memory_growth(*sizes, args.folder)
    harness.report(rows)


if __name__ == "__main__":
    main()
