"""Kernels in factors: what they compute, how they are drawn, folded, trained sparse and written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.batches import rows
from helpers.runs import TINY, TINY_ROWS

import wafer
import wafer.cli
from wafer import models
from wafer.config.ift import transform
from wafer.models.factored.factors import Factored, fold_factors
from wafer.models.paths import named_leaves

RNG = np.random.default_rng(0)
X, U, V, W = (RNG.standard_normal(s).astype(np.float32) for s in ((5, 4), (4, 3), (3, 6), (4, 6)))
FORMS = ["factorized", "doped"]


def built(form, **keys):
    return models.build(TINY | {"factors": {"form": form, "sparsity": 0.75} | keys})


def test_products_by_numpy():
    first, second = jnp.asarray(U), jnp.asarray(V)
    np.testing.assert_allclose(Factored(first, second, None).project(X), X @ U @ V, rtol=1e-5)
    both = Factored(first, second, jnp.asarray(W)).project(X)
    np.testing.assert_allclose(both, X @ (U @ V + W), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_folded_model_computes_the_same(form):
    model, plain = built(form), models.build(TINY)
    params = model.init(jax.random.key(3))
    folded = fold_factors(params)
    shapes = lambda tree: {name: leaf.shape for name, leaf in named_leaves(tree)}
    own = plain.init(jax.random.key(3))
    assert shapes(folded) == shapes(own)
    batch = rows(RNG.integers(0, 16, (2, 8)))
    np.testing.assert_allclose(
        jax.jit(model.apply)(params, batch),
        jax.jit(plain.apply)(folded, batch),
        rtol=1e-4,
        atol=1e-5,
    )
    embedding = params["embed"]["token"]["embedding"]  # what has no factors is drawn as before
    np.testing.assert_array_equal(embedding, own["embed"]["token"]["embedding"])


def test_the_product_has_the_kernels_standard_deviation():
    wide = TINY | {"hidden_size": 64, "filter_size": 256, "initializer_range": 0.05}
    factors = {"form": "factorized", "sparsity": 0.5}
    params = models.build(wide | {"factors": factors}).init(jax.random.key(0))
    own = models.build(wide).init(jax.random.key(0))
    kernel, plain = (
        tree["layers_0"]["ffn"]["up"]["kernel"] for tree in (fold_factors(params), own)
    )
    assert float(jnp.std(kernel)) == pytest.approx(float(jnp.std(plain)), rel=0.05)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"target_modules": ["nothing"]}, "target_modules: 'nothing' matches no parameter"),
        ({"target_modules": [""]}, "target_modules: '' matches every name"),
        ({"sparsity": 0.1}, "0.1 leaves no rank for layers_0/attn"),
    ],
)
def test_what_cannot_be_drawn_is_said(keys, says):
    with pytest.raises(ValueError, match=says):
        built("doped", **keys).init(jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_sparse_run_is_finalized_folded_and_generates(form, tmp_path, capsys):
    sections = {
        "runconfig": {"max_steps": 5, "checkpoint_steps": 5, "model_dir": str(tmp_path / "run")},
        "model": TINY | {"hidden_size": 16},
        "train_input": TINY_ROWS,
        "sparsity": {"algorithm": "rigl", "update": {"freq": 2}, "compute": "csr"},
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.01},
    }
    new, _, _ = transform(sections, 0.75, form)
    wafer.train(new)
    step = tmp_path / "run/checkpoints/5"
    assert wafer.cli.main(["finalize", "-i", str(step), "-o", str(tmp_path / "dense")]) == 0
    sparse = dict(named_leaves(wafer.load(tmp_path / "dense")[1]))
    name = "layers_0/attn/query/" + ("factor_in/kernel" if form == "factorized" else "kernel")
    assert float((sparse[name] == 0).mean()) == pytest.approx(new["sparsity"]["sparsity"], abs=0.02)
    command = ["finalize", "--fold_lora", "-i", str(step), "-o", str(tmp_path / "folded")]
    assert wafer.cli.main(command) == 0
    assert "factors into their kernels" in capsys.readouterr().out
    model, folded = wafer.load(tmp_path / "folded")[:2]
    assert model.config.factors is None
    batch = rows(RNG.integers(0, 16, (2, 8)))
    whole, params = wafer.load(tmp_path / "dense")[:2]
    logits = jax.jit(whole.apply)(params, batch)
    np.testing.assert_allclose(logits, jax.jit(model.apply)(folded, batch), rtol=1e-4, atol=1e-4)
    prompts = np.asarray([[1, 2, 3]])
    expected = models.generate(model, folded, prompts, 4)
    np.testing.assert_array_equal(models.generate(whole, params, prompts, 4), expected)
