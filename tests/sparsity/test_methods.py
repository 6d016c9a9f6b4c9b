"""Methods beyond the vendor's: MEST, AC/DC, Top-KAST, SR-STE, by hand and through whole runs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.sparse_loop import context, start, step

from wafer import sparsity
from wafer.sparsity import configure

W = jnp.asarray([[4.0, -3.0, 2.0, 1.0]]).T  # [in 4, out 1]
X = jnp.asarray([1.0, 10.0, 100.0, 1000.0])


def value_and_gradient(section):
    sparsifier = configure(section, params={"w": W})
    state = sparsifier.init({"w": W}, jax.random.key(0))
    ready = sparsifier.prepare({"w": W}, state)
    loss = lambda ready: (X @ sparsifier.attach(ready, state)["w"])[0]
    value, gradient = jax.value_and_grad(loss)(ready)
    return float(value), np.asarray(sparsifier.split(gradient, state)[0]["w"])[:, 0].tolist()


def test_top_kast_computes_with_a_and_learns_on_b():
    section = {"algorithm": "topkast", "sparsity": 0.5, "backward_sparsity": 0.25, "stop": 9}
    assert value_and_gradient(section) == (-26.0, [1.0, 10.0, 100.0, 0.0])  # 4 - 30
    # L2: 0.1 on A; on the rest of B 0.1 / density 0.5.
    value, gradient = value_and_gradient(section | {"penalty": 0.1})
    assert value == -26.0
    np.testing.assert_allclose(gradient, [1 + 0.4, 10 - 0.3, 100 + 0.2 * 2.0, 0], rtol=1e-6)


def test_sr_ste_decays_what_does_not_compute():
    pattern = {"type": "n:m", "n": 2, "m": 4}
    section = {"algorithm": "sr-ste", "pattern": pattern, "stop": 9, "penalty": 0.5}
    value, gradient = value_and_gradient(section)
    assert value == -26.0
    np.testing.assert_allclose(gradient, [1.0, 10.0, 100 + 0.5 * 2, 1000 + 0.5 * 1], rtol=1e-6)


def test_mest_drops_what_is_small_and_still():
    mest = sparsity.MEST(sparsity=0.5, update=1, gradient_rate=0.1)
    weight, grad = jnp.asarray([0.3, 0.2, 0.1, 0.0]), jnp.asarray([0.0, 0.0, 3.0, 9.0])
    mask = jnp.asarray([True, True, True, False])
    view = configure(0.5).view(0)
    at = context(weight, grad, mask, 0.5, 0.34, view)  # of three one survives: trunc(1.98)
    np.testing.assert_allclose(mest.drop_scores(at), [0.3, 0.2, 0.4, 0.9], rtol=1e-6)
    assert mest.update_mask(at)[2]  # by magnitude alone it would be dropped
    assert int(mest.update_mask(at).sum()) == 2
    own = dataclasses.replace(mest, drop=lambda ctx: -ctx.weight)
    np.testing.assert_allclose(own.drop_scores(at), [-0.3, -0.2, -0.1, 0.0])


@pytest.mark.parametrize("compute", ["masked", "csr"])
@pytest.mark.parametrize(("begin", "expected"), [("zero", 0.0), ("mean", 15.0)])
def test_grown_moments_start_at_zero_or_at_the_mean_of_those_that_stay(compute, begin, expected):
    """8, 7, 6, 5 are kept; 6 and 5 go, the last row grows. Moments 10 and 20 stay."""
    section = {"algorithm": "rigl", "sparsity": 0.5, "init_method": "topk", "update": 1}
    section |= {"drop_fraction": 0.5, "grown_moments": begin, "compute": compute}
    params = {"w": jnp.arange(8.0, 0.0, -1.0).reshape(4, 2)}
    sparsifier = configure(section, params=params, accepts=lambda name: True)
    state, moments = sparsifier.init(params, jax.random.key(0)), optax.trace(0.9).init(params)
    moments = moments._replace(trace={"w": jnp.arange(10.0, 90.0, 10.0).reshape(4, 2)})
    params, moments = sparsifier.prune(params, moments, state)
    gradient = {"w": jnp.asarray([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [5.0, 6.0]])}
    state, params, moments = sparsifier.update(state, params, gradient, moments)
    params, moments = sparsifier.expand(params, moments, state)
    assert params["w"].tolist() == [[8.0, 7.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    assert moments.trace["w"].tolist() == [[10.0, 20.0], [0, 0], [0, 0], [expected] * 2]


PARAMS = {"w": jax.random.normal(jax.random.key(1), (8, 12))}
INPUTS = jax.random.normal(jax.random.key(2), (64, 8))
TARGETS = INPUTS @ jax.random.normal(jax.random.key(3), (8, 12))
METHODS = {
    "mest": {"algorithm": "mest", "sparsity": 0.75, "update": 5},
    "acdc": {
        "algorithm": "acdc",
        "sparsity": 0.75,
        "update": {"freq": 10, "start": 10, "stop": 35},
    },
    "topkast": {"algorithm": "topkast", "sparsity": 0.75, "backward_sparsity": 0.5, "stop": 30},
    "sr-ste": {"algorithm": "sr-ste", "pattern": {"type": "n:m", "n": 1, "m": 4}, "stop": 30},
}


@pytest.mark.parametrize("name", METHODS)
def test_a_whole_run_learns_and_ends_at_its_level(name):
    tx = optax.adam(0.03)
    sparsifier, *run = start(METHODS[name], PARAMS, tx, params=PARAMS)
    loss = lambda tree: jnp.mean((INPUTS @ tree["w"] - TARGETS) ** 2)
    one_step = jax.jit(lambda *run: step(sparsifier, tx, loss, *run))
    levels, losses = [], []
    for _ in range(60):
        value, *run = one_step(*run)
        levels.append(1 - float(sparsifier.masks(run[0])["w"].mean()))
        losses.append(float(value))
    params = run[1]
    assert losses[-1] < 0.8 * losses[0]
    assert levels[-1] == 0.75
    assert int((params["w"] == 0).sum()) >= 72
    if name == "acdc":  # steps 10 to 19 and from 30 on
        assert [i + 1 for i, level in enumerate(levels) if level] == [
            *range(10, 20),
            *range(30, 61),
        ]
    if name in ("topkast", "sr-ste"):
        assert levels[:29] == [0.0] * 29
