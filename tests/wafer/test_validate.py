"""``--validate_only`` opens the folders and the checkpoint that a run file names."""

import h5py
import jax
import numpy as np
import pytest
import yaml
from helpers.runs import TINY, tiny

from wafer import models
from wafer.config import parse_config
from wafer.errors import ConfigError
from wafer.models.checkpoint.writer import Checkpoints
from wafer.vendor.mdl.weights import write_weights


@pytest.fixture
def validated(tmp_path, cli):
    """Validate a run file; what was said."""

    def run(sections, code=0):
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(sections))
        return cli(f"run --params {tmp_path}/params.yaml --validate_only", code)

    return run


@pytest.mark.parametrize(
    ("largest", "folder", "code", "words"),
    [
        (15, "rows", 0, ["train_input: 100 examples; 64 of them are sound, ids up to 15"]),
        (16, "rows", 1, ["16", "data-0.h5"]),
        (3, "elsewhere", 0, ["train_input: not looked at"]),
    ],
)
def test_rows_are_looked_at(validated, tmp_path, largest, folder, code, words):
    tokens = np.random.default_rng(0).integers(0, 15, (100, 9), dtype=np.int32)
    tokens[99, 4] = largest  # the last row: rows are read from all over the folder
    data = np.stack([tokens[:, :-1], np.ones((100, 8), np.int32), tokens[:, 1:]], axis=1)
    (tmp_path / "rows").mkdir()
    with h5py.File(tmp_path / "rows" / "data-0.h5", "w") as file:
        file["data"] = data
        file.attrs["n_examples"] = len(data)
    rows = {"data_processor": "GptHDF5MapDataProcessor", "data_dir": str(tmp_path / folder)}
    sections = tiny(runconfig={"model_dir": str(tmp_path / "run")})
    said = validated(sections | {"train_input": rows | {"batch_size": 2}}, code)
    assert all(part in said for part in words), said
    assert not (tmp_path / "run").exists()


def test_a_deep_model_is_listed_by_kind(validated):
    out = validated(tiny(model={"num_hidden_layers": 40}, sparsity=0.5))
    assert "layers_*/ffn/up/kernel (40 x)" in out
    assert "layers_7" not in out


def test_what_a_run_begins_from_is_compared_with_its_model(validated, tmp_path):
    import hdf5plugin  # noqa: F401  the vendor's compression

    begins = lambda path, **model: tiny(runconfig={"checkpoint_path": str(path)}, model=model)
    model = models.build(TINY)
    params = model.init(jax.random.key(0))
    folder, file = tmp_path / "theirs", tmp_path / "theirs.mdl"
    models.to_hf(model, params, folder)
    write_weights(model, params, file, "cs-2.5", step=3)
    own = Checkpoints(tmp_path).save(1, {"params": params}, {"step": 1, "config": {}})
    for path in (folder, file, own):
        assert "checkpoint_path: " in validated(begins(path))
        said = validated(begins(path, hidden_size=16), 1)
        assert path.name in said
        assert "16" in said
    for name in ("gone", "gone.mdl"):
        assert f"{name}: no such file or folder" in validated(begins(tmp_path / name), 1)


def test_a_model_without_a_name_is_told_where_the_vendor_had_it():
    unnamed = {key: value for key, value in TINY.items() if key != "name"}
    with pytest.raises(ConfigError, match=r"model.name: missing; such as `name: gpt2`.*run.py"):
        parse_config({"model": unnamed})
    theirs = unnamed | {"model_name": "gpt2", "use_position_embedding": True}
    assert parse_config(tiny() | {"model": theirs}).model == TINY
