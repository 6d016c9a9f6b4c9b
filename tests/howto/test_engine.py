"""docs/howto/engine.md, from outside the packages: its class trains from a run file."""

import json
import re

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
