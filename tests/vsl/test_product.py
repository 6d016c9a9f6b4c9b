"""Products of a packed stream that stop at its last token, against plain ones."""

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.processes import ended
from hypothesis import given, settings, strategies as st

from wafer import models, vsl
from wafer.vsl import product
from wafer.vsl.attend import attention_as

pytestmark = pytest.mark.native


def test_by_hand() -> None:
    x = jnp.arange(3 * 64, dtype=jnp.float32).reshape(3, 64)
    kernel = jnp.zeros((64, 128)).at[5, 2].set(1.0).at[6, 127].set(-2.0)
    y = vsl.stream_product(x, kernel, jnp.int32(2))
    want = np.zeros((3, 128))
    want[0, 2], want[1, 2] = 5, 64 + 5
    want[0, 127], want[1, 127] = -2 * 6, -2 * (64 + 6)
    np.testing.assert_array_equal(y, want)


@settings(max_examples=25)
@given(
    rows=st.integers(1, 150),
    share=st.floats(0, 1),
    width=st.sampled_from([64, 128, 320]),
    features=st.sampled_from([64, 576]),
    form=st.sampled_from(["plain", "biased", "transposed"]),
)
def test_equals_the_product_of_the_tokens(
    rows: int, share: float, width: int, features: int, form: str
) -> None:
    transposed, biased = form == "transposed", form == "biased"
    count = round(share * rows)
    rng = np.random.default_rng(rows)  # small whole numbers: every sum is exact
    draw = lambda *shape: rng.integers(-3, 4, shape).astype(np.float64)
    x, dy, weight = draw(rows, width), draw(rows, features), draw(width, features)
    dirty = [np.where(np.arange(rows)[:, None] < count, a, np.nan) for a in (x, dy)]
    stored, bias = weight.T if transposed else weight, draw(features)

    def run(x: Any, w: Any, b: Any) -> Any:
        added = b if biased else None
        return vsl.stream_product(x, w, jnp.int32(count), bias=added, transposed=transposed)

    y, pull = jax.vjp(run, *(jnp.asarray(a, jnp.float32) for a in (dirty[0], stored, bias)))
    dx, dw, db = pull(jnp.asarray(dirty[1], jnp.float32))
    x[count:], dy[count:] = 0, 0  # slack is never read and comes out as 0
    added = np.where(np.arange(rows)[:, None] < count, bias * biased, 0)
    np.testing.assert_array_equal(y, x @ weight + added)
    np.testing.assert_array_equal(db, dy.sum(0) * biased)
    np.testing.assert_array_equal(dx, dy @ weight.T)
    np.testing.assert_array_equal(dw.T if transposed else dw, x.T @ dy)


def test_a_gpu_is_told_what_serves_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    told = r"attention, products, norms and losses: .* is for CPUs, .* GPU.*; use .*XLA's"
    with pytest.raises(RuntimeError, match=told):
        vsl.stream_product(jnp.ones((3, 64)), jnp.ones((64, 64)), jnp.int32(2))


def test_under_jit_vmap_and_remat() -> None:
    rng = np.random.default_rng(0)  # small whole numbers: every sum is exact
    x = jnp.asarray(rng.integers(-2, 3, (3, 20, 64)), jnp.float32)
    kernel = jnp.asarray(rng.integers(-2, 3, (64, 64)), jnp.float32)
    counts = jnp.array([20, 7, 0])

    def total(kernel: Any, one: Any) -> Any:
        runs = jax.vmap(one, (0, None, 0))(x, kernel, counts)
        return jnp.square(runs).sum()

    plain = lambda x, w, n: jnp.where(jnp.arange(20)[:, None] < n, x @ w, 0)
    want = jax.grad(total)(kernel, plain)
    native = jax.checkpoint(vsl.stream_product)
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda w: total(w, native)))(kernel), want)


def test_sizes_that_do_not_fit() -> None:
    x = jnp.zeros((4, 64))
    with pytest.raises(ValueError, match=r"kernel \(64, 65\).*multiples of 64; use x @ kernel"):
        vsl.stream_product(x, jnp.zeros((64, 65)), jnp.int32(1))
    with pytest.raises(ValueError, match=r"expected x \[T, 128\]"):
        vsl.stream_product(x, jnp.zeros((64, 128)), jnp.int32(1), transposed=True)
    with pytest.raises(ValueError, match=r"bias \(64,\) for 128 features; expected \(128,\)"):
        vsl.stream_product(x, jnp.zeros((64, 128)), jnp.int32(1), bias=jnp.zeros(64))


def test_which_weights_are_wrapped() -> None:
    packed = vsl.layout_from_lengths(jnp.array([3, 2]), 8)
    padded = vsl.padded_layout(jnp.array([3, 2]), 4)
    wide, narrow = jnp.ones((64, 128)), jnp.ones((64, 10))
    branch = {
        "up": {"kernel": wide, "bias": jnp.ones(128)},
        "out": {"kernel": narrow},
        "half": {"kernel": wide.astype(jnp.bfloat16)},
        "table": {"embedding": wide},
    }
    wrapped = vsl.stream_kernels(branch, packed)
    assert isinstance(wrapped["up"]["kernel"], product.StreamWeight)
    assert int(wrapped["up"]["kernel"].tokens) == 5
    again = vsl.stream_kernels(wrapped, packed)  # a weight with its own product stays as it is
    assert again["up"]["kernel"].weight is wide
    assert wrapped["out"]["kernel"] is narrow
    assert wrapped["half"]["kernel"].dtype == jnp.bfloat16
    assert wrapped["table"]["embedding"] is wide
    assert vsl.stream_table(wide, packed).transposed
    all_rows = vsl.stream_kernels(branch, padded)["up"]["kernel"]
    assert int(all_rows.tokens) == 8  # padding between rows is computed, as XLA does
    assert int(vsl.stream_table(wide, padded).tokens) == 8
    with mock.patch.object(product, "_PACKED", 8 * 128 - 1):  # too much to pack
        assert vsl.stream_kernels(branch, padded)["up"]["kernel"] is wide
        assert vsl.stream_table(wide, padded) is wide
    with attention_as("dense"):  # a program that must be readable
        assert vsl.stream_kernels(branch, packed) is branch


def test_half_precision_is_left_to_xla() -> None:
    x = jnp.ones((4, 64), jnp.bfloat16)
    for weight in (
        product.StreamWeight(jnp.ones((64, 128)), jnp.int32(2)),
        product.StreamWeight(jnp.ones((128, 64)), jnp.int32(2), transposed=True),
    ):
        y = weight.project(x)
        assert y.dtype == jnp.bfloat16
        np.testing.assert_array_equal(np.asarray(y, np.float32), np.full((4, 128), 64.0))


_SIZES = {"hidden_size": 64, "num_hidden_layers": 1, "num_heads": 2, "filter_size": 128}
_SIZES |= {"vocab_size": 128, "max_position_embeddings": 32, "dropout_rate": 0.0}


def _batch(family: str) -> models.Batch:
    rng = np.random.default_rng(0)
    lengths = jnp.array([9, 1, 5])
    padded = family.endswith("padded")
    layout = vsl.padded_layout(lengths, 12) if padded else vsl.layout_from_lengths(lengths, 36)
    tokens, labels = (jnp.asarray(rng.integers(0, 128, 36), jnp.int32) for _ in range(2))
    extras: dict[str, Any] = {}
    if family == "t5":
        source = vsl.layout_from_lengths(jnp.array([4, 11, 7]), 32)
        extras = {
            "source_tokens": jnp.asarray(rng.integers(0, 128, 32), jnp.int32),
            "source_layout": source,
        }
    if family == "bert masked":
        extras = {
            "masked_positions": jnp.array([8, 2, 9, 13, 0, 0], jnp.int32),
            "masked_labels": jnp.array([3, 99, 5, 127, 0, 0], jnp.int32),
            "masked_weights": jnp.array([1.0, 1.0, 0.0, 2.0, 0.0, 0.0]),
        }
    return models.Batch(tokens, labels, layout.valid.astype(jnp.float32), layout, extras)


SLOW = ("gpt2 padded", "bert masked", "bert", "t5")  # two compilations each
SLOW = [pytest.param(family, marks=pytest.mark.slow) for family in SLOW]


@pytest.mark.parametrize("family", ["gpt2", *SLOW])
def test_models_do_not_notice(family: str) -> None:
    name = family.split(" ", maxsplit=1)[0]
    head = {"head": "mlm"} if name == "bert" else {}
    model = models.build({"name": name} | head | _SIZES)
    params, batch = model.init(jax.random.key(0)), _batch(family)
    grad = lambda: jax.jit(jax.value_and_grad(lambda p: model.loss(p, batch)[0]))
    native = grad().lower(params)
    with mock.patch.object(product, "_count", return_value=None):
        plain = grad().lower(params)
    assert "wafer_product_backward" in native.as_text()
    assert "wafer_product" not in plain.as_text()
    (value, got), (reference, want) = native.compile()(params), plain.compile()(params)
    np.testing.assert_allclose(value, reference, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)


SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from wafer import vsl
x, w = (jnp.asarray(np.random.default_rng(i).normal(size=s), jnp.float32)
        for i, s in enumerate([(50, 128), (128, 192)]))
f = lambda x, w, run: jnp.square(run(x, w)).sum()
plain = lambda x, w: jnp.where(jnp.arange(50)[:, None] < 41, x @ w, 0)
native = lambda x, w: vsl.stream_product(x, w, jnp.int32(41))
got, want = (jax.grad(f, (0, 1))(x, w, run) for run in (native, plain))
print(max(float(abs(a - b).max() / abs(b).max()) for a, b in zip(got, want)) < 2e-6)
"""


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["avx2", "baseline"])
def test_every_target(setting: str) -> None:
    assert ended(SCRIPT, WAFER_NATIVE=setting).stdout == "True\n"
