"""Parameter names: '/'-joined paths over plain dict trees, and rules that select by them."""

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
    leaves: list[tuple[str, Any]] = []
    add = lambda name, leaf: leaves.append((name, leaf))

    def visit(name: str, node: Any) -> None:
        if type(node) is not dict:
            _visit(add, name, node)
            return
        below = f"{name}/" if name else ""
        for key in sorted(node):
            visit(f"{below}{key}", node[key])

    visit("", tree)
    return leaves


def map_named(fn: Callable[..., Any], tree: PyTree, *rest: Any) -> Any:
    """Map ``fn(name, leaf, *others)`` over a tree and others of the same structure."""
    return _visit(fn, "", tree, *rest)


def _visit(fn: Callable[..., Any], name: str, node: Any, *rest: Any) -> Any:
    """Map over plain dicts by hand: a path per leaf costs seconds in a very deep model."""
    if type(node) is jax.ShapeDtypeStruct or isinstance(node, jax.Array):
        return fn(name, node, *rest)
    if type(node) is dict:
        below = f"{name}/" if name else ""
        if not rest:
            return {key: _visit(fn, f"{below}{key}", node[key]) for key in sorted(node)}
        if all(type(r) is dict and r.keys() == node.keys() for r in rest):
            return {
                key: _visit(fn, f"{below}{key}", node[key], *(r[key] for r in rest))
                for key in sorted(node)
            }

    def at(path: Any, *leaves: Any) -> Any:
        inside = jax.tree_util.keystr(path, simple=True, separator="/")
        return fn(f"{name}/{inside}" if name and path else name or inside, *leaves)

    return jax.tree_util.tree_map_with_path(at, node, *rest)


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
