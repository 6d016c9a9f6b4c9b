"""Cycles of the example programs, whose values are compared first: docs/results/examples.md.

python tests/bench/examples.py [NAME …] [--quick] [--published]
"""

import pathlib
import sys
from functools import partial

import jax
import numpy as np
import yaml

sys.path[:0] = [str(pathlib.Path(__file__).parents[k]) for k in (0, 1, 2)]

import harness
from helpers.examples import runtime, script

import models
from wafer.compiler.decode.mesh import mesh_parts
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


def decoder(quick):
    """Cycles of the last token of one text."""
    path = pathlib.Path(models.__file__).parent / "configs" / "gpt_pystdlib.yaml"
    tiny = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 4}
    tiny |= {"filter_size": 32, "max_position_embeddings": 24}
    shared = {"attention_module": "multiquery_attention"}
    shared["extra_attention_params"] = {"num_kv_groups": 2}
    cases = (
        ("GPT-2, tiny", {"name": "gpt2"} | tiny, ((1, 1), (2, 3), (5, 4), (3, 8), (12, 12)), 8),
        ("LLaMA, tiny", {"name": "llama"} | tiny | shared, ((1, 5), (4, 4), (7, 9)), 8),
        ("gpt_pystdlib", yaml.safe_load(path.read_text(encoding="utf-8"))["model"],
         ((8, 16), (16, 16), (32, 16), (32, 32)), 60),
    )  # fmt: skip
    program, prompt = script("decoder"), [1, 2, 3, 4]
    for name, section, grids, count in cases[: 2 if quick else None]:
        model = models.build(section)
        draw = partial(np.random.default_rng(0).normal, 0, 0.1)
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        weights = jax.tree.map(lambda leaf, draw=draw: draw(leaf.shape).astype("f"), shapes)
        for grid in grids:
            p = mesh_parts(model.config, grid, len(prompt) + count)._asdict()
            packed = program.pack(p, model.config, weights)
            tokens, scores, cycles = program.run(runtime("decoder", **p), p, prompt, count, packed)
            text = [*prompt, *tokens[:-1].tolist()]
            expected = program.reference(p, model.config, weights, text)[len(prompt) - 1 :]
            limit = 2e-4 * np.abs(expected).max()
            found = scores[:, : expected.shape[1]]
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=limit)
            yield f"{name}, {grid[0]} x {grid[1]} PEs, token {len(cycles) - 1}", int(cycles[-1])


def gemv_published(quick):
    for case, ours, theirs in script("gemv", "published").rows():
        yield f"WaferLLM, {case}: computed", {"ours": ours, "published": theirs}


def mandelbrot(quick):
    program, limit = script("mandelbrot"), 100
    for size in (1, 2, 4):
        block = (16 // size, 16 // size)
        runner = runtime("mandelbrot", width=size, height=size, rows=block[0], columns=block[1])
        picture = {"corner": -2 - 1.25j, "pixel": 2.5 / 16, "limit": limit}
        steps, cycles = program.run(runner, block, **picture)
        np.testing.assert_array_equal(steps, program.reference(steps.shape, **picture))
        yield f"mandelbrot, 16 x 16 pixels on {size} x {size} PEs", cycles


def wave(quick):
    cases = [(1, 1, 100, 10), (3, 3, 100, 10)]
    cases += [] if quick else [(12, 12, 8, 10), (9, 9, 1000, 10), (128, 128, 8, 100)]
    for height, width, cells, steps in cases:
        field = np.random.default_rng(cells).standard_normal((height, width, cells))
        field, speed = field.astype(np.float32), np.full(field.shape, 0.4, np.float32)
        runner = runtime("wave", height=height, width=width, cells=cells)
        after, cycles = script("wave").run(runner, field, speed, steps)
        np.testing.assert_array_equal(after, script("wave").reference(field, speed, steps))
        yield f"wave, {height} x {width} PEs of {cells} cells, {steps} steps", cycles


def krylov(quick):
    program, iterations = script("krylov"), 5
    shapes = [(1, 1, 100), (3, 3, 100)] + ([] if quick else [(12, 12, 8), (12, 12, 200)])
    for number, method in enumerate(program.METHODS):
        for shape in shapes:
            points = np.array([7.0, *[-1.0] * 6], np.float32)
            coefficients = np.tile(points.reshape(7, 1, 1, 1), (1, *shape))
            right = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            sizes = dict(zip(("height", "width", "cells"), shape, strict=True))
            runner = runtime("krylov", method=number, iterations=iterations, **sizes)
            x, squares, cycles = program.run(runner, coefficients, right, iterations)
            expected, history = program.reference(method, coefficients, right, iterations)
            np.testing.assert_array_equal(x, expected)
            np.testing.assert_array_equal(squares, history)
            grid = f"{shape[0]} x {shape[1]} PEs of {shape[2]} cells"
            yield f"{method}, {grid}, {iterations} iterations", cycles


def fft(quick):
    cases = [((64,), 1, 3), ((2048,), 1, 5), ((4096,), 1, 16), ((8, 8), 1, 1), ((8, 8), 1, 3)]
    cases += [((64, 64), 1, 64)]
    if not quick:
        cases += [((16, 16, 16), 5, 3), ((16, 16, 16), 16, 16)]
        cases += [((256, 256), 1, 256), ((512, 512), 1, 512)]
    for shape, height, width in cases:
        program, rng = script("fft"), np.random.default_rng(0)
        values = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        axes = dict(zip(("length0", "length1", "length2"), program.lengths(shape), strict=True))
        turned = int(len(shape) == 1)
        runner = runtime("fft", height=height, width=width, turned=turned, **axes)
        got, cycles = program.run(runner, values)
        want = program.reference(values)
        assert abs(got - want).max() < 1e-6 * abs(want).max()
        yield f"fft, {' x '.join(map(str, shape))} on {height} x {width} PEs", cycles


def fft_published(quick):
    """The abstract's 959 us at 0.85 GHz."""
    case = "FFT of 512 × 512 × 512, 512 × 512 PEs: computed (simulated: one exchange of it), cycles"
    yield case, {"ours": script("fft", "published").cycles(512), "published": 815_150}


def krylov_published(quick):
    case = "BiCGStab 602 × 595, another arithmetic, cycles per cell: computed (simulated up to"
    cycles = script("krylov", "published").iteration(602, 595, 768) / 768
    yield f"{case} 20 × 20 PEs)", {"ours": round(cycles, 1), "published": 15.6}


def wave_published(quick):
    """503 TFLOP/s with 53 flops a cell on 745,500 PEs at 0.85 GHz; another exchange."""
    steps, cells = 10, 100 if quick else 1000
    runner = runtime("wave", height=9, width=9, cells=cells)
    field = np.random.default_rng(0).standard_normal((9, 9, cells))
    _, cycles = script("wave").run(runner, field, np.full(field.shape, 0.4), steps)
    case = f"wave of 25 points, another exchange, 9 × 9 PEs of {cells} cells, cycles per cell"
    yield f"{case}: simulated", {"ours": round(cycles / steps / cells, 1), "published": 67}


# Program -> its rows: names and values, in cycles unless the name says otherwise; ``quick`` asks
# for the small ones.
CASES = {
    "decoder": decoder,
    "fft": fft,
    "gemm": gemm,
    "gemv": gemv,
    "krylov": krylov,
    "kvshift": kvshift,
    "life": life,
    "line_sum": line_sum,
    "mandelbrot": mandelbrot,
    "wave": wave,
}
# Program -> pairs: a name, and {"ours": …, "published": …}.
PUBLISHED = {
    "fft": fft_published,
    "gemv": gemv_published,
    "krylov": krylov_published,
    "wave": wave_published,
}


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
