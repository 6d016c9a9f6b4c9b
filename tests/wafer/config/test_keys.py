"""`wafer config keys`, `schema` and `new`: all of them follow from the sections themselves."""

import json

import h5py
import jsonschema  # nbformat needs it, too
import numpy as np
import pytest
import yaml
from helpers.paths import ROOT
from helpers.runs import write_yaml

from wafer.cli import main
from wafer.config import load, parse_config
from wafer.config.keys import json_schema, keys, section_classes
from wafer.config.newfile import run_file
from wafer.models.names import MODELS
from wafer.models.schema import ModelConfig
from wafer.models.sections import Section
from wafer.vendor.keys import spellings

CONFIGS = ROOT / "models" / "configs"


@pytest.mark.parametrize("section", list(section_classes()))
def test_every_key_has_a_meaning(section):
    tables = keys(section)
    assert tables
    assert not [(name, key.name) for name, table in tables for key in table if not key.meaning]


def test_a_class_of_its_own_and_nested_keys():
    [(_, table)] = keys("runconfig")
    by_name = {key.name: key for key in table}
    assert by_name["memoryx.store"].takes == "ram | file"
    assert by_name["memoryx.store"].default == "ram"
    assert by_name["num_act_servers"].meaning == "accepted; no effect here"
    [(name, table)] = keys("adamw")
    assert name == "AdamW"
    rate = next(key for key in table if key.name == "learning_rate")
    assert (rate.takes, rate.default) == ("number | scheduler | list", "required")


def test_every_name_lists_what_it_presets():
    for name, entry in MODELS.items():
        [(_, table)] = keys(name)
        listed = {key.name: key.default for key in table}
        assert set(ModelConfig.model_fields) <= set(listed)
        for key, value in entry.presets.items():
            words = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
            assert listed[key] == words
    [(_, table)] = keys("llama")
    listed = {key.name: key[1:3] for key in table}
    assert listed["norm_type"][1] == "rmsnorm"
    assert listed["rope_theta"] == ("number", "10000.0")
    assert listed["pos_scaling_type"][0] == "linear | llama3 | yarn"


@pytest.mark.parametrize(
    ("words", "meant"), [("models mixtrl", "mixtral"), ("config keys optimiser", "optimizer")]
)
def test_an_unknown_name_is_led_to_the_nearest(words, meant, capsys):
    assert main(words.split()) == 1
    assert f"did you mean '{meant}'" in capsys.readouterr().err


def test_keys_are_printed(capsys):
    assert main(["config", "keys"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{section}" in out for section in section_classes())


@pytest.fixture(scope="module")
def schema():
    return json_schema(spellings)


def test_schema_names_every_key(schema, capsys, monkeypatch):
    monkeypatch.setattr("wafer.config.keys.json_schema", lambda others: schema)
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema
    for classes in section_classes().values():
        for cls in classes.values():
            assert issubclass(cls, Section)
            properties = schema["$defs"][cls.__name__]["properties"]
            assert set(cls.model_fields) <= properties.keys(), cls


def test_schema_of_a_value(schema):
    run = schema["$defs"]["RunSection"]
    assert run["properties"]["max_checkpoints"]["anyOf"][0]["type"] == "integer"
    assert run["properties"]["mode"]["enum"] == ["train", "eval", "eval_all", "train_and_eval"]
    assert run["additionalProperties"] is False


def test_the_repositorys_run_files_follow_the_schema(schema):
    check = jsonschema.Draft202012Validator(schema)
    files = [(path, yaml.safe_load(path.read_text())) for path in CONFIGS.rglob("*.yaml")]
    ours = [(path, file) for path, file in files if "trainer" not in file]
    assert len(ours) > 40
    for path, file in ours:
        assert not [error.message for error in check.iter_errors(file)], path
    wrong = next(file for path, file in ours if path.name == "gpt_pystdlib.yaml")
    wrong["runconfig"]["max_step"] = 1
    assert [error.message for error in check.iter_errors(wrong)]


@pytest.fixture
def rows(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 50, (20, 17), dtype=np.int32)
    data = np.stack([tokens[:, :-1], np.ones((20, 16), np.int32), tokens[:, 1:]], axis=1)
    (tmp_path / "rows").mkdir()
    with h5py.File(tmp_path / "rows" / "data-0.h5", "w") as file:
        file["data"] = data
        file.attrs["n_examples"] = len(data)
    return tmp_path / "rows"


@pytest.mark.parametrize("sparsity", [None, pytest.param("0.9", marks=pytest.mark.slow)])
def test_a_new_file_is_valid_and_trains(rows, tmp_path, capsys, sparsity):
    path = tmp_path / "params.yaml"
    flags = ["--eval_data", str(rows)] + (["--sparsity", sparsity] if sparsity else [])
    argv = ["config", "new", "--model", "gpt2", "--data", str(rows), "-o", str(path), *flags]
    assert main(argv) == 0
    cfg = load(path)
    assert cfg.model["vocab_size"] <= 50
    assert (cfg.model["hidden_size"], cfg.model["max_position_embeddings"]) == (768, 16)
    raw = yaml.safe_load(path.read_text())
    raw["model"] |= {"hidden_size": 8, "num_hidden_layers": 1, "num_heads": 2, "filter_size": 16}
    raw["runconfig"] |= {"max_steps": 2, "mode": "train", "checkpoint_steps": 0}
    small = write_yaml(tmp_path / "small.yaml", raw)
    assert main(["run", "--params", str(small), "--validate_only"]) == 0
    assert main(["run", "--params", str(small), "--model_dir", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("model", ["bert", "llama", "falcon", "mistral", "gpt-neox"])
def test_new_files_of_other_models(rows, model):
    assert parse_config(yaml.safe_load(run_file(model, rows))).model["name"] == model


def test_models_of_other_rows(rows):
    with pytest.raises(ValueError, match="learns from data of its own kind"):
        run_file("t5", rows)


def test_models_lists_the_keys_of_a_name(capsys):
    assert main(["models", "llama"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    ((_, table),) = keys("llama")
    assert (head, lines) == ("llama: decoder", [key.line for key in table])
    norm = next(line for line in lines if line.startswith("  norm_type "))
    assert norm.split()[-2:] == ["rmsnorm", "normalization"]  # the name's preset, its meaning
