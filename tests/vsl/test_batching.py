"""Ladders, packing, token budgets, batches and the report: what the host decides before a step."""

import itertools
import sys

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from helpers.paths import ROOT

from wafer import vsl

sys.path.append(str(ROOT / "tests" / "bench"))
from vsl_models import LONGEST, draw_lengths

settings = hypothesis.settings(max_examples=50, derandomize=True)


def _example(n: int, start: int = 0) -> dict[str, np.ndarray]:
    tokens = np.arange(start, start + n, dtype=np.int32)
    return {"tokens": tokens, "labels": tokens + 1, "weights": np.ones(n, np.float32)}


def test_ladder_by_hand() -> None:
    ladder = vsl.Ladder(growth=1.125, multiple=128)
    assert ladder.capacity(1) == ladder.capacity(128) == 128
    assert ladder.capacity(129) == 256
    assert ladder.rungs(1500) == [*range(128, 1537, 128)]
    # From 2048 on a step may be 256 wide: 2048 * 1.125 = 2304.
    assert ladder.capacity(2049) == 2304
    # Capacities are looked up in order, and the rungs above are counted from the last of these.
    fitted = vsl.Ladder(multiple=32, fitted=(96, 320))
    assert [fitted.capacity(tokens) for tokens in (90, 97, 321)] == [96, 320, 352]
    for wrong in ({"growth": 1.0}, {"fitted": (256, 128)}, {"fitted": (100, 256)}):
        with pytest.raises(ValueError, match=r"Ladder\(.*expected growth > 1"):
            vsl.Ladder(**wrong)


@settings
@hypothesis.given(tokens=st.integers(1, 100_000))
def test_ladder_bounds(tokens: int) -> None:
    ladder = vsl.Ladder()
    capacity = ladder.capacity(tokens)
    assert capacity >= tokens
    assert capacity % 128 == 0
    assert capacity - tokens < max(128, 0.125 * tokens + 1)


@pytest.mark.parametrize("ratio", [2, 4, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_few_shapes_and_little_slack(ratio: int, seed: int) -> None:
    """At most 8 shapes over 50 random batches, 92 % of slots used.

    For a ladder fitted to the epoch's order; fitted to the dataset alone it may meet a batch
    beyond its top. The geometric ladder keeps the slack, but takes more shapes where batches vary
    fourfold.
    """
    data = draw_lengths(ratio, 4096)
    batches = np.random.default_rng(seed + 1).choice(data, 50 * 16)
    ladder = vsl.fit_ladder(batches, 16, shuffled=False)
    report = vsl.padding_report(batches, 16, max_length=LONGEST, ladder=ladder)
    assert len(report.shapes) <= 8
    assert report.utilisation >= 0.92
    assert set(report.shapes) <= set(ladder.rungs(16 * LONGEST))
    guess = vsl.padding_report(batches, 16, max_length=LONGEST, ladder=vsl.fit_ladder(data, 16))
    assert len(guess.shapes) <= 9
    assert guess.utilisation >= 0.91
    plain = vsl.padding_report(batches, 16, max_length=LONGEST)
    assert plain.utilisation >= 0.92
    assert len(plain.shapes) <= 14


def test_fit_ladder_finds_the_best_rungs() -> None:
    """Against all choices of three rungs of the six sizes."""
    lengths = [64, 128, 192, 256, 320, 384]
    ladder = vsl.fit_ladder(lengths, 1, shapes=3, multiple=64)
    draws = np.random.default_rng(0).choice(lengths, (2048, 1))[:, 0]

    def slots(rungs: tuple[int, ...]) -> int:
        return sum(min(r for r in rungs if r >= n) for n in draws)

    best = min(slots((*pair, 384)) for pair in itertools.combinations(lengths[:-1], 2))
    assert slots(ladder.fitted) == best
    assert vsl.fit_ladder([70], 1).fitted == (96,)
    assert ladder.capacity(385) == 448
    assert ladder.rungs(500) == [*ladder.fitted, 448, 512]


@settings
@hypothesis.given(
    lengths=st.lists(st.integers(1, 50), max_size=60),
    most=st.integers(1, 9),
    decreasing=st.booleans(),
)
def test_first_fit_keeps_everything_within_bounds(
    lengths: list[int], most: int, decreasing: bool
) -> None:
    bins = vsl.first_fit(lengths, 50, max_sequences=most, decreasing=decreasing)
    assert sorted(i for b in bins for i in b) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in b) <= 50 and len(b) <= most for b in bins)


def test_first_fit_by_hand() -> None:
    assert vsl.first_fit([5, 3, 5, 7, 2], 10) == [[3, 1], [0, 2], [4]]
    assert vsl.first_fit([5, 3, 5, 7, 2], 10, decreasing=False) == [[0, 1, 4], [2], [3]]
    # The vendor tries the newest bin first.
    newest = vsl.first_fit([5, 3, 5, 7, 2], 10, decreasing=False, newest_first=True)
    assert newest == [[0, 1], [2], [3, 4]]
    with pytest.raises(ValueError, match="sequence 1 has 11 tokens > capacity 10"):
        vsl.first_fit([5, 11], 10)


def test_budget_batches_are_full() -> None:
    lengths = draw_lengths(4, 2000)
    batches = list(vsl.budget_batches(lengths, 4096, max_sequences=128, window=256))
    assert sorted(i for b in batches for i in b) == list(range(2000))
    fill = [lengths[b].sum() / 4096 for b in batches]
    assert max(fill) <= 1
    assert np.mean(fill) > 0.97
    assert all(len(b) <= 128 for b in batches)
    # An example waits at most a few windows.
    assert max(max(b) - min(b) for b in batches) < 4 * 256
    full = vsl.budget_batches([5] * 8, 10, max_sequences=9, window=4)  # as many as bins hold
    assert list(full) == [[2, 3], [0, 1], [6, 7], [4, 5]]
    with pytest.raises(ValueError, match="example 600 has 101 tokens > budget 100"):
        list(vsl.budget_batches([5] * 600 + [101], 100, max_sequences=128, window=256))


def test_pack_by_hand() -> None:
    packed = vsl.pack([_example(3), _example(2, 10)], 8, 4, fill={"labels": -1})
    np.testing.assert_array_equal(packed.arrays["tokens"], [0, 1, 2, 10, 11, 0, 0, 0])
    np.testing.assert_array_equal(packed.arrays["labels"], [1, 2, 3, 11, 12, -1, -1, -1])
    np.testing.assert_array_equal(packed.arrays["weights"], [1] * 5 + [0] * 3)
    np.testing.assert_array_equal(packed.lengths["tokens"], [3, 2, 0, 0])
    assert packed.arrays["tokens"].dtype == np.int32
    assert vsl.pack([_example(130)], vsl.Ladder(), 1).capacity == {"tokens": 256}
    rows = vsl.pad([_example(3), _example(2, 10)], 4, 3, fill={"tokens": 9})
    np.testing.assert_array_equal(rows.arrays["tokens"], [0, 1, 2, 9, 10, 11, 9, 9, 9, 9, 9, 9])
    np.testing.assert_array_equal(rows.lengths["tokens"], [3, 2, 0])


def test_pack_ties_a_second_domain_to_the_first() -> None:
    examples = [{"ids": np.arange(n), "at": np.arange(n // 7)} for n in (70, 5, 50)]
    packed = vsl.pack(
        examples, {"tokens": 128, "mlm": 0.16}, 4, domains={"tokens": ["ids"], "mlm": ["at"]}
    )
    assert packed.capacity == {"tokens": 128, "mlm": 24}
    np.testing.assert_array_equal(packed.lengths["mlm"], [10, 0, 7, 0])


def test_pack_errors_name_the_example() -> None:
    broken = _example(5) | {"labels": np.zeros(4, np.int32)}
    with pytest.raises(ValueError, match=r"example 1.*differ: tokens=5, labels=4, weights=5"):
        vsl.pack([_example(2), broken], 64, 8)
    with pytest.raises(ValueError, match=r"example 0.*no field 'labels'"):
        vsl.pack([{"tokens": np.zeros(2)}], 64, 8, domains={"tokens": ["tokens", "labels"]})
    with pytest.raises(ValueError, match=r"example 0.*empty sequence"):
        vsl.pack([_example(0)], 64, 8)
    with pytest.raises(ValueError, match=r"70 tokens > capacity 64 \(longest .*#0=50, #1=20"):
        vsl.pack([_example(50), _example(20)], 64, 8)
    with pytest.raises(ValueError, match="5 sequences > max_sequences=4"):
        vsl.pack([_example(1)] * 5, 64, 4)
    with pytest.raises(ValueError, match="5 sequences > max_sequences=4"):
        vsl.pad([_example(1)] * 5, 64, 4)
    with pytest.raises(ValueError, match="example 1 has 9 tokens > max_length 8"):
        vsl.pad([_example(1), _example(9)], 8, 4)
    with pytest.raises(ValueError, match="cannot describe the first domain"):
        vsl.pack([_example(1)], 0.5, 4)
    for function in (vsl.pack, vsl.pad):
        with pytest.raises(ValueError, match="no examples"):
            function([], 64, 4)


def test_report_by_hand() -> None:
    report = vsl.padding_report([100, 200, 300, 40], 2, max_length=400, budget=640)
    assert (report.longest, report.mean, report.tokens) == (300, 160.0, 640)
    assert report.ideal == 2.5
    assert report.padding == 0.6
    assert report.shapes == (384,)
    assert report.expected == 1600 / 768
    assert report.budget_utilisation == 1.0
    text = str(report)
    assert "60.0% padding" in text
    assert "ideal speed-up 2.50x" in text
    with pytest.raises(ValueError, match="sequence 1 is empty"):
        vsl.padding_report([1, 0], 2)
    with pytest.raises(ValueError, match="sequence 0 has 9 tokens > max_length 8"):
        vsl.padding_report([9], 2, max_length=8)
    with pytest.raises(ValueError, match="no sequences"):
        vsl.padding_report([], 2)
