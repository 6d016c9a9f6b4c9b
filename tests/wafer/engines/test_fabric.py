"""``wafer run --execution fabric``: the resident run on PEs, its checkpoints, what it refuses."""

import json

import pytest
from helpers.runs import arrays, merged, metrics, tiny
from helpers.streamed import assert_same

from wafer.commands.run import run as run_mode
from wafer.compiler import experiment as compiling
from wafer.config import parse_config
from wafer.engines.choose import check
from wafer.errors import CapacityError, ConfigError
from wafer.experiment import Experiment
from wafer.models.paths import named_leaves
from wafer.session.build import build
from wafer.session.persist import resume

pytest.importorskip("sklearn", reason="the rows are scikit-learn's digits")
STATIC = {"algorithm": "static", "sparsity": 0.5, "param_filter": "*kernel"}


def config(folder="unused", **changes):
    """Two layers, micro-batches of three digits; changes are merged into the sections."""
    data = {"data_processor": "DigitsDataProcessor", "batch_size": 6}
    model = {"name": "fc_mnist", "input_size": 64, "hidden_size": 6, "depth": 1}
    rate = {"scheduler": "Linear", "initial_learning_rate": 0.1, "end_learning_rate": 0.02}
    run = {"max_steps": 3, "checkpoint_steps": 3, "seed": 1, "model_dir": str(folder)}
    cfg = {
        "train_input": data | {"micro_batch_size": 3, "shuffle": True},
        "eval_input": data,
        "model": model | {"activation_fn": "relu", "dropout": 0.0},
        "optimizer": {
            "optimizer_type": "SGD",
            "momentum": 0.9,
            "learning_rate": rate | {"total_iters": 4},
        },
        "runconfig": run | {"execution_strategy": "fabric", "fabric": {"width": 8, "height": 6}},
    }
    return merged(cfg, **changes)


def train(folder, **changes):
    """Run, or go on; returns the last checkpoint's arrays and the metrics of each step."""
    assert run_mode(parse_config(config(folder, **changes))) == 0
    newest = max((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))
    return arrays(newest), metrics(folder)


@pytest.mark.native  # minutes in JAX
@pytest.mark.parametrize(
    "changes",
    [
        {"sparsity": STATIC | {"compute": "masked"}},
        pytest.param({"sparsity": STATIC | {"compute": "csr"}}, marks=pytest.mark.slow),
        pytest.param({"optimizer": {"momentum": 0.0}}, marks=pytest.mark.slow),
        pytest.param(
            {"train_input": {"batch_size": 3}, "optimizer": {"grad_accum_steps": 2}},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["static", "csr", "no momentum", "accumulate"],
)
def test_a_run_on_pes_is_the_resident_run(tmp_path, changes):
    """Losses and checkpoints to 1e-5; each goes on from the other's checkpoint."""
    on_host = {"execution_strategy": "resident"}
    got, metrics = train(tmp_path / "pes", **changes)
    want, plain = train(tmp_path / "host", **changes, runconfig=on_host)
    assert_same(got, want, atol=1e-5, rtol=0)
    for on_pes, resident in zip(metrics, plain, strict=True):
        for name in ("loss", "model_wise_grad_norm", "lr/0"):
            assert on_pes[name] == pytest.approx(resident[name], abs=1e-5), name
    further = {"max_steps": 5, "checkpoint_steps": 5}
    got, _ = train(tmp_path / "pes", **changes, runconfig=on_host | further)
    want, _ = train(tmp_path / "host", **changes, runconfig=further)
    assert_same(got, want, atol=1e-5, rtol=0)


@pytest.mark.native  # minutes in JAX
def test_cycles_are_reported_and_the_floor_plan_is_kept(tmp_path, caplog):
    caplog.set_level("INFO", "wafer")
    both = {"mode": "train_and_eval", "eval_frequency": 2, "max_steps": 2, "checkpoint_steps": 2}
    both |= {"log_steps": 1}
    _, metrics = train(tmp_path, runconfig=both)
    cycles = [line["fabric/cycles"] for line in metrics]
    assert cycles[0] == cycles[1]  # the same program on other numbers
    assert metrics[0]["fabric/cycles_per_sample"] == pytest.approx(cycles[0] / 6, rel=1e-6)
    predicted = metrics[0]["fabric/predicted_cycles_per_sample"]
    assert 0 < metrics[0]["fabric/busiest_pe"] <= 1
    said = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Fabric: ")]
    assert len(said) == 1
    assert f"closed form: {predicted:.0f}" in said[0]
    (folder,) = tmp_path.glob("cs_*")
    report = json.loads((folder / "compile_report.json").read_text())
    assert (report["plan"]["width"], report["plan"]["height"]) == (8, 6)
    assert (tmp_path / "eval" / "metrics.jsonl").exists()


@pytest.mark.native  # minutes in JAX
def test_weights_stay_in_the_pes_between_steps(tmp_path):
    """Going on from what lies in the PEs gives the bits that loading the host's copy gives."""
    job, other = (build(Experiment.from_config(parse_config(config(tmp_path)))) for _ in range(2))
    state, again = resume(job).state, resume(other).state
    loader = job.train.loader(6, num_epochs=None)
    for _ in range(2):
        features = job.place_batch(next(loader), job.experiment.batch("train"))
        state, _ = job.engine.step(state, features)
        copy = again._replace(params=dict(again.params))  # another object: loaded anew
        again, _ = other.engine.step(copy, features)
    assert_same(dict(named_leaves(state.params)), dict(named_leaves(again.params)))
    loader.close()


def test_wafer_compile_places_on_the_same_part_of_the_wafer():
    cfg = parse_config(config())
    spec = compiling.spec_of(cfg)
    assert (spec.width, spec.height) == (8, 6)
    larger = parse_config(config(runconfig={"fabric": {"height": 2000}}))
    with pytest.raises(ConfigError, match=r"fabric\.height: 2000 PEs; wse2 has 994"):
        compiling.spec_of(larger)


def test_a_part_of_the_wafer_that_is_too_small_is_said_before_anything_runs(tmp_path):
    cfg = parse_config(config(tmp_path, model={"hidden_size": 4000}))
    with pytest.raises(CapacityError, match=r"48 PEs of 48 KiB .* Use more .*runconfig\.fabric"):
        build(Experiment.from_config(cfg))


GPT2 = {key: tiny()[key] for key in ("model", "train_input", "eval_input")}
REFUSED = {
    "fabric runs stacks of dense layers": config() | GPT2,
    "activation_fn: 'gelu': the PEs have": config(model={"activation_fn": "gelu"}),
    "model.dropout: 0.1: PEs draw no masks": config(model={"dropout": 0.1}),
    "mixed_precision: activations of float16": config(model={"mixed_precision": True}),
    "'AdamW': the PEs update by SGD": config()
    | {"optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.1}},
    "optimizer.nesterov: not in the PEs' update": config(optimizer={"nesterov": True}),
    "optimizer.weight_decay: not in the PEs'": config(optimizer={"weight_decay": 0.1}),
    "num_csx: 2: one wafer is simulated": config(runconfig={"num_csx": 2}),
    "sparsity.algorithm: the PEs' program is written for one pattern": config(
        sparsity={"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 2}}
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message):
    with pytest.raises(ConfigError, match=message):
        check(Experiment.from_config(parse_config(REFUSED[message])))
