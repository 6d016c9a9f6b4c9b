"""docs/howto/engine.md, from outside the packages: its class trains from a run file."""

import importlib
import re
import sys

import pytest
import yaml
from helpers.paths import ROOT
from helpers.runs import losses, merged, tiny

PAGE = ROOT / "docs" / "howto" / "engine.md"


@pytest.fixture
def run(tmp_path, monkeypatch, cli):
    """Trains under an engine; returns the losses, or what was said if the exit code is not 0."""
    code, section = re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "one_device.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    optimizer = {"optimizer_type": "AdamW", "learning_rate": 0.01}
    raw = tiny(optimizer=optimizer, model={"dropout_rate": 0.0}, **yaml.safe_load(section))
    raw = merged(raw, runconfig={"checkpoint_steps": 2, "seed": 1, "log_steps": 1})

    def start(folder, flags, code=0, **sections):
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(raw | sections))
        said = cli(f"run -p {tmp_path}/run.yaml -o {tmp_path}/{folder} {flags}", code)
        return said if code else losses(tmp_path / folder)

    return start


def test_an_engine_of_the_users_own_trains_from_yaml(run):
    own = run("own", "--max_steps 4")
    assert run("builtin", "--max_steps 4 --execution resident") == pytest.approx(own)
    assert len(run("own", "--max_steps 6")) == 6  # it went on from its checkpoint
    said = run("own", "--max_steps 8", 1, sparsity=0.5)
    assert "sparsity: OneDevice trains dense weights" in said


def own_engine(code, tmp_path, monkeypatch):
    """Write the module ``bad_1`` of the user's."""
    monkeypatch.delitem(sys.modules, "bad_1", raising=False)
    (tmp_path / "bad_1.py").write_text(code)
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("", "has no attribute 'f'"),
        ("f = {i: 'x' * 20 for i in range(3000)}", "expected a function, found {0: 'xxx"),
        ("def f(): pass", r"line 1\): too many positional arguments; expected a function or class"),
        ("def f(one, two): pass", r"line 1\): missing a required argument: 'two'"),
        ("class f:\n    def __init__(self): pass", r"line 2\): too many positional arguments"),
        ("def f(one): pass\nproblems = 3", "'bad_1:problems': expected a function, found int"),
        ("def f(one): pass\ndef problems(): pass", "'bad_1:problems'.*too many positional"),
        ("def f(one): pass\ndef problems(e): return 3", "problems gave int; expected a list of"),
        ("def f(one): pass\ndef problems(e): 1 / 0", r"ZeroDivisionError: .*bad_1\.py, line 2"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("flags", ["--validate_only --trust_code", ""])
def test_an_engine_that_cannot_be_called_is_refused(run, code, says, flags, tmp_path, monkeypatch):
    own_engine(code, tmp_path, monkeypatch)
    error = run("bad", f"--max_steps 1 --execution bad_1:f {flags}", 1)
    assert re.search(rf"runconfig.execution_strategy: .*{says}", error), error
    assert len(error) < 1000
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def f(one): 1 / 0", r"'bad_1:f' fails: ZeroDivisionError.*bad_1\.py, line 1"),
        ("def f(one): pass", "'bad_1:f' gave NoneType; expected a wafer.engines.Engine"),
    ],
)
def test_an_engine_that_cannot_be_made_is_refused(run, code, says, tmp_path, monkeypatch):
    own_engine(code, tmp_path, monkeypatch)
    assert re.search(says, run("bad", "--max_steps 1 --execution bad_1:f", 1))
