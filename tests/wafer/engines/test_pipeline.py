"""Pipelined execution: the parameters of sequential execution, whatever is trained and how."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.runs import config
from helpers.streamed import (
    BERT,
    CLIPPED,
    GPT,
    GPTJ,
    HALF,
    RIGL,
    SCALER,
    STATIC,
    T5,
    arrays,
    assert_agree,
    assert_same,
    batch_of,
    executors,
    pipelined,
    train,
)
from jax.sharding import NamedSharding, PartitionSpec
from matplotlib.figure import Figure

from wafer import models
from wafer.commands.planning.plan import plan
from wafer.commands.run import run as run_mode
from wafer.config import parse_config
from wafer.config.engines import engine_row
from wafer.engines.choose import check, make
from wafer.engines.cluster import swarmx_mesh
from wafer.engines.resident import Resident
from wafer.engines.stagewise.pipeline.flow import Flow
from wafer.engines.stagewise.pipeline.record import Span
from wafer.engines.stagewise.pipeline.regions import meshes, partition, regions
from wafer.engines.stagewise.pipeline.schedule import in_flight, needs, schedule
from wafer.engines.stagewise.streaming.traffic import Event
from wafer.engines.stagewise.timeline import draw_schedule, draw_spans, draw_sweep
from wafer.errors import ConfigError
from wafer.experiment import Experiment
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.families.fc_mnist import image_batch
from wafer.optim.precision import LossScaler

MLP = {"name": "fc_mnist", "depth": 3, "hidden_size": 12, "dropout": 0.0}


def assert_equal(
    model_cfg, steps=3, atol=1e-6, rel=2e-5, micro=2, systems=1, data=None, pipe=None, **options
):
    """Resident and pipelined execution, the same steps: states and metrics agree."""
    resident, _ = executors(model_cfg, systems=systems, **options)
    flowing = pipelined(model_cfg, systems=systems, **options, **(pipe or {}))
    make = functools.partial(batch_of, resident.model, systems=systems, micro=micro, **(data or {}))
    batches = [make(seed=i) for i in range(steps)]
    return assert_agree(resident, flowing, batches, atol, rel), flowing


VARIANTS = {
    "gpt": {"model_cfg": GPT, "pipe": {"devices": 3}},  # embeddings tied across two devices
    "clip-rigl": {
        "model_cfg": GPT,
        "section": RIGL | {"compute": "csr"},
        "optimizer": CLIPPED,
        "pipe": {"devices": 2, "stages": 3},
    },
    "static": {"model_cfg": GPTJ, "section": STATIC | {"compute": "csr"}},
    "masked": {"model_cfg": GPT, "section": RIGL | {"compute": "masked"}},
    "bert": {"model_cfg": BERT, "section": RIGL | {"compute": "csr"}, "pipe": {"devices": 2}},
    "t5": {"model_cfg": T5, "pipe": {"devices": 4}},
    "many": {  # systems, micro-batches, dropout, packed rows, recomputed products
        "model_cfg": GPT | {"dropout_rate": 0.1},
        "systems": 2,
        "data": {"rows": 12, "packed": True},
        "micro": 3,
        "dropout": True,
        "pipe": {"devices": 2, "recompute": True},
    },
    "adafactor": {
        "model_cfg": GPTJ,
        "optimizer": {"optimizer_type": "Adafactor", "learning_rate": 0.01},
    },
    "moe": {"model_cfg": GPT | {"moe": {"num_experts": 2, "top_k": 1}}},
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "clip-rigl" else pytest.mark.slow)
        for name in VARIANTS
    ],
)
def test_same_parameters_as_resident(name):
    assert_equal(**VARIANTS[name])


@pytest.mark.slow
def test_tied_clipped_and_sparse_steps_keep_every_bit_too():
    options = {"section": RIGL | {"compute": "csr"}, "optimizer": CLIPPED}
    batches = [batch_of(models.build(GPT), micro=2, seed=seed) for seed in range(3)]
    want, losses = train(pipelined(GPT, stages=1, **options), batches)
    got, seen = train(pipelined(GPT, stages=4, devices=2, **options), batches)
    assert seen == losses
    assert_same(arrays(got), arrays(want))


@pytest.mark.slow
def test_a_step_that_overflows_is_skipped_as_by_resident():
    """As for weight streaming: half precision rounds differently in fused programs."""
    options = {"scaler": SCALER, "optimizer": CLIPPED, "pipe": {"devices": 2}}
    wanted, _ = assert_equal(HALF, atol=2e-3, rel=2e-2, **options)
    assert not np.isfinite(wanted[0]["grad_norm"])
    assert wanted[1]["loss_scale"] == wanted[0]["loss_scale"] / 2


def images(seed, micro=4, rows=3):
    """Batch [1, A, ...] of images."""
    rng = np.random.default_rng(seed)
    one = lambda: image_batch(
        np.float32(rng.random((rows, 784))), np.int32(rng.integers(0, 10, rows))
    )
    batch = jax.tree.map(lambda *xs: jnp.stack(xs)[None], *[one() for _ in range(micro)])
    return jax.device_put(batch, NamedSharding(swarmx_mesh(1), PartitionSpec("csx")))


@pytest.mark.slow
def test_the_timetable_is_what_runs_and_no_way_of_running_it_changes_a_bit(monkeypatch):
    """One region is sequential execution: forward, backward of one micro-batch after the other."""
    held = collections.defaultdict(int)
    forward = Flow._forward

    def counting(flow, task):
        output = forward(flow, task)
        here = [at for at in flow._saved if at[0] in flow.pipe.regions[task.stage].stages]
        at = len(flow.pipe.regions), task.stage
        held[at] = max(held[at], len(here))
        return output

    monkeypatch.setattr(Flow, "_forward", counting)
    batches = [images(seed) for seed in range(3)]
    results = {}
    for stages, devices in ((1, 1), (4, 1), (4, 4), (3, 2)):
        events = []
        executor = pipelined(MLP, stages=stages, devices=devices, events=events)
        state, seen = train(executor, batches)
        results[stages, devices] = arrays(state), seen
        assert [span.task for span in events] == 3 * list(schedule(stages, 4))
        spans = {span.task: span for span in events[-len(schedule(stages, 4)) :]}
        ends = {task[1:]: span.end for task, span in spans.items()}
        for task, span in spans.items():
            assert span.end >= span.begin
            assert all(ends[need] <= span.begin for need in needs(task, stages, 4))
    want, losses = results[1, 1]
    for got, seen in results.values():
        assert seen == losses
        assert_same(got, want)
    for stage in range(3):  # the last stage's activations are used at once
        assert held[4, stage] == in_flight(4, 4, stage)
    core = executor.core
    resident = Resident(core.model, core.tx, core.sparsifier, LossScaler(), swarmx_mesh(1))
    assert_same(want, arrays(train(resident, batches)[0]), atol=1e-6, rtol=1e-5)
    a, outputs = resident.predict(resident.init(jax.random.key(3)), batches[0], ("logits",))
    b, ours = executor.predict(executor.init(jax.random.key(3)), batches[0], ("logits",))
    assert float(b.loss_sum) == pytest.approx(float(a.loss_sum), rel=1e-6)
    np.testing.assert_allclose(ours["logits"], outputs["logits"], atol=1e-6)


def test_regions_are_balanced_runs_of_stages():
    assert partition([3, 1, 1, 1], 2) == ((0,), (1, 2, 3))
    assert partition([1, 1, 1, 1], 4) == ((0,), (1,), (2,), (3,))
    assert partition([0, 5, 5, 5, 9], 3) == ((0, 1), (2, 3), (4,))
    with pytest.raises(ValueError, match=r"5 group\(s\) of 2 element\(s\)"):
        partition([1, 2], 5)
    model = models.build(GPT | {"num_hidden_layers": 4})
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    parts = regions(model, shapes, 3, 2)
    assert [(r.name, r.place) for r in parts] == [
        ("embed–layers_0", 0), ("layers_1–layers_2", 0), ("layers_3–head", 1)
    ]  # fmt: skip
    assert [r.name for r in regions(model, shapes, None, 1)] == [s.name for s in model.stages]
    with pytest.raises(ValueError, match="9 pipeline stages, but the model has 6: embed, layers_0"):
        regions(model, shapes, 9, 1)
    with pytest.raises(ValueError, match="3 devices, but the pipeline has 2"):
        regions(model, shapes, 2, 3)
    with pytest.raises(ValueError, match=r"5 device\(s\) for each of 1 system\(s\), but JAX"):
        meshes(1, 5)


def run_config(folder, micro=2, **runconfig):
    return parse_config(
        config(
            train_input={"micro_batch_size": micro},
            model={"num_hidden_layers": 2},
            optimizer={"max_gradient_norm": 0.5},
            sparsity=RIGL | {"compute": "csr"},
            runconfig={"model_dir": str(folder), **runconfig},
        )
    )


PIPED = {"execution_strategy": "pipelined", "pipeline": {"stages": 3, "devices": 2}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pipeline": {"stages": 2}}, "pipeline: is read only with execution_strategy: pipelined"),
        (PIPED | {"pipeline": {"stages": 9}}, "stages: 9, but 'gpt2' has 4: embed, layers_0"),
        (PIPED | {"pipeline": {"stages": 2, "devices": 3}}, "devices: 3, but the pipeline has 2"),
        (PIPED | {"pipeline": {"devices": 0}}, "devices"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        check(Experiment.from_config(run_config(tmp_path, max_steps=1, **settings)))


def test_wafer_plan_shows_the_pipeline(tmp_path):
    text = plan(Experiment.from_config(run_config(tmp_path, max_steps=1, **PIPED)), [1]).table()
    expected = (
        "Pipelined: 3 stages (embed–layers_0, layers_1, head), 2 micro-batch(es) a step: "
        "44.4% of the timetable idle, at most 2 micro-batch(es) in flight."
    )
    assert expected in text.splitlines()


def test_several_processes_are_refused(tmp_path, monkeypatch):
    experiment = Experiment.from_config(run_config(tmp_path, max_steps=1, **PIPED))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ConfigError, match="must be in one process, this run has 2"):
        make(experiment, engine_row("pipelined"))


@pytest.mark.slow
def test_checkpoints_are_interchangeable_between_executors(tmp_path):
    streamed = {"execution_strategy": "weight_streaming"}
    ways = {
        "resident": ({}, {}),
        "there": ({}, PIPED),
        "back": (PIPED, {}),
        "stay": (PIPED, PIPED),
        "stream": (PIPED, streamed),
    }
    leaves = {}
    for name, (first, then) in ways.items():
        folder = tmp_path / name
        assert run_mode(run_config(folder, max_steps=3, **first)) == 0
        assert run_mode(run_config(folder, max_steps=5, **then)) == 0
        leaves[name] = arrays(load_checkpoint(folder / "checkpoints" / "5")[0])
    assert run_mode(run_config(tmp_path / "whole", max_steps=5, **PIPED)) == 0
    whole = arrays(load_checkpoint(tmp_path / "whole" / "checkpoints" / "5")[0])
    assert_same(leaves["stay"], whole)  # resuming changes no bit
    for name in ways:
        assert_same(leaves[name], leaves["resident"], atol=2e-6, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("stripped", [{"use_vsl": True}, {}], ids=["packed", "stripped"])
def test_variable_length_batches(tmp_path, stripped):
    """Packed rows, and streams of several capacities."""
    leaves = {}
    for name, settings in (("resident", {}), ("pipelined", PIPED)):
        folder = tmp_path / name
        cfg = config(
            train_input={"micro_batch_size": 2, **stripped},
            model={"num_hidden_layers": 2, "enable_vts": not stripped},
            runconfig={"model_dir": str(folder), "mode": "train_and_eval", "eval_frequency": 2}
            | settings,
        )
        assert run_mode(parse_config(cfg)) == 0
        leaves[name] = arrays(load_checkpoint(folder / "checkpoints" / "4")[0])
    assert_same(leaves["pipelined"], leaves["resident"], atol=2e-6, rtol=1e-5)


def test_pictures_have_a_bar_per_task():
    tasks = schedule(3, 4)
    names = ["embed", "layers_0", "head"]
    spans = [Span(task, 0.25 * task.step, 0.25 * task.step + 0.25) for task in tasks]
    fig = Figure()
    planned = draw_schedule(fig.add_subplot(2, 1, 1), tasks, names)
    measured = draw_spans(fig.add_subplot(2, 1, 2), spans, names)
    for ax, scale in ((planned, 1), (measured, 250)):
        at = {(bar.get_y() + 0.4, bar.get_x()) for bar in ax.patches}
        edge = 0.5 if ax is planned else 0
        assert at == {(task.stage, scale * task.step - edge) for task in tasks}
        assert len({bar.get_facecolor() for bar in ax.patches}) == 3
        assert [label.get_text() for label in ax.get_yticklabels()] == names
    events = [Event("fetch", "layers_0/weights", 1.0, 1.5), Event("forward", "layers_0", 1.5, 2.0)]
    sweep = draw_sweep(Figure().add_subplot(), events, {"layers_0": "red"}.__getitem__)
    assert [(bar.get_x(), bar.get_width()) for bar in sweep.patches] == [(0, 500), (500, 500)]
