"""The sparsifier as an optax transformation: masks, update and pruning inside ``tx.update``."""

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from wafer.sparsity.schema import SparsityError
from wafer.sparsity.state import SparseState

if TYPE_CHECKING:
    from wafer.sparsity.sparsifier import Sparsifier


class SparseOptState(NamedTuple):
    """State of a wrapped optimizer.

    Attributes:
        inner: the optimizer's own state, moments 0 where pruned
        sparse: masks and counters
    """

    inner: Any
    sparse: SparseState


def wrap(
    sparsifier: "Sparsifier", tx: optax.GradientTransformation, key: jax.Array
) -> optax.GradientTransformationExtraArgs:
    """Make any optimizer sparse.

    ``init`` chooses the masks. The user prunes once, ``params = sparsifier.apply(params,
    state.sparse)``, and from then on differentiates the plain loss at ``params``: the updates
    keep pruned weights at exactly 0 and carry the topology changes. They are to be added as they
    are: what scales, clips or averages updates belongs into ``tx``, since a weight that is dropped
    is subtracted from itself. The two trees of ``optax.LookaheadParams`` have one mask.

    Args:
        sparsifier: every parameter is stored dense, with a mask.
        tx: any optax transformation.
        key: consumed; seeds the masks.

    Returns:
        A transformation of dense gradients; its state is a ``SparseOptState``. ``update`` takes
        ``finite=`` besides the inner transformation's extra arguments; a step that is not finite
        changes nothing. Where pruned weights are not 0 after the first update, it raises a
        ``ValueError``; traced, its updates are NaN.

    Raises:
        SparsityError: a section with ``compute: csr``.
    """
    if any(rule.compute == "csr" for _, rule in sparsifier.groups):
        raise SparsityError(
            "wrap() differentiates at dense weights, which csr does not store; "
            "use masked, or write the loop with prepare, attach, split and update",
            ("sparsity", "compute"),
        )
    sparsifier = dataclasses.replace(sparsifier, accepts=lambda name: False)
    inner = optax.with_extra_args_support(tx)

    def init(params: PyTree) -> SparseOptState:
        sparse = sparsifier.init(_split(params)[0], key)
        return SparseOptState(inner.init(params), sparse)

    def update(
        grads: PyTree,
        state: SparseOptState,
        params: PyTree = None,
        *,
        finite: Array | bool = True,
        **extra: PyTree,
    ) -> tuple[PyTree, SparseOptState]:
        if params is None:
            raise ValueError("a sparse optimizer needs the parameters: tx.update(g, state, params)")
        sparse = state.sparse
        undone = _revived(sparsifier, _split(params)[0], sparse)
        masked = sparsifier.mask_gradients(grads, sparse)
        updates, opt_state = inner.update(masked, state.inner, params, **extra)
        if finite is not True:
            keep = lambda new, old: jnp.where(finite, new, old)
            updates = jax.tree.map(lambda u: keep(u, jnp.zeros_like(u)), updates)
            opt_state = jax.tree.map(keep, opt_state, state.inner)
        moved = optax.apply_updates(params, updates)
        weights, slow = _split(moved)
        sparse, pruned, (opt_state, slow) = sparsifier.update(
            sparse, weights, grads, (opt_state, slow), finite=finite
        )
        if isinstance(params, optax.LookaheadParams):
            pruned = optax.LookaheadParams(pruned, slow)
        # x + (-x) is exactly 0, so a dropped weight lands on 0 without a tolerance.
        updates = jax.tree.map(
            lambda old, new, m, u: jnp.where(undone, jnp.nan, jnp.where(new == m, u, new - old)),
            *(params, pruned, moved, updates),
        )
        return updates, SparseOptState(opt_state, sparse)

    return optax.GradientTransformationExtraArgs(init, update)  # type: ignore[arg-type]


def _revived(sparsifier: "Sparsifier", params: PyTree, sparse: SparseState) -> PyTree:
    """Whether weights that updates have set to 0 are not, [] bool.

    Raises:
        ValueError: they are, outside of a trace.
    """
    pruned, _ = sparsifier.prune(params, (), sparse)
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(pruned), strict=True)
    changed = [jnp.any((x != y) & (y == 0)) for x, y in pairs]
    revived = (sparse.step > 0) & jnp.any(jnp.stack(changed)) if changed else jnp.bool_(False)
    if not isinstance(revived, jax.core.Tracer) and revived:
        raise ValueError(
            f"sparsity.wrap: pruned weights are not 0 at update {int(sparse.step) + 1}; expected "
            "those that the updates before made 0. A transformation behind wrap(...) in a chain "
            "changes its updates, or the parameters are others: write wrap(sparsifier, "
            "optax.chain(...), key), and prune what you load with sparsifier.apply"
        )
    return revived


def _split(params: PyTree) -> tuple[PyTree, PyTree]:
    """Return (the weights that gradients are of, a copy that follows them)."""
    return params if isinstance(params, optax.LookaheadParams) else (params, ())
