"""``wafer sweep``: what it refuses before the first run, what it runs again, what it writes."""

import csv
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from helpers.paths import ROOT
from helpers.runs import config, write_yaml
from helpers.sweep_children import ended_child

import wafer.cli
from wafer import models
from wafer.config import load
from wafer.errors import ConfigError
from wafer.experiment import Experiment
from wafer.models.checkpoint.writer import write_checkpoint
from wafer.models.counts import flops_per_token, parameter_count
from wafer.models.user.trust import child_environment
from wafer.session.metrics import read_metrics
from wafer.sweeps import children
from wafer.sweeps.costs import costs_of
from wafer.sweeps.files import read_sweep
from wafer.sweeps.trials import Trial, trials_of
from wafer.vendor.trainer import as_trainer

SPARSE = {"sparsity": {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 2}}}


def write(folder, arms=None, base=None, **keys) -> pathlib.Path:
    sections = config() if base is None else base
    (folder / "base.yaml").write_text(yaml.safe_dump(sections))
    arms = {"dense": {}, "rigl": SPARSE} if arms is None else arms
    sweep = {"base": "base.yaml", "arms": arms, "seeds": [1, 2]} | keys
    return write_yaml(folder / "sweep.yaml", sweep, sort_keys=False)


def refused(path, *only) -> str:
    with pytest.raises(ConfigError) as error:
        read_sweep(path, only)
    return str(error.value)


def test_arms_change_the_base(tmp_path):
    other = config(runconfig={"max_steps": 6})
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    arms = {
        "dense": None,
        "wide": {"model.filter_size": 64, "optimizer.learning_rate": 0.02},
        "own": {"file": "other.yaml", "group": "long"},
        "short": {"runconfig.checkpoint_steps": None},
    }
    sweep = read_sweep(write(tmp_path, arms))
    dense, wide, own, short = sweep.arms
    assert sweep.seeds == (1, 2)
    assert dense.sections["model"]["filter_size"] == 32  # changes of one arm stay its own
    assert wide.sections["model"]["filter_size"] == 64
    assert wide.sections["optimizer"]["learning_rate"] == 0.02
    assert (own.steps, own.group) == (6, "long")
    assert "checkpoint_steps" not in short.sections["runconfig"]
    trial = trials_of(sweep.arms, sweep.seeds, tmp_path / "out")[1]
    assert trial.name == "wide/1"
    settings = trial.sections()["runconfig"]
    assert settings["mode"] == "train_and_eval"
    assert (settings["seed"], settings["model_dir"]) == (1, str(tmp_path / "out/wide/1"))


def test_the_sweep_of_the_guide_is_sound(tmp_path):
    page = (ROOT / "docs" / "guides" / "sweeps.md").read_text()
    (tmp_path / "models").symlink_to(ROOT / "models")
    (tmp_path / "sweep.yaml").write_text(page.split("```text\n")[1].split("```")[0])
    dense, rigl, other = read_sweep(tmp_path / "sweep.yaml").arms
    assert not dense.experiment.sparsifier
    assert rigl.sections["sparsity"]["algorithm"] == "rigl"
    assert other.sections["sparsity"]["algorithm"] == "set"
    costs = [costs_of(arm.experiment, arm.steps).training for arm in (dense, rigl, other)]
    assert costs == sorted(costs, reverse=True)  # RigL's dense gradients cost more than SET


def test_a_base_with_a_trainer_has_the_defaults_that_a_run_has(tmp_path):
    trainer, _ = as_trainer(config())
    dense, _ = read_sweep(write(tmp_path, base={"trainer": trainer})).arms
    run = load(tmp_path / "base.yaml", {"mode": "train_and_eval"})
    assert dense.experiment.model.config == models.build(run.model).config
    assert dense.experiment.model.config.attention_dropout_rate == 0.1  # of release 2.4


def test_everything_wrong_is_said_before_the_first_run(tmp_path):
    arms = {
        "typo": {"model.hiden_size": 8},
        "section": {"optimiser.learning_rate": 0.1},
        "through": {"model.name.deeper": 1},
        "seeded": {"runconfig.seed": 3},
        "text": "rigl",
        "epochs": {"runconfig.max_steps": None, "runconfig.num_epochs": 1},
        "blind": {"eval_input": None},
        "shared": {"runconfig.checkpoint_root": "s3://bucket/run"},
        "gone": {"file": "nowhere.yaml"},
        "a/b": {},
    }
    message = refused(write(tmp_path, arms, seeds=[1, 1]))
    for part in (
        "arms.typo.model.hiden_size: unknown key; did you mean 'hidden_size'?",
        "arms.section.optimiser: unknown section; did you mean 'optimizer'?",
        "arms.through.model.name.deeper: model.name is 'gpt2', which has no keys",
        "arms.seeded.runconfig.seed: the sweep sets it: one of `seeds`",
        "arms.text: 'rigl': expected changes by dotted key",
        "arms.epochs.runconfig.max_steps: missing",
        "arms.epochs.runconfig.num_epochs: counts from where a run starts",
        "arms.blind.eval_input: missing section",
        "arms.shared.runconfig.checkpoint_root: all runs would continue from each other's",
        "nowhere.yaml: no such file",
        "arms.a/b: names a folder",
        "seeds[1]: 1 is there twice",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("keys", "only", "says"),
    [
        ({"seeds": [1, 1.5]}, [], "seeds[1]"),
        ({"seeds": [-1]}, [], "seeds[0]"),
        ({"seeds": []}, [], "an empty list"),
        ({"seed": [1]}, [], "did you mean 'seeds'"),
        ({}, ["rigel"], "'rigel': unknown arm; did you mean 'rigl'?"),
        ({"arms": {"dense": {}, "Dense": {}}}, [], "is also 'dense'"),
        ({"base": config(optimizer={"learning_rate": -1})}, [], "optimizer.learning_rate"),
    ],
)
def test_the_sweep_file_itself_is_checked(tmp_path, keys, only, says):
    assert says in refused(write(tmp_path, **keys), *only)
    path = write(tmp_path)
    path.write_text(path.read_text() + "arms: {}\n")
    assert "duplicate key" in refused(path)


def test_a_fit_of_two_arms_is_refused_before_the_first_run(tmp_path, capsys):
    path = write(tmp_path)
    assert wafer.cli.main(["sweep", str(path), "-o", str(tmp_path / "out"), "--fit"]) == 1
    assert "fit.dense: a fit of 5 constants needs" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_costs_of_a_dense_and_a_sparse_run(tmp_path):
    dense, rigl = read_sweep(write(tmp_path)).arms
    model, steps, tokens = dense.experiment.model, 4, 4 * 4 * 16
    costs = costs_of(dense.experiment, steps)
    assert costs.parameters == costs.kept == parameter_count(model)
    assert costs.tokens == tokens
    assert costs.training == pytest.approx(flops_per_token(model, 16) * tokens)
    assert costs.inference == pytest.approx(flops_per_token(model, 16, training=False))
    # Attention 4 * 16 * 16, feed-forward 2 * 16 * 32: each kernel is half kept; of four steps two
    # have dense gradients.
    inside = 2 * (4 * 16 * 16 + 2 * 16 * 32)
    less = costs_of(rigl.experiment, steps)
    saved = inside * tokens * 3 * (1 - (0.5 * 2 + (2 * 0.5 + 1) / 3 * 2) / 4)
    assert less.training == pytest.approx(costs.training - saved)
    assert less.inference == pytest.approx(costs.inference - inside / 2)
    assert less.kept == costs.parameters - inside / 4
    names = rigl.experiment.sparsifier.select(rigl.experiment.shapes)
    measured = dict.fromkeys(names, 0.25)
    assert costs_of(rigl.experiment, steps, measured) == less  # it follows its schedule


def test_a_mask_that_never_changes_costs_what_the_run_measured(tmp_path):
    section = {"algorithm": "static", "sparsity": 0.5, "init_method": "from_zeros"}
    dense, static = read_sweep(write(tmp_path, {"dense": {}, "static": {"sparsity": section}})).arms
    names = static.experiment.sparsifier.select(static.experiment.shapes)
    whole = costs_of(dense.experiment, 4)
    costs = costs_of(static.experiment, 4, dict.fromkeys(names, 0.25))
    inside = 2 * (4 * 16 * 16 + 2 * 16 * 32)
    assert costs.kept == whole.parameters - inside / 8
    assert costs.training == pytest.approx(whole.training - 0.25 * 3 * inside * whole.tokens)


def pretend(monkeypatch, codes):
    """Children that write what a run writes and end with the code of their name; else 0."""
    started = []

    def begin(trial):
        started.append(trial.name)
        trial.write()
        trial.log.write_bytes(b"INFO begins\n")
        code = codes.get(trial.name, 0)
        if code:
            trial.log.write_bytes(b"INFO begins\nwafer: error: the disk is gone\n")
        else:
            for part, scalars in {
                "eval": {"loss": 2.0 + trial.seed, "eval/accuracy": 0.5},
                "train": {"loss": 1.0, "sparsity/a/b/actual": 0.5, "sparsity/a/b/target": 0.5},
            }.items():
                (trial.folder / part).mkdir(exist_ok=True)
                record = json.dumps({"step": trial.arm.steps, "time": 0.0} | scalars)
                (trial.folder / part / "metrics.jsonl").write_text(record + "\n")

        return ended_child(trial, code)

    monkeypatch.setattr(children, "_start", begin)
    return started


def test_only_what_is_missing_is_run_again_and_failures_stop_nothing(tmp_path, monkeypatch, capsys):
    out, path = tmp_path / "out", write(tmp_path)
    codes = {"dense/2": 1, "rigl/1": 143}
    started = pretend(monkeypatch, codes)
    command = ["sweep", str(path), "-o", str(out)]
    assert wafer.cli.main(command) == 1
    assert started == ["dense/1", "rigl/1", "dense/2", "rigl/2"]
    said = capsys.readouterr()
    assert "2 of 4 runs are not finished" in said.err
    assert "dense/2: the disk is gone" in said.err
    assert "rigl/1: interrupted (SIGTERM); the same command goes on with it" in said.err
    assert "| dense | 1 | 3 |" in said.out  # the table of what there is
    codes.clear()
    started.clear()
    assert wafer.cli.main(command) == 0
    assert started == ["rigl/1", "dense/2"]
    with (out / "runs.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    told = [(line["arm"], line["seed"], line["loss"]) for line in lines]
    assert told == [(arm, s, f"{int(s) + 2}.0") for arm in ("dense", "rigl") for s in "12"]
    started.clear()
    assert wafer.cli.main(command) == 0
    assert not started


def test_another_file_in_the_same_folder_is_refused(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    pretend(monkeypatch, {"rigl/2": 1})
    command = ["sweep", str(write(tmp_path)), "-o", str(out)]
    assert wafer.cli.main(command) == 1
    write(tmp_path, {"dense": {}, "rigl": SPARSE | {"optimizer.learning_rate": 0.5}})
    assert wafer.cli.main(command) == 1
    said = capsys.readouterr().err
    assert "rigl/1 was run with optimizer.learning_rate 0.01, the sweep has 0.5 now" in said
    assert "rigl/2 was run" not in said  # it failed at once: there is nothing to mix with


def test_an_unknown_metric_is_said_with_those_there_are(tmp_path, monkeypatch, capsys):
    pretend(monkeypatch, {})
    path = write(tmp_path, metric="eval/accurcy")
    assert wafer.cli.main(["sweep", str(path), "-o", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "did you mean 'eval/accuracy'?; these have eval/accuracy, loss" in said


def test_a_run_goes_on_from_where_it_is(tmp_path):
    (arm,) = read_sweep(write(tmp_path), ["dense"]).arms
    trial = Trial(arm, 1, tmp_path / "run")
    assert "mode" not in trial.launch.options()
    checkpoint = {"params": {"w": np.zeros(2)}}
    for step in (2, 3):
        write_checkpoint(trial.folder / "checkpoints" / str(step), checkpoint, {})
    (trial.folder / "checkpoints" / "4").mkdir()  # a copy that broke off
    assert "mode" not in trial.launch.options()
    (trial.folder / "checkpoints" / "4").rmdir()
    write_checkpoint(trial.folder / "checkpoints" / "4", checkpoint, {})
    assert trial.launch.options() == {"mode": "eval"}  # killed before the evaluation


@pytest.mark.slow
def test_a_real_sweep_and_a_result_that_was_lost(tmp_path, monkeypatch, capsys):
    """Two arms, two seeds, real processes; a result is taken away, and the run evaluates again."""
    out, path = tmp_path / "out", write(tmp_path)
    command = ["sweep", str(path), "-o", str(out)]
    assert wafer.cli.main([*command, "--jobs", "2"]) == 0
    first = (out / "runs.csv").read_text()
    with (out / "runs.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    experiment = Experiment.from_config(config(**SPARSE))
    counted = costs_of(experiment, 4)
    assert int(lines[2]["weights_kept"]) == counted.kept
    assert float(lines[2]["training_flops"]) == pytest.approx(counted.training)
    assert 1 < float(lines[0]["loss"]) < 6
    assert "| rigl | 2 |" in (out / "table.md").read_text()

    (out / "rigl" / "2" / "result.json").unlink()
    (out / "rigl" / "2" / "eval" / "metrics.jsonl").unlink()
    capsys.readouterr()
    assert wafer.cli.main(command) == 0
    assert "1 of 4 runs to do" in capsys.readouterr().out
    losses = lambda text: [line.split(",")[:4] for line in text.splitlines()]
    assert losses((out / "runs.csv").read_text()) == losses(first)


@pytest.mark.slow
def test_an_interrupted_sweep_leaves_checkpoints_and_goes_on(tmp_path):
    run = {"max_steps": 500, "checkpoint_steps": 500, "eval_frequency": 500, "eval_steps": 1}
    base = config(runconfig=run)
    path = write(tmp_path, {"dense": {}}, base, seeds=[1])
    command = [sys.executable, "-m", "wafer", "sweep", str(path), "-o", str(tmp_path / "out")]
    run = tmp_path / "out/dense/1"
    with subprocess.Popen(command, env=dict(os.environ)) as process:
        records = run / "train" / "metrics.jsonl"
        while process.poll() is None and not (records.exists() and records.stat().st_size):
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 130
    (step,) = [int(p.name) for p in (run / "checkpoints").iterdir()]
    assert 0 < step < 500
    assert not (run / "result.json").exists()
    assert subprocess.run(command, check=False).returncode == 0
    starts = [json.loads(line)["code"] for line in (run / "starts.jsonl").read_text().splitlines()]
    assert starts == [128 + signal.SIGTERM, 0]
    steps = [record["step"] for record in read_metrics(run / "train")]
    assert steps == list(range(1, 501))  # none is taken twice


def test_runs_import_nothing_of_the_working_directory(tmp_path, monkeypatch):
    trial = trials_of(read_sweep(write(tmp_path, {"dense": {}})).arms, [1], tmp_path / "out")[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    for name in ("yaml", "wafer", "argparse"):
        pathlib.Path(f"{name}.py").write_text("import pathlib\n\npathlib.Path('ran').touch()\n")
    command = trial.launch.command()
    assert command[:5] == [sys.executable, "-P", "-m", "wafer", "run"]
    done = subprocess.run([*command[:5], "--help"], env=child_environment(), check=False)
    assert done.returncode == 0
    assert not pathlib.Path("ran").exists()
