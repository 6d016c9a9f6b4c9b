"""Programs that are compiled while the first state and the data are made."""

import jax
import numpy as np
import pytest

from wafer.engines.choose import make
from wafer.engines.resident import structs_of
from wafer.experiment import Experiment
from wafer.session.warm import AheadOfTimeCompiler

SIZE = 8
RIGL = {"algorithm": "rigl", "sparsity": 0.7, "update": {"freq": 2}}


def half_of_the_largest(weight, sparsity, key, view):
    """A user's rule for first masks that reads the weights: nothing is known before they are."""
    return np.abs(weight) > np.median(np.abs(np.asarray(weight)))


def experiment(sparsity):
    model = {"name": "gpt2", "vocab_size": SIZE, "hidden_size": SIZE, "num_heads": 2}
    sizes = {"num_hidden_layers": 1, "filter_size": 16, "max_position_embeddings": SIZE}
    data = {"data_processor": "SyntheticDataProcessor", "vocab_size": SIZE}
    return Experiment.from_config(
        {
            "model": model | sizes,
            "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.1},
            "sparsity": sparsity,
            "train_input": data | {"max_sequence_length": SIZE, "batch_size": 2},
            "runconfig": {"max_steps": 1},
        }
    )


@pytest.mark.parametrize("compute", ["masked", "csr"])
def test_shapes_are_those_of_the_first_state(compute):
    engine, key = make(experiment(RIGL | {"compute": compute})), jax.random.key(3)
    assert engine.shapes(key) == structs_of(engine.init(key))


@pytest.mark.parametrize("init_method", ["random", half_of_the_largest])
def test_the_step_that_was_compiled_ahead_is_the_one_that_runs(init_method):
    engine = make(experiment(RIGL | {"init_method": init_method, "compute": "masked"}))
    features = engine.place(
        {
            "input_ids": np.zeros((1, 1, 2, SIZE), np.int32),
            "attention_mask": np.ones((1, 1, 2, SIZE), np.int32),
            "labels": np.ones((1, 1, 2, SIZE), np.int32),
            "lengths": np.full((1, 1, 2), SIZE, np.int32),
        }
    )
    key, shapes = jax.random.key(3), structs_of(features)
    warmup = AheadOfTimeCompiler(engine, key, train=shapes, evaluation=shapes, ahead=True)
    state, expected = warmup.first_state(), engine.init(key)
    jax.tree.map(np.testing.assert_array_equal, state.params, expected.params)
    engine.evaluate(state, features)
    engine.step(state, features, topology=False)
    assert sorted(engine.programs.names()) == ["evaluation", "step"]
