"""docs/howto/engine.md, from outside the packages: its class trains from a run file."""

import importlib
import json
import re
import sys

import pytest
import yaml
from helpers.paths import ROOT

from wafer.cli import main

PAGE = ROOT / "docs" / "howto" / "engine.md"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Trains under an engine; returns the losses, or the exit code if it is not 0."""
    code, section = re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "one_device.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    data = {"data_processor": "SyntheticDataProcessor", "vocab_size": 8, "max_sequence_length": 8}
    model = {"name": "gpt2", "vocab_size": 8, "hidden_size": 8, "num_heads": 2, "dropout_rate": 0.0}
    model |= {"num_hidden_layers": 1, "filter_size": 8, "max_position_embeddings": 8}
    raw = yaml.safe_load(section) | {
        "model": model,
        "train_input": data | {"batch_size": 4},
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.01},
    }
    raw["runconfig"] |= {"checkpoint_steps": 2, "seed": 1, "log_steps": 1}

    def start(folder, *flags, **sections):
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(raw | sections))
        status = main(["run", "-p", f"{tmp_path}/run.yaml", "-o", f"{tmp_path}/{folder}", *flags])
        path = tmp_path / folder / "train" / "metrics.jsonl"
        return status or [json.loads(line)["loss"] for line in path.read_text().splitlines()]

    return start


def test_an_engine_of_the_users_own_trains_from_yaml(run, capsys):
    losses = run("own", "--max_steps", "4")
    assert run("builtin", "--max_steps", "4", "--execution", "resident") == pytest.approx(losses)
    assert len(run("own", "--max_steps", "6")) == 6  # it went on from its checkpoint
    assert run("own", "--max_steps", "8", sparsity=0.5) == 1
    assert "sparsity: OneDevice trains dense weights" in capsys.readouterr().err


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
@pytest.mark.parametrize("flags", [["--validate_only", "--trust_code"], []])
def test_an_engine_that_cannot_be_called_is_refused(
    run, code, says, flags, capsys, tmp_path, monkeypatch
):
    monkeypatch.delitem(sys.modules, "bad_1", raising=False)
    (tmp_path / "bad_1.py").write_text(code)
    importlib.invalidate_caches()
    assert run("bad", "--max_steps", "1", "--execution", "bad_1:f", *flags) == 1
    error = capsys.readouterr().err
    assert re.search(rf"runconfig.execution_strategy: .*{says}", error), error
    assert len(error) < 1000
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def f(one): 1 / 0", r"'bad_2:f' fails: ZeroDivisionError.*bad_2\.py, line 1"),
        ("def f(one): pass", "'bad_2:f' gave NoneType; expected a wafer.engines.Engine"),
    ],
)
def test_an_engine_that_cannot_be_made_is_refused(run, code, says, capsys, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "bad_2", raising=False)
    (tmp_path / "bad_2.py").write_text(code)
    importlib.invalidate_caches()
    assert run("bad", "--max_steps", "1", "--execution", "bad_2:f") == 1
    assert re.search(says, capsys.readouterr().err)
