"""A model's parameters as the objects that decoding multiplies by, one tensor at a time."""

from collections.abc import Iterable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PyTree

from wafer.models.base import Model
from wafer.models.factored.factors import factors_of
from wafer.models.factored.lora import lora_of
from wafer.models.families.decoder_config import DecoderConfig
from wafer.models.paths import Params, map_named, unflatten
from wafer.sparsity.kernels import (
    DecodeTable,
    DecodeWeight,
    SparseWeight,
    choose,
    gather,
    native,
    pattern_from_mask,
)

_PRUNED = 0.25  # share of zeros from which kept values and their mask are clearly fewer bytes
_TABLE = "embed/token/embedding"


class Converted(NamedTuple):
    """A tree for ``models.generate``."""

    #: 2-D kernels are ``DecodeWeight`` where pruned, else ``DecodeTable``; so is the table
    params: Params
    sparse: int  #: kernels that are multiplied by kept values
    kernels: int  #: all kernels
    zeros: float  #: share of pruned weights in the sparse ones
    nbytes: int  #: that one step reads, its weights only


def problem(model: Model) -> str | None:
    """Say why this model cannot decode with csr weights here; None when it can."""
    if not isinstance(model.config, DecoderConfig):
        return f"{model.config.name} is no decoder"
    if lora_of(model.config) is not None:
        return "the model holds adapters, which are added to dense weights"
    if factors_of(model.config) is not None:
        return "the model's kernels are products of factors, which decoding multiplies out"
    if not native.usable():
        return "the native kernels are not there (they need a CPU and a build)"
    return None


def convert(
    model: Model, leaves: Iterable[tuple[str, PyTree]], dtype: DTypeLike = jnp.float32
) -> Converted:
    """Turn stored tensors into what decoding reads; of pruned ones, one at a time is dense.

    Where none is pruned by a quarter, all stay the arrays that they are.

    Args:
        model: a decoder; ``problem`` says what is none.
        leaves: (parameter name, array or handle of one), pruned weights NaN or 0.
        dtype: of kernels and table, float32, bfloat16 or int8; norms and biases stay as they are.
    """
    params = {name: _weight(model, name, np.asarray(leaf), dtype) for name, leaf in leaves}
    if any(isinstance(leaf, DecodeWeight) for leaf in params.values()):
        params = {name: _table(model, name, leaf, dtype) for name, leaf in params.items()}
    weights = [leaf for leaf in params.values() if isinstance(leaf, DecodeWeight)]
    tables = {name: leaf for name, leaf in params.items() if isinstance(leaf, DecodeTable)}
    tied = model.config.share_embedding_weights  # else a step looks a row of the table up
    read = [table for name, table in tables.items() if name != _TABLE or tied]
    total = sum(weight.shape[0] * weight.shape[1] for weight in weights)
    kept = sum(weight.kept for weight in weights)
    return Converted(
        params=unflatten(params),
        sparse=len(weights),
        kernels=len(weights) + sum(name != _TABLE for name in tables),
        zeros=1 - kept / max(total, 1),
        nbytes=sum(leaf.nbytes for leaf in [*weights, *read]),
    )


def stream_params(model: Model, params: Params, tokens: int) -> Params:
    """Return parameters for passes over many tokens: csr weights where their products are faster.

    Args:
        model: of ``params``; ``problem`` is None for it.
        params: dense, pruned weights 0.
        tokens: of a pass.
    """

    def visit(name: str, leaf: PyTree) -> PyTree:
        if leaf.ndim != 2 or not model.sparse(name):
            return leaf
        mask = jnp.asarray(leaf) != 0
        (rows, columns), kept = leaf.shape, int(mask.sum())
        if choose(tokens, rows, columns, kept, jnp.dtype(model.config.dtype)) != "csr":
            return leaf
        pattern = pattern_from_mask(mask, kept)
        return SparseWeight(values=gather(jnp.asarray(leaf), pattern), pattern=pattern)

    return map_named(visit, params)


def _weight(model: Model, name: str, array: np.ndarray, dtype: DTypeLike) -> PyTree:
    if array.ndim == 2 and model.sparse(name):
        pruned = np.count_nonzero(np.isnan(array) | (array == 0))
        if pruned >= _PRUNED * array.size:
            return DecodeWeight.from_dense(array, dtype)
    return jnp.asarray(np.where(np.isnan(array), np.zeros((), array.dtype), array))


def _table(model: Model, name: str, leaf: PyTree, dtype: DTypeLike) -> PyTree:
    if name == _TABLE:
        return DecodeTable.from_dense(leaf, dtype)
    if isinstance(leaf, DecodeWeight) or leaf.ndim != 2 or not model.sparse(name):
        return leaf
    return DecodeTable.from_dense(leaf.T, dtype)
