"""First masks: random, by magnitude, from zeros, checkerboard, or a user's function."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from wafer.models.once import jit_once
from wafer.sparsity.kernels import topk_mask
from wafer.sparsity.selection import kept_count
from wafer.sparsity.views import CompetitionRows

INIT_METHODS = ("random", "topk", "from_zeros", "checkerboard")
InitMethod = str | Callable[..., Any]


def init_mask(
    method: InitMethod, weight: Array, sparsity: Array | float, key: Array, view: CompetitionRows
) -> Array:
    """Compute a parameter's first mask.

    Args:
        method: one of ``INIT_METHODS``, or ``fn(weight, sparsity, key, view) -> bool array``.
        weight: the parameter, any shape.
        sparsity: [] level in [0, 1]; may be traced.
        key: consumed by "random" and by a user's function.
        view: which positions compete.

    Returns:
        bool array of the weight's shape, true where kept.
    """
    if callable(method):
        return jnp.broadcast_to(method(weight, sparsity, key, view), weight.shape).astype(bool)
    if method == "checkerboard":
        return checkerboard(weight.shape, sparsity, view)
    return _named_mask(method, weight, sparsity, key, view)


@functools.partial(jit_once, static_argnames=("method", "view"))  # once per shape, not per weight
def _named_mask(
    method: str, weight: Array, sparsity: Array | float, key: Array, view: CompetitionRows
) -> Array:
    if method == "random":
        # Drawn in [out, in] order so that both weight layouts get the same pattern.
        scores = jax.random.uniform(key, (view.groups(weight.shape), view.row_length(weight.shape)))
        return _keep_highest(scores, sparsity, weight.shape, view)
    if method == "topk":
        return magnitude_mask(weight, sparsity, view)
    return view.unrows(view.rows(weight != 0) > 0, weight.shape)


def _keep_highest(
    rows: Array, sparsity: Array | float, shape: tuple[int, ...], view: CompetitionRows
) -> Array:
    return view.unrows(topk_mask(rows, kept_count(sparsity, rows.shape[-1])), shape)


def highest_mask(scores: Array, sparsity: Array | float, view: CompetitionRows) -> Array:
    """Keep the highest scores of each row, at sparsity [] -> bool mask of their shape [...]."""
    return _keep_highest(view.rows(scores.astype(jnp.float32)), sparsity, scores.shape, view)


def magnitude_mask(weight: Array, sparsity: Array | float, view: CompetitionRows) -> Array:
    """Keep the largest absolute weights of each row of the view."""
    return highest_mask(jnp.abs(weight), sparsity, view)


def checkerboard(shape: tuple[int, ...], sparsity: Array | float, view: CompetitionRows) -> Array:
    """Evenly spaced pattern, each row shifted against the one before (for stress tests).

    The level must be concrete, as the pattern's period decides array shapes.
    """
    level = float(np.clip(float(sparsity), 0.0, 1.0))
    stacked = jax.eval_shape(view.to_oi, jax.ShapeDtypeStruct(shape, bool)).shape
    pattern = jnp.asarray(_checkerboard(view.oi_shape(shape), level))
    return view.from_oi(jnp.broadcast_to(pattern, stacked), shape)


@functools.lru_cache(maxsize=64)
def _checkerboard(shape: tuple[int, ...], sparsity: float) -> np.ndarray:
    unit, eps = np.float32(1), np.float32(1e-5)
    density = unit - np.float32(sparsity)  # float32 throughout: the level decides exact counts
    columns = shape[-1]
    if density <= 0:
        return np.zeros(columns, bool)
    padded = columns + math.ceil(columns / density + eps)
    row = np.diff(np.floor(np.arange(padded, dtype=np.float32) * density + eps)) > 0
    if len(shape) != 2:
        return row[:columns]
    shift = math.floor(unit / density - eps)
    return np.stack([np.roll(row, -r * shift)[:columns] for r in range(shape[0])])
