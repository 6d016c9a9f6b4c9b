"""MemoryX: where weight streaming keeps parameters and optimizer state.

A store is a set of records, each a few named arrays (the weights of one layer, its moments, ...).
``RamStore`` holds whatever arrays it is given. ``FileStore`` is one file that may be larger than
RAM: every record has two places there, a step writes the one that is not in force, and a commit of
a few bytes makes all of them current at once. A process killed at any instant leaves the last
committed step, whole. So does a power cut where the store is durable: the disk has a step's records
before it gets the commit, and the commit before the places that the step left are written again.

Only numpy is needed; the engine decides what a record holds.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from jaxtyping import PyTree

from wafer.engines.stagewise.streaming.blockfile import FIRST_BLOCK, BlockFile, BlockLeaf, lay_out
from wafer.errors import WaferError
from wafer.models.files import atomic_write

_DATA, _LAYOUT = "memoryx.bin", "memoryx.json"


class MemoryXError(WaferError, RuntimeError):
    """The store cannot be written or read; committed data are intact unless the message differs."""


class RamStore:
    """Records of named arrays of any kind, in a dict; ``put`` takes effect at once.

    Attributes:
        meta: what the last commit recorded.
    """

    def __init__(self) -> None:
        self._records: dict[str, dict[str, Any]] = {}
        self.meta: dict[str, Any] = {}

    def add(self, record: str, leaves: Mapping[str, PyTree], *, scratch: bool = False) -> None:
        """Make a record.

        Args:
            record: its name; an existing scratch record is replaced.
            leaves: first contents.
            scratch: not part of any step: one place, no guarantees.
        """
        del scratch
        self._records[record] = dict(leaves)

    def fetch(self, record: str) -> dict[str, PyTree]:
        """Read a record: the newest contents, committed or not."""
        return self._records[record]

    view = fetch

    def put(self, record: str, leaves: Mapping[str, PyTree]) -> None:
        """Replace a record's contents; shapes and dtypes stay. Lasts from the next commit on."""
        self._records[record] = dict(leaves)

    def commit(self, meta: Mapping[str, object]) -> None:
        """Make everything put since the last commit current, at once."""
        self.meta = dict(meta)

    def close(self) -> None:
        """Drop the arrays."""
        self._records.clear()


@dataclasses.dataclass
class _Record:
    """A record's places in the file."""

    places: tuple[int, ...]  #: file offsets; one or two
    size: int  #: bytes of each
    leaves: dict[str, BlockLeaf]  #: the arrays
    current: int = 0  #: index of the committed place
    pending: int | None = None  #: index of the place written since, or None
    scratch: bool = False  #: not part of any step

    @property
    def newest(self) -> int:
        """Index of the newest contents, committed or not."""
        return self.current if self.pending is None else self.pending


class FileStore:
    """Records in one file, ``folder/memoryx.bin``, described by ``memoryx.json`` beside it.

    Args:
        folder: made if need be; an old store in it is overwritten; ``open`` continues it.
        durable: two places per record, and a commit waits for the disk. False halves the file: a
            process killed while it writes a step then leaves a store that is marked as torn, and
            the run continues from a checkpoint. After a power failure the store is lost.

    Raises:
        MemoryXError: the folder cannot be written.
    """

    def __init__(self, folder: str | pathlib.Path, *, durable: bool = True) -> None:
        self._open(folder, os.O_CREAT | os.O_TRUNC)
        self.durable, self._end = durable, FIRST_BLOCK
        with self._explain_errors("cannot be written"):
            (self.folder / _LAYOUT).unlink(missing_ok=True)
            self._settle(names=True)  # an old layout must not meet the new file

    def _open(self, folder: str | pathlib.Path, flags: int = 0) -> None:
        self.folder = pathlib.Path(folder)
        self.meta: dict[str, Any] = {}
        self._records: dict[str, _Record] = {}
        self._torn = self._sealed = False
        self._lock = threading.Lock()
        with self._explain_errors("cannot be opened"):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = BlockFile(self.folder / _DATA, flags)

    @contextlib.contextmanager
    def _explain_errors(self, what: str) -> Iterator[None]:
        """Turn the system's errors into ours, which say what is safe and what to do."""
        try:
            yield
        except OSError as error:
            kept = f" The last committed step ({self.meta}) is intact." if self.meta else ""
            raise MemoryXError(
                f"runconfig.memoryx: {self.folder / _DATA} {what}: {error.strerror or error}."
                f"{kept} Free disk space, name another folder with memoryx.path, or halve the file "
                "with memoryx.durable: false."
            ) from error

    @classmethod
    def open(cls, folder: str | pathlib.Path) -> "FileStore":
        """Open an existing store at its last committed step.

        Raises:
            MemoryXError: no store, a damaged one, or one without second copies whose writer was
                killed in the middle of a step.
        """
        layout = pathlib.Path(folder) / _LAYOUT
        if not layout.is_file():
            raise MemoryXError(f"{folder}: holds no weight store ({_LAYOUT} is missing)")
        store = cls.__new__(cls)
        store._open(folder)
        described = json.loads(layout.read_text())
        store.durable, store._end = described["durable"], described["end"]
        for name, (places, size, leaves) in described["records"].items():
            decoded = {
                key: BlockLeaf(at, tuple(shape), np.dtype(getattr(ml_dtypes, kind, None) or kind))
                for key, (at, shape, kind) in leaves.items()
            }
            store._records[name] = _Record(tuple(places), size, decoded)
        store._sealed = True
        store._restore()
        return store

    def _settle(self, *, names: bool = False) -> None:
        """Wait for the disk where the store is durable; ``names``: for those of its files too."""
        if not self.durable:
            return
        self._file.sync()
        for folder in (self.folder, self.folder.parent) if names else ():
            opened = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)

    def _restore(self) -> None:
        commit = self._file.last_commit()
        if commit is None:
            raise MemoryXError(f"{self.folder / _DATA}: damaged, no commit record is complete")
        if commit["torn"]:
            raise MemoryXError(
                f"{self.folder / _DATA}: its writer was killed in the middle of the step after "
                f"{commit['meta']}, and the store keeps one copy only (memoryx.durable: false). "
                "Continue from the last checkpoint."
            )
        self.meta = commit["meta"]
        for name in commit["second"]:
            self._records[name].current = 1

    def _write_commit(self, meta: Mapping[str, object], *, torn: bool) -> None:
        second = [name for name, r in self._records.items() if r.newest == 1]
        with self._explain_errors("cannot be written"):
            self._settle()
            self._file.commit({"meta": meta, "second": second, "torn": torn})
            self._settle()

    def add(self, record: str, leaves: Mapping[str, PyTree], *, scratch: bool = False) -> None:
        """See ``RamStore``; the disk space is taken here, so a full disk shows at the start.

        Raises:
            MemoryXError: the disk is full.
        """
        table, size = lay_out(leaves)
        with self._lock:
            old = self._records.get(record)
            if old is not None and old.scratch and old.size >= size:
                places = old.places
            else:
                copies = 2 if self.durable and not scratch else 1
                places = tuple(self._end + i * size for i in range(copies))
                end = self._end + copies * size
                with self._explain_errors(f"cannot grow to {end / 2**30:.2f} GiB"):
                    self._file.allocate(self._end, copies * size)
                self._end = end
            self._records[record] = _Record(places, size, table, scratch=scratch)
        self._store(self._records[record], 0, leaves)

    def fetch(self, record: str) -> dict[str, np.ndarray]:
        """See ``RamStore``: one read into fresh memory that XLA can use in place."""
        r = self._records[record]
        block = self._file.read(r.places[r.newest], r.size)
        if len(block) < r.size:
            raise MemoryXError(f"{self.folder / _DATA}: ends inside {record!r}; it was cut")
        return {name: leaf.view(block) for name, leaf in r.leaves.items()}

    def view(self, record: str) -> dict[str, np.ndarray]:
        """See ``RamStore``: read-only maps of the file, which take no memory of their own."""
        r = self._records[record]
        at = r.places[r.newest]
        return {name: self._file.map(at, leaf) for name, leaf in r.leaves.items()}

    def put(self, record: str, leaves: Mapping[str, PyTree]) -> None:
        """See ``RamStore``; threads may put different records at once.

        Raises:
            MemoryXError: the disk refused; the last committed step is intact where the store is
                durable.
        """
        r = self._records[record]
        if not r.scratch and len(r.places) == 1:
            with self._lock:
                if self._sealed and not self._torn:
                    self._torn = True
                    self._write_commit(self.meta, torn=True)
        place = r.current if len(r.places) == 1 else 1 - r.current
        self._store(r, place, leaves)
        r.pending = place

    def _store(self, r: _Record, place: int, leaves: Mapping[str, PyTree]) -> None:
        if leaves.keys() != r.leaves.keys():
            raise KeyError(f"expected the arrays {list(r.leaves)}, got {list(leaves)}")
        for name, leaf in r.leaves.items():
            array = np.asarray(leaves[name])
            if array.shape != leaf.shape or array.dtype != leaf.dtype:
                raise ValueError(
                    f"{name}: {array.dtype}{array.shape} into a place for {leaf.dtype}{leaf.shape}"
                )
            with self._explain_errors("cannot be written"):
                self._file.write(array, r.places[place] + leaf.offset)

    def commit(self, meta: Mapping[str, object]) -> None:
        """See ``RamStore``."""
        with self._lock:
            self._write_commit(dict(meta), torn=False)
            if not self._sealed:
                self._write_layout()
            self.meta = dict(meta)
            for r in self._records.values():
                r.current, r.pending = r.newest, None
            self._torn, self._sealed = False, True

    def _write_layout(self) -> None:
        records = {
            name: (
                r.places,
                r.size,
                {k: (f.offset, f.shape, f.dtype.name) for k, f in r.leaves.items()},
            )
            for name, r in self._records.items()
            if not r.scratch
        }
        layout = {"durable": self.durable, "end": self._end, "records": records}
        path = self.folder / _LAYOUT
        with self._explain_errors("cannot be described"):
            with atomic_write(path, sync=self.durable) as partial:
                partial.write_text(json.dumps(layout))
            self._settle(names=True)

    def close(self) -> None:
        """Close the file; it stays."""
        self._file.close()


Store = RamStore | FileStore
