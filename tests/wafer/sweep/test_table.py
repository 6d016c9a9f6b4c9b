"""The statistics of a sweep, by hand."""

import csv
import math

import pytest

from wafer.sweep.pictures import COSTS, draw
from wafer.sweep.table import Row, markdown, summaries, write_runs


def row(arm, seed, metric, kept=10):
    return Row(arm, "dense", seed, metric, 10, kept, 100, 6e3, 20.0, 1.5)


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


def test_two_standard_errors_are_the_border():
    def resolved(d):
        pairs = [row("a", s, 0.0) for s in (1, 2)] + [row("b", 1, d - 1), row("b", 2, d + 1)]
        return summaries(pairs, "a")[1].resolved  # the error is 1

    assert resolved(2.0)
    assert not resolved(1.99)


def test_table_and_runs_are_written(tmp_path):
    text = markdown(summaries(ROWS, "dense"), "loss", ROWS).splitlines()
    assert text[2] == "| dense | 3 | 3 | 1 |  |  |  | 10 | 6000 |"
    assert text[3] == "| sparse | 3 | 3.6 | 1.1 | +0.6 | 0.0577 | yes | 5 | 6000 |"
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
