"""Cycles of ``wafer.hpc.mesh``, simulated and by closed form, and rates of a LLaMA by closed forms:
docs/results/examples.md.

python tests/bench/hpc_llm.py [--quick] [--published] [--picture FILE]
"""

import pathlib
import sys

import harness
import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).parents[2]), str(pathlib.Path(__file__).parent)]

from wafer.hpc.mesh import gemm, gemv, kvshift, llama, pictures

HALF = np.float16
# Lines of PEs, words of a vector.
SUMS = ((16, 8), (33, 8), (64, 8), (64, 32))
# PEs of a row, rows and columns of the matrix, PEs of a group.
VECTORS = ((8, 64, 64, 4), (16, 128, 128, 4), (16, 256, 512, 4), (24, 192, 192, 6))
VECTORS += ((32, 256, 256, 8), (32, 1024, 1024, 4))
# PEs of a row, rows, inner size and columns of the product.
PRODUCTS = ((4, 16, 16, 32), (5, 20, 20, 40), (8, 32, 32, 64), (8, 64, 64, 128))
# Rows of PEs, entries, words.
PUSHES = ((4, 40, 8), (8, 40, 16), (10, 25, 40))
COMPUTED = "computed (simulated up to 32 x 32 PEs)"
CLOCK = llama.WAFER._replace(clock_hz=1.1e9)  # of the paper's conversions


def simulated(few):
    """Pairs: the case, and its simulated cycles with those of the closed form."""
    rng = np.random.default_rng(0)
    for size, words in SUMS[:few]:
        x, matrix = rng.standard_normal(size), rng.standard_normal((size, words))
        ways = (("chain", 0, True), ("level", size, False), ("tree", 0, False))
        for name, group, chain in ways:
            spent = gemv.run(x, matrix, (size, 1), group=group, chain=chain)[1]
            closed = gemv.cycles((size, 1), (size, words), group=group, chain=chain)
            yield f"sum, {name}, {size} PEs, {words} words", (spent, closed)
    for size, rows, columns, group in VECTORS[:few]:
        x, matrix = rng.random(rows), rng.random((rows, columns))
        spent = gemv.run(x, matrix, (size, size), group=group, dtype=HALF)[1]
        closed = gemv.cycles((size, size), matrix.shape, group=group, dtype=HALF)
        yield f"gemv, [{rows}] x [{rows}, {columns}], {size} x {size} PEs", (spent, closed)
    for size, rows, inner, columns in PRODUCTS[:few]:
        a, b = rng.random((rows, inner)), rng.random((inner, columns))
        spent = gemm.run(a, b, size, dtype=HALF)[1]
        closed = gemm.cycles(size, (rows, inner, columns), dtype=HALF)
        yield f"gemm, {rows} x {inner} x {columns}, {size} x {size} PEs", (spent, closed)
    for height, count, words in PUSHES[:few]:
        spent = kvshift.run(rng.random((count, 1, words)), height).cycles
        closed = kvshift.cycles(count, height, words)
        yield f"cache, {count} entries of {words} words, {height} rows", (spent, closed)


# Tokens per second of LLaMA3-8B by PEs of a side: tables 3 and 4 of arXiv:2502.04563.
PREFILL = {480: 20320.6, 600: 25037.2, 720: 27686.5}
DECODE = {420: 2699.9, 540: 2501.5, 660: 2243.3}
# Tokens per second by tokens in and out: table 2. Cycles of gemv by size: table 6.
ANSWERS = {(2048, 128): 764.4, (4096, 128): 604.4, (2048, 2048): 2370.3, (4096, 4096): 2459.0}
GEMV = {16384: 1320, 32768: 2233}


def computed():
    """Triples: the case, its number by closed forms, and the paper's."""
    model = llama.LLAMA3_8B
    for size, theirs in GEMV.items():
        ours = gemv.cycles((720, 720), (size, size), dtype=HALF)
        yield f"gemv, {size:,}, 720 x 720 PEs, cycles", ours, theirs
    for size, theirs in PREFILL.items():
        ours = llama.prefill_rate(model, size, 4096, CLOCK)
        yield f"prefill of 4,096 tokens, {size} x {size} PEs, tokens per second", ours, theirs
    for size, theirs in DECODE.items():
        ways = (("the public program's shape", llama.plain(model, size)), ("LLaMA3-8B", model))
        for name, one in ways:
            ours = llama.decode_rate(one, size, 4096, CLOCK)
            yield f"decoding, {name}, {size} x {size} PEs, tokens per second", ours, theirs
    for (prompt, answer), theirs in ANSWERS.items():
        plain = llama.plain(model, 360)
        prefill = prompt / llama.prefill_rate(model, 660, prompt, CLOCK)
        decode = answer / llama.decode_rate(plain, 360, prompt + answer // 2, CLOCK)
        name = f"{prompt:,} tokens in, {answer:,} out, tokens per second"
        yield name, answer / (prefill + decode), theirs


def draw(counted, path):
    """Sums of 8 words, without the program around them, which a sum on one PE is."""
    spent = {}
    around = gemv.cycles((1, 1), (1, 8))
    for size in sorted({size for size, words in SUMS if words == 8}):
        names = [f"sum, {way}, {size} PEs, 8 words" for way in ("chain", "level", "tree")]
        spent[size] = tuple(counted[name][0] - around for name in names)
    pictures.sums([*range(2, 64), *range(64, 750, 14)], 8, spent, path)


if __name__ == "__main__":
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--published", action="store_true", help="closed forms beside the paper")
    parser.add_argument("--picture", help="draw cycles of sums to this file")
    options = parser.parse_args()
    if options.published:
        beside = {}
        for case, ours, theirs in computed():
            beside |= {f"{case} / {COMPUTED}": ours, f"{case} / published": theirs}
        harness.report(beside, "hpc_llm_published", lambda name: "", harness.ANY)
        sys.exit()
    counted = dict(simulated(2 if options.quick else None))
    if options.picture:
        draw(counted, options.picture)
    harness.cycles({name: {"simulated": a, "closed form": b} for name, (a, b) in counted.items()})
