"""The statistics of a sweep, by hand; the fit recovers the constants that made its points."""

import csv
import math

import numpy as np
import pytest

from wafer.errors import ConfigError
from wafer.sweeps.law import Law, fit_groups, fit_law, fit_levels, fit_lines, refusal
from wafer.sweeps.pictures import COSTS, draw, draw_law
from wafer.sweeps.table import TrialResult, markdown, pairs, summaries, write_runs


def row(arm, seed, metric, kept=10):
    return TrialResult(arm, "dense", seed, metric, 10, kept, 100, 6e3, 20.0, 1.5)


ROWS = [
    *(row("dense", seed, value) for seed, value in {1: 2.0, 2: 3.0, 3: 4.0}.items()),
    *(row("sparse", seed, value, kept=5) for seed, value in {1: 2.5, 2: 3.6, 3: 4.7}.items()),
    *(row("noisy", seed, value) for seed, value in {2: 1.0, 3: 6.0}.items()),
]


def test_mean_deviation_and_paired_difference():
    dense, sparse, noisy = summaries(ROWS, "dense")
    assert (dense.mean, dense.deviation, dense.runs) == (3.0, 1.0, 3)
    assert (dense.difference, dense.resolved) == (None, None)
    # Differences 0.5, 0.6, 0.7: mean 0.6, deviation 0.1, of the mean 0.1 / sqrt(3).
    assert sparse.mean == pytest.approx(3.6)
    assert sparse.deviation == pytest.approx(1.1)
    assert sparse.difference == pytest.approx(0.6)
    assert sparse.error == pytest.approx(0.1 / math.sqrt(3))
    # t = 0.6 sqrt(3) / 0.1 with 2 degrees of freedom: p = 1 - t / sqrt(t^2 + 2), of 3 pairs the
    # least.
    t = 6 * math.sqrt(3)
    assert sparse.p == pytest.approx(3 * (1 - t / math.sqrt(t * t + 2)))
    assert sparse.resolved
    # Two shared seeds: differences -2 and 2, mean 0.
    assert (noisy.pairs, noisy.difference) == (2, 0.0)
    assert noisy.error == pytest.approx(2.0)
    assert noisy.resolved is False


def test_equal_runs_are_not_resolved_and_one_seed_has_no_error():
    same = [row("a", s, 1.0) for s in (1, 2)] + [row("b", s, 1.0) for s in (1, 2)]
    _, second = summaries(same, "a")
    assert (second.difference, second.error, second.resolved) == (0.0, 0.0, False)
    _, one = summaries([row("a", 1, 1.0), row("b", 1, 2.0)], "a")
    assert (one.difference, one.error, one.deviation, one.resolved) == (1.0, None) + (None,) * 2
    _, apart = summaries([row("a", 1, 1.0), row("b", 2, 2.0)], "a")
    assert (apart.pairs, apart.difference) == (0, None)


def test_the_border_is_students_t_at_5_percent():
    def resolved(d):
        twice = [row("a", s, 0.0) for s in (1, 2)] + [row("b", 1, d - 1), row("b", 2, d + 1)]
        return summaries(twice, "a")[1].resolved  # the error is 1, with one degree of freedom

    assert resolved(12.71)
    assert not resolved(12.70)


def test_any_two_arms_are_compared_and_share_the_level():
    """Holm: the least p times 3, the next times 2, never below the one before."""
    rows = [row("a", s, 0.0) for s in (1, 2, 3)]
    rows += [row("b", s, value) for s, value in ((1, 0.9), (2, 1.0), (3, 1.1))]
    rows += [row("c", s, value) for s, value in ((1, 1.9), (2, 2.0), (3, 2.1), (4, 9.0))]
    one, two, three = pairs(rows)
    assert (one.arm, one.other, three.arm, three.other) == ("b", "a", "c", "b")
    assert two.seeds == (1, 2, 3)
    p = lambda t: 1 - t / math.sqrt(t * t + 2)
    assert three.p == pytest.approx(0, abs=1e-12)  # each difference is 1
    assert two.p == pytest.approx(2 * p(20 * math.sqrt(3)))
    assert one.p == pytest.approx(max(two.p, p(10 * math.sqrt(3))))
    assert [-s.difference for s in summaries(rows, "c")[:2]] == pytest.approx([2, 1])


@pytest.mark.parametrize("seeds", [2, 3])
def test_no_difference_is_resolved_in_at_most_one_table_of_twenty(seeds):
    rng = np.random.default_rng(0)
    wrong = sum(
        any(pair.resolved for pair in pairs([
            row(arm, seed, rng.normal()) for arm in "abc" for seed in range(seeds)
        ]))
        for _ in range(2000)
    )  # fmt: skip
    assert wrong <= 2000 * 0.05 + 3 * math.sqrt(2000 * 0.05)


def test_table_and_runs_are_written(tmp_path):
    text = markdown(summaries(ROWS, "dense"), "loss", ROWS).splitlines()
    assert text[2] == "| dense | 3 | 3 | 1 |  |  |  |  | 10 | 6000 |"
    assert text[3] == "| sparse | 3 | 3.6 | 1.1 | +0.6 | 0.0577 | 0.0274 | yes | 5 | 6000 |"
    assert text[-2] == "| noisy − dense | 2 3 | +0 | 2 | 1 | no |"
    write_runs(tmp_path / "runs.csv", "loss", ROWS)
    with (tmp_path / "runs.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    costs = {"tokens": "100", "training_flops": "6000.0", "inference_flops_per_token": "20.0"}
    costs |= {"parameters": "10", "weights_kept": "5", "seconds": "1.5", "run_file": ""}
    assert lines[3] == {"arm": "sparse", "group": "dense", "seed": "1", "loss": "2.5"} | costs


def test_pictures(tmp_path):
    paths = draw(ROWS, "loss", tmp_path)
    assert [path.name for path in paths] == [f"{name}.png" for name in COSTS]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


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


def test_levels_are_fitted_together_by_the_share_that_is_kept():
    """A model of N weights, a share s kept, counts as a dense one of N s^0.4."""
    rows = [
        TrialResult("x", "law", 1, loss(n * s**0.4, d), int(n), int(n * s), int(d), 0.0, 0.0, 0.0)
        for n, d in GRID
        for s in (1.0, 0.2, 0.1)
    ]
    law = fit_levels(rows, draws=5)
    assert law.constants == pytest.approx(TRUE | {"c": 0.4}, rel=1e-3)
    assert law(1e8, 1e9, 0.2) == pytest.approx(loss(1e8 * 0.2**0.4, 1e9), rel=1e-6)
    assert law.low.keys() == law.constants.keys()


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
