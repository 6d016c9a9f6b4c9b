"""Suggested commands are those that the user can type."""

import pathlib
import sys

import pytest

from wafer.session import hints


@pytest.fixture
def venv(tmp_path, monkeypatch):
    """A virtual environment below the current folder, not on the shell's path."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("wafer", "python"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    return folder


@pytest.mark.parametrize(
    ("argv", "path", "typed"),
    [
        (".venv/bin/wafer", "/nowhere", ".venv/bin/wafer"),
        ("BIN/wafer", "/nowhere", ".venv/bin/wafer"),
        ("BIN/wafer", "BIN", "wafer"),
        ("/opt/tools/bin/wafer", "/nowhere", "/opt/tools/bin/wafer"),
        ("/site-packages/wafer/__main__.py", "/nowhere", ".venv/bin/python -m wafer"),
        ("/site-packages/wafer/__main__.py", "BIN", "python -m wafer"),
        ("train.py", "/nowhere", "wafer"),  # a program of the user that imports wafer
        ("", "/nowhere", "wafer"),
    ],
)
def test_the_command_is_the_one_that_was_typed(venv, monkeypatch, argv, path, typed):
    monkeypatch.setattr(sys, "argv", [argv.replace("BIN", str(venv))])
    monkeypatch.setenv("PATH", path.replace("BIN", str(venv)))
    assert hints.command() == typed
    lines = hints.next_lines(["wafer run -p a.yaml", "waferscale x"])
    assert lines == ["Next:", f"  {typed} run -p a.yaml", "  waferscale x"]


def test_tensorboard_is_named_where_it_is_or_with_how_to_install_it(venv, monkeypatch):
    folder = pathlib.Path("runs/demo")
    missing = "tensorboard --logdir runs/demo    (first: .venv/bin/python -m pip install "
    assert hints.tensorboard(folder) == missing + "tensorboard)"
    (venv / "tensorboard").touch(mode=0o755)
    assert hints.tensorboard(folder) == ".venv/bin/tensorboard --logdir runs/demo"
    monkeypatch.setenv("PATH", str(venv))
    assert hints.tensorboard(folder) == "tensorboard --logdir runs/demo"


def test_paths_are_quoted_where_a_shell_would_split_or_read_them(venv):
    assert hints.typed(pathlib.Path("läufe/a b")) == "'läufe/a b'"
    assert hints.typed("runs/$1") == "'runs/$1'"
    assert hints.typed("runs/demo") == "runs/demo"
    assert "--logdir 'my runs'" in hints.tensorboard(pathlib.Path("my runs"))
