"""Tuning in a sweep: the points that are tried, what is chosen, what is taken from tables."""

import csv
import json
import pathlib
import shutil

import pytest
import yaml
from helpers.runs import config, tiny, write_yaml
from helpers.sweep_children import ended_child

import wafer
import wafer.cli
from wafer.errors import ConfigError, TrainingError
from wafer.models.errors import SectionError
from wafer.sweeps import children
from wafer.sweeps.files import read_sweep
from wafer.sweeps.grid import points_to_try, read_grid, search
from wafer.sweeps.table import read_runs
from wafer.sweeps.tuning import DIVERGED

RATE = "optimizer.learning_rate"
TUNE = {"seed": 9, "times": {RATE: [0.5, 1, 2]}}


def write(folder, arms, **keys) -> pathlib.Path:
    (folder / "base.yaml").write_text(yaml.safe_dump(config()))
    sweep = {"base": "base.yaml", "seeds": [1, 2], "arms": arms, "tune": TUNE} | keys
    return write_yaml(folder / "sweep.yaml", sweep, sort_keys=False)


def pretend(monkeypatch, loss, diverges=lambda sections: False):
    """Runs whose loss is a function of their sections; returns the names of those started."""
    started = []

    def begin(trial):
        started.append(trial.name)
        trial.write()
        sections = trial.sections()
        code = int(diverges(sections))
        text = "wafer: error: step 3: the loss is nan. Largest parameter norms\n" if code else ""
        trial.log.write_text(text)
        for name in ("eval", f"checkpoints/{trial.arm.steps}"):
            (trial.folder / name).mkdir(parents=True, exist_ok=True)
        record = {"step": trial.arm.steps, "time": 0.0, "loss": loss(sections)}
        (trial.folder / "eval/metrics.jsonl").write_text(json.dumps(record) + "\n")

        return ended_child(trial, code)

    monkeypatch.setattr(children, "_start", begin)
    return started


def bowl(best):
    """Loss that is least at a learning rate; later seeds add a tenth each."""

    def loss(sections):
        seed = sections["runconfig"]["seed"] % 9
        return 1.0 + abs(sections["optimizer"]["learning_rate"] - best) + 0.1 * seed

    return loss


def test_points_by_hand():
    """Two keys of two values; least at (3, 0) of (x - 3)^2 + 3 y^2."""
    value = lambda point: float((point[0] - 3) ** 2 + 3 * point[1] ** 2)
    assert points_to_try((2, 2), {}) == [(0, 0), (1, 0)]
    tried = {(0, 0): 9.0, (1, 0): 4.0}
    assert points_to_try((2, 2), tried) == [(1, 1)]
    tried[1, 1] = 7.0
    assert points_to_try((2, 2), tried) == [(2, 0), (1, -1)]
    tried, left = search((2, 2), value)
    assert not left
    assert min(tried, key=tried.get) == (3, 0)
    assert {(2, 0), (4, 0), (3, 1), (3, -1)} <= tried.keys()  # all neighbors of the best
    assert len(tried) == 3 + 2 + 3 + 3  # the series, then new neighbors of (1, 0), (2, 0), (3, 0)


@pytest.mark.parametrize("seed", range(20))
def test_no_neighbor_of_the_best_point_is_better(seed):
    import numpy as np

    values = np.random.default_rng(seed).normal(size=(60, 60))
    tried, _ = search((3, 3), lambda p: values[p])
    x, y = min(tried, key=tried.get)
    assert tried[x, y] == min(tried.values())
    for at in ((x - 1, y), (x + 1, y), (x, y - 1), (x, y + 1)):
        assert at in tried or max(at) >= 13 or min(at) < -10


def test_a_value_without_effect_ends_with_the_first_multiple():
    tried, left = search((3,), lambda point: 1.0)
    assert (min(tried, key=tried.get), sorted(tried), left) == ((0,), [(-1,), (0,), (1,), (2,)], [])


def test_multiples_apply_to_every_number_that_matches():
    schedule = [
        {"scheduler": "Linear", "end_learning_rate": 0.003, "total_iters": 3},
        {"scheduler": "Cosine", "initial_learning_rate": 0.003, "end_learning_rate": 1e-4},
    ]
    sections = {"optimizer": {"learning_rate": schedule}, "model": {"initializer_range": 0.02}}
    keys = {f"{RATE}.*_learning_rate": [4, 1, 2], "model.initializer_range": [0.5, 1]}
    grid = read_grid(keys)
    changed = grid.apply(sections, (2, -1))
    first, second = changed["optimizer"]["learning_rate"]
    assert first == {"scheduler": "Linear", "end_learning_rate": 0.012, "total_iters": 3}
    assert (second["initial_learning_rate"], second["end_learning_rate"]) == (0.012, 4e-4)
    assert changed["model"] == {"initializer_range": 0.005}
    assert sections["model"] == {"initializer_range": 0.02}
    assert grid.name((2, -1)) == "4x0.25"
    with pytest.raises(SectionError, match="no number of the run file matches"):
        read_grid({"model.name": [1, 2]}).apply({"model": {"name": "gpt2"}}, (0,))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"tune": TUNE | {"times": {RATE: [1, 2, 3]}}}, "with a common factor"),
        ({"tune": TUNE | {"times": {RATE: [1]}}}, "two or more multiples"),
        ({"tune": TUNE | {"seed": 2}}, "2 is one of `seeds`"),
        ({"tune": TUNE | {"times": {"optimizer.rate": [1, 2]}}}, "no number of the run file"),
        ({"tune": None, "arms": {"a": {"tune": {}}}}, "no `tune` section"),
        ({"arms": {"a": {}, "b": {"tune": "c"}}}, "'c': no arm that is tuned"),
        ({"arms": {"a": {"tune": {}}, "b": {"tune": "a"}}}, "'a': no arm that is tuned"),
        ({"first": "c"}, "'c': unknown arm"),
        ({"arm_files": ["arms/*.yaml"]}, "no such file in"),
    ],
)
def test_wrong_tuning_is_refused_before_the_first_run(tmp_path, keys, says):
    with pytest.raises(ConfigError, match=says):
        read_sweep(write(tmp_path, keys.pop("arms", {"a": {}}), **keys))


def test_each_arm_is_tuned_until_its_best_is_no_edge(tmp_path, monkeypatch):
    """Rates 0.005, 0.01, 0.02; least at 0.04 for every arm but one that starts at 0.04."""
    started = pretend(monkeypatch, bowl(0.04))
    out = tmp_path / "out"
    path = write(
        tmp_path, {"a": {}, "b": {RATE: 0.04}, "like": {"tune": "a"}, "as-is": {"tune": {}}}
    )
    outcome = wafer.sweep(path, out)
    assert started[:6] == [f"{arm}@{x}/9" for arm in "ab" for x in ("0.5", "1", "2")]
    assert started[6:8] == ["a@4/9", "a@8/9"]
    assert started[8:] == [
        f"{arm}/{seed}" for seed in (1, 2) for arm in ("a", "b", "like", "as-is")
    ]
    assert outcome.choices == {"a": ("4", 5), "b": ("1", 3), "like": ("4", 0)}
    means = {one.arm: one.mean for one in outcome.arms}
    assert means == pytest.approx({"a": 1.15, "b": 1.15, "like": 1.15, "as-is": 1.18})
    table = (out / "table.md").read_text().splitlines()
    assert table[0].endswith("| tuning runs | multiples |")
    assert [line.split("|")[-3:-1] for line in table[2:6]] == [
        [" 5 ", " 4 "], [" 3 ", " 1 "], ["  ", " 4 "], ["  ", "  "]
    ]  # fmt: skip
    metric, rows = read_runs(out / "tuning.csv")
    assert (metric, len(rows), rows[0].arm, rows[0].seed) == ("loss", 8, "a@0.5", 9)
    started.clear()
    assert wafer.sweep(path, out).rows == outcome.rows
    assert not started


def test_a_larger_metric_can_be_the_better_one(tmp_path, monkeypatch):
    pretend(monkeypatch, lambda s: -bowl(0.01)(s))
    outcome = wafer.sweep(write(tmp_path, {"a": {}}, tune=TUNE | {"mode": "max"}), tmp_path / "out")
    assert outcome.choices == {"a": ("1", 3)}


def test_a_diverged_run_is_a_worst_value_and_a_failed_one_is_tried_again(tmp_path, monkeypatch):
    wide = lambda sections: sections["optimizer"]["learning_rate"] > 0.015
    started = pretend(monkeypatch, bowl(0.01), wide)
    path = write(tmp_path, {"a": {}})
    outcome = wafer.sweep(path, tmp_path / "out")
    assert outcome.choices == {"a": ("1", 3)}
    assert [row.metric for row in outcome.tuning][2] == float("inf")
    (tmp_path / "out/a@2/9/result.json").unlink()
    started.clear()
    assert not wafer.sweep(path, tmp_path / "out").missing
    assert started == ["a@2/9"]


def test_tables_of_another_machine_are_not_run_again(tmp_path, monkeypatch):
    started = pretend(monkeypatch, bowl(0.01))
    arms = {"a": {}, "b": {"model.filter_size": 64}}
    path = write(tmp_path, arms, known=".")
    first = wafer.sweep(path, tmp_path / "out")
    for name in ("runs.csv", "tuning.csv"):
        shutil.copy(tmp_path / "out" / name, tmp_path)
    started.clear()
    again = wafer.sweep(path, tmp_path / "elsewhere")
    assert not started
    assert (again.rows, again.tuning, again.choices) == (first.rows, first.tuning, first.choices)
    # An arm more: it alone runs. An arm that changed: its rows are of another run file.
    path = write(tmp_path, arms | {"c": {}, "b": {"model.filter_size": 16}}, known=".")
    outcome = wafer.sweep(path, tmp_path / "elsewhere")
    assert {name.split("@")[0].split("/")[0] for name in started} == {"b", "c"}
    assert [one.arm for one in outcome.arms] == ["a", "b", "c"]


def test_weights_that_no_table_has_are_trained_again(tmp_path, monkeypatch):
    started = pretend(monkeypatch, bowl(0.01))
    arms = {"a": {}, "b": {"after": "a"}}
    path = write(tmp_path, arms, known=".", seeds=[1])
    wafer.sweep(path, tmp_path / "out")
    assert started == ["a@0.5/9", "a@1/9", "a@2/9", "b@0.5/9", "b@1/9", "b@2/9", "a/1", "b/1"]
    for name in ("runs.csv", "tuning.csv"):
        shutil.copy(tmp_path / "out" / name, tmp_path)
    lines = (tmp_path / "runs.csv").read_text().splitlines()
    lines[1] = lines[1].replace(",1.1,", ",0.5,")  # as another machine has it
    (tmp_path / "runs.csv").write_text("\n".join(lines[:2]) + "\n")  # b/1 is missing
    started.clear()
    outcome = wafer.sweep(path, tmp_path / "elsewhere")
    assert started == ["a/1", "b/1"]
    assert [row.metric for row in outcome.rows] == [0.5, 1.1]


def test_tables_alone_and_what_is_left_run_nothing(tmp_path, monkeypatch, capsys):
    started = pretend(monkeypatch, bowl(0.01))
    path, out = write(tmp_path, {"a": {}, "b": {"tune": {}}}), tmp_path / "out"
    command = ["sweep", str(path), "-o", str(out)]
    assert wafer.cli.main([*command, "--validate_only"]) == 0
    said = capsys.readouterr().out
    assert "tuning: 3 runs to do" in said
    assert "1 arms, 2 seeds: 2 of 2 runs to do" in said
    assert not started
    assert not out.exists()
    assert wafer.cli.main([*command, "--arms", "b"]) == 0
    started.clear()
    assert wafer.cli.main([*command, "--tables"]) == 0
    assert not started
    assert "| b | 2 |" in (out / "table.md").read_text()


def test_arms_of_files(tmp_path):
    (tmp_path / "arms").mkdir()
    write_yaml(tmp_path / "arms/b.yaml", {"dense": {}})
    write_yaml(tmp_path / "arms/a.yaml", {"mine": {"model.filter_size": 64}})
    keys = {"arm_files": ["arms/*.yaml"], "first": "dense"}
    sweep = read_sweep(write(tmp_path, {"last": {}}, **keys))
    assert [arm.name for arm in sweep.arms] == ["mine", "dense", "last"]
    assert sweep.first == "dense"
    assert sweep.arms[0].sections["model"]["filter_size"] == 64
    with pytest.raises(ConfigError, match="dense: an arm of another file"):
        read_sweep(write(tmp_path, {"dense": {}}, **keys))


def test_a_table_of_another_form_is_refused(tmp_path):
    (tmp_path / "runs.csv").write_text("arm,loss\na,1\n")
    with pytest.raises(ConfigError, match=r"columns arm, loss; expected those of a runs\.csv"):
        wafer.sweep(write(tmp_path, {"a": {}}, known="."), tmp_path / "out")
    with (tmp_path / "runs.csv").open() as file:
        assert next(csv.reader(file)) == ["arm", "loss"]  # it is left alone


@pytest.mark.slow
def test_the_message_of_a_diverged_run_is_known(tmp_path):
    settings = {"max_steps": 20, "model_dir": str(tmp_path), "checkpoint_steps": 0}
    with pytest.raises(TrainingError) as error:
        wafer.train(tiny(optimizer={"learning_rate": 1e20}, runconfig=settings))
    assert DIVERGED.search(str(error.value))
