"""A folder of the vendor's release 2.2, taken over by the lines of ``docs/guides/porting.md``."""

import json
import lzma
import re
import shlex

import h5py
import numpy as np
import pytest
import yaml
from helpers.paths import GOLDEN, ROOT
from helpers.runs import TINY

import wafer
from wafer import models
from wafer.cli import main
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.paths import named_leaves
from wafer.vendor.mdl.file import MdlFile

MODEL = {k: size for k, size in TINY.items() if k != "name"} | {  # 2.2 had no name there
    "embedding_dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "residual_dropout_rate": 0.0,
    "nonlinearity": "gelu",
    "share_embedding_weights": True,
    "mixed_precision": False,
}
ROWS = {
    "data_processor": "GptHDF5MapDataProcessor",
    "data_dir": "theirs/rows",
    "batch_size": 2,
    "shuffle": True,
    "shuffle_seed": 1,
}
PARAMS = {
    "model": MODEL,
    "train_input": ROWS,
    "eval_input": ROWS | {"shuffle": False},
    "optimizer": {
        "optimizer_type": "AdamW",
        "weight_decay": 0.1,
        "learning_rate": [
            {
                "scheduler": "Linear",
                "initial_learning_rate": 0.01,
                "end_learning_rate": 0.0,
                "total_iters": 10,
            }
        ],
    },
    "sparsity": {"algorithm": "static", "sparsity": 0.5, "param_filter": "*ffn*weight"},
    "runconfig": {"max_steps": 100, "checkpoint_steps": 100, "log_steps": 1, "seed": 1},
}
PRUNED = ("ffn.ffn.0.linear_layer.weight", "ffn.ffn.1.linear_layer.weight")
COMMANDS = [
    shlex.split(line)[1:]
    for block in re.findall(
        r"```sh\n(.*?)```",
        (ROOT / "docs" / "guides" / "porting.md").read_text().partition("step by step")[2],
        re.DOTALL,
    )
    for line in block.splitlines()
]


def layout_04(source, path, masks):
    """Write a checkpoint of 2.10 as 2.2 would have: layout 0.4, masks beside the weights."""
    kind = "__H5_TYPE__"
    with MdlFile(source) as file, h5py.File(path, "w") as older:
        older.attrs["__version__"] = 0.4
        older.attrs["__spec__"] = "8004"  # a pickle, which is not opened
        tensors = set(file)
        for name in file.entries(""):
            if name in tensors:
                older[name] = file[name]
                older[name].attrs[kind] = "TorchTensorH5Type"
            elif isinstance(value := file.scalar(name), int | float):
                older[name] = value
                older[name].attrs[kind] = "ScalarH5Type"
        for name, mask in masks.items():
            older[f"{name}_mask"] = mask
            older[f"{name}_mask"].attrs[kind] = "TorchTensorH5Type"


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs" / "rows").mkdir(parents=True)
    ids = np.random.default_rng(0).integers(0, 16, (12, 9))
    rows = np.stack([ids[:, :-1], np.ones((12, 8), int), ids[:, 1:]], 1).astype(np.int32)
    with h5py.File("theirs/rows/data.h5", "w") as file:
        file["data"] = rows
        file.attrs["n_examples"] = 12
    (tmp_path / "theirs" / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    packed = (GOLDEN / "vendor" / "adamw-2.10.mdl.xz").read_bytes()
    (tmp_path / "newest.mdl").write_bytes(lzma.decompress(packed))
    layer = "model.model.transformer_decoder.layers.0."
    masks = {}
    with MdlFile(tmp_path / "newest.mdl") as file:
        for name in PRUNED:
            mask = np.arange(np.prod(file.shape(layer + name))).reshape(file.shape(layer + name))
            masks[layer + name] = (mask % 2).astype(bool)
    layout_04(tmp_path / "newest.mdl", tmp_path / "theirs" / "checkpoint_5.mdl", masks)
    return {name.removeprefix("model."): mask for name, mask in masks.items()}


@pytest.mark.slow  # nine commands, four compiled programs: 10 s
def test_the_lines_of_the_guide_in_their_order(tmp_path, theirs, capsys):
    for argv in COMMANDS:
        assert main(argv) == 0, (argv, capsys.readouterr().err[-2000:])
    assert len(COMMANDS) == 9
    tree, record = load_checkpoint("ported/checkpoints/8")
    assert record["step"] == 8
    alias = models.build({"name": "gpt2", **MODEL}).alias
    for name, leaf in named_leaves(tree["params"]):
        if alias(name) in theirs:
            np.testing.assert_array_equal(~np.isnan(leaf), theirs[alias(name)].T, err_msg=name)
        else:
            assert np.isfinite(leaf).all(), name
    final = dict(named_leaves(wafer.load("final")[1]))
    _, ours = models.from_hf("hf")
    for name, leaf in named_leaves(ours):
        np.testing.assert_array_equal(leaf, final[name], err_msg=name)
    with MdlFile(tmp_path / "back" / "8_to_cs-2.9.mdl") as file:
        assert file.scalar("global_step") == 8
        assert file.scalar("schedulers.0.last_epoch") == 8
        assert file.shape("optimizer.state.0.exp_avg") == (16, 8)
    newer = yaml.safe_load((tmp_path / "back" / "params_to_cs-2.9.yaml").read_text())
    assert newer["trainer"]["init"]["model"]["name"] == "gpt2"
    assert json.dumps(newer)  # plain values alone
