"""What does a RigL topology update cost, in dense training steps of the same model?

GPT with 100.7 M kernel weights (d=1024, 8 layers, FFN 4096), vocabulary 512, 4 rows of 512 tokens,
AdamW. Three arms in turn, in one process: a dense training step, a step of the same model 90 %
sparse in csr storage, and one of its steps with an update: the gradients of all weights, 30 % of
each kernel dropped, as many grown at the largest gradients, values and both Adam moments carried
to the new pattern. What the update costs is the third less the second.

    python tests/bench/rigl_update.py [--quick]
    python tests/bench/rigl_update.py --structure [--quick]

``--structure``: the update of one 2,048 x 8,192 weight (with both moments of Adam) under each
pattern, over that of the unstructured weight of the same level, in turn. Rows:
``STORAGE_PATTERN``, by processor time. Then one 512 x 2,048 weight with 2:4: ``rigl_update_s`` and
``rigl_whole_s`` (unstructured), ``srste_step_s`` and ``dense_step_s`` (forward and gradients of 512
tokens).

Rows of the default: ``rigl_over_step``: what an update costs over a dense step; ``update_step_s``,
``plain_step_s``, ``step_s``: seconds of the three.
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

from wafer import malloc, sparsity

RIGL = {"algorithm": "rigl", "sparsity": 0.9, "update": {"freq": 1}, "compute": "csr"}


def stepper(section, layers, width, rows, *, topology=False):
    """Return a program that trains one step, and its state in a list."""
    run = executor(section, layers, width)
    batch = features(run, rows)
    state = [run.init(jax.random.key(0))]

    def once():
        state[0], metrics = run.step(state[0], batch, topology=topology)
        return metrics

    return once, state


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


def main():
    malloc.restart()  # as `wafer run` does, for every arm
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--structure", action="store_true", help="patterns instead of a model")
    args = parser.parse_args()
    if args.structure:
        print(harness.environment())
        return harness.report(structure(args.quick), "rigl_structure")
    layers, width, rows, repeats = (2, 512, 2, 3) if args.quick else (8, 1024, 4, 3)
    print(harness.environment())
    step, _ = stepper(None, layers, width, rows)
    plain, _ = stepper(RIGL, layers, width, rows)
    update, state = stepper(RIGL, layers, width, rows, topology=True)
    patterns = state[0].sparse.patterns
    weights = sum(math.prod(pattern.shape) for pattern in patterns.values())
    before = {name: np.asarray(pattern.indices) for name, pattern in patterns.items()}
    harness.agree({"plain": plain()["loss"], "with an update": update()["loss"]}, 1e-6)
    for name, pattern in state[0].sparse.patterns.items():  # a measurement of doing nothing is none
        if np.array_equal(pattern.indices, before[name]):
            sys.exit(f"{name}: the update changed nothing")
    times = harness.interleave({"step": step, "plain": plain, "update": update}, repeats)
    for name, timing in times.items():
        print(f"{name:6} {timing.median:7.3f} s, fastest {timing.least:.3f}, CPU {timing.cpu:.3f}")
    over = [
        (a - b) / c
        for a, b, c in zip(*(times[k] for k in ("update", "plain", "step")), strict=True)
    ]
    print(
        f"an update of {weights / 1e6:.1f} M weights: {over[0]:.3f} of a step, "
        f"by fastest {over[1]:.3f}"
    )
    seconds = {"update_step_s": times["update"].median, "plain_step_s": times["plain"].median}
    seconds["step_s"] = times["step"].median
    return harness.report({"rigl_over_step": over[0], **seconds})


if __name__ == "__main__":
    main()
