"""``run(model_fn, train_data_fn, eval_data_fn)``: scripts as the vendor's workshop has them."""

import subprocess
import sys

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from helpers.paths import ROOT

from wafer import models
from wafer.errors import DataError
from wafer.loop.files import load
from wafer.loop.run_utils import BaseModel, run

SCRIPT = """
import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from wafer.loop.run_utils import PyTorchBaseModel, run

class MNIST(nn.Module):
    hidden: int
    @nn.compact
    def __call__(self, x):
        return nn.log_softmax(nn.Dense(4)(nn.relu(nn.Dense(self.hidden)(x))))

class MNISTModel(PyTorchBaseModel):
    def __init__(self, params, device=None):
        self.model = self.build_model(params["model"].copy())
        super().__init__(params=params, model=self.model, device=device)

    def build_model(self, model_params):
        return MNIST(model_params["hidden_size"])

    def __call__(self, data):
        inputs, labels = data
        outputs = self.model(inputs)
        loss = -jnp.take_along_axis(outputs, labels[:, None], axis=1).mean()
        return {"loss": loss, "accuracy": (outputs.argmax(1) == labels).mean()}

def get_train_dataloader(params):
    rng = np.random.default_rng(0)
    for _ in range(10):
        x = rng.normal(size=(params["train_input"]["batch_size"], 8)).astype("f4")
        yield [x, x[:, :4].argmax(1)]

get_eval_dataloader = get_train_dataloader

if __name__ == "__main__":
    run(MNISTModel, get_train_dataloader, get_eval_dataloader)
"""
PARAMS = {
    "model": {"hidden_size": 32},
    "optimizer": {"optimizer_type": "Adam", "learning_rate": 0.02},
    "train_input": {"batch_size": 16},
    "runconfig": {"max_steps": 40, "log_steps": 20, "checkpoint_steps": 20, "seed": 1},
}


@pytest.fixture
def params(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(PARAMS))
    return path


@pytest.mark.slow  # two processes, each with a program of its own: 12 s
def test_a_script_of_the_workshop(tmp_path, params):
    (tmp_path / "run.py").write_text(SCRIPT)
    words = [sys.executable, "run.py", "CPU", "-p", str(params), "-o", "runs"]

    def script(*more):
        return subprocess.run(
            [*words, *more],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "PATH": ""},
            check=True,
            capture_output=True,
            text=True,
        ).stderr

    log = script("-m", "train")
    assert "| Train Device=CPU, Step=40, Loss=" in log
    assert sorted(p.name for p in (tmp_path / "runs/checkpoints").iterdir()) == ["20", "40"]
    log = script("-m", "eval")
    accuracy = float(log.partition("accuracy=")[2].split(",")[0])
    assert "Step=40" in log
    assert accuracy > 0.8  # a quarter by chance


class Linear(nn.Module):
    """Its own loss, as plain modules of 1.8 had it."""

    @nn.compact
    def __call__(self, data):
        x, y = data
        return jnp.mean((nn.Dense(1)(x)[:, 0] - y) ** 2)


def rows(params):
    rng = np.random.default_rng(1)
    out = []
    for _ in range(5):
        x = rng.normal(size=(8, 3)).astype("f4")
        out.append((x, x @ np.asarray([1.0, -2.0, 0.5], "f4")))
    return out


def words(params, folder, *more):
    return ["CPU", "-p", str(params), "--model_dir", str(folder), *more]


def test_a_stopped_run_goes_on_bit_by_bit_and_evaluates(tmp_path, params):
    whole = words(params, tmp_path / "whole", "-m", "train")
    assert run(lambda p: Linear(), rows, argv=whole)["step"] == 40
    halves = words(params, tmp_path / "halves", "-m", "train")
    run(lambda p: Linear(), rows, argv=[*halves, "--max_steps", "20"])
    run(lambda p: Linear(), rows, argv=halves)
    one, two = (load(tmp_path / name / "checkpoints/40") for name in ("whole", "halves"))
    np.testing.assert_array_equal(
        one["model"]["Dense_0"]["kernel"], two["model"]["Dense_0"]["kernel"]
    )
    scores = run(
        lambda p: Linear(), None, rows, argv=words(params, tmp_path / "whole", "-m", "eval")
    )
    kernel, bias = (one["model"]["Dense_0"][k] for k in ("kernel", "bias"))
    by_hand = np.mean([np.mean(((x @ kernel)[:, 0] + bias - y) ** 2) for x, y in rows(None)])
    assert scores["eval/loss"] == pytest.approx(by_hand, rel=1e-5)


def test_defaults_and_flags_of_the_script(tmp_path, params):
    import argparse

    def defaults(params):
        params["runconfig"]["max_steps"] = 2

    def extra():
        parser = argparse.ArgumentParser(add_help=False)
        parser.add_argument("--flavour", default="plain")
        return [parser]

    taken = {}

    def model(params):
        taken.update(params["runconfig"])
        return Linear()

    argv = words(params, tmp_path / "run", "-m", "train", "--flavour", "sweet")
    assert run(model, rows, None, defaults, extra, argv=argv)["step"] == 2
    assert taken["flavour"] == "sweet"


class NoLoss(BaseModel):
    def build_model(self, model_params):
        return nn.Dense(3)

    def __call__(self, data):
        return self.model(data[0])


def failing(params):
    yield rows(params)[0]
    raise OSError("no such disk")


def test_mistakes_name_the_line_of_the_user(tmp_path, params):
    argv = words(params, tmp_path / "run", "-m", "train")

    def broken(params):
        return params["no such key"]

    with pytest.raises(ValueError, match=r"'broken' fails: KeyError: .*test_run_utils\.py, line"):
        run(broken, rows, argv=argv)

    def calls_ours(params):
        return models.build({"name": "gpt5"})

    with pytest.raises(ValueError, match=r"'calls_ours' fails: .*test_run_utils\.py, line"):
        run(calls_ours, rows, argv=argv)
    with pytest.raises(TypeError, match=r"model_fn gave int; expected a module .*test_run_utils"):
        run(lambda p: 3, rows, argv=argv)
    with pytest.raises(TypeError, match=r"NoLoss: expected a scalar loss.*\(8, 3\)"):
        run(NoLoss, rows, argv=argv)
    with pytest.raises(TypeError, match="this mode needs train_data_fn"):
        run(lambda p: Linear(), argv=argv)
    with pytest.raises(DataError, match=r"train_data_fn gave int; expected batches"):
        run(lambda p: Linear(), lambda p: 3, argv=argv)
    with pytest.raises(DataError, match=r"train_data_fn gave no batch"):
        run(lambda p: Linear(), lambda p: [], argv=argv)
    with pytest.raises(ValueError, match=r"'train_data_fn' fails: OSError: no such disk"):
        run(lambda p: Linear(), failing, argv=argv)
    with pytest.raises(DataError, match="no checkpoint to evaluate"):
        run(lambda p: Linear(), None, rows, argv=words(params, tmp_path / "none", "-m", "eval"))
