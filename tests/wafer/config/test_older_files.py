"""Lists of trainers, keys of the TensorFlow years, and command lines of every release."""

import itertools
import os
import subprocess
import sys

import pytest
import yaml
from helpers.paths import ROOT
from helpers.runs import TINY, TINY_ROWS, metrics

from wafer.config import load_all, parse_config
from wafer.errors import ConfigError
from wafer.vendor.keys import table


def trainer(steps, rate):
    return {
        "init": {
            "model": TINY,
            "optimizer": {"SGD": {"momentum": 0.0}},
            "schedulers": [{"ConstantLR": {"learning_rate": rate}}],
            "loop": {"max_steps": steps},
            "checkpoint": {"steps": steps},
            "seed": 1,
            "logging": {"log_steps": 1},
        },
        "fit": {"train_dataloader": TINY_ROWS},
    }


def written(tmp_path, content):
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_list_of_trainers_is_read_in_order(tmp_path):
    trainers = [{"trainer": trainer(2, 0.1)}, trainer(5, 0.01)]
    cfgs = load_all(written(tmp_path, {"trainer": trainers}), {"model_dir": "here"})
    assert [cfg.runconfig.max_steps for cfg in cfgs] == [2, 5]
    assert [cfg.runconfig.model_dir for cfg in cfgs] == ["here", "here"]
    (alone,) = load_all(written(tmp_path, {"trainer": trainer(2, 0.1)}))
    assert alone.runconfig.max_steps == 2


def test_all_trainers_are_checked_before_the_first_runs(tmp_path):
    trainers = [trainer(2, 0.1), trainer(2, 0.1)]
    trainers[1]["init"] |= {"model": TINY | {"num_heads": 3}}
    path = written(tmp_path, {"trainer": trainers})
    with pytest.raises(ConfigError, match=r"(?s)params.yaml, trainer 2 of 2: .*num_heads"):
        load_all(path)
    with pytest.raises(ConfigError, match="an empty list"):
        load_all(written(tmp_path, {"trainer": []}))


@pytest.mark.slow
def test_the_vendors_command_runs_the_list(tmp_path):
    """The second trainer goes on from the first's checkpoint, as there: one model_dir."""
    path = written(tmp_path, {"trainer": [trainer(2, 0.1), trainer(5, 0.01)]})
    command = [sys.executable, "-m", "wafer.run", "CPU", "-p", str(path), "-o", "run"]
    command += ["--num_workers_per_csx", "1", "--mount_dirs", "a", "b", "--disable_version_check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    records = metrics(tmp_path / "run")
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5]
    assert [record["lr/0"] for record in records] == pytest.approx([0.1] * 2 + [0.01] * 3)
    assert "runconfig.num_workers_per_csx" in ended.stdout + ended.stderr


SECTIONS = {
    "train_input": TINY_ROWS,
    "model": TINY,
    "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.1},
    "runconfig": {"max_steps": 1},
}


REMOVED = table().removed
PLACES = itertools.product(["runconfig", "train_input", "model", "optimizer", None], REMOVED)


@pytest.mark.parametrize(("section", "key"), [p for p in PLACES if p != ("runconfig", "seed")])
def test_keys_of_the_tensorflow_years_are_explained(section, key):
    sections = dict(SECTIONS)
    if section is None:
        sections[key] = {}
    else:
        sections[section] = sections[section] | {key: 1}
    with pytest.raises(ConfigError) as caught:
        parse_config(sections)
    (problem,) = caught.value.problems
    assert problem.path[-1] == key
    assert problem.message.endswith(REMOVED[key])


def test_a_key_as_tensorflow_scripts_write_it_is_explained():
    name = "config.matching.kernel.use_legacy_vsl"
    with pytest.raises(ConfigError, match=r"enable_vts.*attention_mask"):
        parse_config(SECTIONS | {"model": TINY | {name: True}})


def test_tfrecords_are_explained():
    data = TINY_ROWS | {"data_processor": "BertTfRecordsProcessor"}
    with pytest.raises(ConfigError, match=r"TFRecords.*wafer data preprocess"):
        parse_config(SECTIONS | {"train_input": data})


def test_python_paths_lead_to_modules_of_users(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "kept_elsewhere.py").write_text("import optax\nmake = optax.scale_by_sign\n")
    optimizer = {"optimizer_type": "kept_elsewhere:make", "learning_rate": 0.1}
    with pytest.raises(ConfigError, match="PYTHONPATH"):
        parse_config(SECTIONS | {"optimizer": optimizer})
    parse_config(SECTIONS | {"optimizer": optimizer}, {"python_paths": [str(tmp_path)]})


def test_the_working_directory_of_python_paths_is_the_one_of_now(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("first_folder", "second_folder"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"in_{name}.py").write_text("import optax\nmake = optax.scale_by_sign\n")
        monkeypatch.chdir(tmp_path / name)
        optimizer = {"optimizer_type": f"in_{name}:make", "learning_rate": 0.1}
        parse_config(SECTIONS | {"optimizer": optimizer}, {"python_paths": ["."]})
