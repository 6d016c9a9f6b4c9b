"""SynFlow: how much of the flow from input to output passes each weight (arXiv:2006.05467).

Tanaka et al. 2020 take R, the sum of the outputs for an input of ones through absolute weights,
and score |weight * dR/dweight|. No data and no labels are read. In a network that is linear in
each layer's weights, all layers' scores sum to R, so that none is pruned away before the others.

Transformers are not linear in their weights. As batch normalisation is in evaluation, and with
what they compute unchanged where that is possible:

- embeddings give ones, and the sequence is one token
- norms divide by a root mean square that counts as constant, and subtract no mean
- attention counts as linear in query and key, whose softmax has no slope for one token
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from wafer import vsl
from wafer.models.base import Batch, Model
from wafer.models.layers.attention import Attend, Attention
from wafer.models.layers.basic import Embedding, Norm
from wafer.sparsity.schema import SparsityError


@functools.partial(jax.jit, static_argnums=0)
def synflow_scores(model: Model, params: PyTree) -> PyTree:
    """Score every weight by |weight * dR/dweight|.

    Args:
        model: the model; its input is one token, or one image.
        params: its weights, 0 where pruned in an earlier round.

    Returns:
        A tree like ``params``, float32, not negative.

    Raises:
        SparsityError: the family reads more than tokens or an image.
    """
    size = jax.tree.map(jnp.abs, params)
    slope = jax.grad(lambda weights: _flow(model, weights))(size)
    return jax.tree.map(lambda w, g: jnp.abs(w * g).astype(jnp.float32), size, slope)


def _flow(model: Model, params: PyTree) -> Array:
    """R: the sum of the outputs."""
    try:
        with nn.intercept_methods(_linearly):
            out = model.apply(params, _ones(model))
    except KeyError as error:
        raise SparsityError(
            f"synflow gives a model one token or one image of ones, but {model.config.name} also "
            f"reads {error}; take snip or grasp, which read calibration rows"
        ) from None
    floats = [x for x in jax.tree.leaves(out) if jnp.issubdtype(x.dtype, jnp.floating)]
    return sum((x.astype(jnp.float32).sum() for x in floats), jnp.zeros(()))


def _ones(model: Model) -> Batch:
    """One token; an image of ones for a model that takes one."""
    zero = jnp.zeros((1,), jnp.int32)
    layout = vsl.layout_from_lengths(jnp.ones((1,), jnp.int32), 1)
    shape = getattr(model.config, "input_shape", None)
    image = None if shape is None else jnp.ones((1, *shape))
    extras = {} if image is None else {"images": image, "pixel_values": image}
    return Batch(zero, zero, jnp.ones((1,)), layout, extras)


def _linearly(
    call: Callable[..., PyTree], args: tuple[PyTree, ...], kwargs: dict[str, PyTree], context: Any
) -> PyTree:
    """Stand in for the layers that are not linear in what they read."""
    module = context.module
    if context.method_name != "__call__":
        return call(*args, **kwargs)
    if isinstance(module, Embedding):
        return jnp.ones_like(call(*args, **kwargs))
    if isinstance(module, Norm):
        y = _norm(module, *args)
        return (y, *args) if kwargs.get("branch") else y
    if isinstance(module, Attention):
        x, positions, attend = args
        return call(x, positions, functools.partial(_attend, attend), **kwargs)
    return call(*args, **kwargs)


def _norm(module: Norm, x: Array) -> Array:
    y = x.astype(jnp.float32)
    y = y * jax.lax.stop_gradient(jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + module.eps))
    if module.has_variable("params", "scale"):
        y = y * module.get_variable("params", "scale")
    if module.has_variable("params", "bias"):
        y = y + module.get_variable("params", "bias")
    return y.astype(x.dtype)


def _attend(attend: Attend, q: Array, k: Array, v: Array, **rules: object) -> Array:
    """Attend, with a slope in q and k as though the output were proportional to q·k."""
    constant = jax.lax.stop_gradient
    out = attend(constant(q), constant(k), v, **rules)
    shared = q.shape[1] // k.shape[1]  # query heads that read one key head
    scores = (q.mean(0) * jnp.repeat(k.mean(0), shared, axis=0)).sum(-1)  # [N]
    gain = scores / jnp.maximum(constant(scores), jnp.finfo(scores.dtype).tiny)
    return out * gain[:, None]
