"""Shares of a dense weight's products, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.sparse_loop import start

from wafer import sparsity
from wafer.sparsity.costs import levels_over, missed_level, shares_over


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


def test_a_level_that_is_not_reached_is_known_before():
    """RigL of 0.75 -> 0.9 with two updates of 30 %: 0.25 * 0.7 * 0.7 of the weights are left."""
    section = {"algorithm": "rigl", "schedule": [0.75, 0.9], "update": {"steps": [0, 2, 4]}}
    one = algorithm(**section | {"schedule": [0.75, 0.9, 0.9]})
    assert levels_over(one, 6)[0][-1] == pytest.approx(1 - 0.25 * 0.7**2)
    assert missed_level(one, 6) == (
        "the level ends at 87.75%, not at the scheduled 90.00%: each of its 2 updates prunes at "
        "most drop_fraction of the weights that are left; raise drop_fraction or update more often"
    )
    assert missed_level(algorithm(**section, drop_fraction=0.6), 2) == ""
    late = {"algorithm": "gmp", "schedule": {"type": "linear", "init": 0, "slope": 0.1}}
    assert "not at the scheduled 70.00%: the last of its 2 updates is at step 4 of 7" in (
        missed_level(algorithm(**late, update={"freq": 2, "start": 2, "stop": 6}), 7)
    )
    assert missed_level(algorithm(**late, update={"freq": 2, "start": 2}), 8) == ""
    far = {"algorithm": "rigl", "sparsity": 0.9, "update": {"freq": 10, "start": 10}}
    assert missed_level(algorithm(**far), 5).endswith("no update is due in 5 steps")
    assert missed_level(algorithm(algorithm="static", sparsity=0.5), 5) == ""


@pytest.mark.parametrize("name", ["set", "rigl"])
def test_the_level_that_is_foretold_is_the_one_that_training_reaches(name):
    section = {"algorithm": name, "schedule": {"type": "cubic", "stop": 6, "final": 0.9}}
    section |= {"update": {"freq": 2}, "drop_fraction": 0.25}
    params = {"dense": {"kernel": jax.random.normal(jax.random.key(0), (64, 64))}}
    sparsifier, state, params, _ = start(section, params, seed=1, params=params)
    levels, _ = levels_over(sparsifier.groups[0][1], 8)
    for step in range(1, 9):
        grads = {"dense/kernel": jax.random.normal(jax.random.key(step), (64, 64))}
        state, params, _ = sparsifier.update(state, params, grads, ())
        kept = float(state.masks["dense/kernel"].mean())
        assert 1 - kept == pytest.approx(levels[step], abs=1e-3)
