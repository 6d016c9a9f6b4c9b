"""Distillation: the divergence by hand, a teacher that is oneself, and what cannot have one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.runs import TINY, config, merged, tiny, train
from helpers.streamed import assert_same

import wafer
from wafer.config import parse_config
from wafer.data.batching.batches import host_batch, to_batch
from wafer.engines.choose import make
from wafer.errors import CheckpointError, ConfigError
from wafer.experiment import Experiment
from wafer.models.losses import divergence


def test_divergence_by_hand():
    """Teacher (3/4, 1/4), student (1/2, 1/2): 3/4 ln(3/2) + 1/4 ln(1/2)."""
    student, teacher = jnp.zeros((2, 2)), jnp.log(jnp.array([[3.0, 1.0], [3.0, 1.0]]))
    live = jnp.array([True, False])
    value = 0.75 * np.log(1.5) + 0.25 * np.log(0.5)
    np.testing.assert_allclose(divergence(student, teacher, live), [value, 0], rtol=1e-6)
    # T = 2 takes roots: (sqrt 3, 1) / (1 + sqrt 3).
    p = np.sqrt(3) / (1 + np.sqrt(3))
    soft = p * np.log(2 * p) + (1 - p) * np.log(2 * (1 - p))
    np.testing.assert_allclose(divergence(student, teacher, live, 2.0)[0], soft, rtol=1e-6)
    # The gradient is (softmax(student) - softmax(teacher)) / T, and none where nothing is live.
    total = lambda s: divergence(s, teacher, live, 2.0).sum()
    expected = [[(0.5 - p) / 2, -(0.5 - p) / 2], [0, 0]]
    np.testing.assert_allclose(jax.grad(total)(student), expected, atol=1e-7)


def test_slack_of_any_content_has_no_gradient():
    """Where it is live: softmax(0, ln 3) less the teacher's 1/2, (1/4 - 1/2, 3/4 - 1/2)."""
    student = jnp.array([[0.0, np.log(3)], [jnp.inf, jnp.nan]])
    live = jnp.array([True, False])
    gradient = jax.grad(lambda s: divergence(s, jnp.ones((2, 2)), live).sum())(student)
    np.testing.assert_allclose(gradient, [[-0.25, 0.25], [0, 0]], rtol=1e-6)


def sections(teacher, **section):
    return config(distillation={"checkpoint_path": str(teacher)} | section)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A checkpoint of two trained steps."""
    folder = tmp_path_factory.mktemp("teacher")
    train(folder, runconfig={"max_steps": 2})
    return folder / "checkpoints" / "2"


def prepared(sections, params=None):
    """(engine, state with given or fresh weights, features of the first step)."""
    experiment = Experiment.from_config(parse_config(sections))
    engine = make(experiment)
    state = engine.init(jax.random.key(0))
    if params is not None:  # copies: a step consumes its state
        state = engine.replicate(state._replace(params=jax.tree.map(jnp.array, params)))
    shape = experiment.batch("train")
    loader = experiment.dataset("train", ".").loader(shape.samples, num_epochs=None, task=(0, 1))
    rows = next(loader)
    loader.close()
    batch = host_batch(rows, shape.systems, shape.micro_batches, None, lambda x: x)
    return engine, state, engine.place(batch)


def first_step(sections, params=None):
    engine, state, features = prepared(sections, params)
    _, metrics = engine.step(state, features, topology=False)
    return {name: float(value) for name, value in metrics.items()}


@pytest.mark.slow
def test_a_teacher_that_is_the_student_gives_no_divergence(teacher):
    _, params, _ = wafer.load(teacher)
    plain = first_step(config(), params)
    alone = first_step(sections(teacher, weight=1.0), params)
    assert alone["distillation/kl"] == pytest.approx(0, abs=1e-6)
    assert alone["loss"] == pytest.approx(0, abs=1e-6)
    assert alone["grad_norm"] < 1e-5 * plain["grad_norm"]
    half = first_step(sections(teacher, weight=0.5), params)
    assert half["loss"] == pytest.approx(plain["loss"] / 2, rel=1e-5)
    assert half["grad_norm"] == pytest.approx(plain["grad_norm"] / 2, rel=1e-4)


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_the_loss_is_the_mixture(teacher):
    """Another implementation: the two models' outputs, in numpy."""
    section = sections(teacher, weight=0.25, temperature=3.0)
    engine, state, features = prepared(section)
    batch = to_batch(jax.tree.map(lambda x: x[0, 0], features))
    model, params, _ = wafer.load(teacher)
    own = log_softmax(np.asarray(jax.jit(engine.model.apply)(state.params, batch)) / 3)
    other = log_softmax(np.asarray(jax.jit(model.apply)(params, batch)) / 3)
    weights = np.asarray(batch.weights)
    kl = float(((np.exp(other) * (other - own)).sum(-1) * weights).sum() / weights.sum())
    plain, mixed = first_step(config()), first_step(section)
    assert kl > 0.001
    assert mixed["distillation/kl"] == pytest.approx(kl, rel=1e-3)
    assert mixed["loss"] == pytest.approx(0.75 * plain["loss"] + 0.25 * 9 * kl, rel=1e-4)


@pytest.mark.slow
def test_weight_0_is_the_plain_run_bit_for_bit(teacher, tmp_path):
    plain = train(tmp_path / "plain")
    same = train(tmp_path / "same", **sections(teacher, weight=0.0))
    assert_same(same, plain)  # nor is the teacher in its checkpoint


@pytest.mark.slow
def test_a_sparse_student_trains_and_goes_on_with_its_teacher(teacher, tmp_path):
    changes = sections(teacher, weight=0.9)
    changes["sparsity"] = {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 2}}
    whole = train(tmp_path / "whole", **changes)
    short = merged(dict(changes), runconfig={"max_steps": 2})
    train(tmp_path / "parts", **short)
    parts = train(tmp_path / "parts", **changes)
    assert_same(parts, whole)


@pytest.mark.slow
def test_two_systems_and_micro_batches_give_what_one_gives(teacher):
    one = first_step(sections(teacher))
    for changes in ({"runconfig": {"num_csx": 2}}, {"train_input": {"micro_batch_size": 2}}):
        assert first_step(merged(sections(teacher), **changes)) == pytest.approx(one, rel=1e-4)


def test_what_cannot_have_a_teacher_says_so(teacher):
    for name in ("weight_streaming", "pipelined"):
        cfg = merged(sections(teacher), runconfig={"execution_strategy": name})
        with pytest.raises(ConfigError, match=f"distillation: {name} has no teacher.* resident"):
            make(Experiment.from_config(parse_config(cfg)))
    rows = {"data_processor": "RandomDataProcessor", "task": "mlm", "batch_size": 2}
    rows |= {"vocab_size": 16, "max_sequence_length": 8}
    masked = sections(teacher) | {"model": TINY | {"name": "bert"}, "train_input": rows}
    del masked["eval_input"]
    with pytest.raises(ConfigError, match="distillation: train_input is for 'mlm'"):
        Experiment.from_config(parse_config(masked))


def test_a_teacher_that_does_not_fit_is_refused(teacher, tmp_path):
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        make(Experiment.from_config(parse_config(sections(tmp_path))))
    small = tiny(distillation={"checkpoint_path": str(teacher)})
    with pytest.raises(ConfigError, match=r"teacher has 32 tokens, model\.vocab_size is 16"):
        make(Experiment.from_config(parse_config(small)))


def test_ranges_and_the_missing_path():
    for key, value in {"temperature": 0, "weight": 1.5, "temprature": 1}.items():
        with pytest.raises(ConfigError, match=rf"distillation\.{key}"):
            parse_config(sections("x", **{key: value}))
    with pytest.raises(ConfigError, match=r"distillation\.checkpoint_path"):
        parse_config(config(distillation={"weight": 0.5}))
