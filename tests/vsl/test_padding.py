"""Strip and restore: exact transposes over random masks, axes and dtypes; the errors they raise."""

import functools
from typing import Any

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

from wafer import vsl
from wafer.vsl import checks

settings = hypothesis.settings(max_examples=40, derandomize=True)

# Few shapes, so that eager operations compile once; the masks and values vary.
BATCH, LENGTH = 4, 7


@st.composite
def prefix_masks(draw: Any) -> np.ndarray:
    lengths = draw(hnp.arrays(np.int64, BATCH, elements=st.integers(0, LENGTH)))
    return np.arange(LENGTH) < lengths[:, None]


any_masks = hnp.arrays(bool, (BATCH, LENGTH))
kinds = st.sampled_from([(0, jnp.float32), (1, jnp.bfloat16), (2, jnp.float32), (-1, jnp.int32)])


def _tensor(axis: int, dtype: Any, seed: int = 0) -> jax.Array:
    """Sequence axis at ``axis``, batch axis first (or second when the sequence is first)."""
    shape = {0: (LENGTH, BATCH, 3), 1: (BATCH, LENGTH, 3), 2: (BATCH, 3, LENGTH)}
    shape[-1] = shape[2]
    x = np.random.default_rng(seed).normal(size=shape[axis]) * 10
    return jnp.asarray(x).astype(dtype)


def _spread(mask: np.ndarray, axis: int) -> np.ndarray:
    """The mask, broadcastable against ``_tensor(axis)``."""
    return {0: mask.T[:, :, None], 1: mask[:, :, None]}.get(axis, mask[:, None, :])


CAPACITY = BATCH * LENGTH


@functools.partial(jax.jit, static_argnames="axis")
def _round_trip(x: jax.Array, mask: jax.Array, axis: int, pad: jax.Array) -> Any:
    """Strip and restore, also with a token-wise function on either side."""
    stripped = vsl.strip_padding(x, mask, axis, capacity=CAPACITY)
    changed = lambda v: 2 * v + 1  # rounded once, however it is compiled
    inside = stripped.map(changed)
    outside = vsl.strip_padding(changed(x), mask, axis, capacity=CAPACITY)
    restored = vsl.restore_padding(stripped, axis, pad)
    return stripped.values, restored, inside.values, outside.values


@settings
@hypothesis.given(mask=prefix_masks(), kind=kinds, pad=st.integers(-9, 9))
def test_restore_undoes_strip(mask: np.ndarray, kind: tuple[int, Any], pad: int) -> None:
    axis, dtype = kind
    x = _tensor(axis, dtype)
    values, restored, inside, outside = map(np.asarray, _round_trip(x, mask, axis, pad))
    assert values.shape == (CAPACITY, 3)
    total = int(mask.sum())
    assert not values[total:].astype(np.float32).any()
    x = np.asarray(x)
    np.testing.assert_array_equal(
        restored, np.where(_spread(mask, axis), x, np.asarray(pad, x.dtype))
    )
    # Token-wise functions commute with stripping.
    np.testing.assert_array_equal(inside[:total], outside[:total])


@functools.partial(jax.jit, static_argnames="holes")
def _transposes(x: jax.Array, v: jax.Array, mask: jax.Array, holes: Any) -> dict[str, Any]:
    def strip(x: jax.Array) -> vsl.Ragged:
        return vsl.strip_padding(x, mask, holes=holes, capacity=CAPACITY)

    ragged = strip(x)

    def restore(v: jax.Array, pad: float = 0.0) -> jax.Array:
        return vsl.restore_padding(ragged.map(lambda _: v), 1, pad)

    return {
        "strip": ragged.values,
        "restore": restore(v),
        "padded": vsl.restore_padding(ragged, 1, -3),
        "strip_vjp": jax.vjp(lambda x: strip(x).values, x)[1](v)[0],
        "restore_vjp": jax.vjp(lambda v: restore(v, 5.0), v)[1](x)[0],
        "again": strip(restore(v)).values,
        "lengths": ragged.layout.lengths,
    }


@settings
@hypothesis.given(mask=any_masks, holes=st.sampled_from(["keep", "truncate"]))
def test_strip_and_restore_are_transposes(mask: np.ndarray, holes: Any) -> None:
    """<strip x, v> == <x, restore v>, and each one's vjp is the other; holes kept or cut."""
    x = np.asarray(_tensor(1, jnp.float32))
    v = np.random.default_rng(1).normal(size=(CAPACITY, 3)).astype(np.float32)
    got = jax.tree.map(np.asarray, _transposes(x, v, mask, holes))
    real = mask if holes == "keep" else np.cumprod(mask, axis=1).astype(bool)
    total = int(real.sum())
    np.testing.assert_array_equal(got["lengths"], real.sum(1))
    np.testing.assert_array_equal(got["strip"][:total], x[real])
    assert not got["strip"][total:].any()
    np.testing.assert_array_equal(got["padded"], np.where(real[..., None], x, -3))
    left, right = (got["strip"] * v).sum(), (x * got["restore"]).sum()
    np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(got["strip_vjp"], got["restore"])
    np.testing.assert_array_equal(got["restore_vjp"], got["strip"])
    # strip(restore(v)) is v on real slots, 0 on slack.
    np.testing.assert_array_equal(
        got["again"], np.where(np.arange(CAPACITY)[:, None] < total, v, 0)
    )


def test_padding_content_never_leaks() -> None:
    mask = np.arange(LENGTH) < np.array([3, 0, 7, 1])[:, None]
    x = _tensor(1, jnp.float32)
    dirty = jnp.where(mask[..., None], x, jnp.nan)

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(vsl.strip_padding(x, mask).values ** 2)

    for got, want in zip(jax.value_and_grad(loss)(dirty), jax.value_and_grad(loss)(x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_strip_in_jit_and_a_tree_of_tensors() -> None:
    mask = np.arange(LENGTH) < np.array([3, 0, 7, 1])[:, None]
    tree = {"ids": jnp.arange(BATCH * LENGTH).reshape(BATCH, LENGTH), "x": _tensor(1, jnp.float32)}

    @functools.partial(jax.jit, static_argnums=2)
    def strip(tree: Any, mask: jax.Array, capacity: int | None) -> vsl.Ragged:
        return vsl.strip_padding(tree, mask, capacity=capacity)

    want = vsl.strip_padding(tree, mask)
    assert want.layout.capacity == 11  # exact outside jit
    got = strip(tree, mask, 16)
    np.testing.assert_array_equal(got.values["ids"][:11], want.values["ids"])
    np.testing.assert_array_equal(want.values["ids"], tree["ids"][mask])
    np.testing.assert_array_equal(got.values["x"][:11], want.values["x"])
    assert strip(tree, mask, None).layout.capacity == BATCH * LENGTH
    # Too small a capacity must not look healthy.
    assert np.isnan(strip(tree, mask, 8).values["x"]).all()


def test_strip_errors() -> None:
    x = _tensor(1, jnp.float32)
    mask = np.ones((BATCH, LENGTH), bool)
    mask[2, 3] = False
    with pytest.raises(ValueError, match=r"row 2 is not a prefix: position 3 .* 4 .*drop 3"):
        vsl.strip_padding(x, mask)
    assert vsl.strip_padding(x, mask, holes="truncate").layout.capacity == 3 * 7 + 3
    with pytest.raises(ValueError, match="24 real tokens > capacity 16"):
        vsl.strip_padding(x, mask, holes="truncate", capacity=16)
    with pytest.raises(ValueError, match=r"\['a'\] has shape \(4, 6\).*\(4, 7\)"):
        vsl.strip_padding({"a": jnp.zeros((4, 6))}, mask, holes="keep")
    with pytest.raises(ValueError, match=r"expected \[B, S\]"):
        vsl.strip_padding(x, mask[0])


def test_domains_do_not_mix() -> None:
    x, mask = _tensor(1, jnp.float32), np.ones((BATCH, LENGTH), bool)
    tokens = vsl.strip_padding(x, mask)
    mlm = vsl.strip_padding(x, mask, domain="mlm")
    with pytest.raises(ValueError, match="cannot combine ragged domains 'tokens' and 'mlm'"):
        tokens.map(jnp.add, mlm)
    larger = vsl.strip_padding(x, mask, capacity=40)
    with pytest.raises(ValueError, match="cannot combine capacities 28 and 40"):
        tokens.map(jnp.add, larger)
    with pytest.raises(ValueError, match="must keep the 28 token slots"):
        tokens.map(lambda v: v[:3])
    np.testing.assert_array_equal(tokens.map(jnp.add, tokens).values, 2 * tokens.values)


def test_lengths_from_masks() -> None:
    np.testing.assert_array_equal(vsl.lengths_from_mask([[1, 1, 0], [1, 0, 0]]), [2, 1])
    with pytest.raises(ValueError, match="mask: row 1 is empty"):
        vsl.lengths_from_mask([[1, 0], [0, 0]])
    assert vsl.lengths_from_mask([[1, 0], [0, 0]], allow_empty=True)[1] == 0
    with pytest.raises(ValueError, match=r"70 tokens > capacity 64 .*#0=50, #1=20"):
        vsl.check_capacity([50, 20], 64)
    with pytest.raises(ValueError, match="3 sequences > max_sequences=2"):
        vsl.check_capacity([1, 1, 1], 64, 2)


def _message(check: Any, *args: Any) -> str:
    error, _ = jax.jit(checkify.checkify(check))(*args)
    return error.get() or ""


def test_the_same_checks_inside_jit() -> None:
    hole = jnp.array([[1, 1, 0], [1, 0, 1]])
    assert "row 1 is not a prefix: position 1" in _message(checks.check_prefix_mask, hole)
    assert "row 0 is empty" in _message(checks.check_prefix_mask, jnp.zeros((1, 3)))
    assert _message(checks.check_prefix_mask, jnp.ones((2, 3))) == ""
    fit = functools.partial(checks.check_fit, capacity=5)
    assert "6 tokens > capacity 5" in _message(fit, jnp.array([4, 2]))

    def strip(x: jax.Array, mask: jax.Array) -> jax.Array:
        return vsl.strip_padding(x, mask, capacity=2, debug=True).values

    assert "3 tokens > capacity 2" in _message(strip, jnp.zeros((1, 3)), jnp.ones((1, 3)))
