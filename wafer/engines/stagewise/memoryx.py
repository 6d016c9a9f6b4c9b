"""MemoryX: where weight streaming keeps parameters and optimizer state.

A store is a set of records, each a few named arrays (the weights of one layer, its moments, ...).
``RamStore`` holds whatever arrays it is given. ``FileStore`` is one file that may be larger than
RAM: every record has two places there, a step writes the one that is not in force, and a commit of
a few bytes makes all of them current at once. A process killed at any instant leaves the last
committed step, whole. This survives the process, not a power cut: nothing waits for the disk.

The module needs numpy only; the executor decides what a record holds.
"""

import dataclasses
import json
import os
import pathlib
import struct
import tempfile
import threading
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import ml_dtypes
import numpy as np

from wafer.errors import WaferError

__all__ = ["FileStore", "MemoryXError", "RamStore", "Spill", "Store"]

_ALIGN = 64  # XLA on CPU reads memory in place from this alignment
_PAGE = 4096
_HEADER = 1 << 16  # two of them at the head of the file
_HEAD = struct.Struct("<8sQII")  # magic, sequence number, length and CRC-32 of the JSON behind it
_MAGIC = b"MEMORYX1"
_CHUNK = 1 << 30  # Linux moves at most 2 GiB per call
_DATA, _LAYOUT = "memoryx.bin", "memoryx.json"


class MemoryXError(WaferError, RuntimeError):
    """The store cannot be written or read; what was committed is intact unless it says so."""


class Store(Protocol):
    """Records of named arrays."""

    @property
    def meta(self) -> dict[str, Any]:
        """What the last commit recorded."""
        ...

    def add(self, record: str, leaves: Mapping[str, Any], *, scratch: bool = False) -> None:
        """Make a record.

        Args:
            record: its name; an existing scratch record is replaced.
            leaves: first contents.
            scratch: not part of any step: one place, no guarantees.
        """
        ...

    def fetch(self, record: str) -> dict[str, Any]:
        """Read a record: the newest contents, committed or not."""
        ...

    def put(self, record: str, leaves: Mapping[str, Any]) -> None:
        """Replace a record's contents; shapes and dtypes stay. Lasts from the next commit on."""
        ...

    def commit(self, meta: Mapping[str, Any]) -> None:
        """Make everything put since the last commit current, at once."""
        ...

    def view(self, record: str) -> dict[str, Any]:
        """Arrays of a record for reading here and now, without a copy where possible."""
        ...

    def close(self) -> None:
        """Release the store; a file stays on disk."""
        ...


class RamStore:
    """Arrays of any kind in a dict; ``put`` takes effect at once."""

    def __init__(self) -> None:
        self._records: dict[str, dict[str, Any]] = {}
        self.meta: dict[str, Any] = {}

    def add(self, record: str, leaves: Mapping[str, Any], *, scratch: bool = False) -> None:
        """See ``Store``."""
        del scratch
        self._records[record] = dict(leaves)

    def fetch(self, record: str) -> dict[str, Any]:
        """See ``Store``."""
        return self._records[record]

    view = fetch

    def put(self, record: str, leaves: Mapping[str, Any]) -> None:
        """See ``Store``."""
        self._records[record] = dict(leaves)

    def commit(self, meta: Mapping[str, Any]) -> None:
        """See ``Store``."""
        self.meta = dict(meta)

    def close(self) -> None:
        """Drop the arrays."""
        self._records.clear()


class _Leaf(NamedTuple):
    """An array in a record: where it begins, what it is."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclasses.dataclass
class _Record:
    """A record's places in the file.

    Attributes:
        places: file offsets; one or two.
        size: bytes of each, a multiple of the page.
        leaves: the arrays.
        current: index of the committed place.
        pending: index of the place written since, or None.
        scratch: not part of any step.
    """

    places: tuple[int, ...]
    size: int
    leaves: dict[str, _Leaf]
    current: int = 0
    pending: int | None = None
    scratch: bool = False


def _dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def _bytes(array: Any) -> memoryview:
    """The memory of an array in C order, whatever its dtype and rank."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data


class FileStore:
    """Records in one file, ``folder/memoryx.bin``, described by ``memoryx.json`` beside it.

    Args:
        folder: made if need be; an old store in it is overwritten. See ``open`` to go on with it.
        durable: two places per record. False halves the file: a process killed while it writes a
            step then leaves a store that says it is torn, and the run goes on from a checkpoint.

    Raises:
        MemoryXError: the folder cannot be written.
    """

    def __init__(self, folder: str | pathlib.Path, *, durable: bool = True) -> None:
        self.folder = pathlib.Path(folder)
        self.durable = durable
        self._open(os.O_CREAT | os.O_TRUNC)
        self._end = 2 * _HEADER
        (self.folder / _LAYOUT).unlink(missing_ok=True)

    def _open(self, flags: int) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.folder / _DATA, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
        except OSError as error:
            raise self._error("cannot be opened", error) from error
        self._records: dict[str, _Record] = {}
        self._sequence = 0
        self._torn = False
        self._sealed = False
        self._lock = threading.Lock()
        self.meta: dict[str, Any] = {}

    @classmethod
    def open(cls, folder: str | pathlib.Path) -> "FileStore":
        """Open an existing store at its last committed step.

        Raises:
            MemoryXError: no store, a damaged one, or one without second copies whose writer was
                killed in the middle of a step.
        """
        store = cls.__new__(cls)
        store.folder = pathlib.Path(folder)
        layout = store.folder / _LAYOUT
        if not layout.is_file():
            raise MemoryXError(f"{folder} holds no weight store ({_LAYOUT} is missing)")
        store._open(0)
        described = json.loads(layout.read_text())
        store.durable, store._end = described["durable"], described["end"]
        for name, (places, size, leaves) in described["records"].items():
            decoded = {
                key: _Leaf(offset, tuple(shape), _dtype(dtype))
                for key, (offset, shape, dtype) in leaves.items()
            }
            store._records[name] = _Record(tuple(places), size, decoded)
        store._sealed = True
        store._restore_header()
        return store

    def _restore_header(self) -> None:
        found = [h for h in map(self._read_header, range(2)) if h is not None]
        if not found:
            raise MemoryXError(f"{self.folder / _DATA} is damaged: no commit record is whole")
        self._sequence, head = max(found, key=lambda h: h[0])
        if head["torn"]:
            raise MemoryXError(
                f"{self.folder / _DATA}: its writer was killed in the middle of the step after "
                f"{head['meta']}, and the store keeps one copy only (memoryx.durable: false). "
                "Continue from the last checkpoint."
            )
        self.meta = head["meta"]
        for name in head["second"]:
            self._records[name].current = 1

    def _read_header(self, index: int) -> tuple[int, dict[str, Any]] | None:
        raw = os.pread(self._fd, _HEADER, index * _HEADER)
        if len(raw) < _HEAD.size:
            return None
        magic, sequence, length, crc = _HEAD.unpack_from(raw)
        body = raw[_HEAD.size : _HEAD.size + length]
        if magic != _MAGIC or len(body) != length or zlib.crc32(body) != crc:
            return None
        return sequence, json.loads(body)

    def _write_header(self, *, torn: bool) -> None:
        second = [name for name, r in self._records.items() if r.current == 1]
        body = json.dumps({"meta": self.meta, "second": second, "torn": torn}).encode()
        if len(body) > _HEADER - _HEAD.size:
            raise MemoryXError(f"{self.folder}: {len(body)} bytes of commit record are too many")
        self._sequence += 1
        head = _HEAD.pack(_MAGIC, self._sequence, len(body), zlib.crc32(body))
        self._write(memoryview(head + body), (self._sequence % 2) * _HEADER)

    def add(self, record: str, leaves: Mapping[str, Any], *, scratch: bool = False) -> None:
        """See ``Store``; the disk space is taken here, so a full disk shows at the start.

        Raises:
            MemoryXError: the disk is full.
        """
        table, size = {}, 0
        for name, leaf in leaves.items():
            table[name] = _Leaf(size, tuple(leaf.shape), np.dtype(leaf.dtype))
            size = _up(size + table[name].nbytes, _ALIGN)
        size = _up(size, _PAGE)
        with self._lock:
            old = self._records.get(record)
            if old is not None and old.scratch and old.size >= size:
                places = old.places
            else:
                copies = 2 if self.durable and not scratch else 1
                places = tuple(self._end + i * size for i in range(copies))
                self._allocate(self._end, copies * size)
                self._end += copies * size
            self._records[record] = _Record(places, size, table, scratch=scratch)
        self._store(self._records[record], 0, leaves)

    def _allocate(self, offset: int, size: int) -> None:
        try:
            if size:
                os.posix_fallocate(self._fd, offset, size)
        except OSError as error:
            raise self._error(f"cannot grow to {(offset + size) / 2**30:.2f} GiB", error) from error

    def fetch(self, record: str) -> dict[str, np.ndarray]:
        """See ``Store``: one read into fresh memory that XLA can use in place."""
        r = self._records[record]
        buffer = np.empty(r.size + _ALIGN, np.uint8)
        start = -buffer.ctypes.data % _ALIGN
        memory, at = buffer[start : start + r.size].data, self._place(r)
        done = 0
        while done < r.size:
            got = os.preadv(self._fd, [memory[done : done + _CHUNK]], at + done)
            if not got:
                raise MemoryXError(f"{self.folder / _DATA}: ends inside {record!r}; it was cut")
            done += got
        return {
            name: buffer[start + leaf.offset : start + leaf.offset + leaf.nbytes]
            .view(leaf.dtype)
            .reshape(leaf.shape)
            for name, leaf in r.leaves.items()
        }

    def view(self, record: str) -> dict[str, np.ndarray]:
        """See ``Store``: read-only maps of the file, which take no memory of their own."""
        r = self._records[record]
        at = self._place(r)
        return {
            name: np.memmap(
                self.folder / _DATA, leaf.dtype, "r", offset=at + leaf.offset, shape=leaf.shape
            )
            if leaf.nbytes
            else np.empty(leaf.shape, leaf.dtype)
            for name, leaf in r.leaves.items()
        }

    def _place(self, r: _Record) -> int:
        return r.places[r.current if r.pending is None else r.pending]

    def put(self, record: str, leaves: Mapping[str, Any]) -> None:
        """See ``Store``; threads may put different records at once.

        Raises:
            MemoryXError: the disk refused; the last committed step is intact where the store is
                durable.
        """
        r = self._records[record]
        if not r.scratch and len(r.places) == 1:
            with self._lock:
                if self._sealed and not self._torn:
                    self._torn = True
                    self._write_header(torn=True)
        place = r.current if len(r.places) == 1 else 1 - r.current
        self._store(r, place, leaves)
        r.pending = place

    def _store(self, r: _Record, place: int, leaves: Mapping[str, Any]) -> None:
        if leaves.keys() != r.leaves.keys():
            raise KeyError(f"expected the arrays {list(r.leaves)}, got {list(leaves)}")
        for name, leaf in r.leaves.items():
            array = np.asarray(leaves[name])
            if array.shape != leaf.shape or array.dtype != leaf.dtype:
                raise ValueError(
                    f"{name}: {array.dtype}{array.shape} into a place for {leaf.dtype}{leaf.shape}"
                )
            if leaf.nbytes:
                self._write(_bytes(array), r.places[place] + leaf.offset)

    def _write(self, data: memoryview, offset: int) -> None:
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._fd, data[done : done + _CHUNK], offset + done)
        except OSError as error:
            raise self._error("cannot be written", error) from error

    def commit(self, meta: Mapping[str, Any]) -> None:
        """See ``Store``."""
        with self._lock:
            before = self.meta, {name: r.current for name, r in self._records.items()}
            self.meta = dict(meta)
            for r in self._records.values():
                if r.pending is not None and not r.scratch:
                    r.current, r.pending = r.pending, None
            try:
                self._write_header(torn=False)
                if not self._sealed:
                    self._write_layout()
            except MemoryXError:
                self.meta = before[0]
                for name, place in before[1].items():
                    self._records[name].current = place
                raise
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
        partial = self.folder / f"{_LAYOUT}.partial"
        try:
            partial.write_text(
                json.dumps({"durable": self.durable, "end": self._end, "records": records})
            )
            partial.replace(self.folder / _LAYOUT)
        except OSError as error:
            raise self._error("cannot be described", error) from error

    def _error(self, what: str, error: OSError) -> MemoryXError:
        kept = (
            f" The last committed step ({self.meta}) is intact."
            if getattr(self, "meta", None)
            else ""
        )
        return MemoryXError(
            f"runconfig.memoryx: {self.folder / _DATA} {what}: {error.strerror or error}.{kept} "
            "Free disk space, name another folder with memoryx.path, or halve the file with "
            "memoryx.durable: false."
        )

    def close(self) -> None:
        """Close the file; it stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Spill:
    """Arrays on disk for a moment: a file that nobody else sees and that goes with its maps.

    A context manager; what was kept stays readable after it ends.

    Args:
        folder: where there is room.
    """

    def __init__(self, folder: str | pathlib.Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  the maps need it open

    def __enter__(self) -> "Spill":
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file; its maps keep it alive."""
        self._file.close()

    def keep(self, array: Any) -> np.ndarray:
        """Write an array out; returns a read-only map of it."""
        array = np.asarray(array)
        if not array.nbytes:
            return array
        offset = _up(self._file.seek(0, os.SEEK_END), _PAGE)
        self._file.seek(offset)
        self._file.write(_bytes(array))
        self._file.flush()
        return np.memmap(self._file, array.dtype, "r", offset=offset, shape=array.shape)
