"""The arrays a sparsifier carries from step to step."""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, Protocol

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from pydantic import BaseModel, ConfigDict, Field

from wafer.models.errors import CheckpointError, SectionError
from wafer.models.paths import former_names, named_leaves
from wafer.models.sections import LARGEST_INT, parse
from wafer.sparsity.schema import listed

_LOG = logging.getLogger(__name__)
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
        key: [2] uint32 data of the run's random key, never consumed; draws fold in the step and the
            parameter. A key of another generator than threefry keeps its type
        generation: [] int32, changes of topology so far; None is 0
    """

    masks: Mapping[str, Array]
    patterns: Mapping[str, Any]
    step: Array
    indices: Array
    targets: Array
    key: Array
    generation: Array = np.int32(0)  # type: ignore[assignment]  # no backend at import


class WeightCopy(NamedTuple):
    """A second copy of sparse weights that is not in ``update``'s optimizer state at every step.

    A topology change orders stored values anew, and another seed or section chooses other ones, so
    under another topology a copy is of other weights. Differentiate at ``read(sparse)``, never at
    the copy.

    Attributes:
        tree: weights in the storage of the state
        generation: [] int32, of the state that they were stored by
        fingerprint: [] uint32, of the positions of its kept weights; None in a copy that was stored
            without the field, of which the generation alone is compared
    """

    tree: Any
    generation: Array
    fingerprint: Array | None = None

    @classmethod
    def of(cls, tree: PyTree, sparse: SparseState) -> "WeightCopy":
        """Return a copy of a tree in the state's storage."""
        return cls(tree, jnp.asarray(_generation(sparse)), fingerprint(sparse))

    def moved(self, sparse: SparseState) -> "WeightCopy":
        """Return the copy after its tree has followed a change of topology."""
        now = self.of(self.tree, sparse)
        return now if self.fingerprint is not None else now._replace(fingerprint=None)

    def read(self, sparse: SparseState) -> PyTree:
        """Return the tree; under another topology that is traced, with NaN for all numbers.

        Raises:
            ValueError: the topology is another one, or arithmetic has changed the copy's numbers.
        """
        _require_own_numbers(self)
        now = _generation(sparse)
        current = self.generation == now
        if self.fingerprint is not None:
            current = current & (self.fingerprint == fingerprint(sparse))
        if not isinstance(current, jax.core.Tracer):
            if current:
                return self.tree
            changed = int(self.generation) != int(now)
            raise ValueError(
                f"the copy of sparse weights is of topology {int(self.generation)} (found at read);"
                f" expected {int(now)}, the state's. Hand it to update at each step, which moves "
                "it: update(sparse, params, dense, (opt_state, copy))"
                if changed
                else "the copy of sparse weights is of another sparse state (found at read: other "
                "positions are kept); expected the state that it was made with. Store both "
                "together, and compute with copy.tree: jax.tree.map over a copy changes its "
                "fingerprint, too"
            )

        def leaf_or_nan(leaf: Array) -> Array:
            number = jnp.issubdtype(leaf.dtype, jnp.inexact)
            return jnp.where(current, leaf, jnp.nan).astype(leaf.dtype) if number else leaf

        return jax.tree.map(leaf_or_nan, self.tree)


def _require_own_numbers(copy: WeightCopy) -> None:
    """Refuse a copy of which arithmetic has changed what it is recognized by; traced, too."""
    for name, number in (("generation", copy.generation), ("fingerprint", copy.fingerprint)):
        kind = jnp.int32 if number is None else jnp.result_type(number)
        if not jnp.issubdtype(kind, jnp.integer):
            raise ValueError(
                f"the copy of sparse weights has a {name} of {kind} (found at read); expected an "
                "integer, as WeightCopy.of makes it. Compute with the weights alone: "
                "WeightCopy.of(jax.tree.map(f, copy.read(sparse)), sparse)"
            )


@jax.jit
def fingerprint(sparse: SparseState) -> Array:
    """Return a hash of the positions of kept weights, [] uint32, whatever names and storage."""

    def mixed(x: Array) -> Array:  # the finalizer of MurmurHash3: 32 bits to 32, one to one
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            x = (x ^ (x >> shift)) * jnp.uint32(factor)
        return x ^ (x >> 16)

    def numbers(n: int) -> Array:
        return mixed(jnp.arange(1, n + 1, dtype=jnp.uint32))

    def sums_of_mask(mask: Array) -> Array:
        *outer, n = np.shape(mask) or (1,)
        rows = jnp.reshape(mask, (math.prod(outer), n))
        return jnp.sum(rows * numbers(len(rows))[:, None], axis=0, dtype=jnp.uint32)

    def sums_of_pattern(pattern: Any) -> Array:
        of_rows = mixed(pattern.indices.astype(jnp.uint32) + jnp.uint32(1))
        before = jnp.cumsum(of_rows, dtype=jnp.uint32)  # slack comes after the last pointer
        before = jnp.concatenate([jnp.zeros(1, jnp.uint32), before])[pattern.pointers]
        return before[1:] - before[:-1]

    # Of each column the sum of its kept rows' hashes, so that both storages have the same.
    columns = [sums_of_mask(mask) for mask in sparse.masks.values()]
    columns += [sums_of_pattern(pattern) for pattern in sparse.patterns.values()]
    total = lambda parts: jnp.sum(mixed(parts), dtype=jnp.uint32)
    return sum((mixed(total(mixed(each) + numbers(each.size))) for each in columns), jnp.uint32(0))


def advanced(sparse: SparseState, changed: Array | bool) -> SparseState:
    """Count a change of topology: ``changed`` is [] bool."""
    return sparse._replace(generation=_generation(sparse) + jnp.asarray(changed, jnp.int32))


class Timetable(Protocol):
    """What a sparsifier knows of its due steps."""

    @property
    def quiet(self) -> bool:
        """True where nothing is to be logged."""
        ...

    def due_between(self, begin: int, end: int) -> bool:
        """True when a step with begin <= step < end is due."""
        ...


def tell_unchanged(sparse: SparseState, timetable: Timetable) -> None:
    """Log that no due step has changed the topology, where that is known."""
    counts = sparse.step, sparse.generation
    known = all(np.ndim(n) == 0 and not isinstance(n, jax.core.Tracer) for n in counts)
    if timetable.quiet or not known or sparse.generation is None or int(sparse.generation):
        return
    if timetable.due_between(1, int(sparse.step) + 1):
        _LOG.warning(
            "sparsity: the topology has never changed in %d steps, some of them due; pass "
            "update(..., topology=sparsifier.due(step)), or leave topology= out",
            int(sparse.step),
        )


def _generation(sparse: SparseState) -> Array | np.int32:
    """0 in a state that was stored without the field."""
    return np.int32(0) if sparse.generation is None else sparse.generation


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
    generation: _Count = 0  #: as in the state


def key_arrays(key: Array) -> Array:
    """Return the data of a key [] of threefry, which serializers take; others as they are."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if typed and str(jax.random.key_impl(key)) == _THREEFRY:
        return jax.random.key_data(key)
    return key


def typed_key(key: Array) -> Array:
    """Undo ``key_arrays``: key [] or [2] uint32; others as they are."""
    is_data = key.dtype == jnp.uint32 and key.shape == (2,)
    return jax.random.wrap_key_data(key, impl=_THREEFRY) if is_data else key


def to_meta(sparse: SparseState) -> dict[str, object]:
    """Turn everything but the topology into a JSON-able dict (a checkpoint's meta record)."""
    key = typed_key(sparse.key)
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    impl = str(jax.random.key_impl(key)) if typed else None
    return {
        "parameters": sorted([*sparse.masks, *sparse.patterns]),
        "step": int(sparse.step),
        "indices": np.asarray(sparse.indices).tolist(),
        "targets": np.asarray(sparse.targets, np.float64).tolist(),
        "key": np.asarray(jax.random.key_data(sparse.key)).tolist(),
        **({} if impl == _THREEFRY else {"key_impl": impl}),
        **({"generation": generation} if (generation := int(_generation(sparse))) else {}),
    }


def read_meta(meta: Mapping[str, object]) -> Meta:
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


def from_meta(meta: Mapping[str, object], groups: int) -> SparseState:
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
        key=key_arrays(key),
        generation=jnp.int32(stored.generation),
    )


def match(
    sparse: SparseState,
    tree: PyTree,
    caller: str,
    *,
    partial: bool = False,
    is_leaf: Callable[[PyTree], bool] | None = None,
) -> SparseState:
    """Return the state under the tree's names.

    Args:
        sparse: masks or patterns by name; former names become today's.
        tree: parameters or gradients.
        caller: the method, for the error.
        partial: the tree is a part of the model, so that masks may lack a weight.
        is_leaf: true for nodes of the tree that are leaves, too.

    Raises:
        ValueError: masks without a weight or of another shape, or two leaves of one name.
    """
    leaves = dict(named_leaves(tree, is_leaf=is_leaf))
    names, masks = leaves.keys(), (*sparse.masks, *sparse.patterns)
    if names >= {*masks}:
        require_shapes(sparse, leaves, caller)
        return sparse
    renamed = {old: name for name, old in former_names(tree, is_leaf=is_leaf).items()}
    lost = [name for name in masks if name not in names and name not in renamed]
    if lost and not partial:
        others = sorted(names - {*masks}) or ["no other leaf"]
        raise ValueError(
            f"sparsity.{caller}: {len(lost)} of {len(masks)} masks find no weight of their name "
            f"({listed(lost)}); the tree has {listed(others)}. Use the tree that `init` was called "
            "with, in any form, or, if this one is a part of it, configure(..., partial=True)"
        )

    def rename(by_name: Mapping[str, PyTree]) -> dict[str, PyTree]:
        return {
            name if name in names else renamed.get(name, name): value
            for name, value in by_name.items()
        }

    if len(lost) == len(masks):
        _LOG.warning(
            "sparsity.%s: none of %d masks (%s) finds a weight of its name in this part (%s), so "
            "nothing of it is sparse", caller, len(masks), listed(lost), listed(sorted(names)),
        )  # fmt: skip
    sparse = sparse._replace(masks=rename(sparse.masks), patterns=rename(sparse.patterns))
    require_shapes(sparse, leaves, caller)
    return sparse


def require_shapes(sparse: SparseState, leaves: Mapping[str, PyTree], caller: str) -> None:
    """Refuse weights of other shapes than their masks or patterns.

    Args:
        sparse: under the names of the leaves.
        leaves: weights by name, dense or kept values, perhaps with a probe.
        caller: the method, for the error.

    Raises:
        ValueError: names the weight, its shape, and those that the state has.
    """
    expected = {name: [np.shape(mask)] for name, mask in sparse.masks.items()}
    expected |= {name: [(p.nnz,), p.shape] for name, p in sparse.patterns.items()}
    for name in expected.keys() & leaves.keys():
        leaf = leaves[name]
        shape = np.shape(leaf[0] if isinstance(leaf, tuple) else leaf)
        if shape not in expected[name]:
            wanted = " or ".join(map(str, expected[name]))
            raise ValueError(
                f"sparsity.{caller}: {name!r} has shape {shape}; expected {wanted}, as the state "
                "has. Use weights and state of one `init`: of one tree, level and seed"
            )


def map_copies(fn: Callable[[WeightCopy], WeightCopy], tree: PyTree) -> PyTree:
    """Map over the copies of weights in a tree; other leaves stay."""
    is_copy = lambda node: isinstance(node, WeightCopy)
    return jax.tree.map(lambda node: fn(node) if is_copy(node) else node, tree, is_leaf=is_copy)
