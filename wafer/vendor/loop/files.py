"""``save`` and ``load``: what a loop keeps, in the layout of the trainer's checkpoints."""

import pathlib
from collections.abc import Mapping

import jax
import numpy as np
from jaxtyping import PyTree

from wafer.errors import CheckpointError
from wafer.models.checkpoint.layout import OPT_STATE, PARAMS, RESERVED, WRITER
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.checkpoint.writer import write_checkpoint
from wafer.version import __version__

_NAMES = {"model": PARAMS, "optimizer": OPT_STATE}  # here -> in the trainer's files


def save(state: Mapping[str, PyTree], path: str | pathlib.Path) -> None:
    """Write a checkpoint; one that is there is replaced when the new one is complete.

    ``{"model": model.state_dict(), "config": {"model": {...}}}`` is what ``wafer generate`` and
    ``wafer convert`` read.

    Args:
        state: name -> state dict, or number, text, list (kept as JSON).
        path: the folder to write.

    Raises:
        CheckpointError: a name that is taken, something that is neither, or a full disk.
    """
    arrays: dict[str, PyTree] = {}
    plain: dict[str, PyTree] = {WRITER: __version__}
    for name, value in state.items():
        if name in (*_NAMES.values(), *RESERVED):
            raise CheckpointError(f"save: {name!r} is what the file calls another part; rename it")
        leaves = jax.tree.leaves(value)
        if any(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves):
            tree, metadata = _split(value)
            arrays[_NAMES.get(name, name)] = tree
            if metadata:
                plain[f"{name}/meta"] = metadata
        else:
            plain[name] = value
    write_checkpoint(path, arrays, plain)


def _split(tree: Mapping[str, PyTree]) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
    """Separate the branches of a state dict: those of arrays, and plain ones."""
    arrays, plain = {}, {}
    for name, value in tree.items():
        leaves = jax.tree.leaves(value)
        is_array = all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves)
        (arrays if is_array else plain)[name] = value
    return arrays, plain


def load(path: str | pathlib.Path) -> dict[str, PyTree]:
    """Read what ``save`` wrote, or a checkpoint of the trainer.

    Raises:
        CheckpointError: not a checkpoint, or damaged.
    """
    tree: dict[str, PyTree]
    tree, meta = load_checkpoint(path)
    back = {stored: name for name, stored in _NAMES.items()}
    state: dict[str, PyTree] = {back.get(name, name): value for name, value in tree.items()}
    for name, value in meta.items():
        part = name.removesuffix("/meta")
        if part != name:
            state[part] = {**state[part], **value}
        else:
            state[name] = value
    return state
