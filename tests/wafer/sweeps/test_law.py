"""The fit recovers the constants that made its points."""

import numpy as np
import pytest

from wafer.errors import ConfigError
from wafer.sweeps.law import Law, fit_groups, fit_law, fit_lines, refusal
from wafer.sweeps.pictures import draw_law
from wafer.sweeps.table import TrialResult

TRUE = {"E": 1.69, "A": 406.4, "B": 410.7, "a": 0.34, "b": 0.28}  # Hoffmann et al. 2022
SIZES = [1e6, 1e7, 1e8, 1e9]
LENGTHS = [1e7, 1e8, 1e9, 1e10]


def loss(n, d):
    return TRUE["E"] + TRUE["A"] / n ** TRUE["a"] + TRUE["B"] / d ** TRUE["b"]


GRID = [(n, d) for n in SIZES for d in LENGTHS]


def test_exact_points_give_the_constants_back():
    """Tolerance: one part in ten thousand; the fit itself to 1e-6."""
    law = fit_law(*zip(*GRID, strict=True), [loss(n, d) for n, d in GRID], draws=20)
    assert law.constants == pytest.approx(TRUE, rel=1e-4)
    assert law.worst < 1e-6
    assert law(1e8, 1e9) == pytest.approx(loss(1e8, 1e9), rel=1e-6)
    assert law.parameters == (1e6, 1e9)
    assert law.tokens == (1e7, 1e10)


def test_noise_stays_within_the_intervals_and_one_outlier_is_left_out():
    rng = np.random.default_rng(3)
    points = [point for point in GRID for _ in range(3)]
    losses = np.array([loss(n, d) for n, d in points]) * np.exp(rng.normal(0, 1e-3, len(points)))
    losses[0] *= 1.3  # a run that diverged: least squares would follow it
    law = fit_law(*zip(*points, strict=True), losses, draws=40)
    assert law.constants["E"] == pytest.approx(TRUE["E"], rel=0.02)
    assert law.constants["a"] == pytest.approx(TRUE["a"], abs=0.02)
    assert law.constants["b"] == pytest.approx(TRUE["b"], abs=0.02)
    for name, value in law.constants.items():
        assert law.low[name] <= value <= law.high[name]
    assert law.worst > 0.2


def test_too_few_points_are_refused_in_one_line():
    assert not refusal(GRID)
    assert "these arms have 4, 2 and 8" in refusal([(n, d) for n in SIZES for d in LENGTHS[:2]])
    assert "3, 3 and 3" in refusal(list(zip(SIZES[:3], LENGTHS[:3], strict=True)))
    rows = [TrialResult("x", "sparse", 1, 2.0, 10, 10, 100, 0.0, 0.0, 0.0)]
    with pytest.raises(ConfigError, match=r"fit\.sparse: a fit of 5 constants needs") as error:
        fit_groups(rows)
    assert "\n" not in str(error.value)


def test_a_metric_that_is_no_loss_is_refused():
    with pytest.raises(ConfigError, match="losses above 0"):
        fit_law(*zip(*GRID, strict=True), [-1.0 for _ in GRID])


@pytest.mark.slow
def test_groups_are_fitted_apart_and_by_the_weights_that_are_kept():
    rows = [TrialResult("x", "sparse", 1, loss(n, d), n * 10, n, d, 0.0, 0.0, 0.0) for n, d in GRID]
    rows += [TrialResult("y", "dense", 1, loss(n, d) + 1, n, n, d, 0.0, 0.0, 0.0) for n, d in GRID]
    laws = fit_groups(rows)
    assert laws["sparse"].constants["E"] == pytest.approx(1.69, rel=1e-3)
    assert laws["dense"].constants["E"] == pytest.approx(2.69, rel=1e-3)
    lines = fit_lines(laws)
    assert [line[:2] for line in lines[:3]] == [["sparse", "E"], ["sparse", "A"], ["sparse", "B"]]
    assert lines[0][5:] == [16, 1e6, 1e9, 1e7, 1e10]


def test_curves_lie_within_the_range_and_growth_is_by_hand(tmp_path):
    law = Law(TRUE, TRUE, TRUE, 16, 0.0, (1e6, 1e9), (1e7, 1e10))
    assert law.growth == pytest.approx(0.28 / 0.62)  # Hoffmann et al. 2022, appendix D.3
    rows = [TrialResult("x", "dense", 1, loss(n, d), n, n, d, 6 * n * d, 0.0, 0.0) for n, d in GRID]
    path = draw_law(rows, {"dense": law}, "loss", tmp_path / "fit.png")
    assert path.read_bytes().startswith(b"\x89PNG")
