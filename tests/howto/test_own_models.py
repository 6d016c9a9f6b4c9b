"""docs/howto/model-*.md, carried out: models of users in four forms, sparse and resumed."""

import importlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.paths import ROOT
from helpers.runs import tiny

import wafer
from wafer import models
from wafer.errors import ConfigError
from wafer.models.user import model as own

HEAD = {
    "plain": "head/weight",
    "linen": "Dense_0/kernel",
    "nnx": "head/kernel",
    "equinox": "head.weight",
}


@pytest.mark.parametrize(
    "form", ["plain", *(pytest.param(form, marks=pytest.mark.slow) for form in [*HEAD][1:])]
)
def test_pages(carried_out, form):
    page = (ROOT / f"docs/howto/model-{form}.md").read_text(encoding="utf-8")
    assert page.count("\n") <= 40
    run = carried_out(f"model-{form}", "my_model", "--max_steps 6")
    model, params, _ = wafer.load(run, trust_code=True)
    head = np.asarray(dict(models.named_leaves(params))[HEAD[form]])
    assert head.shape in {(32, 64), (64, 32)}
    assert np.mean((head == 0) | np.isnan(head)) == pytest.approx(0.5, abs=0.01)
    assert model.config.arguments == (("hidden", 32),)


def init(key):
    return {"table": jax.random.normal(key, (5, 5))}


def build(rate: float = 0.0):
    def apply(params, tokens, key):
        logits = params["table"][tokens]
        if key is None:
            return logits
        return jnp.where(jax.random.bernoulli(key, 1 - rate, logits.shape), logits, 0.0)

    return own.plain(init, apply, vocab_size=5, dropout=rate > 0)


def fails(width: int):
    return width // 0


def experiment(monkeypatch, optimizer=None, **model):
    module = type(sys)("own_module")
    module.build, module.fails, module.half, module.number = build, fails, half, 3
    monkeypatch.setitem(sys.modules, "own_module", module)
    sections = tiny(train_input={"vocab_size": 5}, optimizer=optimizer or {}) | {"model": model}
    del sections["eval_input"]
    return wafer.Experiment.from_config(sections)


def test_loss_of_a_table_is_that_of_its_rows(monkeypatch):
    run = experiment(monkeypatch, name="own_module:build", rate=0.5)
    assert run.dropout
    table = jnp.log(jnp.asarray([[1, 3], [1, 1]], jnp.float32))
    model = own.plain(lambda key: {"table": table}, lambda p, tokens, key: p["table"][tokens])
    batch = models.Batch(
        tokens=jnp.asarray([0, 1], jnp.int32),
        labels=jnp.asarray([1, 0], jnp.int32),
        weights=jnp.ones(2),
        layout=importlib.import_module("wafer.vsl").padded_layout(jnp.asarray([2], jnp.int32), 2),
    )
    loss, aux = model.loss({"table": table}, batch)
    # -log(3/4) and -log(1/2), by hand.
    np.testing.assert_allclose(loss, (0.28768207 + 0.69314718) / 2, rtol=1e-6)
    assert float(aux.weight) == 2


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            {"name": "own_module:build", "rat": 1},
            r"model\.rat: .*does not take it; did you mean 'rate'",
        ),
        (
            {"name": "own_module:fails"},
            r"model\.width: missing; own_module:fails .*test_own_models",
        ),
        ({"name": "own_module:fails", "width": 3}, r"ZeroDivisionError.*test_own_models\.py, line"),
        ({"name": "own_module:number"}, "expected a function, found 3"),
        ({"name": "own_module:absent"}, "has no attribute 'absent'"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(monkeypatch, model, says):
    with pytest.raises((ConfigError, ValueError), match=says):
        experiment(monkeypatch, **model)


def test_a_packed_stream_is_refused(monkeypatch):
    run = experiment(monkeypatch, name="own_module:build")
    layout = importlib.import_module("wafer.vsl").layout_from_lengths(jnp.asarray([2]), 4)
    zeros = jnp.zeros(4, jnp.int32)
    batch = models.Batch(zeros, zeros, jnp.ones(4), layout)
    with pytest.raises(ValueError, match="rows of tokens, not a packed stream"):
        run.model.loss(init(jax.random.key(0)), batch)


def half(strength: float = 0.5):
    return optax.scale(strength)


def test_an_optimizer_gives_the_direction(monkeypatch):
    optimizer = {"optimizer_type": "own_module:half", "weight_decay": 0.01}
    given = optimizer | {"strength": 0.25, "max_gradient_norm": 1.0}
    run = experiment(monkeypatch, given, name="own_module:build")
    params = {"table": jnp.full((5, 5), 2.0)}
    grads = {"table": jnp.zeros((5, 5)).at[0, 0].set(4.0)}
    updates: Any = run.tx.update(grads, run.tx.init(params), params)[0]
    # Clipped to 1, times 0.25, plus the decay 0.01 * 2, times -0.1.
    assert float(updates["table"][0, 0]) == pytest.approx(-0.1 * (0.25 + 0.02))
    assert float(updates["table"][1, 1]) == pytest.approx(-0.1 * 0.02)
    assert run.cfg.to_dict()["optimizer"]["strength"] == 0.25
    with pytest.raises(ConfigError, match=r"optimizer\.strenght: .*did you mean 'strength'"):
        experiment(monkeypatch, optimizer | {"strenght": 1.0}, name="own_module:build")
