"""Cycles of the example programs, whose values are compared first: docs/results/examples.md.

python tests/bench/examples.py [NAME …] [--quick] [--published]
"""

import pathlib
import sys

import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).parents[k]) for k in (0, 1, 2)]

import harness
from helpers.examples import runtime, script

from wafer.csl.host.region import MemcpyDataType

KINDS = (MemcpyDataType.MEMCPY_32BIT, MemcpyDataType.MEMCPY_16BIT)


def life(quick):
    program, generations = script("life"), 30
    for size in (1, 3, 12):
        cells = np.random.default_rng(size).integers(0, 2, (size, size))
        after, cycles = program.run(runtime("life", width=size, height=size), cells, generations)
        np.testing.assert_array_equal(after, program.reference(cells, generations))
        yield f"life, {size} x {size}, {generations} generations", cycles


def gemv(quick):
    """Sums: products with one row of the matrix per PE, without the program around them."""
    program, rng = script("gemv"), np.random.default_rng(0)

    def cycles(height, width, shape, half, group, chain=0):
        lane = 8 if half else 4
        columns = -(-shape[1] // (width * lane)) * lane
        p = {"height": height, "width": width, "rows": -(-shape[0] // height), "columns": columns}
        p |= {"half": half, "group": group, "chain": chain}
        x, matrix = rng.standard_normal(shape[0]), rng.standard_normal(shape) / shape[0] ** 0.5
        y, cycles = program.run(runtime("gemv", **p), p, x, matrix, data_type=KINDS[half])
        expected = program.reference(x, matrix)
        np.testing.assert_allclose(y, expected, atol=0.03 if half else 1e-5, rtol=0)
        return cycles

    sums = ((16, 8, 11), (33, 8, 18), (64, 8, 13), (64, 32, 35))  # with the best group
    for size, words, group in sums[: 2 if quick else None]:
        for way, of, chain in (("chain", size, 1), ("level", size, 0), ("tree", group, 0)):
            spent = cycles(size, 1, (size, words), 0, of, chain)
            yield f"sum, {way}, {size} PEs, {words} words", spent
    cases = ((8, 64, 64, 4), (16, 128, 128, 4), (16, 256, 512, 4), (24, 192, 192, 6))
    cases += ((32, 256, 256, 8), (32, 1024, 1024, 4))
    for size, rows, columns, group in cases[: 2 if quick else None]:
        spent = cycles(size, size, (rows, columns), 1, group)
        yield f"gemv, [{rows}] x [{rows}, {columns}], {size} x {size} PEs", spent


def gemm(quick):
    program, rng = script("gemm"), np.random.default_rng(0)
    cases = ((4, 16, 16, 32), (5, 20, 20, 40), (8, 32, 32, 64), (8, 64, 64, 128))
    for size, rows, inner, columns in cases[: 2 if quick else None]:
        p = {"size": size, "rows": rows // size, "inner": inner // size}
        p |= {"columns": columns // size, "half": 1}
        a, b = rng.standard_normal((rows, inner)), rng.standard_normal((inner, columns))
        c, cycles = program.run(runtime("gemm", **p), p, a, b, data_type=KINDS[1])
        np.testing.assert_allclose(c, program.reference(a, b), atol=0.1, rtol=0)
        yield f"gemm, {rows} x {inner} x {columns}, {size} x {size} PEs", cycles


def kvshift(quick):
    program = script("kvshift")
    for height, count, words in ((4, 40, 8), (8, 40, 16), (10, 25, 40))[: 2 if quick else None]:
        p = {"height": height, "width": 1, "words": words, "most": count}
        p["slots"] = -(-count // height) + 1
        entries = np.random.default_rng(0).random((count, 1, words)).astype(np.float32)
        counts, kept, cycles = program.run(runtime("kvshift", **p), p, entries)
        np.testing.assert_array_equal(counts, program.reference(entries, height))
        np.testing.assert_array_equal(kept, entries)
        yield f"cache, {count} entries of {words} words, {height} rows", cycles


def line_sum(quick):
    program, values = script("line_sum"), np.random.default_rng(0).integers(-9, 9, (5, 6, 5))
    runner = runtime("line_sum", width=6, height=5, group_x=2, group_y=3)
    after, cycles = program.run(runner, values)
    np.testing.assert_array_equal(after, program.reference(values))
    yield "sums of 3 words and maxima of 2, 5 x 6 PEs", cycles


def gemv_published(quick):
    for case, ours, theirs in script("gemv", "published").rows():
        yield f"WaferLLM, {case}: computed", {"ours": ours, "published": theirs}


# Program -> its rows: names and values, in cycles unless the name says otherwise; ``quick`` asks
# for the small ones.
CASES = {
    "gemm": gemm,
    "gemv": gemv,
    "kvshift": kvshift,
    "line_sum": line_sum,
    "life": life,
}
# Program -> pairs: a name, and {"ours": …, "published": …}.
PUBLISHED = {"gemv": gemv_published}


if __name__ == "__main__":
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="of programs (default: all)")
    parser.add_argument("--published", action="store_true", help="beside published figures")
    options = parser.parse_args()
    table, rows = PUBLISHED if options.published else CASES, {}
    for name in options.names or table:
        for case, value in table[name](options.quick):
            print(f"{case}: {value}", flush=True)
            columns = value if options.published else {"": value}
            rows |= {" / ".join(filter(None, (case, c))): v for c, v in columns.items()}
    kept = "examples_published" if options.published else "examples"
    harness.report(rows, kept, lambda name: "", harness.ANY)
