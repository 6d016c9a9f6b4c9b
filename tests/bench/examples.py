"""Cycles of the example programs, whose values are compared first: docs/results/examples.md.

python tests/bench/examples.py [NAME …] [--quick] [--published]
"""

import pathlib
import sys

import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).parents[k]) for k in (0, 1, 2)]

import harness
from helpers.examples import runtime, script


def life(quick):
    program, generations = script("life"), 30
    for size in (1, 3, 12):
        cells = np.random.default_rng(size).integers(0, 2, (size, size))
        after, cycles = program.run(runtime("life", width=size, height=size), cells, generations)
        np.testing.assert_array_equal(after, program.reference(cells, generations))
        yield f"life, {size} x {size}, {generations} generations", cycles


# Program -> its rows: names and values, in cycles unless the name says otherwise; ``quick`` asks
# for the small ones.
CASES = {
    "life": life,
}
# Program -> pairs: a name, and {"ours": …, "published": …}.
PUBLISHED = {}


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
