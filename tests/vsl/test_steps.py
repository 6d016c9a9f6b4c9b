"""Whole models: packed batches give the padded reference's loss and gradients, in less memory."""

import functools
import sys
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.paths import ROOT

from wafer import models, vsl

sys.path.append(str(ROOT / "tests" / "bench"))
import vsl_models as bench

vsl_attention = vsl.attention  # before any patching

# One-token rows, a row at full length, an empty row at the end of the batch.
LENGTHS = np.array([9, 1, 16, 1, 5])
S, ROWS = 16, 6
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_heads": 2, "filter_size": 32}
TINY |= {"vocab_size": 40, "max_position_embeddings": S, "dropout_rate": 0.0}


def _examples() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    out = []
    for n in LENGTHS:
        tokens, labels = (rng.integers(0, 40, n).astype(np.int32) for _ in range(2))
        weights = rng.integers(0, 2, n).astype(np.float32)  # a label mask
        out.append({"tokens": tokens, "labels": labels, "weights": weights})
    return out


def _batch(packed: vsl.Packed, layout: vsl.Layout) -> models.Batch:
    a = packed.arrays
    return models.Batch(a["tokens"], a["labels"], a["weights"], layout)


def _padded(examples: list[Any]) -> models.Batch:
    packed = vsl.pad(examples, S, ROWS, fill={"tokens": 39, "labels": -1})
    return _batch(packed, vsl.padded_layout(packed.lengths["tokens"], S))


def _packed(examples: list[Any], capacity: int) -> models.Batch:
    packed = vsl.pack(examples, capacity, ROWS, fill={"labels": -1})
    return _batch(packed, vsl.layout_from_lengths(packed.lengths["tokens"], capacity))


@functools.cache
def _model(family: str) -> tuple[models.Model, Any]:
    name = {"gpt": {"name": "gpt2"}, "bert": {"name": "bert", "head": "mlm"}}[family]
    model = models.build(name | TINY)
    return model, model.init(jax.random.key(0))


@functools.cache
def _loss(family: str, implementation: str) -> Any:
    model, _ = _model(family)

    def run(params: Any, batch: models.Batch) -> Any:
        attend = functools.partial(vsl_attention, implementation=implementation)
        with mock.patch.object(vsl, "attention", attend):
            return jax.value_and_grad(lambda p: model.loss(p, batch)[0])(params)

    return jax.jit(run)


def _assert_equal(got: Any, want: Any, tolerance: float) -> None:
    np.testing.assert_allclose(got[0], want[0], rtol=tolerance)
    for (path, g), w in zip(
        jax.tree_util.tree_leaves_with_path(got[1]), jax.tree.leaves(want[1]), strict=True
    ):
        # Gradients that are 0 but for rounding (a key bias) are measured against the others.
        top = max(float(jnp.abs(w).max()), 1e-4)
        np.testing.assert_allclose(g, w, atol=tolerance * top, err_msg=str(path))


@pytest.mark.parametrize("family", ["gpt", pytest.param("bert", marks=pytest.mark.slow)])
def test_packed_equals_padded(family: str) -> None:
    """Loss and every gradient, against stock attention over padded rows, to 1e-5."""
    params = _model(family)[1]
    examples = _examples()
    want = _loss(family, "padded")(params, _padded(examples))
    assert np.isfinite(want[0])
    assert want[0] > 1
    packed = _loss(family, "blocks")
    small, large = _packed(examples, 40), _packed(examples, 64)
    got = packed(params, small)
    _assert_equal(got, want, 1e-5)
    # Slots beyond the tokens, and what they hold, change nothing at all.
    dirty = large._replace(
        tokens=np.where(large.layout.valid, large.tokens, 17),
        labels=np.where(large.layout.valid, large.labels, 3),
    )
    _assert_equal(packed(params, dirty), packed(params, large), 0.0)
    # A larger capacity regroups one sum, no more: an ulp or two.
    np.testing.assert_allclose(packed(params, dirty)[0], got[0], rtol=3e-7)
    # The order of the sequences only changes the order of the sums.
    _assert_equal(packed(params, _packed(examples[::-1], 40)), got, 2e-6)


def test_loss_adds_up_over_sequences() -> None:
    """The packed loss is the token-weighted sum of the losses of the sequences alone."""
    model, params = _model("gpt")
    examples = _examples()

    @jax.jit
    def sums(batch: models.Batch) -> tuple[jax.Array, jax.Array]:
        aux = model.loss(params, batch)[1]
        return aux.loss_sum, aux.weight

    whole = sums(_packed(examples, 40))
    parts = [sums(_packed([e], 40)) for e in examples]
    np.testing.assert_allclose(whole[0], sum(float(p[0]) for p in parts), rtol=2e-6)
    assert float(whole[1]) == sum(float(p[1]) for p in parts)


def test_dropout_packed_equals_padded() -> None:
    model = models.build({"name": "gpt2"} | TINY | {"dropout_rate": 0.2})
    params = model.init(jax.random.key(0))
    examples = _examples()
    loss = jax.jit(lambda batch, key: model.loss(params, batch, key)[0])
    key = jax.random.key(5)
    padded, packed = loss(_padded(examples), key), loss(_packed(examples, 40), key)
    np.testing.assert_allclose(packed, padded, rtol=1e-5)
    assert abs(float(loss(_packed(examples, 40), jax.random.key(6))) - float(packed)) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt", "bert"])
@pytest.mark.parametrize("ratio", [2, 4, 8])
def test_step_memory_of_the_benchmarks_models(family: str, ratio: int) -> None:
    """Temporary memory of the compiled step falls faster than padding: longest over mean."""
    lengths = bench.typical_batches(ratio, 16)[2]
    examples = bench.make_examples(lengths, masked=family == "bert")
    model = bench.make_model(family, 256, bench.LAYERS)
    padded = bench.make_step(model, bench.padded_batch(family, examples), bench.stock_attention)
    batch = bench.packed_batch(family, examples, vsl.Ladder(), 16)
    packed = bench.make_step(model, batch, vsl_attention)
    assert padded.memory / packed.memory >= 1.3 * 512 / lengths.mean()
