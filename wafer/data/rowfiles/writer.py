"""HDF5 files of rows, written whole or not at all."""

import contextlib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from wafer.data.rowfiles.hdf5 import create_hdf5
from wafer.data.rowfiles.rules import Attachment, RowGroup
from wafer.models.files import atomic_write

Append = Callable[[Sequence[np.ndarray]], None]


def write_json(path: pathlib.Path, content: Mapping[str, object]) -> None:
    """Write a JSON file whole."""
    with atomic_write(path, sync=True) as partial:
        partial.write_text(json.dumps(content, indent=4) + "\n")


def described(groups: Sequence[RowGroup]) -> dict[str, Any]:
    """Say in ``data_params.json`` which features stand where."""
    longest = {"max_sequence_length": max(group.length for group in groups)}
    if len(groups) == 1:
        only = groups[0]
        return {"features": list(only.features), "features_len": only.length, **longest}
    named = {f"{group.name}_features": list(group.features) for group in groups}
    return named | {f"{g.name}_features_len": g.length for g in groups} | longest


@contextlib.contextmanager
def growing(
    path: pathlib.Path,
    groups: Sequence[RowGroup],
    compression: str | None,
    dtype: str = "i4",
    *,
    attachments: Sequence[Attachment] = (),
) -> Iterator[Append]:
    """Write a file piece by piece; it appears when the block ends well.

    Args:
        path: the file.
        groups: datasets of the "sample" format; none is the "corpus" format, ``data`` [N].
        compression: of the chunks, each one row of features.
        dtype: of the ids on disk.
        attachments: datasets besides.

    Yields:
        A function that takes the next rows: an array [N, F, S] or [N, F, K, S] for each group,
        then one for each attachment; or tokens [N].

    Raises:
        OSError: the disk takes no more.
    """
    plain = [Attachment(group.name, group.shape, dtype) for group in groups]
    plain = plain or [Attachment("data", (), dtype)]
    kinds = {"str": h5py.string_dtype()}
    with atomic_write(path, sync=True) as partial, create_hdf5(partial) as (file, check):
        datasets = [
            file.create_dataset(
                name,
                (0, *shape),
                kinds.get(kind, kind),
                maxshape=(None, *shape),
                chunks=(1, *shape) if shape else (1 << 16,),
                compression=compression,
                compression_opts=1 if compression == "gzip" else None,
                shuffle=compression == "gzip",  # smaller than level 4 without, in half the time
            )
            for name, shape, kind in (*plain, *attachments)
        ]

        def append(rows: Sequence[np.ndarray]) -> None:
            for data, values in zip(datasets, rows, strict=True):
                size = len(data)
                data.resize(size + len(values), axis=0)
                data[size:] = values.astype(object) if values.dtype.kind == "U" else values
            check()

        yield append
        file.attrs["n_examples"] = len(datasets[0])


def write_rows(
    path: pathlib.Path,
    groups: Sequence[RowGroup],
    rows: Sequence[np.ndarray],
    compression: str | None = "gzip",
    dtype: str = "i4",
    *,
    attachments: Sequence[Attachment] = (),
) -> None:
    """Write the "sample" format at once; see ``growing``."""
    with growing(path, groups, compression, dtype, attachments=attachments) as append:
        append(rows)
