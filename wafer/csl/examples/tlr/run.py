"""Multiplies a vector by a dense complex matrix that was cut into tiles of low rank."""

import argparse
import itertools
import json
from pathlib import Path

import numpy as np


def compress(matrix, tile, tolerance):
    """Square tiles of a matrix, each the sum of as many terms u v^H as its rank.

    Of each tile the largest singular values are kept. Every tile may lose its share of the error,
    so its Frobenius norm is at most ``tolerance`` times that of the matrix. Returns the ranks [tile
    rows, tile columns], and u (with the singular value) and v, [terms, tile]. Terms stand tile
    column by tile column, and in these tile row by tile row; beyond the matrix tiles are 0.
    """
    rows, columns = (-(-size // tile) for size in matrix.shape)
    whole = np.zeros((rows * tile, columns * tile), complex)
    whole[: matrix.shape[0], : matrix.shape[1]] = matrix
    u, singular, vh = np.linalg.svd(whole.reshape(rows, tile, columns, tile).swapaxes(1, 2))
    limit = (tolerance * np.linalg.norm(matrix)) ** 2 / (rows * columns)
    lost = np.cumsum(np.square(singular)[..., ::-1], axis=-1)[..., ::-1]  # from each value on
    kept = (lost > limit) & (singular > 0)
    column, row, term = np.nonzero(kept.swapaxes(0, 1))
    left = u[row, column, :, term] * singular[row, column, term, None]
    right = vh[row, column, term].conj()
    return kept.sum(axis=-1), left.astype(np.complex64), right.astype(np.complex64)


def chunks(ranks, terms):
    """What PEs get: a tile column's terms in as few equal parts of at most ``terms`` as can be.

    Of each chunk the tile column, the first term, the one behind the last, the tile rows of its
    terms, and how many are of each.
    """
    row_of = np.repeat(np.arange(ranks.size) % len(ranks), ranks.T.ravel())
    out, start = [], 0
    for column, count in enumerate(ranks.sum(axis=0).tolist()):
        parts = -(-count // terms)
        ends = [start + count * part // parts for part in range(parts + 1)] if parts else []
        for first, last in itertools.pairwise(ends):
            rows, counts = np.unique(row_of[first:last], return_counts=True)
            out.append((column, first, last, rows, counts))
        start += count
    return out


def most_rows(plan):
    """Tile rows of the chunk that has most of them, at least 1: ``rows`` of the layout."""
    return max([len(rows) for _, _, _, rows, _ in plan], default=1)


def run(runner, ranks, left, right, vector, terms):
    """The product, complex64, and the cycles of the call: PEs have a chunk each, or none.

    The host adds up what PEs have for a row.
    """
    height, width, tile = runner.whole.height, runner.whole.width, left.shape[1]
    plan, pes = chunks(ranks, terms), height * width
    rows, row = most_rows(plan), -(-2 * tile // 4) * 4  # words of a tile row's sums
    x = np.zeros((ranks.shape[1], tile), np.complex64)
    x.ravel()[: len(vector)] = vector
    arrays = {
        "right": np.zeros((pes, 2 * tile * terms), np.float32),
        "left": np.zeros((pes, 2 * tile * terms), np.float32),
        "vector": np.zeros((pes, 2 * tile), np.float32),
        "counts": np.zeros((pes, 1 + rows), np.uint32),
    }
    for pe, (column, first, last, _, counts) in enumerate(plan):
        v, u, size = right[first:last], left[first:last], 2 * tile * (last - first)
        arrays["right"][pe, :size] = np.concatenate([v.real, -v.imag]).T.ravel()
        arrays["left"][pe, :size] = np.concatenate([u.real, u.imag], axis=1).ravel()
        arrays["vector"][pe] = np.concatenate([x[column].real, x[column].imag])
        arrays["counts"][pe, : 1 + len(counts)] = [last - first, *counts]
    for name, values in arrays.items():
        runner.memcpy_h2d(runner.get_id(name), values.ravel(), 0, 0, width, height, values.shape[1])
    start = runner.cycles
    runner.launch("multiply")
    cycles = runner.cycles - start
    sums = np.zeros((pes, 1 + row * rows), np.float32)
    runner.memcpy_d2h(sums, runner.get_id("result"), 0, 0, width, height, sums.shape[1])
    pairs = sums[:, 1:].reshape(pes, rows, row)
    y = np.zeros((len(ranks), tile), np.complex64)
    for own, (_, _, _, present, _) in zip(pairs, plan, strict=False):
        y[present] += (own[:, :tile] + 1j * own[:, tile : 2 * tile])[: len(present)]
    return y.ravel(), cycles


def reference(ranks, left, right, vector):
    """Term by term in double precision."""
    tile = left.shape[1]
    x = np.zeros(ranks.shape[1] * tile, complex)
    x[: len(vector)] = vector
    column, row = np.divmod(np.repeat(np.arange(ranks.size), ranks.T.ravel()), len(ranks))
    weights = (right.conj().astype(complex) * x.reshape(-1, tile)[column]).sum(axis=1)
    y = np.zeros((len(ranks), tile), complex)
    np.add.at(y, row, left * weights[:, None])
    return y.ravel()


def waves(points, wave_number=200):
    """Waves from points of one line to points of another that touches it."""
    sources, receivers = np.linspace(0, 1, points)[:, None], np.linspace(0, 1, points)
    distance = np.hypot(sources - receivers, 0.05)
    return np.exp(1j * wave_number * distance) / distance


def main():
    from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="out", help="folder of the compiled program")
    parser.add_argument("--cmaddr", help="IP:port of a system")
    parser.add_argument("--points", type=int, default=60, help="rows and columns of the matrix")
    parser.add_argument("--tolerance", type=float, default=1e-3)
    args = parser.parse_args()
    params = json.loads(Path(args.name, "out.json").read_text())["params"]
    matrix, rng = waves(args.points, 60), np.random.default_rng(0)
    vector = rng.standard_normal(args.points) + 1j * rng.standard_normal(args.points)
    factors = compress(matrix, int(params["tile"]), args.tolerance)
    terms = int(params["terms"])
    print(f"ranks of tiles:\n{factors[0]}\n{len(chunks(factors[0], terms))} PEs have terms")
    runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
    runner.load()
    runner.run()
    y, cycles = run(runner, *factors, vector, terms)
    runner.stop()
    expected = reference(*factors, vector)
    np.testing.assert_allclose(y, expected, atol=2e-6 * np.abs(expected).max())
    off = np.linalg.norm(y[: args.points] - matrix @ vector)
    assert off <= 1.01 * args.tolerance * np.linalg.norm(matrix) * np.linalg.norm(vector)
    print(f"{cycles} cycles, {off / np.linalg.norm(matrix @ vector):.1e} off the dense product")
    print("SUCCESS!")


if __name__ == "__main__":
    main()
