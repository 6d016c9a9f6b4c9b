"""Cross-entropy of scores over many classes: on a CPU one native pass each way, else XLA's program.

XLA's CPU program takes a pass over memory for the largest score, one for the exponentials, one for
their sum and one for the label's place among the best, most of them on one core. The native form
has derivatives of any order: those beyond the first gradient are XLA's.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from wafer.vsl.attend import may_be_native
from wafer.vsl.implementations.linear import compose, with_tangent
from wafer.vsl.native.kernels import LIBRARY

_LEAST = 2**16  # scores below which XLA's program takes no longer
_FEWEST = 32  # classes


class Scored(NamedTuple):
    """What scores are worth, by row."""

    loss: Float[Array, "*rows"]  #: float32, -log(softmax(scores)) of the label
    #: float32, 1 where the label is the first of the largest scores, else 0; without derivative
    best: Float[Array, "*rows"]


def cross_entropy(scores: Float[Array, "*rows V"], labels: Int[Array, "*rows"]) -> Scored:
    """Compute the cross-entropy of each row in float32, and whether its label is the best class.

    Args:
        scores: [..., V] of any float type.
        labels: [...] classes; one below 0 or from V on has the loss of the nearest class, and is
            never the best.
    """
    scores = scores.astype(jnp.float32)
    classes = scores.shape[-1]
    near = jnp.clip(labels, 0, classes - 1).astype(jnp.int32)
    large = scores.size >= _LEAST and classes >= _FEWEST
    if large and may_be_native() and LIBRARY.usable():
        rows, flat = scores.reshape(-1, classes), near.reshape(-1)
        result = jax.ShapeDtypeStruct(flat.shape, jnp.float32)
        operands = jax.lax.stop_gradient(rows), flat
        norm, best = LIBRARY.call("wafer_entropy_forward", (result, result), *operands)
        loss = _LOSS.bind(rows, flat, norm)[0].reshape(labels.shape)
        best = best.reshape(labels.shape)
    else:
        loss, best = _by_xla(scores, near), _is_best(scores, near)
    return Scored(loss, jnp.where(near == labels, best, 0.0))


def _label_score(scores: Array, labels: Array) -> Array:
    return jnp.take_along_axis(scores, labels[..., None], axis=-1)


def _by_xla(scores: Array, labels: Array) -> Array:
    return jax.nn.logsumexp(scores, axis=-1) - _label_score(scores, labels)[..., 0]


def _is_best(scores: Array, labels: Array) -> Array:
    """Return ``scores.argmax(-1) == labels``, by vectors: XLA's CPU argmax takes 4 ns a number."""
    own = _label_score(scores, labels)
    place = jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
    first = (scores < own) | ((scores == own) & (place >= labels[..., None]))
    return jnp.all(first, axis=-1).astype(jnp.float32)


# Maps of [T, V] scores, [T] labels and norms, log(sum(exp(scores))); those of XLA know the norms.


def _loss(scores: Array, labels: Array, norm: Array) -> list[Array]:
    return [norm - _label_score(scores, labels)[..., 0]]


def _gradient(d: Array, scores: Array, labels: Array, norm: Array) -> list[Array]:
    result = jax.ShapeDtypeStruct(scores.shape, jnp.float32)
    return [LIBRARY.call("wafer_entropy_backward", result, d, scores, labels, norm)]


def _gradient_by_xla(d: Array, scores: Array, labels: Array, norm: Array) -> list[Array]:
    del norm
    return list(jax.vjp(lambda x: _by_xla(x, labels), scores)[1](d))


def _tangent(moved: Array, scores: Array, labels: Array, norm: Array) -> list[Array]:
    del norm
    return [jax.jvp(lambda x: _by_xla(x, labels), [scores], [moved])[1]]


_GRADIENT = compose("entropy_gradient", _gradient, _gradient_by_xla)
_TANGENT = compose(
    "entropy_tangent", _tangent, _tangent, lambda d, _, *rest: _GRADIENT.bind(d, *rest)
)
_LOSS = with_tangent("entropy_loss", _loss, _TANGENT.bind, moving=lambda: 1)
