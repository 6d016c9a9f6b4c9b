"""The statistics of a sweep, by hand."""

import csv
import math

import numpy as np
import pytest

from wafer.sweeps.pictures import COSTS, draw
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
    _, alone = summaries([row("a", 1, 1.0), row("b", 1, 2.0)], "a")
    assert (alone.difference, alone.error, alone.deviation, alone.resolved) == (1.0, None) + (
        None,
    ) * 2
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
    assert lines[3] == {
        "arm": "sparse",
        "group": "dense",
        "seed": "1",
        "loss": "2.5",
        "parameters": "10",
        "weights_kept": "5",
        "tokens": "100",
        "training_flops": "6000.0",
        "inference_flops_per_token": "20.0",
        "seconds": "1.5",
    }


def test_pictures(tmp_path):
    paths = draw(ROWS, "loss", tmp_path)
    assert [path.name for path in paths] == [f"{name}.png" for name in COSTS]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
