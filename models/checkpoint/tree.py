"""A state as named arrays, and named arrays in the structure of a state."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from models.errors import CheckpointError, did_you_mean
from models.paths import former_names, map_named, named_leaves, unflatten

__all__ = ["fill_template", "to_tree"]

_LOG = logging.getLogger(__name__)


def to_tree(state: Any) -> dict[str, Any]:
    """Turn any state (NamedTuples, tuples, dicts) into a nested dict of host arrays by name."""
    return unflatten({name: np.asarray(x) for name, x in named_leaves(jax.device_get(state))})


def fill_template(
    template: Any,
    stored: Mapping[str, Any],
    where: str,
    prefix: str = "",
    *,
    strict: bool = True,
    optional: Callable[[str], bool] = lambda name: False,
) -> Any:
    """Put stored arrays into the structure of a template, name by name.

    Args:
        template: the state a fresh run would start with.
        stored: nested dict as ``to_tree`` made it.
        where: the checkpoint's path, for errors.
        prefix: put before the names in errors.
        strict: False keeps the template's value where nothing of its shape is stored.
        optional: names that need not be stored.

    Raises:
        CheckpointError: lists every name that is missing or has another shape.
    """
    have = dict(named_leaves(stored))
    have = {new: have[old] for new, old in former_names(template).items() if old in have} | have
    problems: list[str] = []
    kept: list[str] = []

    def take(name: str, leaf: Any) -> Any:
        if name not in have:
            if not strict or optional(name):
                kept.append(name)
            else:
                problems.append(f"{prefix}{name}: not in the checkpoint{did_you_mean(name, have)}")
            return leaf
        value = have[name]
        if np.shape(value) != np.shape(leaf) and not strict:
            kept.append(f"{name} (stored {np.shape(value)}, needed {np.shape(leaf)})")
            return leaf
        if np.shape(value) != np.shape(leaf):
            problems.append(
                f"{prefix}{name}: shape {np.shape(value)}, the model needs {np.shape(leaf)}"
            )
            return leaf
        return np.asarray(value).astype(leaf.dtype)

    filled = map_named(take, template)
    if problems:
        shown = "\n  ".join(problems[:20])
        more = f"\n  ... and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise CheckpointError(
            f"{where} does not fit this configuration:\n  {shown}{more}\n"
            "Use the params file the checkpoint was trained with, load only the model with "
            "--load_checkpoint_states model, or keep what does not fit as it is initialized (a "
            "new head) with --disable_strict_checkpoint_loading."
        )
    if kept:
        shown = ", ".join(kept[:12]) + (", ..." if len(kept) > 12 else "")
        _LOG.info("Not taken from the checkpoint, kept as initialized: %s", shown)
    return filled
