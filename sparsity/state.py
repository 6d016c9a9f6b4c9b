"""The arrays a sparsifier carries from step to step."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from pydantic import BaseModel, ConfigDict, Field

from models.errors import CheckpointError, SectionError
from models.paths import former_names, named_leaves
from models.sections import LARGEST_INT, parse
from sparsity.schema import listed

__all__ = ["Meta", "SparseState", "from_meta", "match", "read_meta", "to_meta"]

_THREEFRY = "threefry2x32"  # the generator of a key whose record names none
_Count = Annotated[int, Field(ge=0, le=LARGEST_INT)]
_Word = Annotated[int, Field(ge=0, lt=2**32)]


class SparseState(NamedTuple):
    """Topology and counters; a tree of arrays.

    Attributes:
        masks: parameter name -> bool mask of its shape, for parameters stored dense
        patterns: parameter name -> ``kernels`` pattern, for parameters stored as [nnz] values
        step: [] int32, optimizer steps taken; steps skipped for non-finite gradients do not count
        indices: [G, 2] int32, list positions of each group's level and drop-fraction schedules
        targets: [G] float32, the level each group last put into force
        key: random key of the run, never consumed; draws fold in the step and the parameter
    """

    masks: Mapping[str, Array]
    patterns: Mapping[str, Any]
    step: Array
    indices: Array
    targets: Array
    key: Array


class Meta(BaseModel):
    """What a checkpoint's record says of a sparse state."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    parameters: list[str]  #: names of the sparse ones
    step: _Count  #: as in the state
    indices: list[Annotated[list[_Count], Field(min_length=2, max_length=2)]]  #: as in the state
    targets: list[float]  #: as in the state
    key: list[_Word]  #: words of the random key
    #: generator of the key; None for an old-style key, whose words are the key
    key_impl: str | None = _THREEFRY


def to_meta(sparse: SparseState) -> dict[str, Any]:
    """Turn everything but the topology into a JSON-able dict (a checkpoint's meta record)."""
    typed = jnp.issubdtype(sparse.key.dtype, jax.dtypes.prng_key)
    impl = str(jax.random.key_impl(sparse.key)) if typed else None
    return {
        "parameters": sorted([*sparse.masks, *sparse.patterns]),
        "step": int(sparse.step),
        "indices": np.asarray(sparse.indices).tolist(),
        "targets": np.asarray(sparse.targets, np.float64).tolist(),
        "key": np.asarray(jax.random.key_data(sparse.key)).tolist(),
    } | ({} if impl == _THREEFRY else {"key_impl": impl})


def read_meta(meta: Mapping[str, Any]) -> Meta:
    """Check what a record says of a sparse state.

    Raises:
        CheckpointError: lists every key that ``to_meta`` would not have written so.
    """
    try:
        checked = parse(Meta, dict(meta))
    except SectionError as error:
        problems = error.lines("sparsity")
    else:
        if len(checked.indices) == len(checked.targets):
            return checked
        problems = [
            f"sparsity.targets: {len(checked.targets)} numbers; expected one for each of the "
            f"{len(checked.indices)} indices"
        ]
    raise CheckpointError(f"the checkpoint's record was edited: {'; '.join(problems)}")


def from_meta(meta: Mapping[str, Any], groups: int) -> SparseState:
    """Undo ``to_meta``, with empty masks.

    A section edited to another number of groups keeps the step and starts its lists anew.

    Raises:
        CheckpointError: it is not what ``to_meta`` returns.
    """
    stored = read_meta(meta)
    kept = len(stored.indices) == groups
    indices = stored.indices if kept else np.zeros((groups, 2))
    targets = stored.targets if kept else np.zeros(groups)
    key = jnp.asarray(stored.key, jnp.uint32)
    try:
        if stored.key_impl is not None:
            key = jax.random.wrap_key_data(key, impl=stored.key_impl)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint's record was edited: sparsity.key: {len(stored.key)} words of "
            f"{stored.key_impl!r}: {error}"
        ) from None
    return SparseState(
        masks={},
        patterns={},
        step=jnp.int32(stored.step),
        indices=jnp.asarray(indices, jnp.int32).reshape(groups, 2),
        targets=jnp.asarray(targets, jnp.float32),
        key=key,
    )


def match(
    sparse: SparseState,
    tree: PyTree,
    where: str,
    *,
    partial: bool = False,
    is_leaf: Callable[[Any], bool] | None = None,
) -> SparseState:
    """Return the state under the tree's names.

    Args:
        sparse: masks or patterns by name; names of a release before 0.2 become today's.
        tree: parameters or gradients.
        where: the method, for the error.
        partial: the tree is a part of the model, so that masks may lack a weight.
        is_leaf: true for nodes of the tree that are leaves, too.

    Raises:
        ValueError: masks without a weight, or two leaves of one name.
    """
    names = {name for name, _ in named_leaves(tree, is_leaf=is_leaf)}
    masks = (*sparse.masks, *sparse.patterns)
    if names.issuperset(masks):
        return sparse
    renamed = {old: name for name, old in former_names(tree, is_leaf=is_leaf).items()}
    lost = [name for name in masks if name not in names and name not in renamed]
    if lost and not partial:
        rest = sorted(names.difference(masks)) or ["no other leaf"]
        raise ValueError(
            f"sparsity.{where}: {len(lost)} of {len(masks)} masks find no weight of their name "
            f"({listed(lost)}); the tree has {listed(rest)}. Use the tree that `init` was called "
            "with, in any form, or, if this one is a part of it, configure(..., partial=True)"
        )

    def rename(by_name: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name if name in names else renamed.get(name, name): value
            for name, value in by_name.items()
        }

    return sparse._replace(masks=rename(sparse.masks), patterns=rename(sparse.patterns))
