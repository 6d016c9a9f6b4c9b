"""What does a RigL topology update cost, in dense training steps of the same model?

GPT with 100.7 M kernel weights (d=1024, 8 layers, FFN 4096), vocabulary 512, 4 rows of 512 tokens,
AdamW. One arm is a whole dense training step; the other is the topology update of the same model
90 % sparse in csr storage: every kernel drops 30 % of its weights, grows as many at the largest
gradients, and carries its values and both Adam moments to the new pattern. In turn, in one
process; the gradients are those that an update step has at hand.

    python tests/bench/rigl_update.py [--quick]

Rows: ``rigl_over_step``: time of the update over time of a dense step; ``rigl_s``, ``step_s``:
their seconds; ``weights``: dense size of all sparse kernels.
"""

import math
import sys
from pathlib import Path

import jax
import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import harness
from sparse_step import executor, features

RIGL = {"algorithm": "rigl", "sparsity": 0.9, "update": {"freq": 1}, "compute": "csr"}


def topology_update(layers, width):
    """Return a program that changes the topology of a fresh state, and the number of weights."""
    run = executor(RIGL, layers, width)
    state = run.init(jax.random.key(0))
    shapes = {name: pattern.shape for name, pattern in state.sparse.patterns.items()}
    rng = np.random.default_rng(0)
    grads = {
        name: jax.device_put(rng.standard_normal(shape, np.float32))
        for name, shape in shapes.items()
    }
    update = jax.jit(run.sparsifier.update)
    arguments = (state.sparse, state.params, grads, state.opt_state)
    moved = update(*arguments)[0].patterns
    for name, pattern in state.sparse.patterns.items():  # a measurement of doing nothing is none
        assert not np.array_equal(pattern.order, moved[name].order), name
    return lambda: update(*arguments)[1:], sum(map(math.prod, shapes.values()))


def dense_step(layers, width, rows):
    """Return a program that trains one step."""
    run = executor(None, layers, width)
    batch = features(run, rows)
    state = [run.init(jax.random.key(0))]

    def once():
        state[0], metrics = run.step(state[0], batch, topology=False)
        return metrics

    return once


def main():
    args = harness.arguments(__doc__.splitlines()[0]).parse_args()
    layers, width, rows, repeats = (2, 512, 2, 3) if args.quick else (8, 1024, 4, 3)
    print(harness.environment())
    rigl, weights = topology_update(layers, width)
    times = harness.interleave({"rigl": rigl, "step": dense_step(layers, width, rows)}, repeats)
    for name, timing in times.items():
        print(f"{name:5} {timing.median:7.3f} s, fastest {timing.least:.3f}, CPU {timing.cpu:.3f}")
    share = times["rigl"].median / times["step"].median
    least = times["rigl"].least / times["step"].least
    print(f"update of {weights / 1e6:.1f} M weights: {share:.3f} of a step, by fastest {least:.3f}")
    seconds = {"rigl_s": times["rigl"].median, "step_s": times["step"].median}
    harness.report({"rigl_over_step": share, **seconds, "weights": weights})


if __name__ == "__main__":
    main()
