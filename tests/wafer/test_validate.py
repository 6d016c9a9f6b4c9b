"""``--validate_only`` opens the folders that a run file names."""

import h5py
import numpy as np
import pytest
import yaml

from wafer.cli import main


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
