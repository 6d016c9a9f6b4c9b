"""Find the optimizer-state arrays that belong to a parameter, whatever optimizer made them.

Optax states hold trees shaped like the parameters (``mu``, ``nu``, a momentum trace), often
wrapped in chains, masks or per-label branches. A leaf belongs to the parameter whose path ends
the leaf's own path; it is a moment when it also has the parameter's shape, which leaves factored
statistics, counters and placeholders alone.
"""

from collections.abc import Callable, Container, Mapping

import numpy as np
from jaxtyping import PyTree

from wafer.models.paths import map_named, named_leaves


def owner_of(path: str, parameters: Container[str]) -> str | None:
    """Return the parameter whose path ends that of a leaf of an optimizer state, or None."""
    parts = path.split("/")
    for i in range(len(parts) + 1):  # the longest suffix first; '' is a lone array's name
        name = "/".join(parts[i:])
        if name in parameters:
            return name
    return None


def field_of(path: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, str, str]:
    """Split a leaf's path: what holds it, its field there, the parameter it belongs to or ''.

    >>> field_of("0/mu/norm/scale", {"norm/scale": (4,)})
    ('0', 'mu', 'norm/scale')
    """
    owner = owner_of(path, shapes) or ""
    parent, _, field = path.removesuffix(owner).rstrip("/").rpartition("/")
    return parent, field, owner


def map_moments(
    fn: Callable[[str, PyTree], PyTree], opt_state: PyTree, shapes: Mapping[str, tuple[int, ...]]
) -> PyTree:
    """Apply ``fn(parameter name, array)`` to every moment of the named parameters.

    Args:
        fn: returns the array's replacement.
        opt_state: any tree.
        shapes: parameter name -> shape its moments have. All parameters of the model should be
            listed when some names are suffixes of others; the longest match owns the leaf.

    Returns:
        The tree with the moments replaced, other leaves untouched.
    """

    def visit(path: str, leaf: PyTree) -> PyTree:
        owner = owner_of(path, shapes)
        if owner is None or np.shape(leaf) != tuple(shapes[owner]):
            return leaf
        return fn(owner, leaf)

    return map_named(visit, opt_state)


def in_weights_and_moments(
    fn: Callable[[str, PyTree], PyTree], params: PyTree, opt_state: PyTree
) -> tuple[PyTree, PyTree]:
    """Apply ``fn(parameter name, array)`` to every weight and every moment of its shape."""
    shapes = {name: leaf.shape for name, leaf in named_leaves(params)}
    return map_named(fn, params), map_moments(fn, opt_state, shapes)


def moments_of(
    opt_state: PyTree, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, dict[str, PyTree]]:
    """List each parameter's moments: parameter name -> {path in the state: array}."""
    moments: dict[str, dict[str, PyTree]] = {name: {} for name in shapes}
    for path, leaf in named_leaves(opt_state):
        owner = owner_of(path, shapes)
        if owner is not None and np.shape(leaf) == tuple(shapes[owner]):
            moments[owner][path] = leaf
    return moments
