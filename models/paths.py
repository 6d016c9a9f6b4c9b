"""Parameter names: '/'-joined paths over plain dict trees, and rules that select by them."""

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
from jaxtyping import PyTree

__all__ = ["Params", "map_named", "named_leaves", "pick", "unflatten"]

Params = Mapping[str, Any]


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """List (name, leaf) in tree order, names joined by '/'.

    >>> named_leaves({"ln_f": {"scale": 1}, "embed": {"token": {"embedding": 2}}})
    [('embed/token/embedding', 2), ('ln_f/scale', 1)]
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(p, simple=True, separator="/"), leaf) for p, leaf in leaves]


def map_named(fn: Callable[..., Any], tree: PyTree, *rest: Any) -> Any:
    """Map ``fn(name, leaf, *others)`` over a tree and others of the same structure."""
    return jax.tree_util.tree_map_with_path(
        lambda p, *xs: fn(jax.tree_util.keystr(p, simple=True, separator="/"), *xs), tree, *rest
    )


def unflatten(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Build the nested dict whose ``named_leaves`` are the given ones.

    >>> unflatten({"a/b": 1, "a/c": 2})
    {'a': {'b': 1, 'c': 2}}
    """
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *parents, last = name.split("/")
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = leaf
    return tree


def pick(params: Params, keys: Iterable[str]) -> dict[str, Any]:
    """Take the named top-level branches of a parameter tree (what one stage needs)."""
    return {key: params[key] for key in keys}


def matches(name: str, globs: Iterable[str]) -> bool:
    """True when any glob matches the whole name, case-sensitive (fnmatch rules)."""
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)
