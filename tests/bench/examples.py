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

from wafer import models
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


# Cells of a crystal of tantalum, open at all sides, and rows and columns of PEs for each.
CRYSTALS = [((4, 4, 1), (2, 1)), ((4, 4, 2), (2, 2)), ((4, 4, 3), (3, 2)), ((5, 4, 6), (4, 3))]


def md(quick):
    """Three steps, and the error of the total energy of 16 atoms after 2 ps."""
    for crystal in CRYSTALS[: 2 if quick else None]:
        case, cycles, of_step, picojoules = _md(*crystal, 3)
        yield case, cycles
        yield f"{case}, cycles of a step", of_step
        yield f"{case}, nJ per atom and step", picojoules / 1e3
    program = script("md")
    positions = program.lattice((2, 2, 2))  # all within reach, wherever they go
    pes = program.assign(positions, (2, 2))
    velocities = np.random.default_rng(1).normal(0, 1, positions.shape)
    ends = []
    for steps, step in ((0, 0.002), *(() if quick else ((500, 0.004), (1000, 0.002)))):
        runner = runtime("md", height=4, width=4, reach=3, segments=128)
        _, moved, _, energies, _ = program.run(runner, positions, velocities, pes, steps, step)
        ends.append((step, program.total(moved, energies) / len(positions)))
    for step, energy in ends[1:]:
        yield f"md, drift in 2 ps in steps of {1e3 * step:.0f} fs, eV per atom", energy - ends[0][1]


def _md(cells, block, steps):
    """The case, cycles in all and of a step, pJ of an atom's step."""
    program, ends = script("md"), []
    positions = program.lattice(cells)
    pes = program.assign(positions, block)
    velocities = np.random.default_rng(0).normal(0, 1, positions.shape)
    sizes = {"height": len(pes), "width": len(pes.T)}
    sizes["reach"] = program.reach_of(positions, pes, program.CUTOFF + 0.2)
    for count in (0, steps):
        runner = runtime("md", **sizes, segments=128)
        *state, cycles = program.run(runner, positions, velocities, pes, count)
        for got, want in zip(state, program.reference(positions, velocities, count), strict=True):
            np.testing.assert_allclose(got, want, atol=2e-4)
        ends.append(np.array([cycles, runner.energy().total]))
    apart = np.linalg.norm(positions - positions[:, None], axis=2)
    near = (apart < program.CUTOFF).sum(axis=1).max() - 1
    of_step = (ends[1] - ends[0]) / steps / (1, len(positions))
    case = "md, {height} x {width} PEs, reach {reach}".format(**sizes)
    return f"{case}, {near} neighbours", ends[1][0], *of_step


def montecarlo(quick):
    """Particles and nuclides of a PE, and points of a nuclide in all bands."""
    program = script("montecarlo")
    cases = [(1, 1, 100, 1, 161), (8, 1, 20, 1, 800)]
    cases += [] if quick else [(1, 9, 10, 1, 160), (6, 5, 20, 5, 900)]
    runs = [(shape, stochastic, None) for shape in cases for stochastic in (0, 1)]
    for shape, stochastic, rounds in [*runs, *([] if quick else [(cases[-1], 0, 0)])]:
        problem = program.problem(*shape)
        params = program.sizes(*problem[:2], problem[3], rounds) | {"stochastic": stochastic}
        runner = runtime("montecarlo", **params)
        _, sections, _, _, cycles = program.run(runner, params, *problem)
        if not stochastic:
            np.testing.assert_allclose(sections, program.reference(*problem), rtol=1e-5)
        case = "montecarlo, {} x {} PEs, {} particles, {} nuclides, {} points".format(*shape)
        yield case + ", stochastic" * stochastic + ", not balanced" * (rounds == 0), cycles


def nbody(quick):
    """Bodies of a PE, and steps, on rows and columns of PEs."""
    cases = [(1, 1, 1, 2), (1, 1, 32, 2), (5, 7, 1, 2), (5, 7, 8, 2)]
    for height, width, each, steps in cases + ([] if quick else [(32, 32, 1, 1)]):
        cycles = _nbody(height, width, each, steps)
        yield f"nbody, {height} x {width} PEs, {each} bodies each, {steps} steps", cycles


def _nbody(height, width, each, steps):
    program, bodies = script("nbody"), script("nbody").cluster(height * width * each)
    runner = runtime("nbody", width=width, height=height, bodies=each)
    states, cycles = program.run(runner, *bodies, steps, dt=1e-3, softening=0.05)
    expected = program.reference(*bodies, steps, dt=1e-3, softening=0.05)
    for got, want in zip(states[-1], expected, strict=True):
        assert abs(got - want).max() <= 1e-5 * abs(want).max()
    return cycles


def tlr(quick):
    """One full PE with random tiles of a rank; waves from one line to another that touches it."""
    program, rng = script("tlr"), np.random.default_rng(0)
    for tile, tiles, rank in ((25, 1, 64), (25, 16, 4), (50, 1, 32), (50, 8, 4), (70, 1, 23)):
        shape = (2, tiles * rank, tile)
        factors = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype("c8")
        case = f"tlr, 1 PE, tile {tile}, {tiles} x rank {rank}"
        yield from _tlr(case, (np.full((tiles, 1), rank), *factors), rng.standard_normal(tile), 1)
    matrix, x = program.waves(560), rng.standard_normal(560)
    for tile, terms in ((25, 64), (50, 32), (70, 23))[: 1 if quick else None]:
        factors = program.compress(matrix, tile, 1e-3)
        pes = len(program.chunks(factors[0], terms))
        case = f"tlr, 560 x 560 waves, tile {tile}, {pes} PEs"
        yield from _tlr(case, factors, x, 20, terms)


def _tlr(case, factors, x, side, terms=None):
    """Cycles, and bytes per cycle and PE: of matrices and vectors once, of all reads and writes."""
    program, (ranks, left, _) = script("tlr"), factors
    terms, tile = terms or len(left), left.shape[1]
    plan = program.chunks(ranks, terms)
    sizes = {"tile": tile, "terms": terms, "rows": program.most_rows(plan)}
    y, cycles = program.run(runtime("tlr", width=side, height=side, **sizes), *factors, x, terms)
    expected = program.reference(*factors, x)
    assert abs(y - expected).max() < 2e-6 * abs(expected).max()
    once, moved = script("tlr", "published").bandwidth(plan, tile, cycles)
    yield case, cycles
    yield f"{case}, bytes per cycle and PE", once
    yield f"{case}, bytes per cycle and PE with all reads and writes", moved


def fft_published(quick):
    [(_, ours, theirs)] = script("fft", "published").rows()
    case = "FFT of 512 × 512 × 512, 512 × 512 PEs: computed (simulated: one exchange of it), cycles"
    yield case, {"ours": ours, "published": round(theirs)}


def krylov_published(quick):
    case = "BiCGStab 602 × 595, another arithmetic, cycles per cell: computed (simulated up to"
    [(_, ours, theirs)] = script("krylov", "published").rows()
    yield f"{case} 20 × 20 PEs)", {"ours": round(ours, 1), "published": theirs}


def md_published(quick):
    """Rates at 0.85 GHz."""
    _, _, of_step, _ = _md(*CRYSTALS[3], 3)
    case = "molecular dynamics, 80 candidates, 14 neighbours, steps/s: simulated, 16 × 15 PEs"
    yield case, {"ours": round(0.85e9 / of_step), "published": 274_016}


def nbody_published(quick):
    """1,024 bodies, one per PE."""
    before, after = (_nbody(32, 32, 1, steps) for steps in (0, 1))
    case = "1,024 bodies, another program on WSE-3, cycles of a step: simulated"
    yield case, {"ours": after - before, "published": 324_903}


def tlr_published(quick):
    [(_, _, theirs)] = script("tlr", "published").rows()
    ours = dict(tlr(True))["tlr, 1 PE, tile 50, 1 x rank 32, bytes per cycle and PE"]
    case = "low-rank products, bytes per cycle and PE: simulated, one full PE"
    yield case, {"ours": round(ours, 2), "published": round(theirs, 2)}


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
    "md": md,
    "montecarlo": montecarlo,
    "nbody": nbody,
    "tlr": tlr,
    "wave": wave,
}
# Program -> pairs: a name, and {"ours": …, "published": …}.
PUBLISHED = {
    "fft": fft_published,
    "gemv": gemv_published,
    "krylov": krylov_published,
    "md": md_published,
    "nbody": nbody_published,
    "tlr": tlr_published,
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
