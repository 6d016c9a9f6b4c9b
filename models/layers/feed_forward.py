"""Feed-forward layers: plain, gated, and top-k routed experts."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from wafer.models.layers.basic import GATED, Dense, activation, dense_together
from wafer.models.layers.initializers import InitFn


class FeedForward(nn.Module):
    """``down(act(up(x)))``, or ``down(up(x) * act(gate(x)))`` for a gated nonlinearity."""

    hidden_size: int
    filter_size: int
    nonlinearity: str | None
    use_bias: bool
    init_in: InitFn
    init_out: InitFn
    #: [T, F] -> the same with units dropped, before ``down``
    drop: Callable[[Array], Array] = lambda h: h

    @nn.compact
    def __call__(self, x: Float[Array, "T D"]) -> Float[Array, "T D"]:
        """Widen, activate, narrow."""
        act = activation(self.nonlinearity)
        names = ("up", "gate") if self.nonlinearity in GATED else ("up",)
        widen = functools.partial(Dense, self.filter_size, self.use_bias, self.init_in)
        h, *gate = dense_together(x, [widen(name=name) for name in names])
        h = h * act(gate[0]) if gate else act(h)
        return Dense(self.hidden_size, self.use_bias, self.init_out, name="down")(self.drop(h))


class Experts(nn.Module):
    """Top-k routed feed-forward layers without dropped tokens (Mixtral; Jiang et al. 2024).

    The router's softmax is float32 over all experts, then cut to the k largest and renormalised
    (``normalize``).
    Every expert runs on every token and is weighted by 0 where not chosen: E/k times the work of
    a gather, static shapes, and 2-D kernels that can be sparse like any other.
    """

    num_experts: int  #: E
    top_k: int  #: k
    parts: Mapping[str, Any]  #: arguments of each expert's ``FeedForward``
    shared: int = 0  #: further experts, added with weight 1
    null_bias: float = 0.0  #: weight of the expert that returns 0, before renormalisation
    normalize: bool = True  #: whether the weights of a token's experts are divided by their sum

    @nn.compact
    def __call__(self, x: Float[Array, "T D"]) -> tuple[Float[Array, "T D"], Float[Array, "T 2 E"]]:
        """Route.

        Returns:
            The mixed output; and for each expert whether the token chose it, and its probability.
        """
        router = Dense(self.num_experts, False, self.parts["init_in"], name="router")
        scores = jax.nn.softmax(router(x).astype(jnp.float32), axis=-1)
        top, chosen = jax.lax.top_k(scores, self.top_k)
        if self.normalize:
            top = top / (top.sum(-1, keepdims=True) + self.null_bias)
        one_hot = jax.nn.one_hot(chosen, self.num_experts)
        weight = jnp.einsum("tk,tke->te", top, one_hot).astype(x.dtype)
        out = jnp.zeros_like(x)
        for e in range(self.num_experts):
            out = out + weight[:, e : e + 1] * FeedForward(**self.parts, name=f"experts_{e}")(x)
        for e in range(self.shared):
            out = out + FeedForward(**self.parts, name=f"shared_experts_{e}")(x)
        return out, jnp.stack([one_hot.sum(1), scores], axis=1)
