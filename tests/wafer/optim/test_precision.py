"""The loss-scale automaton against the vendor's trace."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.paths import GOLDEN
from hypothesis import given, settings, strategies as st

from wafer.config import parse_optimizer
from wafer.errors import ConfigError
from wafer.optim.precision import LossScaler, LossScaleState, keep_if_finite, make_scaler

TRACE = json.loads((GOLDEN / "optim" / "meta.json").read_text())["dls"]
HALF = jnp.float16


@functools.cache
def automaton(scaler):
    def step(state, good):
        state = scaler.update(state, good)
        return state, state

    return jax.jit(lambda finite: jax.lax.scan(step, scaler.init(), finite)[1])


def replay(scaler, finite):
    """States after every step."""
    return automaton(scaler)(np.asarray(finite, bool))


def test_automaton_equals_the_vendor_step_by_step():
    bounds = {"smallest": TRACE["min"], "largest": TRACE["max"]}
    bounds |= {"initial": TRACE["init_scale"], "steps_per_increase": TRACE["steps_per_increase"]}
    states = replay(LossScaler(dynamic=True, **bounds), TRACE["finite"])
    ours = np.stack(states[:3], axis=1)  # the scale, steps and overflows since it changed
    np.testing.assert_array_equal(ours, TRACE["after"])
    assert int(states.num_skipped_steps[-1]) == TRACE["finite"].count(0)


def test_scale_doubles_after_2001_good_steps_not_2000():
    scaler = LossScaler(dynamic=True, initial=2.0**10)
    scales = replay(scaler, [True] * 2001).loss_scale
    assert (scales[1999], scales[2000]) == (2.0**10, 2.0**11)


def test_tolerance_lets_some_overflows_pass():
    scaler = LossScaler(dynamic=True, initial=8.0, overflow_tolerance=0.5)
    scales = replay(scaler, [True, False, False, True]).loss_scale
    assert scales.tolist() == [8, 8, 4, 4]  # 1 of 2 is tolerated, 2 of 3 is not


@settings(max_examples=25)
@given(st.lists(st.booleans(), min_size=24, max_size=24))
def test_scale_stays_a_power_of_two_within_its_bounds(finite):
    scaler = LossScaler(dynamic=True, initial=1.0, steps_per_increase=2, smallest=0.25, largest=4.0)
    states = replay(scaler, finite)
    assert set(np.unique(states.loss_scale)) <= {0.25, 0.5, 1.0, 2.0, 4.0}
    assert int(states.num_skipped_steps[-1]) == finite.count(False)


def test_constant_scale_never_moves_and_scaling_cancels():
    scaler = LossScaler(initial=128.0)
    state = scaler.init()
    assert scaler.update(state, jnp.array(False)) is state
    assert float(scaler.scale_loss(state, jnp.float16(600))) == 76800.0  # above float16's range
    grads = scaler.unscale(state, {"w": jnp.float16(256)})
    assert grads["w"].dtype == jnp.float32
    assert float(grads["w"]) == 2.0


@pytest.mark.parametrize(
    ("grads", "finite"),
    [
        ([1.0, -2.0], True),
        ([1.0, np.inf], False),
        ([np.nan, 0.0], False),
        ([1e30, 0.0], False),  # finite values whose global norm is not, as the vendor tests it
    ],
)
def test_finite_is_the_global_norm(grads, finite):
    tree = {"a": jnp.array(grads[:1]), "b": jnp.array(grads[1:])}
    assert bool(LossScaler().finite(tree)) == finite


def test_skipped_step_leaves_no_trace():
    old = {"w": jnp.ones(2), "step": jnp.int32(3)}
    new = {"w": jnp.array([jnp.nan, 5.0]), "step": jnp.int32(4)}
    kept = keep_if_finite(jnp.array(False), new, old)
    taken = keep_if_finite(jnp.array(True), new, old)
    assert kept["w"].tolist() == [1, 1]
    assert (int(kept["step"]), int(taken["step"])) == (3, 4)


def optimizer(**keys):
    return parse_optimizer({"optimizer_type": "AdamW", "learning_rate": 1e-3, **keys})


def test_dynamic_scaling_acts_in_float16_only():
    dynamic = optimizer(loss_scaling_factor="dynamic")
    assert make_scaler(dynamic, HALF) == LossScaler(dynamic=True, initial=2.0**15)
    assert make_scaler(dynamic, jnp.bfloat16) == LossScaler()
    assert make_scaler(dynamic, jnp.float32) == LossScaler()
    assert make_scaler(optimizer(loss_scaling_factor=64), HALF) == LossScaler(initial=64.0)
    assert make_scaler(optimizer(), HALF) == make_scaler(None, jnp.float32) == LossScaler()


def test_scaler_reads_its_bounds():
    bounds = {"min_loss_scale": 2, "max_loss_scale": 16, "steps_per_increase": 5}
    section = optimizer(loss_scaling_factor="dynamic", initial_loss_scale=8, **bounds)
    want = {"initial": 8.0, "steps_per_increase": 5, "smallest": 2.0, "largest": 16.0}
    assert make_scaler(section, HALF) == LossScaler(dynamic=True, **want)


def test_errors_name_the_key():
    with pytest.raises(ConfigError, match=r"optimizer.initial_loss_scale: 65536.0: expected betw"):
        make_scaler(optimizer(loss_scaling_factor="dynamic", initial_loss_scale=65536), HALF)


def test_state_is_arrays_with_the_vendors_names():
    state = LossScaler().init()
    names = "loss_scale steps_since_rescale overflows_since_rescale num_skipped_steps"
    assert LossScaleState._fields == tuple(names.split())
    assert {leaf.dtype.name for leaf in state} == {"float32", "int32"}
