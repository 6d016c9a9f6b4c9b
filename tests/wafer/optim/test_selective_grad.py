"""``selective_grad``: only outliers of the first weights train."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.runs import arrays, config, train

from wafer.config import parse_config
from wafer.engines.choose import check
from wafer.errors import ConfigError
from wafer.experiment import Experiment
from wafer.optim.chain import make_optimizer
from wafer.optim.freeze import outliers, train_only
from wafer.optim.rules import without_frozen

KERNEL = jnp.array([[1.0, 1.0, -4.0], [0.5, -0.5, 0.5]])  # [in, out]
# Magnitudes of an input over the outputs: 1, 1, 4 have deviation sqrt(3), 0.5 thrice has 0.
TRAINS = np.array([[False, False, True], [True, True, True]])  # |w| >= 2.25 deviations
GLOB = {"param_filter": "*query*"}


def test_outliers_are_over_the_outputs():
    np.testing.assert_array_equal(outliers("dense/kernel", KERNEL), TRAINS)
    np.testing.assert_array_equal(outliers("embed/embedding", KERNEL.T), TRAINS.T)
    assert not outliers("dense/kernel", jnp.ones((2, 1))).any()  # one output has no deviation


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "Lamb", "Adafactor"])
def test_other_elements_keep_their_bits_and_do_not_count(kind):
    section = {"optimizer_type": kind, "learning_rate": 0.1, "weight_decay": 0.5}
    tx = make_optimizer(section | {"selective_grad": [{}], "max_gradient_norm": 1.0})
    params = {"dense": {"kernel": KERNEL, "bias": jnp.ones(3)}}
    state = tx.init(params)
    assert jax.tree.leaves(state.mask)[0].tolist() == TRAINS.tolist()  # the bias has none
    step = jax.jit(tx.update)
    grads = jax.tree.map(jnp.ones_like, params)
    loud = {"dense": {"kernel": jnp.where(TRAINS, 1.0, 1e3), "bias": jnp.ones(3)}}
    quiet, _ = step(grads, state, params)
    updates, state = step(loud, state, params)  # what does not train has no share in the norm
    np.testing.assert_array_equal(updates["dense"]["kernel"], quiet["dense"]["kernel"])
    assert (np.asarray(updates["dense"]["kernel"])[~TRAINS] == 0).all()
    assert (np.asarray(updates["dense"]["kernel"])[TRAINS] != 0).all()


def test_a_step_by_hand():
    section = {"optimizer_type": "SGD", "learning_rate": 0.5, "max_gradient_norm": 1.0}
    tx = make_optimizer(section | {"selective_grad": [{"param_filter": ["*kernel"]}]})
    params = {"dense": {"kernel": KERNEL}}
    updates, _ = tx.update({"dense": {"kernel": jnp.ones((2, 3))}}, tx.init(params), params)
    # Four elements train, so the norm is 2 and the clipped gradient 1/2.
    np.testing.assert_allclose(updates["dense"]["kernel"], np.where(TRAINS, -0.25, 0), rtol=1e-5)


def test_a_run_goes_on_with_its_mask_and_fine_tuning_draws_one(tmp_path):
    optimizer = {"selective_grad": GLOB, "max_gradient_norm": 0.5}
    whole, name = train(tmp_path / "a", optimizer=optimizer), "layers_0/attn/query/kernel"
    half = str(tmp_path / "a/checkpoints/2")
    begin = arrays(half)
    (mask,) = (value for key, value in whole.items() if key.endswith(f"mask/{name}"))
    moved = whole[f"params/{name}"] != begin[f"params/{name}"]
    assert moved.any()
    assert not moved[~mask].any()
    assert 0 < mask.mean() < 0.9
    again = train(tmp_path / "b", optimizer=optimizer, runconfig={"checkpoint_path": half})
    for key, value in whole.items():
        np.testing.assert_array_equal(value, again[key], err_msg=key)
    anew = {"checkpoint_path": half, "load_checkpoint_states": "model", "max_steps": 1}
    tuned = train(tmp_path / "c", optimizer=optimizer, runconfig=anew)
    (mask,) = (value for key, value in tuned.items() if key.endswith(f"mask/{name}"))
    np.testing.assert_array_equal(mask, outliers(name, jnp.asarray(begin[f"params/{name}"])))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["weight_streaming", "pipelined"])
def test_engines_agree(tmp_path, strategy):
    optimizer = {"selective_grad": GLOB, "max_gradient_value": 0.01}
    one, other = (
        train(tmp_path / name, optimizer=optimizer, runconfig={"execution_strategy": name})
        for name in ("resident", strategy)
    )
    for name, value in one.items():
        if name.startswith("params/"):
            np.testing.assert_allclose(value, other[name], atol=1e-6, err_msg=name)


GLOB_AND_NORM = {"selective_grad": GLOB, "max_gradient_norm": 0.5}
STREAMED = {"execution_strategy": "weight_streaming"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"runconfig": STREAMED}, "selective_grad: weight_streaming does not clip it by norm"),
        ({"sparsity": {"sparsity": 0.5}}, "not computed here: outliers of sparse weights"),
        ({"param_filter": "*qwery*"}, "[0].param_filter: '*qwery*' matches no parameter; a name"),
        ({"init_method": "topk"}, "selective_grad[0].init_method: 'topk': expected 'outlier'"),
    ],
)
def test_what_is_not_computed_is_refused(changes, says):
    if not changes.keys() & {"runconfig", "sparsity"}:
        changes = {"optimizer": {"selective_grad": changes}}
    cfg = config(**{"optimizer": GLOB_AND_NORM} | changes)
    with pytest.raises(ConfigError) as caught:
        check(Experiment.from_config(parse_config(cfg)))
    assert says in str(caught.value)


def test_frozen_parameters_have_no_share_in_a_norm():
    """LLaVA's ``freeze``: an engine that clips by a norm of its own leaves them out."""
    tx = make_optimizer({"optimizer_type": "SGD", "learning_rate": 0.5})
    grads = {"a": jnp.ones(2), "b": jnp.ones(2)}
    left = without_frozen(train_only(tx, {"b"}), grads)
    assert (left["a"].tolist(), left["b"].tolist()) == ([0, 0], [1, 1])
    assert without_frozen(tx, grads) is grads
