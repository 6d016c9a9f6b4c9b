"""HDF5 files in the vendor's layouts, written whole or not at all."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from models.files import appearing_whole
from wafer.data.rowfiles.rules import Group

__all__ = ["described", "write_corpus", "write_json", "write_rows"]


def write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole."""
    with appearing_whole(path, sync=True) as partial:
        partial.write_text(json.dumps(content, indent=4) + "\n")


def described(groups: Sequence[Group]) -> dict[str, Any]:
    """Say in ``data_params.json`` which features stand where, as the vendor does."""
    longest = {"max_sequence_length": max(group.length for group in groups)}
    if len(groups) == 1:
        only = groups[0]
        return {"features": list(only.features), "features_len": only.length, **longest}
    named = {f"{group.name}_features": list(group.features) for group in groups}
    return named | {f"{g.name}_features_len": g.length for g in groups} | longest


def write_rows(
    path: pathlib.Path,
    groups: Sequence[Group],
    rows: Sequence[np.ndarray],
    compression: str | None = "gzip",
    dtype: str = "i4",
) -> None:
    """Write the "sample" format.

    Args:
        path: the file; appears when it is complete.
        groups: its datasets.
        rows: one array [N, F, S] for each group.
        compression: of the chunks, each one row of features.
        dtype: of the ids on disk.
    """
    with appearing_whole(path, sync=True) as partial, h5py.File(partial, "w") as file:
        file.attrs["n_examples"] = len(rows[0])
        for group, values in zip(groups, rows, strict=True):
            file.create_dataset(
                group.name,
                data=values,
                dtype=dtype,
                chunks=(1, *values.shape[1:]),
                compression=compression,
            )


def write_corpus(path: pathlib.Path, tokens: np.ndarray, compression: str | None) -> None:
    """Write the "corpus" format: ``data`` [N], documents one after the other."""
    with appearing_whole(path, sync=True) as partial, h5py.File(partial, "w") as file:
        file.attrs["n_examples"] = len(tokens)
        chunks = (min(len(tokens), 1 << 16),)
        file.create_dataset("data", data=tokens, dtype="i4", chunks=chunks, compression=compression)
