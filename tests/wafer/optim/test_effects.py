"""No key of an optimizer or a scheduler without effect, but for those that a run lists."""

import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.effects import legal_values

from wafer.optim.chain import make_optimizer
from wafer.optim.precision import make_scaler
from wafer.optim.schedule_sections import SCHEDULERS
from wafer.optim.schedules import make_schedule
from wafer.optim.sections import OPTIMIZERS, Optimizer, parse_optimizer

PARAMS = {"dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}}
RATE = {"scheduler": "Linear", "initial_learning_rate": 0.5, "end_learning_rate": 0.1}
BASE = {"learning_rate": 0.01, "weight_decay": 0.1, "loss_scaling_factor": "dynamic"}
# Read by the training loop; tests of runs show them.
BY_THE_LOOP = {"log_summaries", "grad_accum_steps"}
OTHER = {
    "learning_rate": [0.5, [RATE | {"total_iters": 4}]],
    "weight_decay": [0.0],
    "adjust_learning_rate": [{"*kernel": 0.5}],
    "selective_grad": [{"param_filter": "*kernel"}],
    "params": [[{"params": "*kernel", "tag": "a"}]],
    "betas": [[0.5, 0.999], [0.9, 0.5]],
    "eps": [0.25, [1e-30, 0.5]],
    "etas": [[0.25, 1.2], [0.5, 1.5]],
    "step_sizes": [[1e-3, 50.0], [1e-6, 1.0]],
    "optimizer_type": [],
    "decay_rate": [-0.5],
}
# keys of a scheduler of each class, besides the name
SCHEDULES = {
    "Polynomial": {"total_iters": 8, "power": 2.0},
    "Exponential": {"total_iters": 4, "decay_rate": 0.5},
    "InverseExponentialTimeDecay": {"total_iters": 4, "decay_rate": 0.5},
    "InverseSquareRootDecay": {},
    "CosineDecay": {"total_iters": 8},
    "CosineAnnealing": {"T_max": 4},
    "CosineAnnealingWarmRestarts": {"T_0": 4},
    "Step": {"step_size": 4, "gamma": 0.5},
    "MultiStep": {"milestones": [4, 8], "gamma": 0.5},
    "Multiplicative": {"coefficient": 0.5},
    "Lambda": {},
    "Linear": {"total_iters": 8},
    "Constant": {"learning_rate": 0.5},
    "PiecewiseConstant": {"learning_rates": [0.5, 0.25], "milestones": [4]},
    "Cyclic": {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 4, "mode": "exp_range", "gamma": 0.9},
    "OneCycle": {"max_lr": 1.0, "total_steps": 30},
}
SCHEDULE_VALUES = {
    "learning_rate": [0.75],
    "learning_rates": [[0.5, 0.75]],
    "milestones": [[5], [3, 8]],
    "scheduler": [],
    "main_scheduler": [],  # of a list
    "param_group_tags": [],  # of a list, with optimizer.params
}


def optimizer_traces(section):
    """What two updates compute, and the automaton of the scale; '' where it is refused."""
    try:
        tx = make_optimizer(section, PARAMS)
        scaler = make_scaler(parse_optimizer(section), jnp.float16)
    except ValueError:
        return ""
    state = jax.eval_shape(tx.init, PARAMS)
    closed = [jax.make_jaxpr(tx.init)(PARAMS), jax.make_jaxpr(tx.update)(PARAMS, state, PARAMS)]
    text = "".join(f"{c.jaxpr}{[np.asarray(x).tolist() for x in c.consts]}" for c in closed)
    return re.sub("0x[0-9a-f]+", "", f"{text}{scaler}")


def schedule_values(entry):
    try:
        return np.asarray(make_schedule([entry])(jnp.arange(40.0))).tobytes()
    except ValueError:
        return b""


def idle_keys(cls, base, other, traced):
    """Keys of which values are taken, and none changes what is computed."""
    known, out = traced(base), set()
    assert known, base
    for key, field in cls.model_fields.items():
        default = base.get(key, field.default)
        found = other[key] if key in other else legal_values(field.annotation, (2, 3, 7))
        tried = [traced(base | {key: v}) for v in found if v != default]
        taken = set(tried) - {"", b""}
        if taken == {known}:
            out.add(key)
    return out


@pytest.mark.slow
def test_every_common_key_of_an_optimizer_has_an_effect():
    base = BASE | {"optimizer_type": "SGD", "params": [{"params": "*kernel", "tag": "b"}]}
    base["learning_rate"] = [RATE | {"total_iters": 4}]
    base["learning_rate"].append(RATE | {"total_iters": 9, "param_group_tags": ["b"]})
    other = OTHER | {"params": [[{"params": "*bias", "tag": "b"}]]}
    idle = idle_keys(Optimizer, base, other, optimizer_traces)
    assert idle == BY_THE_LOOP | {"disable_lr_steps_reset"}
    known = parse_optimizer(base | {"disable_lr_steps_reset": True})
    assert known.no_effect == ("disable_lr_steps_reset",)


def test_keys_of_a_dynamic_scale_are_listed_beside_a_fixed_one():
    keys = {"initial_loss_scale": 8.0, "steps_per_increase": 3}
    keys |= {"min_loss_scale": 1.0, "max_loss_scale": 16.0}
    section = BASE | {"optimizer_type": "SGD"} | keys
    for factor, listed in (("dynamic", ()), (4.0, tuple(keys)), (None, tuple(keys))):
        parsed = parse_optimizer(section | {"loss_scaling_factor": factor})
        assert parsed.no_effect == listed
        assert parse_optimizer(parsed.to_dict()).no_effect == listed
    known = parse_optimizer(BASE | {"optimizer_type": "SGD", "loss_scaling_factor": 4.0})
    assert parse_optimizer(known.to_dict()).no_effect == ()  # a default that was written down


def test_a_dynamic_scale_outside_float16_is_logged(caplog):
    with caplog.at_level(logging.INFO):
        scaler = make_scaler(parse_optimizer(BASE | {"optimizer_type": "SGD"}), jnp.bfloat16)
    assert not scaler.dynamic
    assert "acts in float16; in bfloat16 the scale is 1" in caplog.text


def test_linear_has_no_other_power():
    section = {"scheduler": "Linear", "initial_learning_rate": 1, "end_learning_rate": 0}
    with pytest.raises(ValueError, match="write scheduler: Polynomial"):
        make_schedule([section | {"total_iters": 4, "power": 2.0}])


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_key_of_its_own_has_an_effect(name):
    cls = OPTIMIZERS[name]
    base = BASE | {"optimizer_type": name}
    if name in ("SGD", "RMSprop"):
        base["momentum"] = 0.5
    own = cls.model_fields.keys() - Optimizer.model_fields.keys()
    idle = idle_keys(cls, base, OTHER, optimizer_traces)
    assert sorted(idle & own) == []


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_key_of_a_scheduler_changes_its_values(name):
    cls, base = SCHEDULERS[name], {"scheduler": name, **SCHEDULES[name]}
    ends = {"initial_learning_rate": 0.5, "end_learning_rate": 0.125}
    base |= {key: value for key, value in ends.items() if key in cls.model_fields}
    idle = idle_keys(cls, base, SCHEDULE_VALUES, schedule_values)
    listed = {"scheduler", "main_scheduler", "param_group_tags"}
    if not cls.model_fields["total_iters"].is_required():
        listed.add("total_iters")  # says in a list when the next one follows
    assert sorted(idle - listed) == []


def test_lion_has_no_epsilon():
    """The vendor's takes betas alone; a key that nothing reads was accepted."""
    section = {"optimizer_type": "Lion", "learning_rate": 0.1, "eps": 1e-8}
    with pytest.raises(ValueError, match="Lion reads none"):
        parse_optimizer(section)
    parse_optimizer(section | {"eps": 1e-6})  # stored in checkpoints of before
