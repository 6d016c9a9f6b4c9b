"""Preprocessing files to begin with, and how fast rows are read."""

import pytest
import yaml
from helpers.records import write
from helpers.rows import rows_in
from helpers.runs import config
from helpers.vendor_data import characters

from wafer.cli import main
from wafer.data.preprocess.settings import Settings
from wafer.errors import DataError
from wafer.models.sections import parse
from wafer.vendor.preprocess.templates import preprocessing_file, template_names


@pytest.mark.parametrize("name", template_names())
def test_every_template_is_a_file_that_is_read(name, tmp_path, monkeypatch):
    from wafer.vendor.preprocess.load import load_settings

    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    path = tmp_path / "file.yaml"
    path.write_text(preprocessing_file(name))
    settings = load_settings(path, {})
    assert parse(Settings, settings.model_dump()) == settings


def test_a_template_makes_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    characters(tmp_path / "tokenizer")
    (tmp_path / "texts").mkdir()
    write(tmp_path / "texts" / "a.jsonl", [{"text": "abcdefghijkl"}])
    assert main(["data", "new"]) == 0
    assert "pretraining_vsl  texts side by side" in capsys.readouterr().out
    assert main(["data", "new", "pretraining", "-o", "files"]) == 0
    command = ["data", "preprocess", "-p", "files/pretraining.yaml"]
    assert main([*command, "--processes", "1", "--max_seq_length", "16"]) == 0
    assert rows_in(tmp_path / "rows")[0, 0, :13].tolist() == [*range(1, 13), 0]
    assert main(["data", "new", "pretraining", "-o", "files"]) == 1
    assert "File exists" in capsys.readouterr().err
    with pytest.raises(DataError, match="no such template; did you mean 'mlm'"):
        preprocessing_file("mlmm")


def test_data_is_read_without_the_model(tmp_path, capsys):
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(config(runconfig={"model_dir": str(tmp_path / "m")})))
    assert main(["data", "benchmark", "-p", str(path), "--num_epochs", "2"]) == 0
    train, evaluation = capsys.readouterr().out.splitlines()
    assert train.startswith("train_input: 12 batches in ")  # twice 24 rows in batches of 4
    assert evaluation.startswith("eval_input: 12 batches in ")
