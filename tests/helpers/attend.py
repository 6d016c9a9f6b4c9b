"""Attention with any options, forward and backward, and how near two results are."""

import jax
import jax.numpy as jnp
import numpy as np

from wafer import vsl

# One-token rows, an empty row, a row longer than two blocks, and slack at the end.
LENGTHS = np.array([70, 1, 0, 130, 33])
CAPACITY, LONGEST = 250, 130


def attention_inputs(heads, width, *, capacity=CAPACITY, keys=CAPACITY):
    """Queries of some heads, keys and values of others, slopes, a table, the result's gradient."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    return {
        "q": draw(capacity, heads[0], width),
        "k": draw(keys, heads[1], width),
        "v": draw(keys, heads[1], width),
        "do": draw(capacity, heads[0], width),
        "slopes": jnp.asarray(vsl.alibi_slopes(heads[0])),
        "table": draw(32, heads[0]),
    }


def attend(inputs, layout, implementation, *, causal=True, alibi=False, bias=None, **options):
    """Output and gradients of every input; bias is None, "t5", or "function"."""

    def loss(x):
        t5 = vsl.RelativeBias(table=x["table"], bidirectional=not causal)
        half = lambda q, k: t5(q, k) * 0.5 + 0.1 * q[:, None]
        out = vsl.attention(
            x["q"],
            x["k"],
            x["v"],
            layout,
            causal=causal,
            alibi_slopes=x["slopes"] if alibi else None,
            relative_bias={None: None, "t5": t5, "function": half}[bias],
            dropout_key=jax.random.key(3) if "dropout_rate" in options else None,
            implementation=implementation,
            **options,
        )
        return jnp.sum(out * x["do"]), out

    grads, out = jax.jit(jax.grad(loss, has_aux=True))(inputs)
    return grads | {"do": out}


def assert_attention_close(got, want, skip=()):
    """Equal but for the rounding of the largest number of each."""
    for name, value in want.items():
        top = max(float(np.abs(value).max()), 1e-3)
        if name not in skip:
            np.testing.assert_allclose(got[name], value, atol=3e-6 * top, err_msg=name)


def assert_padded_equals_packed(inputs, padded, packed, **options):
    """Padded rows by one implementation, the packed stream by another: the same tokens.

    What padding holds is never read, not even NaN, and its gradients are 0.
    """
    stream = vsl.layout_from_lengths(jnp.asarray(LENGTHS), CAPACITY)
    rows = vsl.padded_layout(jnp.asarray(LENGTHS), LONGEST)
    here, there = np.flatnonzero(stream.valid), np.flatnonzero(rows.valid)
    spread = dict(inputs)
    for name in ("q", "k", "v", "do"):
        blank = jnp.full((rows.capacity, *inputs[name].shape[1:]), 0.0 if name == "do" else jnp.nan)
        spread[name] = blank.at[there].set(inputs[name][here])
    want = jax.tree.map(np.asarray, attend(inputs, stream, packed, **options))
    got = jax.tree.map(np.asarray, attend(spread, rows, padded, **options))
    for name in ("q", "k", "v", "do"):
        assert not np.delete(got[name], there, axis=0).any()
        got[name], want[name] = got[name][there], want[name][here]
    assert_attention_close(got, want)
