"""Masks and the tree they are used with: every mask needs a weight of its name."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import PyTree

from models.paths import former_names, named_leaves
from sparsity.schema import listed
from sparsity.state import SparseState

__all__ = ["match"]


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
