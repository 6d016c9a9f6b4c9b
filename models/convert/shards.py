"""Write safetensors files one tensor at a time.

The safetensors library writes a file from tensors that are all in memory. The format is simple:
8 bytes of header length, a JSON header with every tensor's dtype, shape and place, the bytes.
Names and shapes are known before any value, so the header goes first and values follow.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wafer.models.checkpoint.checksums import ArrayRecord
from wafer.models.checkpoint.lazy import LazyArray
from wafer.models.convert.manifest import keep_manifest
from wafer.models.files import atomic_write, made_folder, write_text

_PIECE = 4 * 2**20  # bytes written at a time
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def write_shards(
    tensors: Sequence[LazyArray],
    folder: str | Path,
    max_bytes: int,
    config: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write tensors as safetensors, an index where there are several files, and their manifest.

    Holds one tensor in memory at a time. A file has its final name only when it is complete; an
    error, such as a full disk, leaves none.

    Args:
        tensors: in order; each is read once.
        folder: created when missing; must not hold weights, or a ``config.json``.
        max_bytes: a shard is closed before it grows beyond this.
        config: content of ``config.json``; None writes none.

    Returns:
        The weight files.

    Raises:
        FileExistsError: older weights are there, which a reader would mix with these, or the
            configuration of others.
    """
    folder = Path(folder)
    patterns = ("*.safetensors*", "pytorch_model*.bin*", "config.json")
    old = [path.name for pattern in patterns for path in sorted(folder.glob(pattern))]
    if old:
        raise FileExistsError(f"{folder}: holds {old[0]} already; choose another folder")
    shards = _split(tensors, max_bytes)
    many = len(shards) > 1
    written = []
    records: dict[str, ArrayRecord] = {}
    with made_folder(folder), contextlib.ExitStack() as undo:
        for i, shard in enumerate(shards):
            stem = f"model-{i + 1:05d}-of-{len(shards):05d}" if many else "model"
            written.append(_write(shard, folder / f"{stem}.safetensors", records))
            undo.callback(written[-1].unlink)
        if many:
            of_shards = zip(shards, written, strict=True)
            where = {tensor.name: path.name for shard, path in of_shards for tensor in shard}
            total = sum(_size(tensor) for tensor in tensors)
            index = {"metadata": {"total_size": total}, "weight_map": where}
            written.append(folder / "model.safetensors.index.json")
            write_text(written[-1], json.dumps(index, indent=2))
            undo.callback(written[-1].unlink)
        if config is not None:
            write_text(folder / "config.json", json.dumps(config, indent=2, sort_keys=True))
        keep_manifest(folder, records)
        undo.pop_all()
    return written


def _size(tensor: LazyArray) -> int:
    return tensor.size * tensor.dtype.itemsize


def _split(tensors: Sequence[LazyArray], max_bytes: int) -> list[list[LazyArray]]:
    """Fill shards in order, each up to ``max_bytes`` or one tensor."""
    shards: list[list[LazyArray]] = [[]]
    filled = 0
    for tensor in tensors:
        size = _size(tensor)
        if shards[-1] and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += size
    return shards


def _write(tensors: Sequence[LazyArray], path: Path, records: dict[str, ArrayRecord]) -> Path:
    # Wide dtypes first keeps every tensor aligned to its own size, as the library does.
    ordered = sorted(tensors, key=lambda t: (-t.dtype.itemsize, t.name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in ordered:
        begin, end = end, end + _size(tensor)
        kind = _DTYPES[tensor.dtype.name]
        header[tensor.name] = {
            "dtype": kind,
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_write(path) as partial, partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in ordered:
            value = tensor.read()
            if value.shape != tensor.shape or value.dtype != tensor.dtype:
                raise AssertionError(f"{tensor.name}: read as {value.dtype} {value.shape}")
            # Cut along the first axis: a transposed array is not copied as a whole.
            count = min(-(-value.nbytes // _PIECE), len(value)) if value.ndim else 1
            pieces = np.array_split(value, count) if count > 1 else [value]
            file.writelines(np.ascontiguousarray(p).reshape(-1).view(np.uint8).data for p in pieces)
            records[tensor.name] = ArrayRecord.of(value)
            del value, pieces
    return path
