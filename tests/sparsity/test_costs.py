"""Shares of a dense weight's products, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsity
from sparsity.costs import levels_over, shares_over


def algorithm(**section):
    params = {"dense": {"kernel": jnp.ones((8, 8))}}
    ((_, one),) = sparsity.configure(section, params=params).groups
    return one


def test_static_and_set_compute_what_is_kept():
    for name in ("static", "set"):
        shares = shares_over(algorithm(algorithm=name, sparsity=0.75), 10)
        assert shares.training == pytest.approx(0.25)
        assert shares.left == pytest.approx(0.25)


def test_rigl_pays_for_a_dense_gradient_at_its_updates():
    """Evci et al. 2020: (3 f_S (F - 1) + 2 f_S + f_D) / F, of 3 f_D."""
    one = algorithm(algorithm="rigl", sparsity=0.9, update={"freq": 5})
    expected = (3 * 0.1 * 4 + 2 * 0.1 + 1) / 5 / 3
    assert shares_over(one, 20).training == pytest.approx(expected)
    assert shares_over(one, 4).training == pytest.approx(0.1)  # before the first update


def test_gradual_pruning_follows_its_list():
    one = algorithm(algorithm="gmp", schedule=[0.5, 0.75], update={"steps": [2, 4]})
    levels, due = levels_over(one, 6)
    # Step 1 and 2 dense; chosen at the end of steps 2 and 4.
    np.testing.assert_allclose(levels, [0, 0, 0.5, 0.5, 0.75, 0.75, 0.75])
    assert list(np.flatnonzero(due) + 1) == [2, 4]
    shares = shares_over(one, 6)
    assert shares.training == pytest.approx((1 + 1 + 0.5 + 0.5 + 0.25 + 0.25) / 6)
    assert shares.left == pytest.approx(0.25)


def test_acdc_has_dense_phases():
    one = algorithm(algorithm="acdc", sparsity=0.5, update={"freq": 2, "start": 2, "stop": 8})
    levels, _ = levels_over(one, 8)
    np.testing.assert_allclose(levels, [0, 0, 0.5, 0.5, 0, 0, 0.5, 0.5, 0.5])


def test_topkast_and_sr_ste_learn_on_more_than_compute_until_they_stop():
    one = algorithm(algorithm="topkast", sparsity=0.8, backward_sparsity=0.5, stop=3)
    expected = (3 * (2 * 0.2 + 0.5) + 1 * 3 * 0.2) / 4 / 3
    assert shares_over(one, 4).training == pytest.approx(expected)
    one = algorithm(algorithm="sr-ste", sparsity=0.5, stop=2)
    assert shares_over(one, 2).training == pytest.approx((2 * 0.5 + 1) / 3)


def test_the_levels_are_those_of_the_state():
    """Two implementations: counted ahead, and the targets of a sparsifier that is stepped."""
    section = {"algorithm": "set", "schedule": {"type": "linear", "init": 0.1, "slope": 0.05}}
    section["update"] = {"freq": 3, "start": 3}
    params = {"dense": {"kernel": jnp.ones((8, 8))}}
    sparsifier = sparsity.configure(section | {"param_filter": "*kernel"}, params=params)
    sparse = sparsifier.init(params, jax.random.key(0))
    targets = [float(sparse.targets[0])]
    for _ in range(10):
        sparse, params, _ = sparsifier.update(sparse, params, None, ())
        targets.append(float(sparse.targets[0]))
    levels, _ = levels_over(sparsifier.groups[0][1], 10)
    np.testing.assert_allclose(levels, targets, rtol=1e-6)
