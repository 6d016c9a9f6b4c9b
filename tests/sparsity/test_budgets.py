"""How layers share a level: hand-computed levels, the sum, ends, a user's rule."""

import math
import sys
import types

import jax
import jax.numpy as jnp
import pytest
from helpers.runs import TINY, TINY_ROWS
from hypothesis import given, settings, strategies as st

from wafer import sparsity
from wafer.experiment import Experiment
from wafer.sparsity.schedules import ConstantValue
from wafer.sparsity.sections.budgets import BUDGETS, Share

BIG, SMALL = (100, 100), (10, 10)
PARAMS = {"big": jnp.ones(BIG), "small": jnp.ones(SMALL)}


def levels(section, params=PARAMS):
    sparsifier = sparsity.configure(section, params=params)
    chosen = sparsifier.select(params)
    return {name: float(c.algorithm.sparsity(0)) for name, c in chosen.items()}


@pytest.mark.parametrize(
    ("level", "big", "small"),
    [
        # Ratios 0.02 and 0.2; 10,100 weights. 1,010 / (200 + 20) = 4.5909 times the ratios.
        (0.9, 1 - 4.590909 * 0.02, 1 - 4.590909 * 0.2),
        # 2,020 / 220 would give the small one 1.8: it is dense, the big one has 1,920 of 10,000.
        (0.8, 1 - 0.192, 0.0),
    ],
)
@pytest.mark.parametrize("budget", ["erdos_renyi", "erk"])
def test_levels_by_hand(budget, level, big, small):
    got = levels({"sparsity": level, "budget": budget})
    assert got == pytest.approx({"big": big, "small": small}, abs=1e-6)


def test_kernels_differ_in_er_and_erk():
    shape = (3, 3, 8, 16)  # [h, w, in, out]
    assert BUDGETS["erdos_renyi"](shape) == pytest.approx(24 / 1152)
    assert BUDGETS["erk"](shape) == pytest.approx(30 / 1152)
    assert BUDGETS["uniform"](shape) == 1


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(1e-4, 1.0), st.integers(1, 10_000)), min_size=1, max_size=6),
    st.floats(0.0, 0.99),
)
def test_the_whole_has_its_level(layers, level):
    table = tuple(sorted(layers, reverse=True))
    total = sum(size for _, size in table)
    kept = sum(
        size * (1 - float(Share(ConstantValue(level), ratio, table)(0))) for ratio, size in table
    )
    assert kept / total == pytest.approx(1 - level, abs=1e-4)
    assert all(0 <= float(Share(ConstantValue(level), ratio, table)(0)) <= 1 for ratio, _ in table)


def test_a_schedule_is_shared_at_every_step():
    section = {"algorithm": "gmp", "schedule": [0.8, 0.9], "update": 5, "budget": "erk"}
    sparsifier = sparsity.configure(section, params=PARAMS)
    by_name = {n: c.algorithm.sparsity for n, c in sparsifier.select(PARAMS).items()}
    assert float(jax.jit(by_name["big"])(0, 0)) == pytest.approx(0.808, abs=1e-6)
    assert float(jax.jit(by_name["big"])(0, 1)) == pytest.approx(1 - 0.0918182, abs=1e-6)
    assert by_name["small"].length == 2


def test_masks_have_the_levels_and_rigl_keeps_them():
    section = {"algorithm": "rigl", "sparsity": 0.8, "update": 1, "budget": "erk"}
    sparsifier = sparsity.configure(section, params=PARAMS)
    state = sparsifier.init(PARAMS, jax.random.key(0))
    gradients = jax.tree.map(lambda w: w * 2, PARAMS)
    params, _ = sparsifier.prune(PARAMS, (), state)
    state, params, _ = sparsifier.update(state, params, gradients, ())
    kept = {name: int(mask.sum()) for name, mask in sparsifier.masks(state).items()}
    assert kept == {"big": pytest.approx(1920, abs=1), "small": 100}


@pytest.mark.parametrize(
    ("level", "big", "small"),
    # 101 weights: 50.5 products in each layer. 1,010: the small one is dense, 910 are left.
    [(0.99, 1 - 50.5 / 10_000, 1 - 50.5 / 100), (0.9, 1 - 910 / 10_000, 0.0)],
)
def test_layers_of_equal_flops_by_hand(level, big, small):
    got = levels({"sparsity": level, "budget": "flops"})
    assert got == pytest.approx({"big": big, "small": small}, abs=1e-6)


def test_flops_are_those_of_the_products_that_tokens_pass():
    """Three times as many tokens pass the big one: a third of the weights cost as much."""
    flops = lambda: {"big": 3 * 2 * 10_000, "small": 2 * 100}
    sparsifier = sparsity.configure(
        {"sparsity": 0.99, "budget": "flops"}, params=PARAMS, flops=flops
    )
    chosen = sparsifier.select(PARAMS)
    kept = {
        n: c.shape[0] * c.shape[1] * (1 - float(c.algorithm.sparsity(0))) for n, c in chosen.items()
    }
    assert kept == pytest.approx({"big": 101 / 4, "small": 101 * 3 / 4}, rel=1e-3)
    with pytest.raises(sparsity.SparsityError, match="'big' is part of no counted product"):
        sparsity.configure({"sparsity": 0.9, "budget": "flops"}, params=PARAMS, flops=dict)


def test_experts_keep_more_weights_for_the_same_flops():
    """Of two experts a token visits one: each costs half of what its size says."""
    moe = {"num_experts": 2, "top_k": 1}
    model = {**TINY, "name": "mixtral", "filter_size": 32, "moe": moe}
    section = {"algorithm": "static", "sparsity": 0.9, "budget": "flops"}
    run = {"model": model, "sparsity": section, "train_input": TINY_ROWS}
    run |= {
        "runconfig": {"max_steps": 1},
        "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.1},
    }
    experiment = Experiment.from_config(run)
    costs = {"expert": set(), "other": set()}
    for name, chosen in experiment.sparsifier.select(experiment.shapes).items():
        density = 1 - float(chosen.algorithm.sparsity(0))
        kind = "expert" if "/experts_" in name else "other"
        share = 0.5 if kind == "expert" else 1.0
        if density < 1:
            costs[kind].add(round(share * math.prod(chosen.shape) * density, 2))
    assert len(costs["expert"]) == 1
    assert costs["other"] in (set(), costs["expert"])


def test_the_ends_of_a_stack_stay_dense():
    params = {f"layers_{i}": {"kernel": jnp.ones((4, 4))} for i in range(12)}
    params["other"] = jnp.ones((4, 4))
    chosen = levels({"sparsity": 0.5, "dense_ends": 2}, params)
    assert sorted(chosen) == sorted([*(f"layers_{i}/kernel" for i in range(2, 10)), "other"])


def test_a_users_rule(monkeypatch):
    module = types.ModuleType("own_budget")
    module.depth = lambda shapes: {name: 1 + (name == "small") for name in shapes}
    module.short = lambda shapes: {}
    monkeypatch.setitem(sys.modules, "own_budget", module)
    got = levels({"sparsity": 0.5, "budget": "own_budget:depth"})
    factor = 0.5 * 10_100 / 10_200
    assert got == pytest.approx({"big": 1 - factor, "small": 1 - 2 * factor}, abs=1e-6)
    with pytest.raises(sparsity.SparsityError, match="gave no ratio above 0 for 'big'"):
        levels({"sparsity": 0.5, "budget": "own_budget:short"})
    with pytest.raises(sparsity.SparsityError, match="has no attribute 'depht'; did you mean"):
        levels({"sparsity": 0.5, "budget": "own_budget:depht"})


def test_what_does_not_go_together_is_said():
    pattern = {"type": "n:m", "n": 2, "m": 4}
    square = {"kernel": jnp.ones((8, 8))}
    with pytest.raises(sparsity.SparsityError, match="has one of its own"):
        sparsity.configure({"pattern": pattern, "budget": "erk"}, params=square)
    assert math.isclose(levels({"pattern": pattern, "dense_ends": 1}, square)["kernel"], 0.5)
