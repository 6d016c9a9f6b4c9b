"""Strip padding from tensors and restore it: selection matrices, each the other's transpose.

As Cerebras's layers StripPadding and RestorePadding: a row ends at the first 0 of its mask. Both
directions are gathers, forward and backward.
"""

import dataclasses
import typing
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int, PyTree

from wafer.vsl.checks import check_fit, check_prefix_mask
from wafer.vsl.implementations.linear import multilinear
from wafer.vsl.layout import AnyArray, Layout, layout_from_lengths
from wafer.vsl.lengths import lengths_from_mask


def _gather(x: Array, index: Array, inverse: Array, *, batch_axes: int) -> list[Array]:
    del inverse
    take = lambda x, index: x.at[index].get(mode="fill", fill_value=0)
    for _ in range(batch_axes):
        take = jax.vmap(take)
    return [take(x, index)]


def _gather_back(
    g: Array, _: object, index: Array, inverse: Array, *, batch_axes: int
) -> list[Array]:
    return _SELECT.bind(g, inverse, index, batch_axes=batch_axes)


_SELECT = multilinear("vsl_select", _gather, _gather_back, has_batch_axes=True)


def _select(x: Array, index: Array, inverse: Array) -> Array:
    """Rows ``x[index]``, 0 where ``index`` is out of range; ``inverse`` gathers back."""
    return _SELECT.bind(x, index, inverse, batch_axes=0)[0]


@jax.tree_util.register_dataclass
@typing.no_type_check  # unflattening runs __init__ on tracers and placeholders
@dataclasses.dataclass(frozen=True, kw_only=True)
class Ragged:
    """One or several tensors without their padding.

    Attributes:
        values: a tree of arrays [T, ...]; 0 at slack.
        layout: where the rows lie in the stream.
        slots: [T] int32, flat index ``row * S + column`` each token came from; B * S at slack.
        places: [B * S] int32, where each flat index went; T at padding.
        rows: static (B, S).
        axis: static, sequence axis of the padded tensors.
        domain: static name of the set of positions; values of different domains do not mix.
    """

    values: Any
    layout: Layout
    slots: Int[Array, " T"]
    places: Int[Array, " P"]
    rows: tuple[int, int] = dataclasses.field(metadata={"static": True})
    axis: int = dataclasses.field(default=1, metadata={"static": True})
    domain: str = dataclasses.field(default="tokens", metadata={"static": True})

    def map(self, fn: Callable[..., Array], *others: "Ragged") -> "Ragged":
        """Apply a token-wise function to the values of one or several tensors.

        Args:
            fn: values -> new values, [T, ...] again.
            *others: further arguments; same domain, same capacity.

        Raises:
            ValueError: the arguments are not about the same positions, or fn changed T.
        """
        for other in others:
            if other.domain != self.domain:
                raise ValueError(
                    f"cannot combine ragged domains {self.domain!r} and {other.domain!r}: they "
                    "hold different positions; take them to one domain first (ragged_slots)"
                )
            if other.layout.capacity != self.layout.capacity:
                raise ValueError(
                    f"cannot combine capacities {self.layout.capacity} and "
                    f"{other.layout.capacity} of domain {self.domain!r}; strip both by one mask"
                )
        values = fn(self.values, *(other.values for other in others))
        for leaf in jax.tree.leaves(values):
            if leaf.shape[:1] != (self.layout.capacity,):
                raise ValueError(
                    f"a token-wise function must keep the {self.layout.capacity} token slots, it "
                    f"returned shape {leaf.shape}"
                )
        return dataclasses.replace(self, values=values)


Holes = Literal["error", "truncate", "keep"]


def strip_padding(
    x: PyTree,
    mask: AnyArray,
    axis: int = 1,
    *,
    capacity: int | None = None,
    holes: Holes = "error",
    domain: str = "tokens",
    debug: bool = False,
) -> Ragged:
    """Take the real tokens out of padded tensors, one row after another.

    Works inside jit, where ``capacity`` is static and defaults to B * S, and outside, where it
    defaults to the exact number of real tokens.

    Args:
        x: an array, or a tree of arrays, with a batch axis (0, or 1 when ``axis`` is 0) and a
            sequence axis; the other axes are kept in order.
        mask: [B, S], 0 or False at padding; every array is stripped by it.
        axis: sequence axis.
        capacity: static number T of token slots. If a traced mask has more real tokens, floating
            values become NaN, so that a loss cannot look healthy; see ``debug``.
        holes: what to do about a 0 before a row's last 1, such as padding on the left. ``error``
            raises on the host; under jit, where nothing can raise, no token is dropped and floating
            values become NaN. ``truncate`` ends the row there, as the layers do; ``keep`` strips
            the hole and keeps what follows.
        domain: static name for this set of positions.
        debug: under ``checkify``, report overflow and holes instead.

    Returns:
        The values [T, ...], and what is needed to restore them. Where they become NaN, the layout
        is not ``complete``, which integer values cannot show.

    Raises:
        ValueError: a shape that does not fit the mask; on the host also holes, empty rows are
            allowed, and tokens beyond ``capacity``.
    """
    mask = jnp.asarray(mask)
    if mask.ndim != 2:
        raise ValueError(f"strip_padding: mask has shape {mask.shape}, expected [B, S]")
    batch, length = mask.shape
    concrete = not isinstance(mask, Tracer)
    if concrete and holes == "error":
        lengths_from_mask(np.asarray(mask), allow_empty=True)
    if debug and holes == "error":
        check_prefix_mask(mask, allow_empty=True)
    real = jnp.cumprod(mask != 0, axis=1).astype(bool) if holes == "truncate" else mask != 0
    lengths = real.sum(axis=1, dtype=jnp.int32)
    if capacity is None:
        capacity = max(int(lengths.sum()), 1) if concrete else batch * length
    elif concrete and int(lengths.sum()) > capacity:
        raise ValueError(
            f"strip_padding: {int(lengths.sum())} real tokens > capacity {capacity}; raise it"
        )
    if debug:
        check_fit(lengths, capacity)
    layout = layout_from_lengths(lengths, capacity, validate=capacity < batch * length)
    if holes == "error" and not concrete:
        layout = layout.numbered(jnp.where((real[:, 1:] > real[:, :-1]).any(), -1, 0))
    flat = real.reshape(-1)
    place = jnp.cumsum(flat, dtype=jnp.int32) - 1
    places = jnp.where(flat, jnp.minimum(place, capacity), capacity)
    slots = jnp.full((capacity,), batch * length, jnp.int32)
    slots = slots.at[places].set(jnp.arange(batch * length, dtype=jnp.int32), mode="drop")

    def strip(path: jax.tree_util.KeyPath, leaf: Array) -> Array:
        leaf = jnp.asarray(leaf)
        at = axis % (leaf.ndim or 1)  # the batch axis is 0, or 1 if the sequence has 0
        front = jnp.moveaxis(leaf, (int(at == 0), at), (0, 1)) if leaf.ndim >= 2 else leaf
        if front.shape[:2] != (batch, length):
            raise ValueError(
                f"strip_padding: {jax.tree_util.keystr(path) or 'x'} has shape {leaf.shape}; with "
                f"axis={axis} its batch and sequence axes must measure {(batch, length)} like the "
                "mask"
            )
        out = _select(front.reshape(batch * length, *front.shape[2:]), slots, places)
        return layout.require_complete(out)

    return Ragged(
        values=jax.tree_util.tree_map_with_path(strip, x),
        layout=layout,
        slots=slots,
        places=places,
        rows=(batch, length),
        axis=axis,
        domain=domain,
    )


def restore_padding(x: Ragged, axis: int | None = None, pad_value: float | Array = 0) -> PyTree:
    """Put values back where they came from.

    Args:
        x: from :func:`strip_padding`, or derived from it by :meth:`Ragged.map`.
        axis: sequence axis of the result; None for the axis it was stripped along.
        pad_value: [] value at padding; constant, so its gradient is the stripped one.

    Returns:
        An array, or the tree of arrays, with axes B and S instead of T.
    """
    axis = x.axis if axis is None else axis
    batch, length = x.rows
    real = x.places < x.layout.capacity

    def restore(leaf: Array) -> Array:
        out = _select(leaf, x.places, x.slots)
        keep = real.reshape(-1, *(1,) * (out.ndim - 1))
        out = jnp.where(keep, out, jnp.asarray(pad_value, out.dtype))
        at = axis % (out.ndim + 1)
        out = out.reshape(batch, length, *out.shape[1:])
        return jnp.moveaxis(out, (0, 1), (int(at == 0), at))

    return jax.tree.map(restore, x.values)
