"""Layouts by hand, packed rows against the vendor's, helpers at sequence boundaries, dropout."""

import dataclasses
import functools

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.paths import GOLDEN

from wafer import vsl

VECTORS = np.load(GOLDEN / "vsl" / "vsl.npz")
settings = hypothesis.settings(max_examples=12, derandomize=True)


def test_layouts_by_hand() -> None:
    lay = vsl.layout_from_lengths(jnp.array([2, 0, 3]), 7)
    np.testing.assert_array_equal(lay.segments, [0, 0, 2, 2, 2, -1, -1])
    np.testing.assert_array_equal(lay.positions, [0, 1, 0, 1, 2, 0, 0])
    np.testing.assert_array_equal(lay.starts, [0, 0, 2, 2, 2, 7, 7])
    np.testing.assert_array_equal(lay.ends, [2, 2, 5, 5, 5, 0, 0])
    np.testing.assert_array_equal(lay.offsets, [0, 7, 2])
    rows = vsl.padded_layout(jnp.array([2, 0, 3]), 3)
    np.testing.assert_array_equal(rows.segments, [0, 0, -1, -1, -1, -1, 2, 2, 2])
    np.testing.assert_array_equal(rows.offsets, [0, 9, 6])
    assert rows.rows == (3, 3)


def test_vendor_rows() -> None:
    """Model Zoo's five features of three packed documents, and its masks."""
    features = VECTORS["vsl_features"]
    loss_mask, span, position = features[1:2], features[3:4], features[4:5]
    layout = vsl.layout_from_spans(span, position, loss_mask)
    np.testing.assert_array_equal(layout.segments, [0, 0, 0, 1, 1, 2, -1, -1])
    np.testing.assert_array_equal(layout.lengths[:3], [3, 2, 1])
    assert not np.asarray(layout.lengths[3:]).any()


@pytest.mark.parametrize(("name", "causal"), [("vsl_causal_mask", True), ("vsl_bidir_mask", False)])
@pytest.mark.parametrize("implementation", ["dense", "padded", "blocks"])
def test_packed_rows_attend_as_the_vendor_masks(
    name: str, causal: bool, implementation: str
) -> None:
    features = VECTORS["vsl_features"]
    layout = vsl.layout_from_spans(features[3:4], features[4:5], features[1:2])
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(8, 2, 4)), jnp.float32) for _ in range(3))
    got = vsl.attention(q, k, v, layout, causal=causal, implementation=implementation)
    scores = jnp.einsum("qnh,knh->nqk", q, k) / 2 + VECTORS[name][0]
    want = jnp.einsum("nqk,knh->qnh", jax.nn.softmax(scores, axis=-1), v)
    np.testing.assert_allclose(got[:6], want[:6], atol=2e-6)  # the vendor's padding sees itself
    assert not np.asarray(got[6:]).any()


@settings
@hypothesis.given(lengths=hnp.arrays(np.int64, 5, elements=st.integers(0, 6)), rows=st.booleans())
def test_spans_describe_any_layout(lengths: np.ndarray, rows: bool) -> None:
    lay = (
        vsl.padded_layout(jnp.asarray(lengths), 6)
        if rows
        else vsl.layout_from_lengths(jnp.asarray(lengths), 30)
    )
    span = jnp.where(lay.valid, lay.ends - 1 - jnp.arange(30), 0).reshape(-1, 6)
    position = lay.positions.reshape(-1, 6)
    loss_mask = np.asarray(lay.valid).reshape(-1, 6)
    back = vsl.layout_from_spans(span, position, loss_mask, max_sequences=5)
    for field in ("positions", "starts", "ends"):
        np.testing.assert_array_equal(getattr(back, field), getattr(lay, field), err_msg=field)
    np.testing.assert_array_equal(
        back.lengths, np.pad(lengths[lengths > 0], (0, int((lengths == 0).sum())))
    )


LAYOUTS = [
    vsl.layout_from_lengths(jnp.array([3, 1, 0, 4]), 10),
    vsl.padded_layout(jnp.array([3, 1, 0, 4]), 5),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["packed", "padded"])
def test_helpers_stop_at_boundaries(layout: vsl.Layout) -> None:
    real = np.asarray(layout.valid)
    x = np.full((layout.capacity, 2), np.nan, np.float32)
    values = np.arange(1, 9, dtype=np.float32)
    x[real] = np.stack([values, -values], axis=1)
    x = jnp.asarray(x)
    np.testing.assert_array_equal(vsl.segment_sum(x, layout)[:, 0], [6, 4, 0, 26])
    np.testing.assert_array_equal(vsl.segment_max(x, layout)[:, 1], [-1, -4, 0, -5])
    per = vsl.expand(jnp.array([10.0, 20, 30, 40]), layout)
    np.testing.assert_array_equal(np.asarray(per)[real], [10, 10, 10, 20, 40, 40, 40, 40])
    assert not np.asarray(per)[~real].any()
    at = vsl.layout_from_lengths(jnp.array([2, 1, 0, 2]), 6)
    slots = vsl.ragged_slots(layout, at, jnp.array([2, 0, 0, 3, 4, 0]))
    taken = x.at[slots].get(mode="fill", fill_value=0)
    np.testing.assert_array_equal(taken[:, 0], [3, 1, 4, 8, 0, 0])  # position 4 is beyond the end


def test_dropout_is_keyed_by_sequence_and_position(key: jax.Array) -> None:
    lengths = jnp.array([30, 0, 1, 50])
    packed, rows = vsl.layout_from_lengths(lengths, 100), vsl.padded_layout(lengths, 60)
    x = jnp.ones((240, 4, 16))
    a = vsl.dropout(key, x[:100], packed, 0.25)
    b = vsl.dropout(key, x, rows, 0.25)
    np.testing.assert_array_equal(np.asarray(a)[packed.valid], np.asarray(b)[rows.valid])
    other = vsl.dropout(jax.random.key(1), x[:100], packed, 0.25)
    assert 0.2 < float((a != other).mean()) < 0.55  # 2 * .25 * .75 = .375
    assert set(np.unique(a)) == {0.0, np.float32(1 / 0.75)}
    assert vsl.dropout(key, x, rows, 0.0) is x
    with pytest.raises(ValueError, match="0 <= rate < 1"):
        vsl.dropout(key, x, rows, 1.0)


@pytest.mark.slow
def test_dropout_does_not_depend_on_how_the_rows_are_shared_out(key: jax.Array) -> None:
    """Two shares of two rows, numbered on, drop what the four rows do; padded and packed rows."""
    x = jnp.ones((24, 8))
    spans = jnp.array(
        [[2, 1, 0, 1, 0, 0], [4, 3, 2, 1, 0, 0], [1, 0, 1, 0, 1, 0], [5, 4, 3, 2, 1, 0]]
    )
    places = jnp.array(
        [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 0], [0, 1, 0, 1, 0, 1], [0, 1, 2, 3, 4, 5]]
    )
    lengths = jnp.array([3, 0, 6, 1])
    for lay_out, rows in (
        (vsl.layout_from_spans, (spans, places)),
        (functools.partial(vsl.padded_layout, max_length=6), (lengths,)),
    ):
        whole = lay_out(*rows)
        halves = [lay_out(*(x[i : i + 2] for x in rows)) for i in (0, 2)]
        second = dataclasses.replace(halves[1], first=jnp.int32(halves[0].lengths.shape[0]))
        shared = [vsl.dropout(key, x[:12], lay, 0.5) for lay in (halves[0], second)]
        at = np.asarray(whole.valid)
        np.testing.assert_array_equal(
            np.concatenate(shared)[at], np.asarray(vsl.dropout(key, x, whole, 0.5))[at]
        )
        assert not np.array_equal(shared[1], vsl.dropout(key, x[:12], halves[1], 0.5))


def test_dropout_statistics(key: jax.Array) -> None:
    """The rate holds within 4 sigma, per unit and per token; neighbours are uncorrelated."""
    layout = vsl.padded_layout(jnp.full((8,), 256), 256)
    kept = np.asarray(vsl.dropout(key, jnp.ones((2048, 256)), layout, 0.5)) > 0
    n = kept.size
    assert abs(kept.mean() - 0.5) < 4 * 0.5 / np.sqrt(n)
    for axis in (0, 1):
        spread = kept.mean(axis=axis).std() / (0.5 / np.sqrt(kept.shape[axis]))
        assert 0.85 < spread < 1.15
    signs = kept * 2.0 - 1
    for step, axis in ((1, 0), (1, 1), (256, 0)):
        a, b = np.split(signs, [step], axis)[1], np.split(signs, [-step], axis)[0]
        assert abs((a * b).mean()) < 4 / np.sqrt(a.size)


def test_layouts_refuse_tokens_that_do_not_fit():
    with pytest.raises(ValueError, match=r"9 tokens > capacity 8 \(longest sequences: #1=5"):
        vsl.layout_from_lengths(np.array([4, 5], np.int32), 8)
    assert vsl.layout_from_lengths(np.array([4, 5], np.int32), 8, validate=False).capacity == 8
    with pytest.raises(ValueError, match="sequence 1 has -1 tokens"):
        vsl.layout_from_lengths(np.array([4, -1], np.int32), 8)
    with pytest.raises(ValueError, match="row 0 has 4 tokens > max_length 3"):
        vsl.padded_layout(np.array([4, 1], np.int32), 3)
