"""The weights that a stored model computes with, where they are not those that it stores.

Top-KAST and SR-STE store every weight until their ``stop`` and compute with a mask of the largest.
Whoever takes such a checkpoint as a model, and does not train it, needs that mask.
"""

import logging
from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from wafer.models.checkpoint.layout import CONFIG, SPARSITY, record_entry
from wafer.models.checkpoint.lazy import LazyArray
from wafer.models.checkpoint.reader import build_stored
from wafer.models.counts import abstract_params, forward_flops
from wafer.models.paths import map_named
from wafer.models.user.trust import untrusted
from wafer.sparsity.algorithms.base import Algorithm
from wafer.sparsity.schema import SparsityError
from wafer.sparsity.sections.config import configure, parse
from wafer.sparsity.sparsifier import Sparsifier
from wafer.sparsity.state import read_meta

_LOG = logging.getLogger(__name__)


def _forward_weight(sparsifier: Sparsifier, name: str, leaf: PyTree) -> PyTree:
    group = sparsifier.group_of(name, len(leaf.shape))
    algorithm = None if group is None else sparsifier.groups[group][1]
    if group is None or algorithm is None or not masks_forward(algorithm):
        return leaf

    def read() -> np.ndarray:
        stored = np.asarray(leaf)
        pruned = np.isnan(stored)
        view = sparsifier.view(group, name, stored.ndim)
        used = algorithm.forward(jnp.asarray(np.where(pruned, 0, stored)), view)
        return np.where(pruned, stored, used).astype(stored.dtype)

    return LazyArray(tuple(leaf.shape), np.dtype(leaf.dtype), read, name)


def computed_params(sparsifier: Sparsifier, params: PyTree) -> PyTree:
    """Return dense parameters as a model computes with them; NaN at pruned ones stays."""

    def visit(name: str, leaf: PyTree) -> PyTree:
        found = _forward_weight(sparsifier, name, leaf)
        return found if found is leaf else jnp.asarray(np.asarray(found))

    return map_named(visit, params)


def forward_of(record: Mapping[str, object], source: object) -> Callable[[str, PyTree], PyTree]:
    """Return the function from a stored parameter to the one that the model computes with.

    Returns:
        (name, stored array) -> the array itself where the two are the same, else one that numpy
        reads, with NaN where the stored one has it.

    Raises:
        SparsityError: its section names code that the user does not trust.
    """
    sections = record_entry(record, source, CONFIG) or {}
    section = sections.get("sparsity")
    meta = record_entry(record, source, SPARSITY)
    if section is None or meta is None:  # dense, or finalized
        return lambda name, leaf: leaf
    with untrusted(source, sections=sections) as refused:
        try:
            groups = parse(section)
        except SparsityError as error:  # a user's algorithm that is not here
            if refused:
                raise
            said = "%s: its sparsity section does not load: %s. Weights as stored"
            _LOG.warning(said, source, error)
            return lambda name, leaf: leaf
        if not any(map(masks_forward, (algorithm for _, algorithm in groups))):
            return lambda name, leaf: leaf
        model = build_stored(record, source)
        sparsifier = configure(
            groups,
            weight_layout=model.weight_layout,
            aliases=model.alias,
            params=abstract_params(model),
            flops=lambda: forward_flops(model),
            dense_words=False,
        )
    names = set(read_meta(meta).parameters)
    return lambda name, leaf: _forward_weight(sparsifier, name, leaf) if name in names else leaf


def masks_forward(algorithm: Algorithm) -> bool:
    """Whether a model computes with other weights than it stores."""
    return type(algorithm).forward is not Algorithm.forward
