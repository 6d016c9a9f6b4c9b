"""The command restarts itself once so that malloc keeps its memory, and only under glibc."""

import os
import subprocess
import sys

import pytest

from wafer import malloc


@pytest.fixture
def started(monkeypatch):
    """What would have been executed."""
    calls = []
    monkeypatch.setattr(os, "execv", lambda program, argv: calls.append((program, argv)))
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "wafer", "run", "--params", "x"])
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    return calls


def test_restarts_once_with_the_same_arguments(started, monkeypatch):
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.36")
    malloc.restart()
    assert started == [(sys.executable, [sys.executable, "-m", "wafer", "run", "--params", "x"])]
    assert "glibc.malloc.mmap_max=0" in os.environ["GLIBC_TUNABLES"].split(":")
    malloc.restart()
    assert len(started) == 1


def _unknown(name):
    raise ValueError("unrecognized configuration name")


def test_leaves_other_systems_and_set_tunables_alone(started, monkeypatch):
    monkeypatch.setattr(os, "confstr", _unknown)  # macOS
    malloc.restart()
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.36")
    monkeypatch.setenv("GLIBC_TUNABLES", "")
    malloc.restart()
    assert not started
    assert os.environ["GLIBC_TUNABLES"] == ""


def test_the_command_says_the_same_after_its_restart():
    env = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    command = [sys.executable, "-m", "wafer", "run", "--params", "no such file.yaml"]
    process = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert process.returncode != 0
    assert "no such file.yaml" in process.stderr
