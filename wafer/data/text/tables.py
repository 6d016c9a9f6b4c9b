"""Parquet and Arrow files in bounded memory."""

import pathlib
from collections.abc import Iterator
from typing import Any

from wafer.data.text.compressed import optional
from wafer.errors import DataError

__all__ = ["SLICE", "arrow_tables", "rows_at_once"]

SLICE = 16  # rows of a table that are text at once
_UNPACKED = 1 << 28  # bytes of a table's part in memory, about


def rows_at_once(about: Any) -> int:
    """Rows of a Parquet's row group to read at once: each may repeat the longest value.

    Raises:
        DataError: it inflates beyond any text.
    """
    unpacked = about.total_byte_size
    packed = sum(about.column(i).total_compressed_size for i in range(about.num_columns))
    if unpacked > _UNPACKED and unpacked > 1000 * packed:
        raise DataError(
            f"a row group of {packed:,} bytes inflates to {unpacked:,}; expected less than 1,000 "
            "times as many. Write the file again"
        )
    return max(_UNPACKED // max(unpacked, 1), SLICE)


def arrow_tables(path: pathlib.Path) -> Iterator[tuple[Any, int]]:
    """Record batches of an Arrow file in either of its two forms, and bytes read so far."""
    pyarrow = optional("pyarrow", "pyarrow", f"reading {path.name}")
    with pyarrow.memory_map(str(path)) as raw:
        try:
            reader = pyarrow.ipc.open_stream(raw)
        except pyarrow.ArrowInvalid:
            raw.seek(0)
            file = pyarrow.ipc.open_file(raw)
            reader = (file.get_batch(i) for i in range(file.num_record_batches))
        for table in reader:
            yield table, raw.tell()
