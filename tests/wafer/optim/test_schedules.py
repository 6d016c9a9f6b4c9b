"""Learning-rate schedules against the vendor's own values, torch's, and hand-computed ones."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.paths import GOLDEN

from wafer.errors import ConfigError
from wafer.optim.schedule_sections import parse_schedules
from wafer.optim.schedules import make_schedule

VECTORS = GOLDEN / "optim"
VENDOR = json.loads((VECTORS / "lr_schedules.json").read_text())
TORCH = np.load(VECTORS / "torch.npz")
STEPS = np.arange(40)


def spec(scheduler, **keys):
    return {"scheduler": scheduler, **keys}


ONE = {"initial_learning_rate": 1.0}
UP = {"initial_learning_rate": 0, "end_learning_rate": 1}
TO_TENTH = ONE | {"end_learning_rate": 0.1}
CYCLE = {"base_lr": 0.1, "max_lr": 1, "step_size_up": 5}
HALF = ONE | {"total_iters": 10, "decay_rate": 0.5}
ONE_CYCLE = {"initial_learning_rate": 0.1, "max_lr": 1, "total_steps": 40}
LINEAR_3 = ONE_CYCLE | {"three_phase": True, "anneal_strategy": "linear"}
CASES = {
    "ConstantLR": 0.1,
    "LinearLR(0->1,10)": spec("Linear", **UP, total_iters=10),
    "PolynomialLR(1->0.1,20,p2)": spec("PolynomialLR", **TO_TENTH, total_iters=20, power=2),
    "ExponentialLR(1,10,.5)": spec("Exponential", **HALF),
    "ExponentialLR(1,10,.5,stair)": spec("Exponential", **HALF, staircase=True),
    "InverseExponentialTimeDecayLR(1,e1,10,.5)": spec(
        "InverseExponentialTimeDecay", **HALF, step_exponent=1
    ),
    "InverseSquareRootDecayLR(1,s1,w10)": spec("InverseSquareRootDecay", **ONE, warmup_steps=10),
    "CosineDecayLR(1->.1,20)": spec("CosineDecay", **TO_TENTH, total_iters=20),
    "StepLR(1,7,.5)": spec("Step", **ONE, step_size=7, gamma=0.5),
    "MultiStepLR(1,.5,[5,9])": spec("MultiStep", **ONE, gamma=0.5, milestones=[5, 9]),
    "PiecewiseConstantLR([1,.5,.1],[5,9])": spec(
        "PiecewiseConstant", learning_rates=[1, 0.5, 0.1], milestones=[5, 9]
    ),
    "CosineAnnealingLR(1,T10,min.1)": spec("CosineAnnealing", **ONE, T_max=10, eta_min=0.1),
    "MultiplicativeLR(1,.9)": spec("Multiplicative", **ONE, coefficient=0.9),
    "LambdaLR(1)": spec("Lambda", **ONE),
    "CyclicLR(.1,1,up5,down7)": spec("Cyclic", **CYCLE, step_size_down=7),
    "CyclicLR(triangular2)": spec("Cyclic", **CYCLE, mode="triangular2"),
    "CyclicLR(exp_range,.9)": spec("Cyclic", **CYCLE, mode="exp_range", gamma=0.9),
    "OneCycleLR(.1,1,40)": spec("OneCycle", **ONE_CYCLE),
    "OneCycleLR(.1,1,40,linear,3phase)": spec("OneCycle", **LINEAR_3),
    "SequentialLR(Linear 0->1 x10, Cosine 1->.1 x20)": [
        spec("Linear", **UP, total_iters=10),
        spec("CosineDecay", **TO_TENTH, total_iters=20),
    ],
}
VENDOR_BUGS = {"PolynomialLR(1->0.1,10,cycle)", "CosineAnnealingWarmRestarts(1,T10,min.1)"}


def test_every_vendor_schedule_is_compared_or_is_a_named_bug():
    assert set(CASES) | VENDOR_BUGS == set(VENDOR)


@functools.cache
def ours():
    """All cases at all steps, compiled together."""
    every = {name: make_schedule(case) for name, case in CASES.items()}
    return jax.jit(lambda t: {name: value(t) for name, value in every.items()})(STEPS)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_vendor(name):
    np.testing.assert_allclose(ours()[name], VENDOR[name], rtol=2e-6, atol=2e-7)


def test_vendor_bug_polynomial_cycle_has_no_effect_there_and_cycles_here():
    cycling = make_schedule(spec("Polynomial", **TO_TENTH, total_iters=10, cycle=True))(STEPS)
    frozen = np.array(VENDOR["PolynomialLR(1->0.1,10,cycle)"])
    np.testing.assert_allclose(cycling[:11], frozen[:11], rtol=1e-6)  # the first descent agrees
    assert frozen[15] == pytest.approx(0.1)
    # From step 11 on the descent to step 20 (then 30, ...) is in force: 0.1 + 0.9 (1 - 15/20).
    assert cycling[15] == pytest.approx(0.325)
    assert cycling[21] == pytest.approx(0.1 + 0.9 * (1 - 21 / 30))


def restarts(first, factor):
    keys = {"T_0": first, "T_mult": factor, "eta_min": 0.1}
    return make_schedule(spec("CosineAnnealingWarmRestarts", **ONE, **keys))(STEPS)


def test_vendor_bug_warm_restarts_freeze_after_the_first_period():
    cycling = restarts(10, 1)
    frozen = np.array(VENDOR["CosineAnnealingWarmRestarts(1,T10,min.1)"])
    np.testing.assert_allclose(cycling[:10], frozen[:10], rtol=1e-6)
    assert len(set(frozen[10:20])) == 1
    np.testing.assert_allclose(cycling, TORCH["warm_restarts"], rtol=1e-6)


def test_warm_restarts_with_growing_periods_equal_torch():
    np.testing.assert_allclose(restarts(5, 2), TORCH["warm_restarts_mult2"], rtol=1e-5)


def test_inverse_square_root_is_flat_during_warm_up():
    value = make_schedule(spec("InverseSquareRootDecay", scale=2.0, warmup_steps=4))
    assert [float(value(t)) for t in (0, 4, 16)] == [1.0, 1.0, 0.5]


def test_sequential_parts_start_at_their_own_zero():
    first = spec("Constant", learning_rate=3.0, total_iters=2)
    falling = spec("Linear", initial_learning_rate=1, end_learning_rate=0, total_iters=4)
    value = make_schedule([first, falling, spec("Constant", learning_rate=7.0)])
    np.testing.assert_allclose(value(np.arange(8)), [3, 3, 1, 0.75, 0.5, 0.25, 7, 7])


def test_chained_multiplies_ratios():
    rising = spec("Linear", **UP, total_iters=4, main_scheduler="chained")
    step = spec("Step", initial_learning_rate=0.5, step_size=2, gamma=0.1)
    value = make_schedule([rising, step])
    np.testing.assert_allclose(value(np.arange(5)), [0, 0.25, 0.05, 0.075, 0.01], rtol=1e-6)


def test_what_cannot_be_one_function_is_refused_parsed_or_not():
    """Schedulers of two tag lists (their sum or product would be nobody's), one that never ends."""
    one, other = (spec("Constant", learning_rate=1, param_group_tags=[tag]) for tag in "ab")
    endless = spec("Constant", learning_rate=1)
    parsed = [parse_schedules(entry)[0] for entry in (one, other, endless)]
    for mixed in ([one, other], parsed[:2]):
        with pytest.raises(ConfigError, match=r"tags \[a\] and \[b\] make no one function"):
            make_schedule(mixed)
    with pytest.raises(ConfigError, match="Constant is followed by another scheduler"):
        make_schedule([parsed[2]] * 2)


@pytest.mark.parametrize("suffix", ["", "LR", "WD", "lr"])
def test_names_ignore_suffix_and_case(suffix):
    keys = {"scheduler": "linear" + suffix, "initial_learning_rate": 1}
    keys |= {"end_learning_rate": 0, "total_iters": 4}
    assert float(make_schedule(keys)(1)) == 0.75


def test_jits_once_for_all_steps_and_returns_float32():
    traces, both = [], "SequentialLR(Linear 0->1 x10, Cosine 1->.1 x20)"

    @jax.jit
    def value(t):
        traces.append(t)
        return make_schedule(CASES[both])(t)

    values = [value(jnp.int32(t)) for t in range(12)]
    assert len(traces) == 1
    assert values[11].dtype == jnp.float32
    np.testing.assert_allclose(values, VENDOR[both][:12], rtol=1e-6)


LATE = spec("Linear", **UP, total_iters=4)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (spec("Linaer"), "scheduler: 'Linaer': unknown scheduler; did you mean 'Linear'?"),
        (spec("Step", **ONE, step_size=1, gama=2), "gama: unknown key; did you mean 'gamma'?"),
        (spec("Step", **ONE, step_size=True, gamma=0.1), "step_size: True: expected a number"),
        (spec("CosineDecay", **ONE, total_iters=0), "total_iters: 0: expected greater than 0"),
        (spec("PiecewiseConstant", learning_rates=[1], milestones=[3]), "1 milestones need 2"),
        ([0.1, 0.2], "[0]: 0.1: expected a mapping with the key 'scheduler'"),
        ([spec("Constant", learning_rate=1)] * 2, "[0]: Constant is followed by another scheduler"),
        (
            [spec("Constant", learning_rate=1, main_scheduler="chained"), LATE],
            "Linear starts at 0, so its ratio has no meaning",
        ),
        ("fast", "'fast': expected a number"),
        (-1, "-1: expected greater than or equal to 0"),
        ([], "an empty list"),
    ],
)
def test_errors_say_what_is_wrong(bad, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make_schedule(bad)
