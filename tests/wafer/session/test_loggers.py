"""Loggers beside the files of a run: what they get, and that a resumed run continues theirs."""

import sys
import types

import pytest
from helpers.runs import TINY_ROWS, tiny

import wafer
from wafer.config.runconfig import MLflow
from wafer.models.errors import MissingPackageError
from wafer.session.loggers import MLflowLogger
from wafer.session.metrics import MetricWriter, read_metrics


def sections(folder, steps, **keys):
    run = {"max_steps": steps, "log_steps": 1, "eval_frequency": 2, "seed": 1}
    run |= {"mode": "train_and_eval", "model_dir": str(folder)}
    return tiny(eval_input=TINY_ROWS | {"batch_size": 2}, runconfig=run | keys)


class Run:
    """One run of a wandb that keeps what it is told."""

    def __init__(self, module, given):
        self.given, self.rows, self.ended, self._module = given, [], 0, module
        self.id = given["id"] or "id0"

    def define_metric(self, name, step_metric):
        assert (name, step_metric) == ("*", "step")

    def log(self, row):
        self.rows.append(row)

    def finish(self):
        self.ended += 1
        self._module.run = None


@pytest.fixture
def wandb(monkeypatch):
    module = types.ModuleType("wandb")
    module.run, module.runs = None, []

    def init(**given):
        module.run = Run(module, given)
        module.runs.append(module.run)
        return module.run

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_training_and_evaluations_are_one_run_that_a_resumed_one_continues(wandb, tmp_path):
    keys = {"project": "p", "run_name": "n", "tags": ["a"], "mode": "offline"}
    trained = wafer.train(sections(tmp_path, 2, wandb=keys))
    (run,) = wandb.runs
    given = {key: value for key, value in run.given.items() if key != "config"}
    assert given == {
        "project": "p", "name": "n", "tags": ("a",), "mode": "offline", "resume": "allow",
        "id": None, "dir": str(tmp_path),
    }  # fmt: skip
    assert run.given["config"]["runconfig"]["max_steps"] == 2
    for part, columns in wafer.history(trained)._asdict().items():
        told = [(row["step"], row[f"{part}/loss"]) for row in run.rows if f"{part}/loss" in row]
        assert told == list(zip(columns["step"], columns["loss"], strict=True))
    assert run.ended == 1

    wafer.train(sections(tmp_path, 4, wandb=keys))
    again = wandb.runs[1]
    assert again.given["id"] == "id0"
    assert [row["step"] for row in again.rows if "train/loss" in row] == [3, 4]


def test_a_package_that_is_missing_is_named_before_training(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingPackageError, match=r"wafer-jax\[loggers\]"):
        wafer.train(sections(tmp_path, 2, wandb={}))
    assert not list(tmp_path.glob("train/events*"))


def test_mlflow_gets_names_that_it_takes(monkeypatch, tmp_path):
    """Letters, digits, ``_-./`` and spaces: a comma or a percent sign ends a run with an error."""
    told = []
    module = types.ModuleType("mlflow")
    module.active_run = object
    module.log_metrics = lambda metrics, step: told.append((step, metrics))
    monkeypatch.setitem(sys.modules, "mlflow", module)
    logger = MLflowLogger(MLflow(), tmp_path, {})
    logger.write(3, {"eval/gsm8k/exact_match,strict-match": 0.5, "eval/acc %": 1.0})
    assert told == [(3, {"eval/gsm8k/exact_match_strict-match": 0.5, "eval/acc _": 1.0})]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the packages
def test_the_real_packages_keep_the_losses(monkeypatch, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    keys = {"wandb": {"mode": "offline"}, "mlflow": {"experiment": "e"}}
    for steps in (2, 4):
        trained = wafer.train(sections(tmp_path, steps, **keys))
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    kept = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "train/loss")]
    columns = wafer.history(trained).train
    assert kept == list(zip(columns["step"], columns["loss"], strict=True))
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(list((tmp_path / "mlartifacts").rglob("params.json"))) == 1
    assert not list((tmp_path / "here").iterdir())


def test_a_logger_that_fails_at_the_end_leaves_no_file_open(tmp_path):
    closed = []

    class Failing:
        write = staticmethod(lambda step, scalars: None)

        def close(self):
            closed.append(self)
            raise ConnectionError("the server is gone")

    writer = MetricWriter(tmp_path / "train", [Failing(), Failing()])
    writer.write(1, {"loss": 2.0})
    with pytest.raises(ConnectionError, match="the server is gone"):
        writer.close()
    assert len(closed) == 2
    with pytest.raises(ValueError, match="closed file"):
        writer.write(2, {"loss": 1.0})
    assert read_metrics(tmp_path / "train")[0]["loss"] == 2.0
