"""Arms that begin with another's weights, and SPDF, which is made of them."""

import csv

import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from helpers.runs import config, write_yaml

import wafer
import wafer.cli
from wafer.config.spdf import sweep_of
from wafer.errors import ConfigError
from wafer.models.paths import named_leaves
from wafer.sweeps.children import run_trials
from wafer.sweeps.costs import costs_of
from wafer.sweeps.files import read_sweep
from wafer.sweeps.trials import trials_of


def write(folder, arms, **keys):
    (folder / "base.yaml").write_text(yaml.safe_dump(config()))
    sweep = {"base": "base.yaml", "seeds": [1], "arms": arms} | keys
    return write_yaml(folder / "sweep.yaml", sweep)


def test_an_arm_brings_those_it_comes_after_along(tmp_path):
    arms = {"c": {"after": "b"}, "b": {"after": "a"}, "a": {}, "other": {}}
    path = write(tmp_path, arms)
    sweep = read_sweep(path, ["c"])
    assert {arm.name for arm in sweep.arms} == {"a", "b", "c"}
    c = next(t for t in trials_of(sweep.arms, (1,), tmp_path / "out") if t.arm.name == "c")
    assert (c.before.name, c.before.before.name, c.blocked) == ("b/1", "a/1", "b/1")
    settings = c.sections()["runconfig"]
    assert settings["checkpoint_path"] == str(tmp_path / "out/b/1/checkpoints/4")
    assert settings["load_checkpoint_states"] == "model"


@pytest.mark.parametrize(
    ("arms", "says"),
    [
        ({"a": {"after": "bb"}, "b": {}}, r"arms\.a\.after: 'bb': unknown arm; did you mean 'b'"),
        ({"a": {"after": "b"}, "b": {"after": "a"}}, r"a after b after a: none of them can begin"),
        ({"a": {"after": "b"}, "b": {"model.filter_size": 64}}, "has the shape .* give both"),
        ({"a": {"after": 3}}, r"arms\.a\.after: 3: expected text"),
    ],
)
def test_what_cannot_begin_is_said_before_the_first_run(tmp_path, arms, says):
    with pytest.raises(ConfigError, match=says):
        read_sweep(write(tmp_path, arms))


def test_spdf_by_hand():
    rigl = {"algorithm": "rigl", "update": {"freq": 5}}
    arms = {
        "dense": {"file": "tune.yaml", "after": "dense-before", "sparsity": None},
        "spdf50": {"file": "tune.yaml", "after": "spdf50-before", "sparsity": None},
        "dense-before": {"sparsity": None},
        "spdf50-before": {"sparsity": rigl | {"sparsity": 0.5}},
    }
    sweep = sweep_of("pre.yaml", "tune.yaml", [0.5], rigl)
    assert sweep == {"base": "pre.yaml", "seeds": [1, 2, 3], "arms": arms}


@pytest.mark.parametrize(
    ("levels", "section", "says"),
    [
        ([1.0], None, "above 0 and below 1"),
        ([0.5, 0.5], None, "each once"),
        ([0.5], [{"sparsity": 0.1}], "a list of groups"),
        ([0.5], {"pattern": {"type": "n:m", "n": 2, "m": 4}}, "a level of its own"),
    ],
)
def test_what_spdf_cannot_be_is_said(levels, section, says):
    with pytest.raises(ConfigError, match=says):
        sweep_of("a", "b", levels, section)


@pytest.fixture
def spdf(tmp_path):
    """The sweep file that the command writes, for a small model."""
    tune = config(runconfig={"max_steps": 3, "checkpoint_steps": 3})
    for name, sections in (("pre", config()), ("tune", tune)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(sections))
    path = tmp_path / "spdf.yaml"
    command = ["config", "spdf", str(tmp_path / "pre.yaml"), "--sparsity", "0.75", "--seeds", "1"]
    command += ["--finetune", str(tmp_path / "tune.yaml"), "-o", str(path)]
    assert wafer.cli.main(command) == 0
    return path


def test_a_failed_first_phase_leaves_its_second_alone(spdf, tmp_path, monkeypatch):
    def fail(self):
        raise AssertionError(self.name)

    sweep = read_sweep(spdf, ["spdf75"])
    trials = [t for t in trials_of(sweep.arms, (1,), tmp_path / "out") if t.before is not None]
    monkeypatch.setattr(type(trials[0]), "write", fail)
    failed = run_trials(trials, 2, lambda *a: None, lambda trial: 0)
    assert failed == {"spdf75/1": "it begins with spdf75-before/1, which is not"}


@pytest.mark.slow
def test_spdf_runs_both_phases_and_reports_them(spdf, tmp_path):
    out = tmp_path / "out"
    assert wafer.cli.main(["sweep", str(spdf), "-o", str(out), "--jobs", "2"]) == 0
    with (out / "runs.csv").open(newline="") as file:
        rows = {row["arm"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["dense", "spdf75", "dense-before", "spdf75-before"]
    arms = {arm.name: arm for arm in read_sweep(spdf).arms}
    flops = lambda name: costs_of(arms[name].experiment, arms[name].steps).training
    for name in ("dense", "spdf75"):  # FLOPs of both phases
        both = flops(name) + flops(f"{name}-before")
        assert float(rows[name]["training_flops"]) == pytest.approx(both)
        assert int(rows[name]["tokens"]) == (4 + 3) * 64
    before = dict(named_leaves(wafer.load(out / "spdf75-before/1/finalized")[1]))
    after = dict(named_leaves(wafer.load(out / "spdf75/1")[1]))
    name = "layers_0/ffn/up/kernel"
    pruned = np.asarray(before[name] == 0)
    assert pruned.mean() == pytest.approx(0.75, abs=0.01)
    assert (np.asarray(after[name])[pruned] != 0).mean() > 0.9  # they grow like any others
    kept = jnp.abs(after[name] - before[name])[~pruned]
    assert float(kept.max()) < 3 * 0.011  # three steps of Adam away, no fresh weights
