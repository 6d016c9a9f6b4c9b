"""Example programs: each folder's script as a user runs it, and what only other data shows."""

import os
import subprocess

import numpy as np
import pytest
from helpers.examples import runtime, script

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


def test_every_folder_has_its_files():
    folders = {p.name for p in EXAMPLES.iterdir() if p.is_dir() and p.name[0] != "_"}
    assert folders == set(summaries())
    for folder in folders:
        files = {path.name for path in (EXAMPLES / folder).iterdir()}
        assert {"layout.csl", "run.py", "commands_wse2.sh", "README.md"} <= files


@pytest.mark.parametrize(("name", "commands"), SCRIPTS)
def test_the_script_of_a_folder(name, commands, tmp_path):
    write_example(name, tmp_path / name)
    write_commands(tmp_path / "bin")
    ended = subprocess.run(
        ["sh", commands],
        cwd=tmp_path / name,
        env=os.environ | {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == "SUCCESS!"


class TestLife:
    def test_a_glider_moves_one_cell_in_four_generations(self):
        cells = np.zeros((7, 6), int)
        cells[:3, :3] = [[0, 1, 0], [0, 0, 1], [1, 1, 1]]
        moved, _ = script("life").run(runtime("life", height=7, width=6), cells, 4)
        np.testing.assert_array_equal(moved, np.roll(cells, (1, 1), axis=(0, 1)))

    @pytest.mark.parametrize("shape", [(1, 1), (1, 2), (5, 1)])
    def test_narrow_grids(self, shape):
        life, cells = script("life"), np.ones(shape, int)
        after, _ = life.run(runtime("life", height=shape[0], width=shape[1]), cells, 3)
        np.testing.assert_array_equal(after, life.reference(cells, 3))


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
        runner = runtime("gemv", **p)
        y, cycles = script("gemv").run(runner, p, x, matrix, data_type=KINDS[half])
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
        c, cycles = script("gemm").run(runtime("gemm", **p), p, a, b, data_type=KINDS[half])
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
        counts, kept, cycles = script("kvshift").run(runtime("kvshift", **p), p, entries)
        return counts, kept, entries, cycles


@pytest.mark.parametrize(("height", "width"), [(1, 5), (4, 1)])
def test_sums_of_single_lines(height, width):
    example, values = script("line_sum"), np.arange(5.0 * height * width).reshape(height, width, 5)
    runner = runtime("line_sum", width=width, height=height, group_x=2, group_y=3)
    np.testing.assert_array_equal(example.run(runner, values)[0], example.reference(values))
