"""``--validate_only`` opens the folders and the checkpoint that a run file names."""

import h5py
import jax
import numpy as np
import pytest
import yaml
from helpers.runs import TINY, TINY_ROWS

from wafer import models
from wafer.cli import main
from wafer.config import parse_config
from wafer.errors import ConfigError
from wafer.models.checkpoint.writer import Checkpoints
from wafer.vendor.mdl.weights import write_weights


@pytest.fixture
def validated(tmp_path, capsys):
    def run(largest, folder="rows"):
        tokens = np.random.default_rng(0).integers(0, 16, (100, 9), dtype=np.int32)
        tokens[99, 4] = largest  # the last row: rows are read from all over the folder
        data = np.stack([tokens[:, :-1], np.ones((100, 8), np.int32), tokens[:, 1:]], axis=1)
        (tmp_path / "rows").mkdir()
        with h5py.File(tmp_path / "rows" / "data-0.h5", "w") as file:
            file["data"] = data
            file.attrs["n_examples"] = len(data)
        sections = {
            "runconfig": {"max_steps": 1, "model_dir": str(tmp_path / "run")},
            "model": {
                "name": "gpt2",
                "vocab_size": 20,
                "hidden_size": 8,
                "num_hidden_layers": 1,
                "num_heads": 2,
                "filter_size": 16,
                "max_position_embeddings": 8,
            },
            "train_input": {
                "data_processor": "GptHDF5MapDataProcessor",
                "data_dir": str(tmp_path / folder),
                "batch_size": 2,
            },
            "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.1},
        }
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(sections))
        code = main(["run", "--params", str(tmp_path / "params.yaml"), "--validate_only"])
        return code, capsys.readouterr()

    return run


def test_rows_are_looked_at(validated, tmp_path):
    code, said = validated(19)
    assert code == 0
    assert "train_input: 100 examples; 64 of them are sound, ids up to 19" in said.out
    assert not (tmp_path / "run").exists()


def test_an_id_beyond_the_vocabulary_is_found(validated):
    code, said = validated(20)
    assert code == 1
    assert "20" in said.err
    assert "data-0.h5" in said.err


def test_a_folder_that_is_not_there_is_no_error(validated):
    code, said = validated(3, folder="elsewhere")
    assert code == 0
    assert "train_input: not looked at" in said.out


def test_a_deep_model_is_listed_by_kind(tmp_path, capsys):
    sections = {
        "runconfig": {"max_steps": 1, "model_dir": str(tmp_path / "run")},
        "model": {
            "name": "gpt2",
            "vocab_size": 20,
            "hidden_size": 8,
            "num_hidden_layers": 40,
            "num_heads": 2,
            "filter_size": 16,
            "max_position_embeddings": 8,
        },
        "train_input": {
            "data_processor": "SyntheticDataProcessor",
            "vocab_size": 20,
            "batch_size": 2,
            "max_sequence_length": 8,
        },
        "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.1},
        "sparsity": 0.5,
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(sections))
    assert main(["run", "--params", str(tmp_path / "params.yaml"), "--validate_only"]) == 0
    out = capsys.readouterr().out
    assert "layers_*/ffn/up/kernel (40 x)" in out
    assert "layers_7" not in out


@pytest.fixture
def begins(tmp_path, capsys):
    """Validate a run of a tiny model that begins from a path; (code, what it said)."""

    def run(path, **model):
        sections = {
            "runconfig": {"max_steps": 1, "checkpoint_path": str(path)},
            "model": TINY | model,
            "train_input": TINY_ROWS,
            "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.1},
        }
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(sections))
        code = main(["run", "--params", str(tmp_path / "params.yaml"), "--validate_only"])
        return code, capsys.readouterr()

    return run


def test_what_a_run_begins_from_is_compared_with_its_model(begins, tmp_path):
    import hdf5plugin  # noqa: F401  the vendor's compression

    model = models.build(TINY)
    params = model.init(jax.random.key(0))
    folder, file = tmp_path / "theirs", tmp_path / "theirs.mdl"
    models.to_hf(model, params, folder)
    write_weights(model, params, file, "cs-2.5", step=3)
    own = Checkpoints(tmp_path).save(1, {"params": params}, {"step": 1, "config": {}})
    for path in (folder, file, own):
        code, said = begins(path)
        assert code == 0, said.err
        assert "checkpoint_path: " in said.out
        code, said = begins(path, hidden_size=16)
        assert code == 1
        assert path.name in said.err
        assert "16" in said.err
    code, said = begins(tmp_path / "nothing")
    assert code == 1
    assert "nothing: no such file or folder" in said.err


def test_a_model_without_a_name_is_told_where_the_vendor_had_it():
    sections = {"model": {key: value for key, value in TINY.items() if key != "name"}}
    with pytest.raises(ConfigError, match=r"model.name: missing; such as `name: gpt2`.*run.py"):
        parse_config(sections)
    sections = {
        "model": sections["model"] | {"model_name": "gpt2", "use_position_embedding": True},
        "train_input": TINY_ROWS,
        "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.1},
        "runconfig": {"max_steps": 1},
    }
    assert parse_config(sections).model == TINY


@pytest.mark.parametrize("name", ["gone", "gone.mdl"])
def test_a_checkpoint_that_does_not_exist_is_no_valid_start(begins, tmp_path, name):
    code, said = begins(tmp_path / name)
    assert code == 1
    assert f"{name}: no such file or folder" in said.err
