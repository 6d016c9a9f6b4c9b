"""What does a RigL topology update cost, in dense training steps of the same model?

GPT with 100.7 M kernel weights (d=1024, 8 layers, FFN 4096), vocabulary 512, 4 rows of 512 tokens,
AdamW. One arm is a whole dense training step; the other is the topology update of the same model
90 % sparse in csr storage: every kernel drops 30 % of its weights, grows as many at the largest
gradients, and carries its values and both Adam moments to the new pattern. In turn, in one
process; the gradients are those that an update step has at hand.

    python tests/bench/rigl_update.py [--quick]
    python tests/bench/rigl_update.py --structure [--quick]

``--structure``: the update of one 2,048 x 8,192 weight (with both moments of Adam) under each
pattern, over that of the unstructured weight of the same level, in turn. Rows:
``STORAGE_PATTERN``, by processor time. Then one 512 x 2,048 weight with 2:4: ``rigl_update_s`` and
``rigl_whole_s`` (unstructured), ``srste_step_s`` and ``dense_step_s`` (forward and gradients of 512
tokens).

Rows of the default: ``rigl_over_step``: time of the update over time of a dense step;
``rigl_s``, ``step_s``: their seconds; ``weights``: dense size of all sparse kernels.
"""

import math
import sys
from pathlib import Path

import jax
import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import harness
import jax.numpy as jnp
import optax
from sparse_step import executor, features

import sparsity

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
        assert not np.array_equal(pattern.indices, moved[name].indices), name
    return lambda: update(*arguments)[1:], sum(map(math.prod, shapes.values()))


PATTERNS = {  # name: (level, keys)
    "2of4": (0.5, {"pattern": {"type": "n:m", "n": 2, "m": 4}}),
    "2of4_out": (0.5, {"pattern": {"type": "n:m", "n": 2, "m": 4, "axis": "out"}}),
    "16of32": (0.5, {"pattern": {"type": "n:m", "n": 16, "m": 32}}),
    "block16": (0.9, {"pattern": {"type": "block", "size": 16}}),
    "fan_in": (0.9, {"pattern": {"type": "constant_fan_in"}}),
    "groups_out": (0.9, {"balance_out_groups": 64}),
    "groups_in": (0.9, {"balance_in_groups": 64}),
}


def one_weight(shape, level, storage, keys):
    """Return a program that updates the topology of one weight and its moments."""
    section = {"algorithm": "rigl", "sparsity": level, "update": {"freq": 1}, "compute": storage}
    sparsifier = sparsity.configure(section | keys)
    weight, grad = np.random.default_rng(0).standard_normal((2, *shape), np.float32)
    params, tx = {"w": jnp.asarray(weight)}, optax.adam(1e-3)
    sparse = sparsifier.init(params, jax.random.key(0))
    params, opt_state = sparsifier.prune(params, tx.init(params), sparse)
    update = jax.jit(sparsifier.update)
    dense = {"w": jnp.asarray(grad)}
    return lambda: update(sparse, params, dense, opt_state)


def structure(quick):
    """Measure patterns against unstructured weights of their levels, and SR-STE's step."""
    shape, rows = ((512, 2048) if quick else (2048, 8192)), {}
    for storage in ("masked", "csr"):
        for level in (0.5, 0.9):
            arms = {name: keys for name, (at, keys) in PATTERNS.items() if at == level}
            programs = {
                name: one_weight(shape, level, storage, keys)
                for name, keys in {"whole": {}, **arms}.items()
            }
            times = harness.interleave(programs, 5)
            print(f"{storage} {level}: unstructured {times['whole'].cpu:.3f} s of CPU")
            for name in arms:
                over = [a / b for a, b in zip(times[name], times["whole"], strict=True)]
                print(f"  {name:10}" + "".join(f" {ratio:6.2f}" for ratio in over))
                rows[f"{storage}_{name}"] = over[2]
    small = {
        "rigl_update_s": one_weight((512, 2048), 0.5, "masked", PATTERNS["2of4"][1]),
        "rigl_whole_s": one_weight((512, 2048), 0.5, "masked", {}),
        "srste_step_s": srste_step(PATTERNS["2of4"][1]),
        "dense_step_s": srste_step(None),
    }
    times = harness.interleave(small, 9)
    return rows | {name: timing.cpu for name, timing in times.items()}


def srste_step(keys):
    """Return a program: forward and gradients of 512 tokens through a weight of 512 x 2,048."""
    section = None if keys is None else {"algorithm": "sr-ste", "stop": 9, **keys}
    sparsifier = sparsity.configure(section)
    w, x = (
        jax.random.normal(jax.random.key(i), s) for i, s in enumerate([(512, 2048), (512, 512)])
    )
    sparse = sparsifier.init({"w": w}, jax.random.key(0))
    loss = lambda params: jnp.sum((x @ sparsifier.apply(params, sparse)["w"]) ** 2)
    grad = jax.jit(jax.grad(loss))
    return lambda: grad({"w": w})


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
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--structure", action="store_true", help="patterns instead of a model")
    args = parser.parse_args()
    if args.structure:
        print(harness.environment())
        return harness.report(structure(args.quick))
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
    return harness.report({"rigl_over_step": share, **seconds, "weights": weights})


if __name__ == "__main__":
    main()
