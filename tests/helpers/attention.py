"""One attention call with everything it may read, forward and backward."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wafer import vsl


def inputs(
    capacity: int, heads: tuple[int, int], width: int, keys: int | None = None
) -> dict[str, Any]:
    """Queries, keys, values, slopes, a T5 table, and the gradient of the output."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    names = {"q": (capacity, heads[0]), "k": (keys or capacity, heads[1])}
    names |= {"v": names["k"], "do": names["q"]}
    out = {name: draw(*shape, width) for name, shape in names.items()}
    out["slopes"] = jnp.asarray(vsl.alibi_slopes(heads[0]))
    return out | {"table": draw(32, heads[0])}


def in_rows(
    x: dict[str, Any], packed: vsl.Layout, rows: vsl.Layout
) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """The same tokens in padded rows, where padding holds NaN, and their slots before and now."""
    here, there = np.flatnonzero(packed.valid), np.flatnonzero(rows.valid)
    spread = dict(x)
    for name in ("q", "k", "v", "do"):
        fill = 0.0 if name == "do" else jnp.nan
        blank = jnp.full((rows.capacity, *x[name].shape[1:]), fill)
        spread[name] = blank.at[there].set(x[name][here])
    return spread, here, there


def gradients(
    x: dict[str, Any],
    layout: vsl.Layout,
    implementation: str,
    *,
    causal: bool = True,
    alibi: bool = False,
    bias: str | None = None,
    **options: Any,
) -> dict[str, jax.Array]:
    """Output, and the gradients of q, k, v, slopes and table."""

    def loss(x: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
        t5 = vsl.RelativeBias(table=x["table"], bidirectional=not causal)
        shifted = lambda q, k: t5(q, k) * 0.5 + 0.1 * q[:, None]
        out = vsl.attention(
            *(x["q"], x["k"], x["v"], layout),
            causal=causal,
            alibi_slopes=x["slopes"] if alibi else None,
            relative_bias={None: None, "t5": t5, "function": shifted}[bias],
            dropout_key=jax.random.key(3) if "dropout_rate" in options else None,
            implementation=implementation,
            **options,
        )
        return jnp.sum(out * x["do"]), out

    grads, out = jax.jit(jax.grad(loss, has_aux=True))(x)
    del grads["do"]
    return grads | {"out": out}


def assert_close(
    got: dict[str, jax.Array], want: dict[str, jax.Array], skip: tuple[str, ...] = ()
) -> None:
    """Equal to a rounding of the largest value of each array."""
    for name in want.keys() - {*skip}:
        top = max(float(jnp.abs(want[name]).max()), 1e-3)
        np.testing.assert_allclose(got[name], want[name], atol=3e-6 * top, err_msg=name)
