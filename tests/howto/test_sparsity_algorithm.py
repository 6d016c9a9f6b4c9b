"""docs/howto/sparsity-algorithm.md, from outside the packages: its class trains from YAML."""

import re

import numpy as np
import pytest
import yaml
from helpers.paths import ROOT

import wafer
from wafer import models
from wafer.errors import ConfigError
from wafer.models.checkpoint.reader import load_checkpoint

PAGE = ROOT / "docs" / "howto" / "sparsity-algorithm.md"


def test_an_algorithm_of_the_users_own_trains_from_yaml(tmp_path, monkeypatch):
    pytest.importorskip("sklearn", reason="the rows are scikit-learn's digits")
    code, section = re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "blocks.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    raw = {
        "train_input": {"data_processor": "DigitsDataProcessor", "batch_size": 8},
        "model": {"name": "fc_mnist", "input_size": 64, "hidden_size": 8, "depth": 1},
        "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.5},
        "runconfig": {"max_steps": 2, "checkpoint_steps": 1, "save_initial_checkpoint": True}
        | {"model_dir": str(tmp_path), "seed": 1, "execution_strategy": "resident"},
    } | yaml.safe_load(section)
    masks = []
    for checkpoint in wafer.train(raw).checkpoints:
        leaves = models.named_leaves(load_checkpoint(checkpoint)[0]["params"])
        kernels = [np.isfinite(x) for name, x in leaves if name.endswith("kernel")]
        assert all((m.reshape(-1, 8, m.shape[-1]).sum(1) == 2).all() for m in kernels)
        masks.append(np.concatenate([m.ravel() for m in kernels]))
    assert (masks[0] != masks[1]).any()  # both updates changed it
    assert (masks[1] != masks[2]).any()
    for key, value, message in (("blok", 8, "mean 'block'"), ("block", "x", "a whole number")):
        with pytest.raises(ConfigError, match=message):
            wafer.train(raw | {"sparsity": raw["sparsity"] | {key: value}})
