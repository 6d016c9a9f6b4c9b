"""Every attention variant, every implementation, forward and gradients, against the dense form."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.attention import assert_close, gradients, in_rows, inputs

from wafer import vsl
from wafer.vsl.implementations import fused

# One-token rows, an empty row, a row longer than two blocks, and slack at the end.
LENGTHS = np.array([70, 1, 0, 130, 33])
CAPACITY = 250
S = 130
N, K, H = 4, 2, 8

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 20},
    "window_pair": {"window": (5, 9)},
    "sink": {"window": 16, "sink_tokens": 3},
    "alibi": {"alibi": True},
    "t5": {"bias": "t5"},
    "function": {"bias": "function"},
    "softcap": {"softcap": 2.0, "scale": 0.7},
    "dropout": {"dropout_rate": 0.3},
    "all": {"alibi": True, "bias": "t5", "softcap": 3.0, "window": 33, "dropout_rate": 0.2},
}


# Compiling dominates: one direction of each kind by default, every pair in the slow suite.
QUICK = {("window", False), ("sink", True), ("function", False), ("all", True)}
CASES = [
    pytest.param(v, c, id=f"{v}-{c}", marks=[] if (v, c) in QUICK else [pytest.mark.slow])
    for v in VARIANTS
    for c in (True, False)
]


@pytest.mark.parametrize(("variant", "causal"), CASES)
def test_blocks_equal_dense_forward_and_gradients(variant: str, causal: bool) -> None:
    layout = vsl.layout_from_lengths(jnp.asarray(LENGTHS), CAPACITY)
    options = VARIANTS[variant]
    x = inputs(CAPACITY, (N, K), H)
    want = gradients(x, layout, causal=causal, implementation="dense", **options)
    got = gradients(x, layout, causal=causal, implementation="blocks", **options)
    assert np.abs(want["out"]).max() > 0.1
    assert (np.abs(want["slopes"]).max() > 0) == ("alibi" in options)
    assert (np.abs(want["table"]).max() > 0) == ("bias" in options)
    assert_close(got, want)


@pytest.mark.parametrize(
    ("variant", "causal", "implementation"),
    [
        ("all", True, "padded"),
        ("t5", False, "blocks"),
        pytest.param("all", True, "dense", marks=pytest.mark.slow),
        pytest.param("all", True, "blocks", marks=pytest.mark.slow),
        pytest.param("function", False, "padded", marks=pytest.mark.slow),
        pytest.param("function", False, "blocks", marks=pytest.mark.slow),
    ],
)
def test_padded_batch_equals_packed_batch(variant: str, causal: bool, implementation: str) -> None:
    """Also: what padding holds is never read, not even NaN, and its gradients are 0."""
    packed = vsl.layout_from_lengths(jnp.asarray(LENGTHS), CAPACITY)
    rows = vsl.padded_layout(jnp.asarray(LENGTHS), S)
    x = inputs(CAPACITY, (N, K), H)
    spread, here, there = in_rows(x, packed, rows)
    options = VARIANTS[variant]
    want = gradients(x, packed, causal=causal, implementation="dense", **options)
    got = gradients(spread, rows, causal=causal, implementation=implementation, **options)
    padding = np.setdiff1d(np.arange(rows.capacity), there)
    for name in ("q", "k", "v", "out"):
        assert not got[name][padding].any()
        got[name], want[name] = got[name][there], want[name][here]
    assert_close(got, want)


@pytest.mark.parametrize("causal", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_cross_attention_matches_sequences_by_index(causal: bool) -> None:
    kv_lengths = np.array([30, 60, 5, 0, 90])
    layout = vsl.layout_from_lengths(jnp.asarray(LENGTHS), CAPACITY)
    kv = vsl.layout_from_lengths(jnp.asarray(kv_lengths), 190)
    x = inputs(CAPACITY, (N, K), H, keys=190)
    options = {"kv_layout": kv, "alibi": True, "bias": "t5", "window": 40}
    want = gradients(x, layout, causal=causal, implementation="dense", **options)
    got = gradients(x, layout, causal=causal, implementation="blocks", **options)
    assert_close(got, want)
    # Sequence 0 alone, by hand.
    q, k, v = x["q"][:70], x["k"][:30], x["v"][:30]
    plain = gradients(x, layout, causal=False, implementation="blocks", kv_layout=kv)["out"]
    scores = np.einsum("tnh,snh->nts", q, np.repeat(k, 2, axis=1)) / np.sqrt(H)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("nts,snh->tnh", p / p.sum(-1, keepdims=True), np.repeat(v, 2, axis=1))
    np.testing.assert_allclose(plain[:70], out, atol=2e-6)
    # Sequence 3 has no keys: nothing to attend to, output 0 and no NaN.
    assert not plain[71:201].any()


def test_windows_by_hand() -> None:
    """Equal scores make the output the mean of the visible values."""
    layout = vsl.layout_from_lengths(jnp.array([5]), 5)
    zero = jnp.zeros((5, 1, 2))
    v = jnp.arange(5.0)[:, None, None] * jnp.ones((1, 1, 2))

    def means(causal: bool, **options: Any) -> list[float]:
        def both(q: jax.Array, v: jax.Array) -> list[jax.Array]:
            run = functools.partial(vsl.attention, q, q, v, layout, causal=causal, **options)
            return [run(implementation="blocks"), run(implementation="dense")]

        blocks, dense = jax.jit(both)(zero, v)
        np.testing.assert_allclose(blocks, dense, atol=1e-6)
        return [round(float(x), 4) for x in blocks[:, 0, 0]]

    assert means(True) == [0, 0.5, 1, 1.5, 2]
    assert means(True, window=2) == [0, 0.5, 1.5, 2.5, 3.5]
    assert means(True, window=(2, 0)) == [0, 0.5, 1, 2, 3]  # Model Zoo 2.2: W previous tokens
    assert means(False, window=2) == [0.5, 1, 2, 3, 3.5]
    assert means(True, window=1, sink_tokens=1) == [0, 0.5, 1, 1.5, 2]


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 40, 64, 112])
def test_alibi_slopes_are_those_that_mpt_builds_another_way(heads: int) -> None:
    above = 2 ** math.ceil(math.log2(heads))
    slopes = 1.0 / 2.0 ** (np.arange(1, above + 1) * (8 / above))
    if above != heads:  # MPT takes the odd places of the power of two above first
        slopes = np.concatenate([slopes[1::2], slopes[::2]])[:heads]
    np.testing.assert_allclose(vsl.alibi_slopes(heads), slopes, rtol=1e-6)


def test_relative_buckets_by_hand() -> None:
    """T5, 32 buckets, distance 128: exact below 8, logarithmic beyond, sign in the upper half."""
    relative = jnp.array([0, -1, -7, -8, -127, -500, 1, 7, 8, 500])
    bias = vsl.RelativeBias(table=jnp.arange(32.0)[:, None])
    np.testing.assert_array_equal(
        bias.by_relative(relative)[0], [0, 1, 7, 8, 15, 15, 17, 23, 24, 31]
    )
    decoder = vsl.RelativeBias(table=jnp.arange(32.0)[:, None], bidirectional=False)
    np.testing.assert_array_equal(
        decoder.by_relative(relative)[0], [0, 1, 7, 8, 31, 31, 0, 0, 0, 0]
    )


def test_bfloat16_accumulates_in_float32() -> None:
    layout = vsl.layout_from_lengths(jnp.asarray(LENGTHS), CAPACITY)
    x = inputs(CAPACITY, (N, K), H)
    q, k, v = (x[n].astype(jnp.bfloat16) for n in "qkv")
    attend = jax.jit(
        functools.partial(vsl.attention, causal=True), static_argnames="implementation"
    )
    exact = (x.astype(jnp.float32) for x in (q, k, v))
    want = attend(*exact, layout, implementation="dense")
    for implementation in ("blocks", "dense"):
        got = attend(q, k, v, layout, implementation=implementation)
        assert got.dtype == jnp.bfloat16
        assert float(jnp.abs(got.astype(jnp.float32) - want).max()) < 0.03


def test_sequences_do_not_see_each_other() -> None:
    """The Jacobian between tokens of different sequences is exactly 0."""
    layout = vsl.layout_from_lengths(jnp.array([3, 2]), 6)
    x = inputs(CAPACITY, (N, K), H)

    def out(k: jax.Array) -> jax.Array:
        q, v = x["q"][:6], x["v"][:6]
        return vsl.attention(q, k, v, layout, causal=False, implementation="blocks")

    jacobian = np.asarray(jax.jit(jax.jacrev(out))(x["k"][:6]))  # [T, N, H, T, K, H]
    strength = np.abs(jacobian).sum(axis=(1, 2, 4, 5))
    assert (strength[:3, :3] > 0).all()
    assert not strength[:3, 3:].any()
    assert not strength[3:, :3].any()
    assert not strength[5].any()


def test_nothing_quadratic_is_in_memory() -> None:
    """Temporaries of forward and backward grow with T, not with T * T."""

    def temporary(capacity: int) -> int:
        layout = vsl.layout_from_lengths(jnp.array([capacity]), capacity)
        q = jax.ShapeDtypeStruct((capacity, 2, 8), jnp.float32)

        def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return vsl.attention(q, k, v, layout, causal=True, implementation="blocks").sum()

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(q, q, q).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    small, large = temporary(1024), temporary(4096)
    assert large < 4.5 * small
    assert large < 4096 * 4096


@pytest.mark.parametrize("implementation", ["dense", "padded", "blocks"])
def test_finite_padding_need_not_be_cleared(implementation: Any) -> None:
    layout = vsl.padded_layout(jnp.array([3, 0, 2]), 4)
    q, k, v = jax.random.normal(jax.random.key(0), (3, 12, 2, 8))
    k, v = (jnp.where(layout.valid[:, None, None], x, 1e30) for x in (k, v))
    attend = functools.partial(vsl.attention, q, causal=True, implementation=implementation)
    want = attend(k, v, layout)
    np.testing.assert_array_equal(attend(k, v, layout, kv_finite=True), want)


def test_auto_is_one_of_the_implementations() -> None:
    layout = vsl.layout_from_lengths(jnp.asarray(LENGTHS), CAPACITY)
    x = inputs(CAPACITY, (N, K), H)
    run = functools.partial(vsl.attention, x["q"], x["k"], x["v"], layout, causal=True)
    chosen = "native" if fused.LIBRARY.usable() else "blocks"
    np.testing.assert_array_equal(run(), run(implementation=chosen))
    capped = run(softcap=2.0)  # which the native kernel does not compute
    np.testing.assert_array_equal(capped, run(softcap=2.0, implementation="blocks"))


def test_errors_say_what_is_wrong() -> None:
    layout = vsl.layout_from_lengths(jnp.array([4]), 4)
    q, k = jnp.zeros((4, 4, 2)), jnp.zeros((4, 2, 2))
    with pytest.raises(ValueError, match="N a multiple of K"):
        vsl.attention(q[:, :3], k, k, layout, causal=True)
    with pytest.raises(ValueError, match="q has 3 token slots but its layout has 4"):
        vsl.attention(q[:3], k, k, layout, causal=True)
    with pytest.raises(ValueError, match=r"k has 3 token slots.*kv_layout"):
        vsl.attention(q, k[:3], k[:3], layout, causal=True)
    with pytest.raises(ValueError, match="needs W >= 1"):
        vsl.attention(q, k, k, layout, causal=True, window=0)
    for window in (2**40, (2**40, 0), (0, 2**31)):
        with pytest.raises(ValueError, match="positions are int32, expected at most 1073741824"):
            vsl.attention(q, k, k, layout, causal=False, window=window)
    with pytest.raises(ValueError, match="needs layouts of padded rows"):
        vsl.attention(q, k, k, layout, causal=True, implementation="padded")
    with pytest.raises(ValueError, match="0 <= rate < 1"):
        vsl.attention(q, k, k, layout, causal=True, dropout_rate=1.0, dropout_key=jax.random.key(0))
