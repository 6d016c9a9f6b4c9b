"""Which compiler builds the native libraries, and when Zig's is asked for."""

import importlib.util
import runpy
import sys
import tomllib

import pytest
from helpers.paths import ROOT

from wafer.vsl.native import backend

ZIG = [sys.executable, "-m", "ziglang", "c++", "-mcpu=baseline"]


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine that can run Zig's compiler and has none of its own."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CXX", "WAFER_NATIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(backend.sysconfig, "get_config_var", lambda name: "g++ -pthread")
    monkeypatch.setattr(backend.platform, "system", lambda: "Linux")
    monkeypatch.setattr(backend.platform, "machine", lambda: "x86_64")
    return tmp_path


def put(folder, name, status):
    """A compiler that does nothing, or fails."""
    (folder / name).write_text(f"#!/bin/sh\nexit {status}\n")
    (folder / name).chmod(0o755)


def test_zig_is_asked_for_where_no_compiler_works(bare):
    assert backend.local_compiler() is None
    assert backend._required_compilers() == ["ziglang>=0.17"]
    put(bare, "g++", 1)  # gcc without the C++ library fails like this
    assert backend._required_compilers() == ["ziglang>=0.17"]
    put(bare, "clang++", 0)
    assert backend.local_compiler() == ["clang++"]
    assert backend._required_compilers() == []


def test_nothing_is_asked_for_that_would_not_serve(bare, monkeypatch):
    monkeypatch.setenv("WAFER_NATIVE", "0")
    assert backend._required_compilers() == []
    monkeypatch.delenv("WAFER_NATIVE")
    monkeypatch.setattr(backend.platform, "machine", lambda: "s390x")
    assert backend._required_compilers() == []


def test_the_hooks_ask_besides_what_setuptools_asks(bare, monkeypatch):
    monkeypatch.setattr(backend.build_meta, "get_requires_for_build_wheel", lambda settings: ["a"])
    monkeypatch.setattr(
        backend.build_meta, "get_requires_for_build_editable", lambda settings: ["b"]
    )
    assert backend.get_requires_for_build_wheel() == ["a", "ziglang>=0.17"]
    assert backend.get_requires_for_build_editable() == ["b", "ziglang>=0.17"]


def test_a_compiler_asked_for_by_name_is_not_replaced(bare, monkeypatch):
    monkeypatch.setenv("CXX", "/opt/c++ -m64")
    assert backend.compiler() == ["/opt/c++", "-m64"]
    assert backend._required_compilers() == []


@pytest.mark.parametrize("installed", [True, False])
def test_zig_serves_where_it_is_installed(installed, bare, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    assert backend.compiler() == (ZIG if installed else None)


def test_an_older_python_is_named(monkeypatch):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))
    monkeypatch.setattr(sys, "version_info", (needed[0], needed[1] - 1, 9, "final", 0))
    with pytest.raises(SystemExit, match=f"requires Python {needed[0]}.{needed[1]} or later; this"):
        runpy.run_path(backend.__file__)
