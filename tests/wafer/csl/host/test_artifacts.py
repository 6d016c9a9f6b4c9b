"""What a compilation leaves: round trips, files of public programs, and what is refused."""

import json

import numpy as np
import pytest
from helpers.csl_host import A, FakeMachine, image

from wafer.csl.host.artifacts import load, load_cores, offsets_of, save, save_cores
from wafer.errors import CompileError


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "out", image(tiles=[[0, -1], [0, 0]]), {"n": "4"}, offsets=(5, 1))
    return tmp_path / "out"


def same(left, right):
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def test_round_trip(folder):
    expected, loaded = image(tiles=[[0, -1], [0, 0]]), load(folder)
    assert same(expected, loaded)
    assert type(loaded.programs[0].exports["a"]) is type(expected.programs[0].exports["a"])
    assert offsets_of(folder) == (5, 1)


def test_files_of_public_programs(folder):
    out = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    assert out["params"] == {"n": "4"}
    symbols = json.loads((folder / "out_rpc.json").read_text(encoding="utf-8"))["rpc_symbols"]
    assert [(s["id"], s["name"], s["kind"]) for s in symbols] == [
        (0, "a", "Var"),
        (1, "work", "Func"),
        (2, "never", "Func"),
        (3, "MEMCPYH2D_1", "Stream"),
        (4, "MEMCPYD2H_1", "Stream"),
    ]
    assert symbols[1]["inputs"] == ["i16", "f32"]
    assert not symbols[0]["immutable"]
    assert [file.name for file in (folder / "bin").iterdir()] == ["out_5_1.elf"]


def test_no_other_files(folder):
    """Nothing half-written is left, also when a folder is compiled to again."""
    save(folder, image(), {})
    names = {"bin", "out.json", "out_rpc.json", "wafer.json", "wafer.npz"}
    assert {file.name for file in folder.iterdir()} == names
    assert [file.name for file in (folder / "bin").iterdir()] == ["out_4_1.elf"]


def test_refused(folder, tmp_path):
    with pytest.raises(CompileError, match="nothing was compiled to this folder"):
        load(tmp_path)
    arrays, rest = folder / "wafer.npz", folder / "wafer.json"
    data = arrays.read_bytes()
    arrays.write_bytes(data[:-1])
    with pytest.raises(CompileError, match=r"is not the file that wafer\.json was written with"):
        load(folder)
    arrays.write_bytes(data)
    head = json.loads(rest.read_text(encoding="utf-8"))
    rest.write_text(json.dumps(head | {"version": 99}), encoding="utf-8")
    with pytest.raises(CompileError, match=r"is of version 99, this is version \d+; compile again"):
        load(folder)
    rest.write_text("{", encoding="utf-8")
    with pytest.raises(CompileError, match="compile again"):
        load(folder)


def test_cores(folder):
    program = load(folder)
    with pytest.raises(CompileError, match="no run of this program was stopped yet"):
        load_cores(folder, program)
    machine = FakeMachine(program)
    machine.memory[0, 1][A] = 42
    save_cores(folder, program, machine)
    cores = load_cores(folder, program)
    assert cores.keys() == {(0, 0), (0, 1), (1, 1)}
    assert (cores[0, 1][A], cores[1, 1][A]) == (42, 0)
