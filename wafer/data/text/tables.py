"""Parquet and Arrow files in bounded memory."""

import pathlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from wafer.errors import DataError
from wafer.models.errors import optional

SLICE = 16  # rows of a table that are text at once
_UNPACKED = 1 << 28  # bytes of a table's part in memory, about
_VALUE = 16  # bytes of a value in memory at least
_RATIO = 200  # unpacked bytes of a packed one, beyond _UNPACKED; LZ4 reaches 255, texts 10


def _require_bounded(unit: str, packed: int, unpacked: int) -> None:
    if unpacked > _UNPACKED and unpacked > _RATIO * packed:
        raise DataError(
            f"a {unit} of {packed:,} bytes inflates to {unpacked:,}; expected less than {_RATIO} "
            f"times as many, or {_UNPACKED:,}. Write the file again with fewer rows in each {unit}"
        )


def rows_at_once(about: Any) -> int:
    """Rows of a Parquet's row group to read at once: each may repeat the longest value.

    Raises:
        DataError: it inflates beyond any text.
    """
    unpacked = about.total_byte_size
    packed = sum(about.column(i).total_compressed_size for i in range(about.num_columns))
    _require_bounded("row group", packed, unpacked)
    return max(_UNPACKED // max(unpacked, 1), SLICE)


def arrow_tables(path: pathlib.Path) -> Iterator[tuple[Any, int]]:
    """Record batches of an Arrow file in either of its two forms, and bytes read so far.

    Raises:
        DataError: a batch inflates beyond any text, or the file ends before its last one.
    """
    pyarrow = optional("pyarrow", f"reading {path.name}")
    ipc = pyarrow.ipc
    with pyarrow.memory_map(str(path)) as raw:
        # the file form is the stream form between a mark and an index
        indexed = raw.read(6) == b"ARROW1"
        missing = ipc.open_file(raw).num_record_batches if indexed else 0
        raw.seek(8 * indexed)
        for message in ipc.MessageReader.open_stream(raw):
            if message.type in ("record batch", "dictionary"):
                _require_bounded("record batch", message.body.size, _unpacked_size(message))
        raw.seek(8 * indexed)
        for table in ipc.open_stream(raw):
            made = sum(_values_size(column) for column in table.columns)
            _require_bounded("record batch", table.get_total_buffer_size(), made)
            yield table, raw.tell()
            missing -= 1
        if missing > 0:
            raise DataError(f"the file ends {missing} record batches before its last one")


def few_rows(columns: Sequence[Any], start: int = 0) -> Iterator[tuple[Any, ...]]:
    """Rows of Arrow columns as Python values, few of them at once."""
    for at in range(start, len(columns[0]), SLICE):
        yield from zip(*(column.slice(at, SLICE).to_pylist() for column in columns), strict=True)


def _values_size(array: Any) -> int:
    """Bytes of an Arrow array when each value is written out: repeated ones, and those of none."""
    pyarrow = optional("pyarrow", "reading Arrow")
    types, kind = pyarrow.types, array.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        return _values_size(array.storage)
    if types.is_list_view(kind) or types.is_large_list_view(kind) or types.is_union(kind):
        raise DataError(f"a column of {kind} may share values; expected lists, structs or texts")
    if types.is_dictionary(kind):
        inner = _repeated(array.dictionary, array.indices.drop_null())
    elif types.is_run_end_encoded(kind):
        runs = np.diff(array.run_ends.to_numpy(), prepend=0).clip(max=len(array))
        inner = int(_sizes(array.values) @ runs)
    elif types.is_struct(kind):
        inner = sum(map(_values_size, map(array.field, range(kind.num_fields))))
    elif types.is_map(kind):
        inner = _values_size(array.keys) + _values_size(array.items)
    elif types.is_nested(kind):
        inner = _values_size(array.flatten())
    elif types.is_string_view(kind) or types.is_binary_view(kind):
        inner = int(_sizes(array).sum())
    else:
        inner = array.nbytes
    return _VALUE * len(array) + inner


def _repeated(values: Any, indices: Any) -> int:
    return int(_sizes(values)[indices.to_numpy(zero_copy_only=False)].sum())


def _sizes(array: Any) -> np.ndarray:
    """[n] int64 bytes of every value; of nested ones what all of them have."""
    types, kind = optional("pyarrow", "reading Arrow").types, array.type
    if types.is_string_view(kind) or types.is_binary_view(kind):  # 16 bytes, the length first
        views = np.frombuffer(array.buffers()[1], np.int32)[::4]
        return views[array.offset : array.offset + len(array)].astype(np.int64)
    compute = optional("pyarrow.compute", "reading Arrow")
    if kind.num_fields or types.is_dictionary(kind):
        return np.full(len(array), _values_size(array), np.int64)
    binary = types.is_binary(kind) or types.is_large_binary(kind)
    if not (binary or types.is_string(kind) or types.is_large_string(kind)):
        return np.full(len(array), _VALUE, np.int64)
    return compute.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def _unpacked_size(message: Any) -> int:
    """Bytes that the compressed buffers of a message become; each begins with its own count."""
    data, body = memoryview(message.metadata), memoryview(message.body)
    number = lambda form, at: struct.unpack_from(form, data, at)[0]

    def field(table: int, index: int) -> int:
        """Where a field of a FlatBuffers table stands; 0 for one that is left out."""
        fields = table - number("<i", table)
        slot = 4 + 2 * index
        offset = number("<H", fields + slot) if slot < number("<H", fields) else 0
        return offset and table + offset

    def follow(offset: int) -> int:
        return offset + number("<I", offset)

    batch = follow(field(follow(0), 2))
    if message.type == "dictionary":
        batch = follow(field(batch, 1))
    buffers = field(batch, 2)
    if not field(batch, 3) or not buffers:  # not compressed, or without columns
        return 0
    first = follow(buffers)
    places = struct.iter_unpack("<qq", data[first + 4 :][: 16 * number("<I", first)])
    starts = [start for start, length in places if length]
    sizes = [int.from_bytes(body[start : start + 8], "little", signed=True) for start in starts]
    return sum(size for size in sizes if size > 0)
