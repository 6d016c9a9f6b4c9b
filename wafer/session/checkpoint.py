"""Checkpoints on Orbax: ``model_dir/checkpoints/STEP``, complete or not there at all.

Orbax writes a checkpoint into a temporary directory and renames it when every byte is on disk,
so a run killed at any moment leaves only complete checkpoints and, perhaps, a temporary one,
which the next run removes with a line that says so. What is stored is a nested dict of numpy
arrays named like the parameters (``params/…``, ``opt_state/…``, ``sparse/…``) and a JSON record
(configuration, data position). This is the only file of the trainer that imports Orbax.
"""

import json
import logging
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from models.checkpoint.reader import StoredTree
from models.errors import did_you_mean
from models.paths import named_leaves, unflatten
from wafer.errors import CheckpointError

__all__ = ["Checkpoints", "fill_template", "load_checkpoint", "to_tree", "write_checkpoint"]

_LOG = logging.getLogger(__name__)
_TMP = ".orbax-checkpoint-tmp"
_PARTS = ("state", "meta")


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
    problems: list[str] = []
    kept: list[str] = []

    def take(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
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

    filled = jax.tree_util.tree_map_with_path(take, template)
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


class Checkpoints:
    """The checkpoints of one ``model_dir``.

    Args:
        model_dir: the run's folder; ``checkpoints/`` is created below it.
        max_to_keep: the oldest beyond this many are removed; None keeps all.
    """

    def __init__(self, model_dir: str | pathlib.Path, max_to_keep: int | None = None) -> None:
        self.folder = pathlib.Path(model_dir).resolve() / "checkpoints"
        leftovers = self.folder.glob(f"*{_TMP}*") if jax.process_index() == 0 else ()
        for partial in sorted(leftovers):
            _LOG.warning("Removed a half-written checkpoint (its writer was killed): %s", partial)
            shutil.rmtree(partial, ignore_errors=True)
        self._manager = ocp.CheckpointManager(
            self.folder,
            item_names=_PARTS,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=max_to_keep, enable_async_checkpointing=False, create=True
            ),
        )

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def path(self, step: int) -> pathlib.Path:
        """Folder of one checkpoint."""
        return self.folder / str(step)

    def save(self, step: int, state: Any, meta: Mapping[str, Any]) -> pathlib.Path:
        """Write a checkpoint; it exists, complete, when this returns.

        Raises:
            CheckpointError: the disk is full or the folder cannot be written; earlier
                checkpoints are intact.
        """
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(to_tree(state)), meta=ocp.args.JsonSave(dict(meta))
        )
        try:
            self._manager.save(step, args=args, force=True)
        except (OSError, ValueError) as error:  # tensorstore reports a full disk as ValueError
            raise CheckpointError(
                f"checkpoint {self.path(step)} could not be written: {error}\n"
                f"Earlier checkpoints are intact: {self.steps() or 'none'}. Free some disk space "
                "or choose another --model_dir, then run the same command again."
            ) from error
        return self.path(step)

    def restore_latest(
        self, *, lazily: bool = False
    ) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
        """Load the newest checkpoint that can be read: (step, state tree, meta), or None.

        A damaged one is skipped with a line that says so.

        Args:
            lazily: see ``load_checkpoint``.
        """
        for step in reversed(self.steps()):
            try:
                return step, *load_checkpoint(self.path(step), lazily=lazily)
            except CheckpointError as error:
                _LOG.warning("Skipped a damaged checkpoint: %s", error)
        return None

    def close(self) -> None:
        """Release Orbax's threads."""
        self._manager.close()


def write_checkpoint(
    path: str | pathlib.Path, state: Mapping[str, Any], meta: Mapping[str, Any]
) -> None:
    """Write one checkpoint anywhere, replacing what is there; complete or not there at all.

    Raises:
        CheckpointError: the disk is full or the folder cannot be written.
    """
    path = pathlib.Path(path).resolve()
    checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    args = ocp.args.Composite(
        state=ocp.args.StandardSave(to_tree(state)), meta=ocp.args.JsonSave(dict(meta))
    )
    try:
        checkpointer.save(path, args=args, force=True)
    except (OSError, ValueError) as error:  # tensorstore reports a full disk as ValueError
        raise CheckpointError(f"checkpoint {path} could not be written: {error}") from error
    finally:
        checkpointer.close()


def load_checkpoint(
    path: str | pathlib.Path, *, lazily: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load one checkpoint, as trained or finalized: (state tree, meta record).

    Args:
        path: the checkpoint's folder.
        lazily: for trees larger than memory: every array is read once, to know that it can be,
            and given as a handle that reads it again when numpy asks.

    Raises:
        CheckpointError: not a checkpoint, or damaged; nothing is half-loaded.
    """
    path = pathlib.Path(path).resolve()
    record = path / "meta" / "metadata"
    if not (path / "state").is_dir() or not record.is_file():
        raise CheckpointError(
            f"{path} is not a checkpoint: expected <model_dir>/checkpoints/<step>, or what "
            "`wafer finalize` wrote, with the folders state and meta"
        )
    read = _read_lazily if lazily else _read_whole
    try:
        return read(path / "state"), json.loads(record.read_text())
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read, it is damaged: {error}") from error


def _read_whole(state: pathlib.Path) -> dict[str, Any]:
    checkpointer = ocp.StandardCheckpointer()
    try:
        return jax.tree.map(np.asarray, checkpointer.restore(state))
    finally:
        checkpointer.close()


def _read_lazily(state: pathlib.Path) -> dict[str, Any]:
    tree = StoredTree(state)
    for name in tree:
        tree.read(name)
    return unflatten({name: tree.leaf(name) for name in tree})
