"""Parameter names: '/'-joined paths over trees of any form, and rules that select by them.

A node that only wraps a value (``nnx.Variable``, the boxes of ``nn.with_partitioning``) adds
nothing to a name, so a leaf has one name in ``nnx.State``, its pure dict, boxed and unboxed trees.
"""

import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
from jaxtyping import PyTree

Params = Mapping[str, Any]

#: parts of a name, in any case, that keep a weight dense unless a filter takes it
DENSE_PARTS = ("embedding", "norm")
#: whole words with the same effect; with '/' those of the last part of the path, since layers are
#: called so, too
DENSE_WORDS = (
    *("bias", "scale", "embed", "wte", "wpe", "pos", "token", "ln"),
    *("bn", "gamma", "beta", "offset", "layerscale", "/mean", "/var", "/variance", "/std"),
)

# A tree holds none of them before their modules, slow to import, are loaded.
_WRAPPERS = (("flax.nnx.variablelib", "Variable"), ("flax.core.meta", "AxisMetadata"))


def named_leaves(
    tree: PyTree, *, is_leaf: Callable[[PyTree], bool] | None = None
) -> list[tuple[str, PyTree]]:
    """List (name, leaf) in tree order, names joined by '/'.

    Args:
        tree: any tree.
        is_leaf: true for nodes that are leaves, too.

    Raises:
        ValueError: two leaves have the same name.

    >>> named_leaves({"ln_f": {"scale": 1}, "embed": {"token": {"embedding": 2}}})
    [('embed/token/embedding', 2), ('ln_f/scale', 1)]
    """
    leaves: list[tuple[str, Any]] = []
    add = lambda name, leaf: leaves.append((name, leaf))

    def visit(name: str, node: PyTree) -> None:
        if type(node) is not dict:
            _visit(add, name, node, is_leaf=is_leaf)
            return
        below = f"{name}/" if name else ""
        for key in sorted(node):
            visit(f"{below}{key}", node[key])

    visit("", tree)
    _require_unique([name for name, _ in leaves])
    return leaves


def _require_unique(names: list[str]) -> None:
    if len(set(names)) == len(names):
        return
    name, count = Counter(names).most_common(1)[0]
    raise ValueError(
        f"names of leaves: {count} leaves of the tree are called {name!r} (their keys, joined by "
        "'/'); expected one leaf for each name. Rename the keys that contain '/'"
    )


def map_named(
    fn: Callable[..., PyTree],
    tree: PyTree,
    *rest: PyTree,
    is_leaf: Callable[[PyTree], bool] | None = None,
) -> PyTree:
    """Map a function over a tree and others of the same structure.

    Args:
        fn: (name, leaf, *others) -> the leaf's replacement.
        tree: any tree.
        *rest: trees of the same structure.
        is_leaf: true for nodes that are leaves, too.
    """
    return _visit(fn, "", tree, *rest, is_leaf=is_leaf)


def _visit(
    fn: Callable[..., PyTree],
    name: str,
    node: PyTree,
    *rest: PyTree,
    is_leaf: Callable[[PyTree], bool] | None = None,
) -> PyTree:
    """Map over plain dicts by hand: a path per leaf costs seconds in a very deep model."""
    if type(node) is jax.ShapeDtypeStruct or isinstance(node, jax.Array):
        return fn(name, node, *rest)
    if type(node) is dict:
        below = f"{name}/" if name else ""
        if not rest:
            return {
                key: _visit(fn, f"{below}{key}", node[key], is_leaf=is_leaf) for key in sorted(node)
            }
        if all(type(r) is dict and r.keys() == node.keys() for r in rest):
            return {
                key: _visit(
                    fn, f"{below}{key}", node[key], *(r[key] for r in rest), is_leaf=is_leaf
                )
                for key in sorted(node)
            }

    def at(path: jax.tree_util.KeyPath, leaf: PyTree, *others: PyTree) -> PyTree:
        inside = jax.tree_util.keystr(path, simple=True, separator="/")
        full = f"{name}/{inside}" if name and path else name or inside
        if _wraps_a_value(leaf):
            (value,), wrapper = jax.tree.flatten(leaf, is_leaf=lambda inner: inner is not leaf)
            values = (wrapper.flatten_up_to(other)[0] for other in others)
            return wrapper.unflatten([_visit(fn, full, value, *values, is_leaf=is_leaf)])
        if not _hides_keys(leaf):
            return fn(full, leaf, *others)
        return type(leaf)(_visit(fn, full, dict(leaf), *map(dict, others), is_leaf=is_leaf))

    stops = lambda part: (
        _wraps_a_value(part) or _hides_keys(part) or (is_leaf is not None and is_leaf(part))
    )
    return jax.tree_util.tree_map_with_path(at, node, *rest, is_leaf=stops)


def _hides_keys(node: PyTree) -> bool:
    """Whether JAX numbers the values of a mapping, as haiku's, that does not give it its keys."""
    if type(node) is dict or not isinstance(node, Mapping):
        return False
    values = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda part: part is not node)[0]
    return bool(values) and isinstance(values[0][0][-1], jax.tree_util.FlattenedIndexKey)


def _wraps_a_value(node: PyTree) -> bool:
    """Whether a node is of a wrapper's class, which holds metadata and one value."""
    loaded = ((sys.modules.get(module), name) for module, name in _WRAPPERS)
    classes = tuple(getattr(module, name) for module, name in loaded if hasattr(module, name))
    if not isinstance(node, classes):
        return False
    return len(jax.tree.leaves(node, is_leaf=lambda part: part is not node)) == 1


def former_names(
    tree: PyTree, *, is_leaf: Callable[[PyTree], bool] | None = None
) -> dict[str, str]:
    """Return name -> the name before 0.2, of leaves in wrappers: it ended in '/value'.

    Checkpoints and sparse states of that time have the former names.
    """
    paths = (path for path, _ in jax.tree_util.tree_flatten_with_path(tree, is_leaf)[0])
    former = (jax.tree_util.keystr(path, simple=True, separator="/") for path in paths)
    pairs = zip((name for name, _ in named_leaves(tree, is_leaf=is_leaf)), former, strict=True)
    return {name: old for name, old in pairs if name != old}


def unflatten(leaves: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Build the nested dict whose ``named_leaves`` are the given ones.

    Raises:
        ValueError: the name of a leaf is the beginning of another's.

    >>> unflatten({"a/b": 1, "a/c": 2})
    {'a': {'b': 1, 'c': 2}}
    """
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *parents, last = name.split("/")
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
            if type(node) is not dict:
                break
        if type(node) is not dict or last in node:
            raise ValueError(
                f"names of leaves: {name!r} begins with, or is the beginning of, another leaf's "
                "name; expected names that make a tree. Rename the keys that contain '/'"
            )
        node[last] = leaf
    return tree


def pick(params: Params, keys: Iterable[str]) -> dict[str, PyTree]:
    """Take the named top-level branches of a parameter tree (what one stage needs)."""
    return {key: params[key] for key in keys}


def dense_word(name: str) -> str:
    """Return what in a name keeps a weight dense, or ''.

    Args:
        name: of a parameter.

    Returns:
        The first of ``DENSE_PARTS`` in it, else of ``DENSE_WORDS``, alone or plural.

    >>> dense_word("blocks_0/attn/pos_embed"), dense_word("Embedding_0/weight")
    ('embed', 'embedding')
    >>> dense_word("position/Embed_0"), dense_word("cls_tokens")
    ('embed', 'token')
    >>> dense_word("stats/moving_mean"), dense_word("mean/kernel")
    ('mean', '')
    """
    lowered = name.lower()
    parts = {*_words_of(name), *(f"/{word}" for word in _words_of(name.rpartition("/")[2]))}
    words = (w.lstrip("/") for w in DENSE_WORDS if parts & {w, f"{w}s", f"{w}es"})
    return next((part for part in DENSE_PARTS if part in lowered), None) or next(words, "")


@functools.lru_cache(maxsize=4096)
def _words_of(name: str) -> tuple[str, ...]:
    """Split at what is no letter and where a capital follows: 'cls_token', 'posEmbed'."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return tuple(re.findall(r"[a-z]+", apart))
