"""Example programs: each folder's script as a user runs it, and what only other data shows."""

import os
import re
import subprocess

import numpy as np
import pytest
from helpers.examples import run, runtime, script

from wafer.cli import main
from wafer.csl import CslError
from wafer.csl.host.region import MemcpyDataType
from wafer.csl.host.tools.examples import EXAMPLES, summaries, write_example
from wafer.csl.host.tools.scripts import write_commands

SCRIPTS = [
    pytest.param(
        path.parent.name,
        path.name,
        marks=[pytest.mark.slow] if "wse3" in path.name else [],
        id=f"{path.parent.name}-{path.stem}",
    )
    for path in sorted(EXAMPLES.glob("*/commands_*.sh"))
]


def test_every_folder_has_its_files_in_the_one_style():
    assert main(["csl", "format", "--check", str(EXAMPLES)]) == 0
    folders = {p.name for p in EXAMPLES.iterdir() if p.is_dir() and p.name[0] != "_"}
    assert folders == set(summaries())
    for folder in folders:
        files = {path.name for path in (EXAMPLES / folder).iterdir()}
        assert {"layout.csl", "run.py", "commands_wse2.sh", "README.md"} <= files


@pytest.mark.parametrize(("name", "commands"), SCRIPTS)
def test_the_script_of_a_folder(name, commands, tmp_path):
    write_example(name, tmp_path / name)
    write_commands(tmp_path / "bin")
    env = os.environ | {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    options = {"env": env, "capture_output": True, "text": True}
    ended = subprocess.run(["sh", commands], check=False, cwd=tmp_path / name, **options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == "SUCCESS!"


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("fft", {"length0": 12}, "length0 is a power of two"),
        ("gemm", {"size": 2, "columns": 4, "half": 1}, "columns are a multiple of 16 bytes"),
        ("gemv", {"group": 0, "chain": 0, "half": 0, "columns": 4}, "group is at least 1"),
        ("gemv", {"group": 1, "chain": 0, "half": 2, "columns": 4}, "half is 0 or 1"),
        ("kvshift", {"slots": 1}, "slots is at least 2"),
        ("krylov", {"method": 2}, "method is 0 or 1"),
        ("line_sum", {"group_x": 2, "group_y": 0}, "group_y is at least 1"),
        ("mandelbrot", {"rows": 0, "columns": 2}, "rows is at least 1"),
        ("md", {"reach": 5}, "reach is 1 to 4"),
    ],
)
def test_params_that_a_layout_refuses(name, params, said):
    text = (EXAMPLES / name / "layout.csl").read_text()
    others = dict.fromkeys(re.findall(r"^param (\w+): u16;", text, re.MULTILINE), 1)
    with pytest.raises(CslError, match=f"@comptime_assert: {said}"):
        runtime(name, **(others | params))


class TestFft:
    def test_by_hand(self):
        """A unit at 1 of four: 1, -i, -1, i. Ones: their number, and nothing else."""
        row = {"width": 2, "height": 1, "length1": 2, "length2": 1}
        got, _ = run("fft", np.array([0, 1, 0, 0]), length0=2, turned=1, **row)
        np.testing.assert_allclose(got, [1, -1j, -1, 1j], atol=1e-7)
        got, _ = run("fft", np.ones((4, 2)), length0=4, turned=0, **row)
        np.testing.assert_array_equal(got, [[8, 0]] + [[0, 0]] * 3)

    @pytest.mark.parametrize(
        ("shape", "height", "width"),
        [((2, 2), 1, 1), ((4, 4), 1, 7), ((32, 8), 1, 8), ((4, 4, 4), 1, 1), ((2, 16, 4), 4, 1)],
    )
    def test_shares_that_are_whole_single_or_empty(self, shape, height, width):
        fft = script("fft")
        axes = dict(zip(("length0", "length1", "length2"), fft.lengths(shape), strict=True))
        values = np.random.default_rng(0).standard_normal(shape)
        got, _ = run("fft", values, width=width, height=height, turned=0, **axes)
        expected = fft.reference(values)
        assert np.abs(got - expected).max() < 1e-6 * np.abs(expected).max()

    @pytest.mark.slow
    def test_published_form(self):
        values = np.random.default_rng(0).standard_normal((16, 16, 16))
        cube = dict.fromkeys(("width", "height", "length0", "length1", "length2"), 16)
        _, cycles = run("fft", values, turned=0, **cube)
        assert script("fft", "published").cycles(16) == pytest.approx(cycles, rel=0.02)


class TestKrylov:
    @pytest.mark.parametrize("method", ["cg", "bicgstab"])
    def test_solution_by_a_dense_matrix(self, method):
        """The host script's reference shares the operator's definition with the program."""
        krylov, shape = script("krylov"), (3, 2, 4)
        coefficients, right = krylov.system(method, shape)
        steps = [(0, 0, 0), (-1, 0, 0), (0, 1, 0), (1, 0, 0), (0, -1, 0), (0, 0, -1), (0, 0, 1)]
        dense = np.zeros((*shape, *shape))
        for at in np.ndindex(shape):
            for k, step in enumerate(steps):
                other = tuple(np.add(at, step))
                if all(0 <= i < size for i, size in zip(other, shape, strict=True)):
                    dense[at + other] = coefficients[k][at]
        sizes = {"height": 3, "width": 2, "cells": 4, "method": krylov.METHODS.index(method)}
        x, _, _ = run("krylov", coefficients, right, 60, 1e-10, iterations=60, **sizes)
        exact = np.linalg.solve(dense.reshape(24, 24), right.ravel().astype(float))
        np.testing.assert_allclose(x.ravel(), exact, atol=1e-4)

    @pytest.mark.parametrize("method", [0, 1])
    def test_one_cell_by_hand(self, method):
        """4 x = 8: the first direction is the last one."""
        coefficients = np.zeros((7, 1, 1, 1))
        coefficients[0] = 4
        sizes = {"height": 1, "width": 1, "cells": 1, "iterations": 9, "method": method}
        x, squares, _ = run("krylov", coefficients, np.full((1, 1, 1), 8.0), 9, **sizes)
        assert x.item() == 2
        assert squares.tolist() == [64, 0]

    @pytest.mark.slow
    def test_published_form(self):
        krylov, shape = script("krylov"), (9, 9, 20)
        sizes = {"height": 9, "width": 9, "cells": 20, "iterations": 2, "method": 1}
        system = krylov.system("bicgstab", shape)
        cycles = [run("krylov", *system, iterations, **sizes)[2] for iterations in (1, 2)]
        computed = script("krylov", "published").iteration(*shape)
        assert computed == pytest.approx(cycles[1] - cycles[0], rel=0.01)


class TestLife:
    def test_a_glider_moves_one_cell_in_four_generations(self):
        cells = np.zeros((7, 6), int)
        cells[:3, :3] = [[0, 1, 0], [0, 0, 1], [1, 1, 1]]
        moved, _ = run("life", cells, 4, height=7, width=6)
        np.testing.assert_array_equal(moved, np.roll(cells, (1, 1), axis=(0, 1)))

    @pytest.mark.parametrize("shape", [(1, 1), (1, 2), (5, 1)])
    def test_narrow_grids(self, shape):
        cells = np.ones(shape, int)
        after, _ = run("life", cells, 3, height=shape[0], width=shape[1])
        np.testing.assert_array_equal(after, script("life").reference(cells, 3))


KINDS = (MemcpyDataType.MEMCPY_32BIT, MemcpyDataType.MEMCPY_16BIT)


class TestGemv:
    @pytest.mark.parametrize(
        ("mesh", "shape", "group", "chain", "half"),
        [
            ((1, 1), (1, 1), 1, 0, 1),
            ((2, 3), (5, 20), 1, 0, 0),
            ((4, 2), (11, 7), 4, 1, 1),
            ((7, 1), (20, 17), 3, 0, 1),
            ((9, 1), (18, 40), 4, 0, 1),
            ((1, 9), (6, 70), 1, 0, 0),
        ],
    )
    def test_shapes_that_divide_nothing_and_closed_forms(self, mesh, shape, group, chain, half):
        lane, rng = 8 if half else 4, np.random.default_rng(sum(shape))
        p = {"height": mesh[0], "width": mesh[1], "group": group, "chain": chain, "half": half}
        p |= {"rows": -(-shape[0] // mesh[0]), "columns": -(-shape[1] // mesh[1] // lane) * lane}
        x, matrix = rng.standard_normal(shape[0]), rng.standard_normal(shape)
        y, cycles = run("gemv", p, x, matrix, options={"data_type": KINDS[half]}, **p)
        np.testing.assert_allclose(y, x @ matrix, atol=0.03 if half else 1e-5, rtol=0)
        if half and not chain:
            published = script("gemv", "published")
            closed = 11 + published.product_cycles(p["rows"], p["columns"])
            closed += published.sum_cycles(mesh[0], p["columns"], group)
            assert closed == pytest.approx(cycles, rel=0.05)


class TestGemm:
    @pytest.mark.parametrize(
        ("size", "rows", "inner", "columns", "half"),
        [(1, 3, 5, 8, 1), (2, 13, 1, 4, 0), (3, 2, 2, 8, 1), (4, 1, 4, 4, 0)],
    )
    def test_products_and_their_closed_form(self, size, rows, inner, columns, half):
        p = {"size": size, "rows": rows, "inner": inner, "columns": columns, "half": half}
        rng = np.random.default_rng(size)
        a = rng.standard_normal((size * rows, size * inner))
        b = rng.standard_normal((size * inner, size * columns))
        c, cycles = run("gemm", p, a, b, options={"data_type": KINDS[half]}, **p)
        np.testing.assert_allclose(c, a @ b, atol=0.05 if half else 1e-5, rtol=0)
        if half:
            closed = script("gemv", "published").gemm_cycles(size, rows, inner, columns)
            assert closed == pytest.approx(cycles, rel=0.03)

    @pytest.mark.parametrize("size", range(2, 12))
    def test_rings_have_no_long_links(self, size):
        ring = script("gemm").ring(size)
        assert sorted(ring) == list(range(size))
        assert abs(ring - np.roll(ring, -1)).max() <= 2


class TestKvShift:
    @pytest.mark.parametrize(
        ("height", "shape"),
        [(1, (3, 1, 4)), (2, (1, 1, 4)), (2, (6, 2, 3)), (3, (7, 2, 4)), (9, (4, 1, 6))],
    )
    def test_order_and_balance(self, height, shape):
        counts, kept, entries, _ = self.push(height, shape)
        np.testing.assert_array_equal(counts, script("kvshift").reference(entries, height))
        np.testing.assert_array_equal(kept, entries)

    def test_an_entry_takes_as_long_in_a_taller_mesh(self):
        spent = [self.push(height, (16, 1, 6))[-1] for height in (4, 8)]
        assert spent[0] == pytest.approx(spent[1], rel=0.05)

    def push(self, height, shape):
        p = dict(zip(("most", "width", "words"), shape, strict=True)) | {"height": height}
        p["slots"] = -(-shape[0] // height) + 1
        entries = np.random.default_rng(height).standard_normal(shape).astype(np.float32)
        counts, kept, cycles = run("kvshift", p, entries, **p)
        return counts, kept, entries, cycles


@pytest.mark.parametrize(("height", "width"), [(1, 5), (4, 1)])
def test_sums_of_single_lines(height, width):
    values = np.arange(5.0 * height * width).reshape(height, width, 5)
    sums, _ = run("line_sum", values, width=width, height=height, group_x=2, group_y=3)
    np.testing.assert_array_equal(sums, script("line_sum").reference(values))


def test_mandelbrot_by_hand():
    """-2 stays, at the radius; from 1: 0, 1, 2, 5; from 4: 0, 4."""
    sizes = {"width": 1, "height": 1, "rows": 1, "columns": 3}
    steps, _ = run("mandelbrot", (1, 3), -2 + 0j, 3.0, 50, **sizes)
    assert steps.tolist() == [[50, 3, 1]]


class TestMd:
    # Cells of the crystal, and PEs for each: a row, a column, an odd grid, some without an atom.
    @pytest.mark.parametrize(
        ("cells", "block"),
        [
            ((4, 1, 1), (1, 2)),
            ((1, 3, 1), (2, 1)),
            ((2, 1, 1), (1, 3)),
            pytest.param((3, 3, 1), (1, 3), marks=pytest.mark.slow),
            pytest.param((4, 4, 6), (4, 3), marks=pytest.mark.slow),
        ],
    )
    def test_grids(self, cells, block):
        positions, *place = _crystal(cells, block, 0.05)
        _, _, forces, energies, _ = _md(positions, *place, 0)
        _, _, want, bound = script("md").reference(positions, 0, 0)
        np.testing.assert_allclose(forces, want, rtol=1e-5, atol=3e-5)
        np.testing.assert_allclose(energies, bound, atol=1e-5)

    def test_two_atoms_by_hand(self):
        """3 Angstrom apart: each has the density (3 - d)^2 of the other."""
        _, _, forces, energies, _ = _md(
            np.array([[0.0, 0, 0], [3, 0, 0]]), np.array([[0, 1]]), 1, 0
        )
        away, binding = 4.076980 - 3, 2.591061
        inner = 1.2157373 + 3 * 0.0271471 - 9 * 0.1217350
        np.testing.assert_allclose(energies, -binding * away + 1.2**2 * inner / 2, rtol=1e-6)
        slope = -2 * 1.2 * inner + 1.2**2 * (0.0271471 - 6 * 0.1217350)
        slope += 2 * binding / (2 * away) * 2 * away
        np.testing.assert_allclose(forces, [[slope, 0, 0], [-slope, 0, 0]], rtol=1e-5)

    def test_the_metal_is_tantalum(self):
        """Bound by 8.10 eV an atom, at the least for the cell of 3.3058 Angstrom."""
        md, energies = script("md"), []
        for side in (3.3058, 3.28, 3.33):
            positions = md.lattice((5, 5, 5), side)
            middle = ((positions - positions.mean(axis=0)) ** 2).sum(axis=1).argmin()
            energies.append(md.reference(positions, 0, 0)[3][middle])
        assert energies[0] == pytest.approx(-8.10, abs=1e-4)
        assert energies[0] == min(energies)

    def test_energy_stays_to_the_square_of_the_step(self):
        """After 0.1 ps; a half of the step leaves a quarter of the error."""
        md, errors = script("md"), []
        crystal = _crystal((2, 2, 1), (2, 1), 0.15)
        _, still, _, start, _ = _md(*crystal, 0)
        for step, steps in ((0.01, 10), (0.005, 20)):
            _, moved, _, end, _ = _md(*crystal, steps, step)
            errors.append(md.total(moved, end) - md.total(still, start))
        assert errors[0] / errors[1] == pytest.approx(4, rel=0.25)
        assert abs(errors[1]) < 1e-3 * abs(md.total(still, start))

    def test_assigned_and_spread(self):
        """In a square: corners first, which have less y, by z; then centres."""
        md = script("md")
        positions = md.lattice((2, 1, 2))
        pes = md.assign(positions, (2, 2))
        np.testing.assert_array_equal(pes, [[0, 1, 2, 3], [4, 5, 6, 7]])
        assert md.reach_of(positions, pes, 3.0) == 3
        assert md.reach_of(positions, pes, 1.0) == 0
        assert md.reach_of(np.array([[0.0, 0, 0], [9, 0, 0]]), np.array([[0, -1, 1]]), 9.5) == 2


def _crystal(cells, block, shaken):
    """Positions, PEs of atoms, reach."""
    md = script("md")
    positions = md.lattice(cells)
    pes = md.assign(positions, block)
    moved = positions + np.random.default_rng(sum(cells)).normal(0, shaken, positions.shape)
    return moved, pes, md.reach_of(positions, pes, 4.6)


def _md(positions, pes, reach, steps, step=0.002):
    sizes = {"height": len(pes), "width": len(pes.T), "reach": reach, "segments": 128}
    velocities = np.random.default_rng(0).normal(0, 2, positions.shape)
    return run("md", positions, velocities, pes, steps, step, **sizes)


class TestMontecarlo:
    def test_three_lookups_by_hand(self):
        """Two nuclides, two cross sections; one energy at a point, one at the end of the grids."""
        grids = np.array([[0, 2, 4, 8], [0, 1, 4, 8]], np.float32)
        sections = np.array([[[1, 10], [3, 20], [5, 30], [9, 0]], [[0, 1], [1, 1], [1, 4], [3, 8]]])
        energies = np.array([[[2.0], [8.0]], [[1.0], [5.0]]], np.float32)
        found, answers, *_ = _montecarlo(grids, sections, np.array([2, 10]), energies)
        assert found.tolist() == [1, 2, 5, 8]
        expected = [
            [2 * 2 + 10 * 1, 2 * 15 + 10 * 1],
            [2 * 3 + 10 * 1, 2 * 20 + 10 * 2],
            [2 * 6 + 10 * 1.5, 2 * 22.5 + 10 * 5],
            [2 * 9 + 10 * 3, 2 * 0 + 10 * 8],
        ]
        np.testing.assert_allclose(answers, expected, rtol=1e-6)

    @pytest.mark.parametrize("shape", [(1, 1, 30, 2, 60), (7, 1, 12, 2, 60), (3, 2, 8, 2, 60)])
    def test_grids(self, shape):
        montecarlo = script("montecarlo")
        problem = montecarlo.problem(*shape)
        found, sections, balanced, _, _ = _montecarlo(*problem)
        np.testing.assert_array_equal(found, np.sort(problem[3], axis=None))
        np.testing.assert_allclose(sections, montecarlo.reference(*problem), rtol=1e-5)
        # Rows are bands of energy, which share the points of all grids evenly.
        bands = np.quantile(problem[0], np.arange(1, shape[0]) / shape[0], method="higher")
        expected, _ = np.histogram(problem[3], [0, *bands, 2])
        np.testing.assert_array_equal(balanced.sum(axis=1), expected)

    def test_work_lasts_as_long_as_the_fullest_pe(self):
        """So balancing pays where every other column has all of a row's particles."""
        *material, _ = script("montecarlo").problem(2, 4, 6, 1, 60)
        energies = np.where(np.arange(4)[:, None] % 2, 0.9, 0.1) * np.ones((2, 4, 6))
        spent = [_montecarlo(*material, energies.astype("f4"), rounds)[4] for rounds in (0, 8)]
        assert spent[1] < 0.7 * spent[0]

    def test_balancing_by_hand(self):
        """Half of 8 go to the east; none is lost."""
        energies = np.array([[[0.5] * 8 + [9.0], [9.0] * 9, [0.5] + [9.0] * 8]])
        energies = np.concatenate([energies, np.full((1, 3, 9), 9.0)])  # in the other band
        history = script("montecarlo").loads(np.array([[0.0, 1, 2, 9]]), energies, 1)
        assert history[:, 0].tolist() == [[8, 0, 1], [4, 4, 1]]

    def test_stochastic_interpolation_is_right_on_average(self):
        """One of two values each time; the upper one as often as the energy is near it."""
        grids = np.array([[0.0, 0.25, 0.75, 1]], np.float32)
        sections, energies = np.array([[[5.0], [1], [2], [5]]]), np.full((1, 1, 400), 0.4, "f4")
        problem = grids, sections, np.array([10.0]), energies
        _, answers, _, _, cycles = _montecarlo(*problem, stochastic=1)
        assert set(answers.ravel().tolist()) == {10, 20}
        assert answers.mean() == pytest.approx(13, abs=0.75)  # three deviations of the mean
        assert cycles < 0.8 * _montecarlo(*problem)[4]


def _montecarlo(grids, sections, densities, energies, rounds=None, stochastic=0):
    sizes = script("montecarlo").sizes(grids, sections, energies, rounds)
    params = sizes | {"stochastic": stochastic}
    return run("montecarlo", params, grids, sections, densities, energies, **params)


class TestNbody:
    def test_two_bodies_by_hand(self):
        """Three apart along x, at rest: 2 / 9 and 4 / 9 towards each other, but for softening."""
        places, rest = np.array([[1.0, 0, 0], [4, 0, 0]]), np.zeros((2, 3))
        before, after = _nbody((places, rest, np.array([4.0, 2])), 1, 0.5)
        expected = [[2 / 9, 0, 0], [-4 / 9, 0, 0]]
        np.testing.assert_allclose(before[2], expected, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(after[0][:, 0], [1 + 1 / 36, 4 - 1 / 18], rtol=1e-6)

    @pytest.mark.parametrize("distance", [1e-3, 0.7, 3.0, 1e4])
    def test_one_over_the_root_at_many_scales(self, distance):
        """The guess and three steps of Newton's method are right to rounding."""
        places = np.linspace(1, 4, 16)[:, None] * distance * np.array([[1.0, 0, 0]])
        places[0] = 0
        masses = np.where(np.arange(16) == 0, distance**2, 0)
        bodies = places, np.zeros((16, 3)), masses
        ((_, _, accelerations),) = _nbody(bodies, 0, 0.0, each=16, softening=1e-6)
        squares = places[1:, 0].astype(np.float32).astype(float) ** 2 + 1e-12
        expected = -(distance**2) * places[1:, 0] / squares**1.5
        np.testing.assert_allclose(accelerations[1:, 0], expected, rtol=1e-6)

    def test_an_orbit_closes(self):
        """A light body on a circle around a heavy one is at a quarter, and back after 2 pi."""
        places, velocities = np.zeros((2, 2, 3))
        places[1, 0] = velocities[1, 1] = 1
        for steps, at in ((100, [0, 1, 0]), (400, [1, 0, 0])):
            bodies = places, velocities, np.array([1, 1e-6])
            _, (after, _, _) = _nbody(bodies, steps, 2 * np.pi / 400)
            np.testing.assert_allclose(after[1], at, atol=2e-3)


def _nbody(bodies, steps, dt, each=1, softening=1e-4):
    """States at the start and at the end, on PEs with so many bodies each."""
    sizes = {"width": len(bodies[0]) // each, "height": 1, "bodies": each}
    return run("nbody", *bodies, steps, dt, options={"softening": softening}, **sizes)[0]


class TestTlr:
    def test_one_term_by_hand(self):
        """(1 + 2i) (3 - i)* (2 + i) = (1 + 2i)(3 + i)(2 + i) = -5 + 15i."""
        one = np.ones((1, 1), np.complex64)
        factors = np.array([[1]]), (1 + 2j) * one, (3 - 1j) * one
        sizes = dict.fromkeys(("width", "height", "tile", "terms", "rows"), 1)
        y, _ = run("tlr", *factors, np.array([2 + 1j]), 1, **sizes)
        assert y.tolist() == [-5 + 15j]

    def test_ranks_by_hand(self):
        """Two tiles of rank 1 and two of 0; the smaller one goes where the tolerance allows it."""
        matrix, compress = np.zeros((4, 4)), script("tlr").compress
        matrix[0, 0], matrix[2:, 2:] = 10, 0.05
        assert compress(matrix, 2, 1e-6)[0].tolist() == [[1, 0], [0, 1]]
        assert compress(matrix, 2, 0.1)[0].tolist() == [[1, 0], [0, 0]]
        assert compress(np.zeros((3, 3)), 2, 0)[0].tolist() == [[0, 0], [0, 0]]

    def test_chunks_and_bandwidth_by_hand(self):
        """Of columns with 7, 0 and 2 terms, at most 3 in a chunk: 2, 2 and 3, and 2.

        One tile of 2 x 2 and rank 2: four products in each phase of 4 + 2 + 2 words, or of 12.
        """
        chunks = script("tlr").chunks
        plan = [chunk[:3] for chunk in chunks(np.array([[3, 0, 1], [4, 0, 1]]), 3)]
        assert plan == [(0, 0, 2), (0, 2, 4), (0, 4, 7), (2, 7, 9)]
        bandwidth = script("tlr", "published").bandwidth(chunks(np.array([[2]]), 2), 2, 64)
        assert bandwidth == (4 * 2 * 8 * 4 / 64, 4 * 2 * 12 * 4 / 64)

    @pytest.mark.parametrize(
        ("tile", "ranks", "pes", "terms"),
        [
            (8, [[8, 1, 0], [2, 5, 0], [0, 7, 3]], (1, 9), 4),
            (9, [[3, 0], [9, 4]], (3, 3), 5),
            (5, [[2, 2, 2], [5, 1, 3]], (7, 1), 20),
            (2, [[0, 0]], (1, 1), 1),
        ],
    )
    def test_chunks_of_many_tiles(self, tile, ranks, pes, terms):
        tlr, rng, ranks = script("tlr"), np.random.default_rng(0), np.array(ranks)
        parts = rng.standard_normal((2, 2 * ranks.sum() + ranks.shape[1], tile)).astype(np.float32)
        *factors, x = np.split(parts[0] + 1j * parts[1], [ranks.sum(), 2 * ranks.sum()])
        rows = tlr.most_rows(tlr.chunks(ranks, terms))
        sizes = {"height": pes[0], "width": pes[1], "tile": tile, "terms": terms, "rows": rows}
        y, _ = run("tlr", ranks, *factors, x.ravel(), terms, **sizes)
        expected = tlr.reference(ranks, *factors, x.ravel())
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


class TestWave:
    @pytest.mark.parametrize("shape", [(9, 1, 9), (1, 9, 9)])
    def test_one_step_from_a_single_cell(self, shape):
        """What is 1 in the middle becomes the weights around it, times the speed squared."""
        middle = tuple(size // 2 for size in shape)
        field = np.zeros(shape, np.float32)
        field[middle] = 1
        after, _ = _wave(field, np.full(shape, 0.25, np.float32), 1)
        side = [-1 / 560, 8 / 315, -1 / 5, 8 / 5]
        ray = np.array([*side, 16 - 3 * 205 / 72, *side[::-1]]) / 16
        expected = np.zeros_like(field)
        expected[middle[0], middle[1]] = ray
        expected[..., middle[2]] = ray.reshape(shape[:2])
        np.testing.assert_allclose(after, expected, rtol=1e-6)

    def test_energy_stays(self):
        """Of the leapfrog: the change's half square, and a field's product with the one before."""
        rng, shape = np.random.default_rng(10), (2, 2, 6)
        field = rng.standard_normal(shape).astype(np.float32)
        speed = rng.uniform(0.1, 0.45, shape).astype(np.float32)

        def energy(steps):
            before, after = (_wave(field, speed, n)[0].astype(float) for n in (steps, steps + 1))
            moving = (((after - before) / speed) ** 2).sum()
            return (moving - (after * _second_derivative(before)).sum()) / 2

        assert energy(400) == pytest.approx(energy(1), rel=1e-5)

    def test_a_step_takes_as_long_on_a_larger_grid(self):
        """From 13 PEs along an axis on."""
        rows = [np.ones((1, size, 8), np.float32) for size in (13, 17)]
        fewer, more = (_wave(row, row * 0.1, 4)[1] for row in rows)
        assert fewer == pytest.approx(more, rel=0.02)


def _wave(field, speed, steps):
    sizes = dict(zip(("height", "width", "cells"), field.shape, strict=True))
    return run("wave", field, speed, steps, **sizes)


def _second_derivative(field):
    """The sum over 25 points, float64, by matrices along each axis."""
    total = np.zeros(field.shape)
    for axis, size in enumerate(field.shape):
        away = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
        matrix = np.where(away <= 4, script("wave").WEIGHTS[np.minimum(away, 4)], 0)
        total += np.moveaxis(np.tensordot(matrix, field, (1, axis)), 0, axis)
    return total
