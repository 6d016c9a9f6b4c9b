"""What does pipelined execution cost or gain over one jitted step, on this machine?

GPT, 4 layers, d=256, vocabulary 1,024, 8 micro-batches of 256 tokens, AdamW; all arms in one
process, alternating. ``pipelined_D``: 6 stages spread over D devices, step time over the resident
step of the same micro-batches; ``sequential``: one stage on one device, the same programs one after
the other. ``bubble_measured_D``: share of (device, time) in which no task ran, from the recorded
timeline of one step, beside the timetable's own figure.

    python tests/bench/pipeline.py [--quick]
"""

import sys
from pathlib import Path

import jax
import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
jax.config.update("jax_num_cpu_devices", 4)

import harness
from streaming import parts_of

from wafer.engines.cluster import swarmx_mesh
from wafer.engines.resident import Resident
from wafer.engines.stagewise.core import make_core
from wafer.engines.stagewise.pipeline.engine import Pipelined
from wafer.engines.stagewise.pipeline.regions import meshes
from wafer.engines.stagewise.pipeline.schedule import bubble

MICRO = 8


def features(executor, vocab, tokens):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, vocab, (1, MICRO, 1, tokens + 1)).astype(np.int32)
    return executor.place(
        {
            "input_ids": ids[..., :-1],
            "labels": ids[..., 1:],
            "attention_mask": np.ones((1, MICRO, 1, tokens), np.int32),
            "lengths": np.full((1, MICRO, 1), tokens, np.int32),
        }
    )


def arms(sizes):
    """Return (executors by name, recorded events by name)."""
    parts = parts_of(*sizes)[:4]
    events = {}
    executors = {"resident": Resident(*parts, swarmx_mesh(1))}
    for name, stages, devices in (
        ("sequential", 1, 1),
        ("pipelined_1", None, 1),
        ("pipelined_2", None, 2),
        ("pipelined_4", None, 4),
    ):
        executors[name] = Pipelined(make_core(*parts), meshes(1, devices), stages=stages)
        events[name] = []
    return executors, events


def idle(spans, executor):
    """Share of (device, time) without a task."""
    places = [region.place for region in executor.regions]
    busy = sum(span.end - span.begin for span in spans)
    whole = max(s.end for s in spans) - min(s.begin for s in spans)
    return 1 - busy / (whole * (max(places) + 1))


def main():
    args = harness.arguments(__doc__.splitlines()[0]).parse_args()
    print(harness.environment())
    sizes = (4, 128, 256, 128) if args.quick else (4, 256, 1024, 256)
    executors, events = arms(sizes)
    states = {name: arm.init(jax.random.key(0)) for name, arm in executors.items()}
    batches = {name: features(arm, sizes[2], sizes[3]) for name, arm in executors.items()}

    def step(name):
        def run():
            states[name], metrics = executors[name].step(
                states[name], batches[name], topology=False
            )
            jax.block_until_ready((states[name].params, metrics))
            return metrics["loss"]

        return run

    losses = {name: float(step(name)()) for name in executors}
    times = harness.interleave(
        {name: step(name) for name in executors}, 5 if args.quick else 15, seconds=120
    )
    rows = {}
    for name, timing in times.items():
        ratio = timing.median / times["resident"].median
        print(
            f"{name:12} {1e3 * timing.median:7.1f} ms a step (fastest {1e3 * timing.least:.1f}), "
            f"{ratio:.2f} x resident; first loss {losses[name]:.6f}"
        )
        if name != "resident":
            rows[name] = ratio
    for name, spans in events.items():
        executor = executors[name]
        executor.events = spans
        step(name)()
        share = idle(spans, executor)
        stages = len(executor.regions)
        print(f"{name:12} idle {share:.1%} measured; timetable {float(bubble(stages, MICRO)):.1%}")
        rows[f"bubble_measured_{name}"] = share
    harness.report(rows)


if __name__ == "__main__":
    main()
