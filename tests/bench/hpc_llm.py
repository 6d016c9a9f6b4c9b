"""Cycles of ``wafer.hpc.mesh``, simulated and by closed form, and rates of a LLaMA by closed forms:
docs/results/hpc-llm.md.

python tests/bench/hpc_llm.py [--picture FILE]
"""

import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

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
CLOCK = llama.WAFER._replace(clock_hz=1.1e9)  # of the paper's conversions


def simulated():
    """Pairs: the case, and its simulated cycles with those of the closed form."""
    rng = np.random.default_rng(0)
    for size, words in SUMS:
        x, matrix = rng.standard_normal(size), rng.standard_normal((size, words))
        ways = (("chain", 0, True), ("level", size, False), ("tree", 0, False))
        for name, group, chain in ways:
            spent = gemv.run(x, matrix, (size, 1), group=group, chain=chain)[1]
            closed = gemv.cycles((size, 1), (size, words), group=group, chain=chain)
            yield f"sum, {name}, {size} PEs, {words} words", (spent, closed)
    for size, rows, columns, group in VECTORS:
        x, matrix = rng.random(rows), rng.random((rows, columns))
        spent = gemv.run(x, matrix, (size, size), group=group, dtype=HALF)[1]
        closed = gemv.cycles((size, size), matrix.shape, group=group, dtype=HALF)
        yield f"gemv, [{rows}] x [{rows}, {columns}], {size} x {size} PEs", (spent, closed)
    for size, rows, inner, columns in PRODUCTS:
        a, b = rng.random((rows, inner)), rng.random((inner, columns))
        spent = gemm.run(a, b, size, dtype=HALF)[1]
        closed = gemm.cycles(size, (rows, inner, columns), dtype=HALF)
        yield f"gemm, {rows} x {inner} x {columns}, {size} x {size} PEs", (spent, closed)
    for height, count, words in PUSHES:
        spent = kvshift.run(rng.random((count, 1, words)), height).cycles
        closed = kvshift.cycles(count, height, words)
        yield f"cache, {count} entries of {words} words, {height} rows", (spent, closed)


def by_closed_forms():
    """Pairs: the case, and a number."""
    model = llama.LLAMA3_8B
    for size in (16384, 32768):
        yield (
            f"gemv, {size}, 720 x 720 PEs, cycles",
            gemv.cycles((720, 720), (size, size), dtype=HALF),
        )
    for size in (480, 600, 720):
        rate = llama.prefill_rate(model, size, 4096, CLOCK)
        layer = sum(llama.prefill_layer(model, size, 4096).values())
        yield f"prefill, {size} x {size} PEs, tokens/s and cycles of a layer", (rate, layer)
    for size in (360, 420, 540, 660):
        for name, one in (("published program", llama.plain(model, size)), ("LLaMA3-8B", model)):
            rate = llama.decode_rate(one, size, 4096, CLOCK)
            layer = llama.decode_layer(one, size, 4096)
            yield (
                f"decode, {name}, {size} x {size} PEs: tokens/s, cycles of a layer, of silu",
                (
                    rate,
                    sum(layer.values()),
                    layer["silu"],
                ),
            )
        yield (
            f"layers of {size} x {size} PEs, such meshes",
            (
                llama.layers_of_a_mesh(model, size),
                llama.meshes(size),
            ),
        )
    for prompt, answer in ((2048, 128), (4096, 128), (2048, 2048), (4096, 4096)):
        plain = llama.plain(model, 360)
        prefill = prompt / llama.prefill_rate(model, 660, prompt, CLOCK)
        decode = answer / llama.decode_rate(plain, 360, prompt + answer // 2, CLOCK)
        name = f"{prompt} tokens in, {answer} out, prefill on 660 x 660 PEs, decode on 360 x 360"
        yield name, answer / (prefill + decode)
    for shifts in (False, True):
        tokens = llama.cache_tokens(model, 360, shifts=shifts)
        yield f"cache of 360 x 360 PEs, shifts: {shifts}, tokens", tokens


def draw(counted, path):
    """Sums of 8 words, without the program around them, which a sum on one PE is."""
    spent = {}
    around = gemv.cycles((1, 1), (1, 8))
    for size in sorted({size for size, words in SUMS if words == 8}):
        names = [f"sum, {way}, {size} PEs, 8 words" for way in ("chain", "level", "tree")]
        spent[size] = tuple(counted[name][0] - around for name in names)
    pictures.sums([*range(2, 64), *range(64, 750, 14)], 8, spent, path)


if __name__ == "__main__":
    counted = dict(simulated())
    for name, (spent, closed) in counted.items():
        print(f"{name:<50} {spent:>8,} {closed:>8,} {closed / spent - 1:+.1%}", flush=True)
    if "--picture" in sys.argv:
        draw(counted, sys.argv[sys.argv.index("--picture") + 1])
    forms = dict(by_closed_forms())
    for name, values in forms.items():
        print(name, values)
    print(json.dumps({"simulated": counted, "forms": forms}))
