"""Parquet and Arrow files in bounded memory."""

import pathlib
import struct
from collections.abc import Iterator
from typing import Any

from wafer.data.text.compressed import optional
from wafer.errors import DataError

SLICE = 16  # rows of a table that are text at once
_UNPACKED = 1 << 28  # bytes of a table's part in memory, about
_RATIO = 200  # unpacked bytes of a packed one, beyond _UNPACKED; LZ4 reaches 255, texts 10


def _require_bounded(part: str, packed: int, unpacked: int) -> None:
    if unpacked > _UNPACKED and unpacked > _RATIO * packed:
        raise DataError(
            f"a {part} of {packed:,} bytes inflates to {unpacked:,}; expected less than {_RATIO} "
            f"times as many, or {_UNPACKED:,}. Write the file again with fewer rows in each {part}"
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
    pyarrow = optional("pyarrow", "pyarrow", f"reading {path.name}")
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
            yield table, raw.tell()
            missing -= 1
        if missing > 0:
            raise DataError(f"the file ends {missing} record batches before its last one")


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

    def follow(at: int) -> int:
        return at + number("<I", at)

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
