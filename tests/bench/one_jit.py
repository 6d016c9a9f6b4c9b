"""What do eight seeds in one program take, of eight calls of the program of one?

One weight of 512 x 1,024, or of 128 x 256, with a bias, 128 rows, Adam, 90 % zeros: an experiment
initializes, prunes and trains ten steps, of which RigL's change the masks at every fifth. Three
programs in turn, in one process: eight calls of the jitted experiment, ``vmap`` over the seeds,
``lax.map`` over them. Their losses agree. ``vmap`` holds the weights, gradients and moments of all
eight at once: 64 MB of the large weight, more than a cache, and 4 MB of the small one. Six rounds
go before those that are timed: until the heap has grown to what all three programs need, a call of
``vmap`` now and then takes twice its time to touch new pages.

    python tests/bench/one_jit.py [--quick]

Rows, for each method and storage: the time of ``lax.map`` (target at most 1.0) and of ``vmap`` (at
most 1.1) over that of the eight calls, by processor time; and what each of the programs took to
compile, in seconds, without kept programs.
"""

import itertools
import sys
import time
from pathlib import Path

import jax

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import harness
import jax.numpy as jnp
import optax

from wafer import malloc, sparsity

SEEDS = 8
SHAPES = ((128, 256), (512, 1024))
CASES = {
    f"{name}, {compute}": {"algorithm": name, "sparsity": 0.9, "compute": compute, **keys}
    for name, keys in (("static", {}), ("rigl", {"update": {"freq": 5}}))
    for compute in ("masked", "csr")
} | {"dense": None}


def experiment(section, shape, rounds):
    """Return ``key -> losses``: five steps a round, the last of which may change the masks."""
    rule, tx = sparsity.configure(section, accepts=lambda name: True), optax.adam(1e-2)

    def run(key):
        draw = lambda i, *shape: jax.random.normal(jax.random.fold_in(key, i), shape)
        weights = {"up": draw(0, *shape) / 10, "bias": jnp.zeros(shape[1])}
        sparse = rule.init(weights, jax.random.fold_in(key, 1))
        params, opt_state = rule.prune(weights, tx.init(weights), sparse)

        def step(carry, x, due):
            params, opt_state, sparse = carry

            def loss(ready):
                used = rule.attach(ready, sparse)
                return jnp.square(x @ used["up"] + used["bias"] - 1).mean()

            value, grads = jax.value_and_grad(loss)(rule.prepare(params, sparse, dense=due))
            grads, dense = rule.split(grads, sparse)
            updates, opt_state = tx.update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)
            sparse, params, opt_state = rule.update(sparse, params, dense, opt_state, topology=due)
            return (params, opt_state, sparse), value

        def five(carry, xs):
            carry, losses = jax.lax.scan(lambda c, x: step(c, x, False), carry, xs[:-1])
            carry, last = step(carry, xs[-1], rule.due(5))
            return carry, jnp.append(losses, last)

        xs = draw(2, rounds, 5, 128, shape[0])
        return jax.lax.scan(five, (params, opt_state, sparse), xs)[1].reshape(-1)

    return run


def programs(section, shape, rounds):
    """Compile the three; return (name -> function of no arguments, name -> seconds)."""
    run, keys = experiment(section, shape, rounds), jax.random.split(jax.random.key(0), SEEDS)
    compiled, seconds = {}, {}
    for name, fn, given in (
        ("one", run, keys[0]),
        ("vmap", jax.vmap(run), keys),
        ("lax.map", lambda keys: jax.lax.map(run, keys), keys),
    ):
        begin = time.perf_counter()
        compiled[name] = jax.jit(fn).lower(given).compile()
        seconds[name] = time.perf_counter() - begin
    one = compiled.pop("one")
    calls = {"calls": lambda: jnp.stack([one(key) for key in keys])}
    return calls | {n: lambda n=n: compiled[n](keys) for n in compiled}, seconds


def main():
    malloc.restart()  # as `wafer run` does, for every arm
    args = harness.arguments(__doc__.splitlines()[0]).parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    shapes, repeats, warm = (SHAPES[:1], 3, 1) if args.quick else (SHAPES, 11, 6)
    print(harness.environment())
    rows = {}
    for shape, (method, section) in itertools.product(shapes, CASES.items()):
        case = f"{shape[0]} x {shape[1]:,}, {method}"
        arms, seconds = programs(section, shape, 2)
        harness.agree({name: arm() for name, arm in arms.items()}, 1e-5)
        times = harness.interleave(arms, repeats, seconds=15, warm=warm)
        for name in ("lax.map", "vmap"):
            over = harness.ratio(times, name, "calls")
            rows[f"{case} / {name}, ×"] = over.cpu
            print(f"{case}: {name} {over.median:.3f}, fastest {over.least:.3f}, CPU {over.cpu:.3f}")
        rows |= {f"{case} / compile {name}, s": value for name, value in seconds.items()}
    return harness.report(rows, units=lambda name: "")


if __name__ == "__main__":
    main()
