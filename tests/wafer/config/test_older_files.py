"""Lists of trainers, keys of the TensorFlow years, and command lines of every release."""

import itertools
import os
import subprocess
import sys

import pytest
from helpers.paths import ROOT
from helpers.runs import TINY, TINY_ROWS, metrics, write_yaml

from wafer.config import load_all, parse_config
from wafer.errors import ConfigError
from wafer.vendor.keys import table


def trainer(steps, rate):
    init = {"model": TINY, "optimizer": {"SGD": {"momentum": 0.0}}, "loop": {"max_steps": steps}}
    init |= {"schedulers": [{"ConstantLR": {"learning_rate": rate}}], "seed": 1}
    init |= {"checkpoint": {"steps": steps}, "logging": {"log_steps": 1}}
    return {"init": init, "fit": {"train_dataloader": TINY_ROWS}}


def written(tmp_path, content):
    return write_yaml(tmp_path / "params.yaml", content)


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
    keys = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    ended = subprocess.run(command, check=True, **keys)
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


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": TINY | {"config.matching.kernel.use_legacy_vsl": True}}, "enable_vts"),
        (
            {"train_input": TINY_ROWS | {"data_processor": "BertTfRecordsProcessor"}},
            r"TFRecords.*wafer data preprocess",
        ),
    ],
)
def test_names_as_tensorflow_scripts_write_them_are_explained(changes, says):
    with pytest.raises(ConfigError, match=says):
        parse_config(SECTIONS | changes)


def test_python_paths_lead_to_modules_of_users(tmp_path, monkeypatch):
    """By a path, or by the working directory, which is the one of now."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, given in (("first", None), ("second", "."), ("third", ".")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"kept_in_{name}.py").write_text("import optax\nmake = optax.scale_by_sign\n")
        optimizer = {"optimizer_type": f"kept_in_{name}:make", "learning_rate": 0.1}
        with pytest.raises(ConfigError, match="PYTHONPATH"):
            parse_config(SECTIONS | {"optimizer": optimizer})
        monkeypatch.chdir(folder if given else tmp_path)
        paths = {"python_paths": [given or str(folder)]}
        parse_config(SECTIONS | {"optimizer": optimizer}, paths)
