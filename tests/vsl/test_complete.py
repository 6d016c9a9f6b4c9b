"""Traced layouts of what is an error outside jit: results become NaN, whatever the rows hold."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import models, vsl

ROWS = {
    "right": [[5, 6, 7, 0], [8, 9, 0, 0]],
    "left": [[0, 5, 6, 7], [0, 0, 8, 9]],
    "hole": [[5, 0, 6, 7], [8, 9, 0, 0]],
}
MODEL = models.build(
    {"name": "gpt2", "vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_heads": 2}
    | {"filter_size": 16, "max_position_embeddings": 8, "dropout_rate": 0.0}
)
PARAMS = MODEL.init(jax.random.key(0))


@functools.partial(jax.jit, static_argnames=("capacity", "implementation"))
def _results(rows: Any, capacity: int, implementation: Any = "dense") -> dict[str, Any]:
    stream = vsl.strip_padding({"ids": rows, "floats": rows + 0.5}, rows > 0, capacity=capacity)
    layout, ids = stream.layout, stream.values["ids"]
    weights = layout.valid.astype(jnp.float32)
    embedded = jnp.stack([ids, ids**2], axis=1)[:, :, None] * jnp.ones(16)
    attend = functools.partial(vsl.attention, causal=True, implementation=implementation)
    batch = models.Batch(ids, ids, weights, layout)
    loss, gradient = jax.value_and_grad(lambda p: MODEL.loss(p, batch)[0])(PARAMS)
    return {
        "complete": layout.complete,
        "ids": ids,
        "tokens": weights.sum(),
        "floats": stream.values["floats"],
        "attention": attend(embedded, embedded, embedded, layout),
        "gradient": jax.grad(lambda x: attend(x, x, x, layout).sum())(embedded),
        "pooled": vsl.segment_sum(embedded, layout),
        "own": layout.require_complete(weights.sum()),
        "loss": loss,
        "gradients": jax.tree.leaves(gradient["norm_f"])[0],
    }


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("capacity", [5, 8])
@pytest.mark.parametrize(
    "implementation", ["dense", "blocks", pytest.param("native", marks=pytest.mark.native)]
)
def test_rows_that_outside_jit_are_an_error(rows: str, capacity: int, implementation: str) -> None:
    results = _results(np.array(ROWS[rows]), capacity, implementation)
    assert results["tokens"] == 5  # no token is dropped
    assert results["ids"][:5].tolist() == [5, 6, 7, 8, 9]
    assert bool(results["complete"]) == (rows == "right")
    for name in ("floats", "attention", "pooled", "own", "loss", "gradients"):
        nan = np.isnan(results[name])
        assert nan.all() if rows != "right" else not nan.any(), name
    assert np.isnan(results["gradient"][:5]).all() == (rows != "right")


def test_tokens_beyond_the_capacity() -> None:
    results = _results(np.array(ROWS["right"]), 4)
    assert not results["complete"]
    assert all(np.isnan(results[name]).all() for name in ("floats", "attention", "pooled", "loss"))
    free = jax.jit(lambda m: vsl.strip_padding(m, m, holes="keep").layout.complete)
    assert free(np.array(ROWS["hole"]) > 0)


LAYOUTS = {
    "overflow": (vsl.layout_from_lengths, [5, 4], 8),
    "negative": (vsl.layout_from_lengths, [5, -1], 8),
    "row": (vsl.padded_layout, [5, 3], 4),
    "negative row": (vsl.padded_layout, [4, -2], 4),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_lengths_that_do_not_fit(case: str) -> None:
    make, lengths, size = LAYOUTS[case]
    complete = jax.jit(lambda n: make(n, size).complete)
    assert complete(np.array([4, 3]))
    assert not complete(np.array(lengths))
    assert jax.jit(lambda n: make(n, size, validate=False).complete)(np.array(lengths))
    assert jax.vmap(complete)(np.array([lengths, [4, 3]])).tolist() == [False, True]


def test_more_documents_than_places() -> None:
    span, place = np.array([[1, 0, 0, 0]]), np.array([[0, 1, 0, 0]])
    loss_mask = np.array([[1, 1, 1, 0]])
    make = functools.partial(vsl.layout_from_spans, span, place)
    traced = jax.jit(lambda m, n: make(m, n).complete, static_argnums=1)
    assert [bool(traced(loss_mask, most)) for most in (1, 2, None)] == [False, True, True]
    with pytest.raises(ValueError, match="2 documents > max_sequences=1"):
        make(loss_mask, 1)


def test_all_layouts_have_one_structure() -> None:
    """A traced layout takes the place of one of the host, in a loop, a branch or a kept program."""
    lengths = np.array([2, 1], np.int32)
    host = vsl.layout_from_lengths(lengths, 4)
    names = ["lengths", "segments", "positions", "starts", "ends", "first"]  # of exported programs
    assert [path[0].name for path, _ in jax.tree.leaves_with_path(host)] == names
    step = lambda layout, n: (vsl.layout_from_lengths(n, 4), layout.complete)
    last, complete = jax.lax.scan(step, host, np.array([[2, 1], [4, 4], [1, 1]]))
    assert [*complete.tolist(), bool(last.complete)] == [True, True, False, True]
    assert last.numbered(jnp.int32(3)).first == 3
    cut = jax.jit(lambda n: vsl.layout_from_lengths(n, 4))(np.array([4, 4]))
    assert not cut.numbered(jnp.int32(3)).complete  # a share of a batch stays as it is
    assert jax.jit(lambda layout: layout.require_complete(jnp.int32(1)))(cut) == 1
    tree = jax.tree.map(np.asarray, jax.device_get(cut))
    assert np.isnan(tree.require_complete(jnp.ones(2))).all()


def test_derivatives_of_strip_and_restore() -> None:
    """Forward mode is linear, agrees with reverse mode, and both work under vmap."""
    rng = np.random.default_rng(0)
    x, v = (jnp.asarray(rng.normal(size=(2, 4, 2, 8)), jnp.float32) for _ in range(2))
    mask = np.array(ROWS["right"]) > 0

    def loss(x: jax.Array, mask: Any) -> jax.Array:
        stream = vsl.strip_padding(x, mask, capacity=6)
        attend = functools.partial(vsl.attention, causal=True, implementation="dense")
        out = stream.map(lambda q: attend(q, q, q, stream.layout))
        return jnp.sum(vsl.restore_padding(out, pad_value=1.0) ** 2)

    value, tangent = jax.jvp(lambda x: loss(x, mask), (x,), (v,))
    gradient = jax.grad(loss)(x, mask)
    np.testing.assert_allclose(tangent, jnp.vdot(gradient, v), rtol=1e-4)
    assert not gradient[~mask].any()
    strip = lambda x: vsl.strip_padding(x, mask, capacity=6).values
    np.testing.assert_array_equal(jax.jvp(strip, (x,), (v,))[1], strip(v))
    hessian = jax.jit(jax.hessian(lambda s: loss(x + s * v, mask)))(0.0)
    near = lambda s: jax.jvp(lambda s: loss(x + s * v, mask), (s,), (1.0,))[1]
    np.testing.assert_allclose(hessian, (near(0.01) - near(-0.01)) / 0.02, rtol=2e-2)

    both, masks = jnp.stack([x, v]), np.stack([mask, mask[::-1]])
    rows = jax.vmap(jax.value_and_grad(loss))(both, masks)
    np.testing.assert_allclose(rows[0][0], value, rtol=1e-6)
    want = [jax.grad(loss)(*pair) for pair in zip(both, masks, strict=True)]
    np.testing.assert_allclose(rows[1], want, rtol=1e-5, atol=1e-6)
    total = jax.grad(lambda both: jax.vmap(loss, in_axes=(0, None))(both, mask).sum())(both)
    np.testing.assert_allclose(total[0], gradient, rtol=1e-5, atol=1e-6)


def test_gradients_under_shard_map_are_those_of_one_device() -> None:
    """A weight that all devices share: its gradient is summed over them, once."""
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.normal(size=(64, 64)) / 8, jnp.float32)
    x = jnp.asarray(rng.normal(size=(2048, 64)), jnp.float32)

    def strip(w: jax.Array, x: jax.Array) -> jax.Array:
        mask = np.arange(8) < np.array([8, 3])[:, None]
        stream = vsl.strip_padding((x @ w).reshape(-1, 8, 64)[:2], mask)
        return jnp.sum(vsl.restore_padding(stream.map(lambda v: v**3)))

    def attend(w: jax.Array, x: jax.Array) -> jax.Array:
        q = (x @ w).reshape(-1, 4, 16)[:256]
        layout = vsl.padded_layout(jnp.full(8, 30), 32)
        return jnp.sum(vsl.attention(q, q, q, layout, causal=True, implementation="native") ** 3)

    losses = {
        "strip": strip,
        "attention": attend,
        "normalize": lambda w, x: jnp.sum(vsl.normalize(x, w[0], w[1], eps=1e-5) ** 3),
        "cross_entropy": lambda w, x: vsl.cross_entropy(
            x @ w, jnp.arange(x.shape[0]) % 64
        ).loss.sum(),
        "product": lambda w, x: jnp.sum(vsl.stream_product(x, w, jnp.int32(x.shape[0])) ** 3),
    }
    specs = {"mesh": mesh, "in_specs": (jax.P(), jax.P("rows")), "out_specs": jax.P()}

    def halves(loss: Any, w: jax.Array) -> jax.Array:
        return jax.shard_map(lambda *a: jax.lax.psum(loss(*a), "rows"), **specs)(w, x)

    def whole(loss: Any, w: jax.Array) -> jax.Array:
        return loss(w, x[:1024]) + loss(w, x[1024:])

    for name, loss in losses.items():
        got, want = (
            jax.jit(jax.value_and_grad(functools.partial(form, loss)))(w)
            for form in (halves, whole)
        )
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max(), err_msg=name)
