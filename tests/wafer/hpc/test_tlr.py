"""Tile low-rank products on PEs: beside dense ones in double precision, and cycles."""

import numpy as np
import pytest

from wafer.errors import WaferError
from wafer.hpc import tlr


def kernel(rows, columns, wave_number=60.0):
    """Waves from points of one line to points of another that touches it: tiles of many ranks."""
    from_, to = np.linspace(0, 1, rows)[:, None], np.linspace(0.02, 1.02, columns)[None]
    distance = np.hypot(from_ - to, 0.05)
    return np.exp(1j * wave_number * distance) / distance


def vector(size):
    rng = np.random.default_rng(size)
    return rng.standard_normal(size) + 1j * rng.standard_normal(size)


def factors(tile, ranks, seed=0):
    """Random ones of given ranks, in single precision."""
    rng, ranks = np.random.default_rng(seed), np.array(ranks)
    shape = (2, int(ranks.sum()), tile)
    left, right = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype("c8")
    return tlr.Factors((len(ranks) * tile, len(ranks.T) * tile), tile, ranks, left, right)


def product(low_rank, x):
    """Tile by tile in double precision; where terms stand is counted, not computed."""
    out = np.zeros(len(low_rank.ranks) * low_rank.tile, complex)
    parts = np.zeros(len(low_rank.ranks.T) * low_rank.tile, complex)
    parts[: len(x)] = x
    at = 0
    for column, of_column in enumerate(low_rank.ranks.T):
        for row, rank in enumerate(of_column):
            for term in range(at, at + rank):
                u, v = low_rank.left[term].astype(complex), low_rank.right[term].astype(complex)
                here = slice(column * low_rank.tile, (column + 1) * low_rank.tile)
                there = slice(row * low_rank.tile, (row + 1) * low_rank.tile)
                out[there] += u * np.vdot(v, parts[here])
            at += rank
    return out[: low_rank.shape[0]]


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-6, 0])
@pytest.mark.parametrize(("shape", "tile"), [((40, 56), 8), ((33, 20), 7), ((5, 3), 8)])
def test_the_error_is_within_the_tolerance(shape, tile, tolerance):
    matrix = kernel(*shape)
    low_rank = tlr.compress(matrix, tile, tolerance)
    lost = np.linalg.norm(low_rank.dense() - matrix) / np.linalg.norm(matrix)
    assert lost <= tolerance + 1e-6
    np.testing.assert_allclose(
        low_rank.dense() @ vector(shape[1]),
        product(low_rank, vector(shape[1])),
        rtol=1e-4,
        atol=1e-3,
    )


def test_ranks_fall_with_the_tolerance_and_differ():
    ranks = [tlr.compress(kernel(64, 64), 16, t).ranks for t in (1e-6, 1e-3, 1e-1)]
    assert ranks[0].sum() > ranks[1].sum() > ranks[2].sum()
    assert len(np.unique(ranks[1])) >= 4


def test_ranks_by_hand():
    """Two tiles of rank 1 and two of 0; the smaller one goes where the tolerance allows it."""
    matrix = np.zeros((4, 4))
    matrix[0, 0], matrix[2:, 2:] = 10, 0.05
    assert tlr.compress(matrix, 2, 1e-6).ranks.tolist() == [[1, 0], [0, 1]]
    assert tlr.compress(matrix, 2, 0.1).ranks.tolist() == [[1, 0], [0, 0]]
    assert tlr.compress(np.zeros((3, 3)), 2, 0).ranks.tolist() == [[0, 0], [0, 0]]


CASES = [
    (1, [[1]], (1, 1), 1),
    (2, [[3], [1]], (1, 2), 3),
    (8, [[8, 1, 0], [2, 5, 0], [0, 7, 3]], (1, 9), 4),
    (9, [[3, 0], [9, 4]], (3, 3), 5),
    (5, [[2, 2, 2], [5, 1, 3]], (7, 1), 20),
]


@pytest.mark.parametrize(("tile", "ranks", "pes", "terms"), CASES)
def test_values_and_cycles(tile, ranks, pes, terms):
    low_rank = factors(tile, ranks)
    x = vector(low_rank.shape[1])
    y, spent = tlr.run(low_rank, x, pes, terms)
    assert y.dtype == np.complex64
    np.testing.assert_allclose(y, product(low_rank, x), rtol=1e-4, atol=1e-4)
    assert tlr.cycles(low_rank, terms) == spent


def test_a_compressed_matrix_whose_border_cuts_tiles():
    matrix = kernel(50, 37)
    low_rank = tlr.compress(matrix, 16, 1e-4)
    x = vector(37)
    count = len(tlr.chunks(low_rank, 10))
    y, spent = tlr.run(low_rank, x, (2, -(-count // 2)), 10)
    assert np.linalg.norm(y - matrix @ x) < 1e-3 * np.linalg.norm(matrix) * np.linalg.norm(x)
    assert tlr.cycles(low_rank, 10) == spent


def test_one_term_by_hand():
    """(1 + 2i) (3 - i)* (2 + i) = (1 + 2i)(3 + i)(2 + i) = -5 + 15i."""
    one = np.ones((1, 1), np.complex64)
    low_rank = tlr.Factors((1, 1), 1, np.array([[1]]), (1 + 2j) * one, (3 - 1j) * one)
    y, _ = tlr.run(low_rank, np.array([2 + 1j]), (1, 1), 1)
    assert y.tolist() == [-5 + 15j]


def test_chunks():
    """Of columns with 7, 0 and 2 terms, at most 3 in a chunk: 2, 2 and 3, and 2."""
    plan = tlr.chunks(factors(2, [[3, 0, 1], [4, 0, 1]]), 3)
    assert plan.tolist() == [[0, 0, 2], [0, 2, 4], [0, 4, 7], [2, 7, 9]]


def test_no_terms():
    low_rank = tlr.compress(np.zeros((4, 6)), 2, 0)
    y, spent = tlr.run(low_rank, np.ones(6), (1, 1), 1)
    assert y.tolist() == [0] * 4
    assert spent == tlr.cycles(low_rank, 1)


def test_bandwidth_by_hand():
    """One tile of 2 x 2 and rank 2: four products in each phase of 4 + 2 + 2 words, or of 12."""
    assert tlr.bandwidth(factors(2, [[2]]), 2, 64) == (4 * 2 * 8 * 4 / 64, 4 * 2 * 12 * 4 / 64)


def test_a_picture_has_every_rank_and_every_chunk(tmp_path):
    low_rank = factors(2, [[3, 0, 1], [4, 0, 1]])
    fig = tlr.draw(low_rank, 3, str(tmp_path / "ranks.png"))
    tiles, bars = fig.axes[:2]
    assert [text.get_text() for text in tiles.texts] == ["3", "0", "1", "4", "0", "1"]
    heights = np.array([bar.get_window_extent().height for bar in bars.patches])
    np.testing.assert_allclose(heights / heights[2], np.array([2, 2, 3, 2]) / 3)
    assert (tmp_path / "ranks.png").stat().st_size > 1000
    assert tlr.draw(tlr.compress(np.zeros((2, 2)), 2, 0), 1).axes


def test_errors():
    low_rank, x = factors(4, [[3, 2]]), vector(8)
    cases = [
        ((low_rank, x[:5], (1, 2), 3), r"vector: shape \(5,\); expected \(8,\)"),
        ((low_rank, x * np.nan, (1, 2), 3), r"vector: holds values that are not finite"),
        ((low_rank, x, (1, 1), 3), r"pes: 1 x 1; expected at least 2 PEs"),
        ((low_rank, x, (1, 2), 0), r"terms: 0; expected at least 1"),
        ((low_rank, x, (1, 2), 700), r"terms: 700 of tiles of 4 in 1 tile rows take 61,"),
    ]
    for arguments, message in cases:
        with pytest.raises(WaferError, match=message):
            tlr.run(*arguments)
    cases = [
        ((np.ones(3), 2, 0.1), r"matrix: shape \(3,\); expected \[rows, columns\]"),
        ((np.full((2, 2), np.inf), 2, 0.1), r"matrix: holds values that are not finite"),
        ((np.ones((2, 2)), 0, 0.1), r"tile: 0; expected at least 1"),
        ((np.ones((2, 2)), 2, -0.1), r"tolerance: -0.1; expected 0 to 1"),
    ]
    for arguments, message in cases:
        with pytest.raises(WaferError, match=message):
            tlr.compress(*arguments)
