"""Columns to files: the format follows from the name's ending."""

import csv
import io
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from wafer.models.errors import optional

Files = Mapping[str, Any]
"""File name -> its content: lines, records, columns, arrays."""


def write_files(folder: str | pathlib.Path, files: Files) -> None:
    """Write files into a folder that is there.

    Args:
        folder: where to.
        files: .jsonl takes records, .csv columns, .h5 datasets, .arrow columns, .json anything,
            .png a color, every other name lines of text.
    """
    root = pathlib.Path(folder)
    for name, content in files.items():
        path = root / name
        write = next((w for ending, w in _WRITERS.items() if name.endswith(ending)), _lines)
        path.write_bytes(write(content))


def _lines(lines: Any) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _csv(columns: Mapping[str, Any]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def _hdf5(datasets: Mapping[str, np.ndarray]) -> bytes:
    import h5py

    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        for name, array in datasets.items():
            file[name] = array
        file.attrs["n_examples"] = len(next(iter(datasets.values())))
    return memory.getvalue()


def _arrow(columns: Mapping[str, Any]) -> bytes:
    pyarrow = optional("pyarrow", "an Arrow file")
    table = pyarrow.table(dict(columns))
    memory = io.BytesIO()
    with pyarrow.ipc.new_stream(memory, table.schema) as stream:
        stream.write_table(table)
    return memory.getvalue()


def _png(color: tuple[int, int, int]) -> bytes:
    pillow = optional("PIL.Image", "an image")
    memory = io.BytesIO()
    pillow.new("RGB", (6, 9), color).save(memory, "PNG")
    return memory.getvalue()


def _npy(array: np.ndarray) -> bytes:
    """Return the bytes of a NumPy file; array [...]."""
    memory = io.BytesIO()
    np.save(memory, array)
    return memory.getvalue()


_WRITERS: Mapping[str, Callable[[Any], bytes]] = {
    ".arrow": _arrow,
    ".csv": _csv,
    ".h5": _hdf5,
    ".jsonl": lambda records: _lines(map(json.dumps, records)),
    ".json": lambda content: json.dumps(content).encode(),
    ".npy": _npy,
    ".png": _png,
}
