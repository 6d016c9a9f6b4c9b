"""Read the vendor's ``.mdl`` checkpoints: flat HDF5, one dataset per tensor.

Only dataset names, shapes and values are read. Structure records (``__spec__``, a pickle before
format 0.5) are never opened, so nothing in the file can run.
"""

import json
import pathlib
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp

from models.checkpoint.reader import CheckpointDamagedError, StoredTree
from models.paths import map_named, unflatten

__all__ = ["MdlFile", "into_tree", "write_mdl_as_orbax"]

_LZ4 = 32004  # HDF5's registered number of the filter the vendor compresses with


class MdlFile:
    """A vendor checkpoint opened for reading; a context manager and an iterable of names.

    Raises:
        CheckpointDamagedError: no HDF5 file, or one whose writer did not finish.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise CheckpointDamagedError(
                f"{path} is no readable .mdl (HDF5) file: {error}"
            ) from None
        version = str(self._file.attrs.get("__version__", "0.1"))
        if version >= "0.5" and not self._file.attrs.get("__SUCCESS__", False):
            self.close()
            raise CheckpointDamagedError(
                f"{path} is incomplete: its writer did not mark it finished (__SUCCESS__)"
            )

    def __enter__(self) -> "MdlFile":
        """Return the open file."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __iter__(self) -> Iterator[str]:
        """Iterate over tensor names, '.'-joined, in name order."""
        for name, dataset in self._file.items():
            flags = dataset.attrs
            absent = flags.get("is_none", False) or flags.get("is_string", False)
            if isinstance(dataset, h5py.Dataset) and not absent:
                yield name

    def scalar(self, name: str) -> Any:
        """Return a number the file stores as an attribute (such as ``global_step``), or None."""
        record = self._file.attrs.get(f"{name}.__metadata__")
        if record is None:
            return None
        return json.loads(record).get(f"{name}.__metadata__", {}).get("scalar_value")

    def read(self, name: str) -> np.ndarray:
        """Read one tensor.

        Raises:
            CheckpointDamagedError: names the tensor.
        """
        dataset: Any = self._file[name]
        try:
            value = self._values(dataset)
        except (OSError, ValueError, IndexError, struct.error) as error:
            raise CheckpointDamagedError(
                f"{self.path}: tensor {name} cannot be read, the file is damaged: {error}"
            ) from None
        stored = str(dataset.attrs.get("dtypes", ""))
        if "torch.bfloat16" in stored and value.dtype.itemsize == 2:
            value = value.view(ml_dtypes.bfloat16)
        return value

    def _values(self, dataset: Any) -> np.ndarray:
        if dataset.attrs.get("is_constructible", False):
            return np.full(dataset.shape, dataset.attrs["fill_value"], dataset.dtype)
        filters = dataset.id.get_create_plist()
        numbers = [filters.get_filter(i)[0] for i in range(filters.get_nfilters())]
        if numbers != [_LZ4] or h5py.h5z.filter_avail(_LZ4):
            return dataset[()]
        return _read_chunks(dataset, _unpack_lz4)


def _read_chunks(dataset: Any, unpack: Callable[[bytes], bytes]) -> np.ndarray:
    """Assemble a chunked dataset whose filter HDF5 was not built with."""
    out = np.zeros(dataset.shape, dataset.dtype)
    for i in range(dataset.id.get_num_chunks()):
        chunk = dataset.id.get_chunk_info(i)
        mask, raw = dataset.id.read_direct_chunk(chunk.chunk_offset)
        block = np.frombuffer(raw if mask else unpack(raw), dataset.dtype).reshape(dataset.chunks)
        place = tuple(
            slice(start, min(start + length, size))
            for start, length, size in zip(
                chunk.chunk_offset, dataset.chunks, dataset.shape, strict=True
            )
        )
        out[place] = block[tuple(slice(0, s.stop - s.start) for s in place)]
    return out


def _unpack_lz4(raw: bytes) -> bytes:
    """Undo the HDF5 LZ4 filter: sizes big-endian, then blocks, stored raw when not smaller."""
    size, block_size = struct.unpack(">QI", raw[:12])
    out, at = bytearray(), 12
    while len(out) < size:
        (length,) = struct.unpack(">I", raw[at : at + 4])
        block = raw[at + 4 : at + 4 + length]
        at += 4 + length
        stored = length == min(block_size, size - len(out))
        out += block if stored else _unpack_block(block)
    return bytes(out)


def _unpack_block(block: bytes) -> bytes:
    """Decode one LZ4 block (literals and back references)."""
    out, at = bytearray(), 0

    def extended(length: int) -> int:
        nonlocal at
        if length == 15:
            while True:
                length += block[at]
                at += 1
                if block[at - 1] != 255:
                    break
        return length

    while True:
        token = block[at]
        at += 1
        literals = extended(token >> 4)
        out += block[at : at + literals]
        at += literals
        if at >= len(block):
            return bytes(out)
        distance = block[at] | block[at + 1] << 8
        at += 2
        length = extended(token & 15) + 4
        start = len(out) - distance
        pattern = out[start : start + length]  # shorter than length when the copy overlaps itself
        out += (pattern * (length // len(pattern) + 1))[:length]


def into_tree(
    stored: MdlFile,
    template: Any,
    aliases: Callable[[str], str],
    *,
    weight_layout: str = "io",
    prefix: str = "model.",
) -> Any:
    """Load a vendor checkpoint's model into the user's own parameter tree.

    Args:
        stored: the open file.
        template: parameter tree, arrays or shapes.
        aliases: '/'-path -> the vendor's dotted name (``Model.alias``).
        weight_layout: "io" transposes matrices from the vendor's [out, in], except embeddings.
        prefix: what the vendor puts before a parameter's name.

    Returns:
        The tree with the stored values, NaN at pruned positions kept.

    Raises:
        KeyError: a parameter the file does not hold.
        ValueError: a shape that does not fit.
    """
    names = set(stored)

    def load(name: str, leaf: Any) -> np.ndarray:
        theirs = prefix + aliases(name)
        if theirs not in names:
            raise KeyError(f"{stored.path} has no tensor {theirs!r} for parameter {name!r}")
        value = stored.read(theirs)
        if weight_layout == "io" and value.ndim == 2 and "embedding" not in name:
            value = value.T
        if value.shape != tuple(leaf.shape):
            raise ValueError(
                f"{stored.path}: {theirs} has shape {value.shape}, {name} needs {leaf.shape}"
            )
        return value.astype(leaf.dtype)

    return map_named(load, template)


def write_mdl_as_orbax(
    tensors: Iterable[tuple[str, np.ndarray]], names: Iterable[str], target: pathlib.Path
) -> None:
    """Write tensors one by one as the ``state`` of a new Orbax checkpoint.

    Args:
        tensors: ('/'-path, value) in any order.
        names: the same paths, known beforehand.
        target: folder of the step; does not exist.
    """
    # Orbax writes the tree's description and its marks, with empty arrays; we fill those in.
    skeleton = unflatten({name: np.zeros((), np.int8) for name in names})
    args = ocp.args.Composite(
        state=ocp.args.StandardSave(skeleton), meta=ocp.args.JsonSave({"converted_from": "mdl"})
    )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".skeleton-") as folder:
        with ocp.CheckpointManager(folder, item_names=("state", "meta")) as manager:
            manager.save(0, args=args)
            manager.wait_until_finished()
        (pathlib.Path(folder) / "0").rename(target)
    tree = StoredTree(target / "state")
    for name, value in tensors:
        tree.replace(name, value)
