"""Example programs: each folder's script as a user runs it, and what only other data shows."""

import os
import subprocess

import numpy as np
import pytest
from helpers.examples import runtime, script

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
