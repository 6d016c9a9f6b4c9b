"""Pipelined execution: the parameters of sequential execution, whatever is trained and how."""

import functools

import jax
import numpy as np
import pytest
from test_streaming import (
    ADAMW,
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
    batch_of,
    executors,
    train,
)

import models
import sparsity
from wafer.run.pipelined import Pipelined
from wafer.run.regions import meshes, partition, regions
from wafer.run.schedule import schedule
from wafer.train.optim import make_optimizer
from wafer.train.precision import LossScaler

MLP = {"name": "fc_mnist", "depth": 3, "hidden_size": 12, "dropout": 0.0}


def pipelined(
    model_cfg, optimizer=ADAMW, section=None, *, devices=1, systems=1, scaler=None, **options
):
    model = models.build(model_cfg)
    sparsifier = sparsity.configure(
        section, aliases=model.alias, accepts=lambda name: name.endswith("/kernel")
    )
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    tx = make_optimizer(optimizer, shapes, model.alias)
    clips = optimizer.get("max_gradient_norm") is not None
    return Pipelined(
        model, tx, sparsifier, scaler or LossScaler(), meshes(systems, devices),
        global_norm=clips, **options,
    )  # fmt: skip


def assert_equal(
    model_cfg, steps=3, atol=1e-6, rel=2e-5, micro=2, systems=1, data=None, pipe=None, **options
):
    """Resident and pipelined execution, the same steps: states and metrics agree."""
    resident, _ = executors(model_cfg, systems=systems, **options)
    flowing = pipelined(model_cfg, systems=systems, **options, **(pipe or {}))
    make = functools.partial(
        batch_of, resident.model, systems=systems, micro=micro, **(data or {})
    )
    batches = [make(seed=i) for i in range(steps)]
    want, wanted = train(resident, batches)
    got, metrics = train(flowing, batches)
    for a, b in zip(wanted, metrics, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert b[name] == pytest.approx(a[name], rel=rel, abs=1e-6, nan_ok=True)
    a, b = arrays(want), arrays(got)
    assert a.keys() == b.keys()
    for name, leaf in a.items():
        assert b[name].dtype == leaf.dtype, name
        np.testing.assert_allclose(b[name], leaf, atol=atol, rtol=1e-5, err_msg=name)
    return wanted, flowing


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
    [v if v in ("gpt", "many") else pytest.param(v, marks=pytest.mark.slow) for v in VARIANTS],
)
def test_same_parameters_as_resident(name):
    options = dict(VARIANTS[name])
    if options.pop("dropout", False):
        options["pipe"] = options["pipe"] | {}
        options["dropout"] = True
    assert_equal(**options)
