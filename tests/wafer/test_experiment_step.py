"""An experiment as pure functions: a run's first state and steps, alone and many in one program."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from wafer import engines, models, sparsity, vsl
from wafer.data.batching.batches import host_batch
from wafer.errors import ConfigError
from wafer.experiment import Experiment

STEPS, ROWS, LENGTH, VOCAB = 4, 4, 8, 16
RIGL = {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 2}}


def experiment(**changes):
    data = {"data_processor": "SyntheticDataProcessor", "vocab_size": VOCAB}
    data |= {"max_sequence_length": LENGTH, "batch_size": ROWS}
    model = {"name": "gpt2", "vocab_size": VOCAB, "hidden_size": 16, "num_heads": 2}
    model |= {"num_hidden_layers": 1, "filter_size": 32, "max_position_embeddings": LENGTH}
    optimizer = {"optimizer_type": "AdamW", "learning_rate": 0.01, "max_gradient_norm": 1.0}
    sections = {"model": model, "optimizer": optimizer, "train_input": data, "sparsity": RIGL}
    return Experiment.from_config(sections | {"runconfig": {"max_steps": STEPS}} | changes)


def rows_of(t):
    rng = np.random.default_rng(t)
    ids = (rng.integers(1, VOCAB, size=(ROWS, 1)) + np.arange(LENGTH + 1)) % VOCAB
    mask = np.arange(LENGTH) < rng.integers(2, LENGTH, size=(ROWS, 1))
    names = ("input_ids", "labels", "attention_mask")
    return dict(zip(names, map(np.int32, (ids[:, :-1], ids[:, 1:], mask)), strict=True))


def assert_same(got, expected, rtol=1e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-7), got, expected)


def test_its_steps_are_those_of_the_resident_engine():
    """Of features as of a batch, with dropout, masks that move and clipping."""
    ours = experiment(model=experiment().cfg.model | {"dropout_rate": 0.1})
    engine = engines.make(ours)
    state, theirs = ours.init(jax.random.key(5)), engine.init(jax.random.key(5))
    step = jax.jit(ours.step, static_argnames="topology")
    for t in range(STEPS):
        due, features = ours.sparsifier.due(t + 1), host_batch(rows_of(t))
        theirs, expected = engine.step(theirs, engine.place(features), topology=due)
        state, metrics = step(state, {k: v[0, 0] for k, v in features.items()}, topology=due)
        assert_same(metrics, expected, rtol=2e-6)
    jax.tree.map(np.testing.assert_array_equal, state.sparse.masks, theirs.sparse.masks)
    assert_same(state.params, theirs.params, rtol=1e-4)
    assert int(state.step) == int(state.sparse.step) == STEPS


TRACED = {  # what a run file or a call has a traced array for -> the message
    "learning_rate": "learning_rate: .*a traced array; expected a value known when the program",
    "weight_decay_rate": "weight_decay_rate: .*a traced array",
    "freq": r"sparsity\.update\.freq: .*a traced array",
    "topology": "topology: a traced array; expected True or False",
}


@pytest.mark.parametrize("name", TRACED)
def test_what_decides_the_program_may_not_be_traced(name):
    def run(value):
        if name == "topology":
            start = base().init(jax.random.key(0))
            return base().step(start, rows_of(0), topology=value)[1]["loss"]
        if name == "freq":
            ours = experiment(sparsity=RIGL | {"update": {"freq": value}})
        else:
            rate = {"optimizer_type": "AdamW", "learning_rate": 0.1}
            ours = experiment(optimizer=rate | {name: value})
        return ours.init(jax.random.key(0)).step

    with pytest.raises((ConfigError, TypeError), match=TRACED[name]):
        jax.eval_shape(run, 1)


@functools.cache
def base():
    return experiment()


def train(key, rate, level):
    """Train a whole run: packed streams, two updates of the masks."""
    rule = sparsity.configure({**RIGL, "sparsity": level}, accepts=base().model.sparse)
    ours = dataclasses.replace(base(), tx=optax.adamw(rate), sparsifier=rule)

    def packed(rows):
        values = {"in": rows["input_ids"], "out": rows["labels"]}
        stream = vsl.strip_padding(values, rows["attention_mask"] != 0, capacity=ROWS * LENGTH)
        valid = stream.layout.valid.astype("float32")
        return models.Batch(stream.values["in"], stream.values["out"], valid, stream.layout)

    def two(state, rows):
        state, first = ours.step(state, packed(jax.tree.map(lambda x: x[0], rows)), topology=False)
        state, second = ours.step(state, packed(jax.tree.map(lambda x: x[1], rows)))
        return state, jnp.stack([first["loss"], second["loss"]])

    stacked = [jax.tree.map(lambda *x: np.stack(x), rows_of(t), rows_of(t + 1)) for t in (0, 2)]
    rows = jax.tree.map(lambda *x: jnp.stack(x), *stacked)
    state, losses = jax.lax.scan(two, ours.init(key), rows)
    return losses.reshape(-1), ours.sparsifier.masks(state.sparse)


GRID = np.float32([1e-2, 3e-3, 1e-2]), np.float32([0.5, 0.8, 0.9])
WAYS = {
    "vmap": jax.vmap(train),
    "map": lambda *grid: jax.lax.map(lambda one: train(*one), grid),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_grid_of_seeds_rates_and_levels_in_one_program_is_single_runs(way):
    keys = jax.random.split(jax.random.key(0), 3)
    losses, masks = jax.jit(WAYS[way])(keys, *GRID)
    single = jax.jit(train)
    for i, key in enumerate(keys):
        expected, kept = single(key, GRID[0][i], GRID[1][i])
        assert_same(losses[i], expected)
        jax.tree.map(np.testing.assert_array_equal, {n: m[i] for n, m in masks.items()}, kept)
    assert len({float(loss) for loss in losses[:, -1]}) == 3


@pytest.mark.slow
def test_a_stream_that_lost_tokens_gives_no_loss():
    """As for ``Model.loss``: a capacity that is too small under ``jit``."""
    rows = rows_of(0)
    stream = lambda mask: vsl.strip_padding({"in": rows["input_ids"]}, mask, capacity=4)

    def loss(mask):
        packed, ours = stream(mask), base()
        tokens, weights = packed.values["in"], packed.layout.valid.astype("float32")
        batch = models.Batch(tokens, tokens, weights, packed.layout)
        return ours.step(ours.init(jax.random.key(0)), batch)[1]["loss"]

    assert np.isnan(jax.jit(loss)(rows["attention_mask"] != 0))


def test_a_teacher_is_refused():
    ours = experiment(distillation={"checkpoint_path": "teacher"})
    with pytest.raises(ConfigError, match="distillation: an experiment's step has no teacher"):
        jax.eval_shape(lambda: ours.step(ours.init(jax.random.key(0)), {}))
