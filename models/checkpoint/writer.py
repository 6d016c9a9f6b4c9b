"""Writers of checkpoints, and what each leaves after an error or a kill.

* ``Checkpoints.save``, ``write_checkpoint``: whole trees in one go, for runs and loops. Orbax
  writes into a temporary folder and renames it when every byte is on disk. An error leaves what
  was there; a kill leaves a temporary folder too, which ``remove_leftovers`` removes.
* ``write_params``, ``write_arrays``: one array at a time, for models that fit no memory. The arrays
  get their name when all are on disk and read back (``atomic_write``).
* ``write_tree``: a copy of a stored tree, made in place; the caller names it when it is whole.

What is stored is a nested dict of numpy arrays named like the parameters (``params/…``,
``opt_state/…``) and a JSON record (configuration, data position).
"""

import contextlib
import glob
import itertools
import logging
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from jaxtyping import PyTree

from wafer.models.checkpoint.checksums import ArrayRecord, checksum, checksums
from wafer.models.checkpoint.layout import (
    CHECKPOINTS,
    CONFIG,
    PARAMS,
    PRUNED,
    STATE,
    STEP,
    ContentError,
    FormatVersionError,
    step_folders,
    versioned,
    write_record,
)
from wafer.models.checkpoint.pruned import check_weight
from wafer.models.checkpoint.reader import AT_ONCE, PIECE, StoredTree, load_checkpoint
from wafer.models.checkpoint.stores import Store
from wafer.models.checkpoint.tree import is_spread, on_host, to_tree
from wafer.models.errors import CheckpointError, LinkError, disk_full, first_lines
from wafer.models.files import JsonObject, atomic_write, remove_partials, remove_written
from wafer.models.paths import named_leaves, unflatten

_LOG = logging.getLogger(__name__)
_TMP = ".orbax-checkpoint-tmp"
_DATA = ("d", "manifest.ocdbt")


class Checkpoints:
    """The checkpoints of one ``model_dir``.

    Args:
        model_dir: the run's folder; ``checkpoints/`` is created below it.
        max_to_keep: at least 1; the oldest beyond this many are removed. None keeps all.
        root: place at an object store that gets a copy of each; see ``stores``.

    Raises:
        CheckpointError: no address of a store.
        ValueError: a smaller ``max_to_keep``.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        max_to_keep: int | None = None,
        root: str | None = None,
    ) -> None:
        if max_to_keep is not None and max_to_keep < 1:
            raise ValueError(f"max_to_keep {max_to_keep}: expected 1 or more, or None to keep all")
        self.folder = pathlib.Path(model_dir).resolve() / CHECKPOINTS
        self._max_to_keep = max_to_keep
        self._store = None if root is None else Store(root)
        self.folder.mkdir(parents=True, exist_ok=True)

    def remove_leftovers(self) -> None:
        """Remove what killed writers left; only for the run that alone writes here."""
        for partial in sorted(self.folder.glob(f"*{_TMP}*") if jax.process_index() == 0 else ()):
            _LOG.warning("Removed a half-written checkpoint (its writer was killed): %s", partial)
            shutil.rmtree(partial, ignore_errors=True)

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        return [int(path.name) for path in step_folders(self.folder)]

    def path(self, step: int) -> pathlib.Path:
        """Folder of one checkpoint."""
        return self.folder / str(step)

    def save(
        self, step: int, state: Mapping[str, PyTree], meta: Mapping[str, object]
    ) -> pathlib.Path:
        """Write a checkpoint; it exists, complete, when this returns.

        Raises:
            CheckpointError: there is one of this step, the disk is full or the folder cannot be
                written; earlier checkpoints are intact. Or the folder was removed while the run
                was at work: then this checkpoint has been written all the same.
        """
        path, folder_was_gone = self.path(step), not self.folder.exists()
        if path.exists():
            raise CheckpointError(
                f"checkpoint {path} could not be written: it is there already. Continue from it "
                "(runconfig.autoload_last_checkpoint), or choose another --model_dir"
            )
        try:
            write_checkpoint(path, state, meta)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}\n"
                f"Earlier checkpoints are intact: {self.steps() or 'none'}. Free some disk space "
                "or choose another --model_dir, then run the same command again."
            ) from error
        if folder_was_gone:
            raise CheckpointError(
                f"{self.folder} was removed while this run was at work, and with it all that the "
                f"run had written there. Step {step} has been saved as {path}; the same command "
                "continues from it"
            )
        store = self._store
        if store is not None and not store.has_arrays(path, str(step)):  # else made again
            store.upload(path, str(step))
        if self._max_to_keep is not None and jax.process_index() == 0:
            for old in self.steps()[: -self._max_to_keep]:
                # A kill while it is removed must not leave half of it under its name.
                leaving = self.path(old).rename(self.folder / f"{old}{_TMP}-removed")
                shutil.rmtree(leaving)
            if store is not None:
                for old in store.steps()[: -self._max_to_keep]:
                    store.delete(str(old))
        return path

    def restore_latest(
        self, *, lazily: bool = False, set_aside: bool = False
    ) -> tuple[int, dict[str, PyTree], JsonObject] | None:
        """Load the newest checkpoint that can be read: (step, tree of arrays, record), or None.

        A damaged one is skipped with a line that says so.

        Args:
            lazily: see ``load_checkpoint``.
            set_aside: rename a damaged one to ``STEP.damaged``: a run that comes to its step again
                needs the name.

        Raises:
            FormatVersionError: it is no damaged one, but of a newer format.
            ContentError: it is whole, but holds what no run wrote.
            LinkError: it has a link out of its folder.
        """
        for step in reversed(self.steps()):
            try:
                return step, *load_checkpoint(self.path(step), lazily=lazily)
            except (FormatVersionError, ContentError, LinkError):
                raise
            except CheckpointError as error:
                _LOG.warning("Skipped a damaged checkpoint: %s", error)
                if set_aside and jax.process_index() == 0:
                    _LOG.warning("It is called %s from now on", self._set_aside(step))
        return None

    def _set_aside(self, step: int) -> pathlib.Path:
        """Take a checkpoint's name away; nothing is deleted."""
        names = (f"{step}.damaged" + (f"-{n}" if n > 1 else "") for n in itertools.count(1))
        free = next(name for name in names if not (self.folder / name).exists())
        return self.path(step).rename(self.folder / free)


def write_checkpoint(
    path: str | os.PathLike[str], state: Mapping[str, PyTree], meta: Mapping[str, object]
) -> None:
    """Write one checkpoint anywhere; one that is there is replaced when the new one is complete.

    With several processes, one that is there is removed first.

    Raises:
        CheckpointError: the disk is full or the folder cannot be written.
    """
    path = pathlib.Path(path).resolve()
    checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    tree = to_tree(state)
    record = versioned(meta, _checksums(dict(named_leaves(tree))))
    args = ocp.args.Composite(state=ocp.args.StandardSave(tree), meta=ocp.args.JsonSave(record))
    aside = path.exists() and jax.process_count() == 1  # Orbax would remove what is there first
    target = path.with_name(f"{path.name}{_TMP}-new") if aside else path
    try:
        with _without_stacks():
            checkpointer.save(target, args=args, force=True)
    except (OSError, ValueError) as error:
        if jax.process_index() == 0:
            remove_written(path.parent, f"{glob.escape(path.name)}{_TMP}*")
        full = disk_full(error, path)
        reason = full.strerror if full else error
        raise CheckpointError(f"checkpoint {path} could not be written: {reason}") from error
    finally:
        checkpointer.close()
    if aside:
        before = path.with_name(f"{path.name}{_TMP}-removed")
        shutil.rmtree(before, ignore_errors=True)  # of a writer that was killed below
        path.rename(before)
        target.rename(path)
        shutil.rmtree(before, ignore_errors=True)


def _checksums(arrays: Mapping[str, PyTree]) -> dict[str, str]:
    """Return the checksum of each array by its name; those in parts are gathered in turn."""
    here = checksums({name: x for name, x in arrays.items() if not is_spread(x)})
    return {n: here[n] if n in here else checksum(on_host(x)) for n, x in arrays.items()}


@contextlib.contextmanager
def _without_stacks() -> Iterator[None]:
    """Keep Orbax and tensorstore from printing stacks of their threads: the error comes to us.

    Orbax closes its event loop at the first array that cannot be written. tensorstore's threads
    report each later one to the closed loop, and asyncio logs those that failed in the loop's last
    turn once they are collected. Both also happen later: after an error, the hook and the filter of
    asyncio's log are never taken away.
    """
    orbax, no_stack = logging.getLogger("absl"), lambda record: not record.exc_info
    loops, shown = logging.getLogger("asyncio"), sys.unraisablehook

    def hook(report: "sys.UnraisableHookArgs") -> None:
        if "Event loop is closed" not in str(report.exc_value):
            shown(report)

    orbax.addFilter(no_stack)
    loops.addFilter(_is_of_others)
    sys.unraisablehook = hook
    try:
        yield
        sys.unraisablehook = shown
        loops.removeFilter(_is_of_others)
    finally:
        orbax.removeFilter(no_stack)


def _is_of_others(record: logging.LogRecord) -> bool:
    """Whether a report of asyncio is about neither Orbax's tasks nor tensorstore's futures."""
    return not re.search("orbax|tensorstore", f"{record.getMessage()} {record.exc_info}")


def write_params(
    folder: str | os.PathLike[str],
    settings: Mapping[str, object],
    names: Iterable[str],
    arrays: Iterable[tuple[str, np.ndarray]],
    pruned: Collection[str] | None = (),
) -> pathlib.Path:
    """Write a model alone, which is all that a run that starts from converted weights needs.

    Args:
        folder: may exist, but holds no checkpoint yet.
        settings: the ``model`` section.
        names: every parameter path.
        arrays: (parameter path, value) in any order, consumed one at a time.
        pruned: the parameters in which NaN marks a pruned weight. None takes those that hold NaN
            and may be pruned (see ``check_weight``). The record lists them.

    Raises:
        FileExistsError: the folder holds a checkpoint already.
        CheckpointError: a weight is infinite, or NaN where nothing is pruned; or what was written
            does not read back.
        OSError: the disk is full, or the folder cannot be written.
    """
    folder = pathlib.Path(folder).resolve()
    marked = sorted(pruned or ())  # grows while arrays are written; the record is written last

    def below_params(item: tuple[str, np.ndarray]) -> tuple[str, np.ndarray]:
        name, value = item
        if pruned is None and np.isnan(value).any():
            marked.append(name)
        return f"{PARAMS}/{name}", check_weight(folder, name, value, pruned)

    write_arrays(
        folder,
        [f"{PARAMS}/{name}" for name in names],
        map(below_params, arrays),  # a generator expression would hold an array
        {STEP: 0, CONFIG: {"model": dict(settings)}, PRUNED: marked},
    )
    return folder


def write_arrays(
    folder: pathlib.Path,
    names: Iterable[str],
    arrays: Iterable[tuple[str, np.ndarray]],
    record: Mapping[str, object],
) -> None:
    """Write a checkpoint one array at a time.

    Args:
        folder: may exist, but holds no checkpoint yet.
        names: '/'-path of every array.
        arrays: (path, value) in any order, consumed one at a time.
        record: what to say beside them.

    Raises:
        FileExistsError: the folder holds a checkpoint already.
        CheckpointError: what was written does not read back.
        OSError: the disk is full, or the folder cannot be written.
    """
    if (folder / STATE).exists():
        raise FileExistsError(f"{folder}: holds a checkpoint already; choose another folder")
    remove_partials(folder / STATE)
    written: dict[str, ArrayRecord] = {}
    with atomic_write(folder / STATE) as partial, _without_stacks():
        # Orbax writes the tree's description; ``_put`` then overwrites these placeholders.
        checkpointer = ocp.StandardCheckpointer()
        checkpointer.save(partial, unflatten({name: np.zeros((), np.int8) for name in names}))
        checkpointer.close()
        tree = StoredTree(partial)
        for name, value in arrays:
            _put(tree, name, value)
            written[name] = ArrayRecord.of(value)
            del value  # before the next one is read
        require_written(partial, written)
        write_record(folder, record, {name: array.checksum for name, array in written.items()})


def _put(tree: StoredTree, name: str, value: np.ndarray) -> None:
    """Write an array of any shape and dtype in the place of one of a tree.

    A chunk is some rows of about ``PIECE`` bytes; ``AT_ONCE`` chunks are written at a time.
    """
    length = len(value) if value.ndim else 0
    rows = min(max(1, PIECE * length // max(value.nbytes, 1)), max(length, 1))
    chunks = [rows, *value.shape[1:]] if value.ndim else []
    spec = {
        "driver": "zarr",
        "kvstore": tree.kv_spec(tree.path, f"{tree.names[name]}/"),
        "metadata": {"compressor": {"id": "zstd", "level": 1}, "chunks": chunks},
        "create": True,
        "delete_existing": True,
    }
    array = ts.open(spec, dtype=value.dtype, shape=value.shape, context=tree.context).result()
    if not value.ndim:
        array.write(value).result()
    for i in range(0, length, AT_ONCE * rows):
        part = slice(i, min(i + AT_ONCE * rows, length))
        array[part].write(value[part], can_reference_source_data_indefinitely=True).result()


def write_tree(
    tree: StoredTree, target: pathlib.Path, arrays: Iterable[tuple[str, np.ndarray | None]]
) -> None:
    """Write a copy of a stored tree in which some arrays have other values.

    One thread writes. Arrays share a transaction until it holds ``PIECE`` bytes: a database writes
    its index anew with every commit.

    Args:
        tree: the source: the copy has its structure, storage form, shapes and dtypes.
        target: folder of the copy.
        arrays: (path, new values; None copies the stored bytes), consumed one at a time in any
            order. It must give every array of the tree once: those it leaves out are missing.
    """
    _copy_structure(tree, target)
    kv = tree.open_kv(target)
    transaction, waiting = ts.Transaction(), 0
    for name, value in arrays:
        source = tree.open(name)
        if value is None:
            for key in tree.keys[tree.names[name]]:
                kv.with_transaction(transaction)[key] = tree.kv[key]
        else:
            spec = source.spec(retain_context=False).to_json()
            spec["kvstore"] = tree.kv_spec(target, f"{tree.names[name]}/")
            copy = ts.open(spec, create=True, context=tree.context, transaction=transaction)
            copy.result().write(value, can_reference_source_data_indefinitely=True).result()
        waiting += source.size * source.dtype.numpy_dtype.itemsize
        if waiting >= PIECE:
            transaction.commit_sync()
            transaction, waiting = ts.Transaction(), 0
    transaction.commit_sync()


def _copy_structure(tree: StoredTree, target: pathlib.Path) -> None:
    """Copy everything that is not array data: the tree's description, commit marks."""
    target.mkdir(parents=True, exist_ok=True)
    for source in tree.path.iterdir():
        is_data = source.name in _DATA or source.name.startswith("ocdbt.process_")
        if not is_data and source.is_file():
            (target / source.name).write_bytes(source.read_bytes())
        elif source.name == "array_metadatas":
            shutil.copytree(source, target / source.name)


def require_written(path: pathlib.Path, expected: Mapping[str, ArrayRecord]) -> None:
    """Read a written item from disk and compare it with what was to be written.

    Raises:
        CheckpointError: names the arrays that are missing, too many, or other than expected.
    """
    tree = StoredTree(path)
    written = {name: ArrayRecord.of(tree.read(name)) for name in tree}
    wrong = [
        f"{name} (expected {expected.get(name, 'no such array')}, read {written.get(name, 'none')})"
        for name in sorted(expected.keys() | written.keys())
        if expected.get(name) != written.get(name)
    ]
    if wrong:
        raise CheckpointError(
            f"{path}: {len(wrong)} of {len(expected)} arrays read back are not what was written, "
            f"so the result was discarded:\n  {first_lines(wrong)}\n"
            "Check the disk and the memory of this machine, and run the command again."
        )
