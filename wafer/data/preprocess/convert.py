"""``convert_dataset_to_hdf5``: any iterable of feature dicts into HDF5 files."""

import itertools
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from wafer.data.rowfiles.described import PARAMS
from wafer.data.rowfiles.rules import RowGroup
from wafer.data.rowfiles.writer import described, write_json, write_rows
from wafer.errors import DataError
from wafer.models.files import file_name

Features = Mapping[str, Any]


def convert_dataset_to_hdf5(
    dataset: Iterable[Features],
    output_dir: str | pathlib.Path = "./hdf5_dataset/",
    name: str = "dataset-partition",
    samples_per_file: int = 2000,
    *,
    num_workers: int = 8,
    batch_size: int = 64,
    data_collator: Callable[[Sequence[Features]], Features] | None = None,
    dtype: str = "i4",
    compression: str | None = "gzip",
) -> list[pathlib.Path]:
    """Write a dataset's features into ``NAME-1.h5``, ``NAME-2.h5``, ... in the "sample" format.

    Features of one length share the dataset ``data`` [N, F, S]; of different lengths, ``data_0``,
    ``data_1``, ... in the order in which the lengths first appear. ``data_params.json`` says which
    features stand where.

    Args:
        dataset: feature dicts, each value [S]; for example a Hugging Face dataset.
        output_dir: folder; made if missing.
        name: prefix of the file names.
        samples_per_file: N of every file but the last.
        num_workers: has no effect: the dataset is read in this process.
        batch_size: examples given to ``data_collator`` at once.
        data_collator: list of examples -> dict of arrays [batch, S]; stacks them when None.
        dtype: of the files, an HDF5 type code.
        compression: of the chunks, or None.

    Returns:
        The files written.

    Raises:
        DataError: no example, or an example whose features differ from the first's.
        ValueError: ``name`` has folders in it.
    """
    file_name(name)
    del num_workers
    folder = pathlib.Path(output_dir)
    collate = data_collator or (lambda batch: {k: [one[k] for one in batch] for k in batch[0]})
    groups: tuple[RowGroup, ...] = ()
    waiting: list[list[np.ndarray]] = []
    paths: list[pathlib.Path] = []
    count = 0

    def write(rows: int) -> None:
        whole = [np.concatenate(parts) for parts in waiting]
        paths.append(folder / f"{name}-{len(paths) + 1}.h5")
        write_rows(paths[-1], groups, [g[:rows] for g in whole], compression, dtype)
        waiting[:] = [[g[rows:]] for g in whole]

    examples = iter(dataset)
    while batch := list(itertools.islice(examples, batch_size)):
        features = {key: np.asarray(value) for key, value in collate(batch).items()}
        if not groups:
            groups = _groups(features)
            waiting[:] = [[] for _ in groups]
        for kept, new in zip(waiting, _grouped(features, groups, count), strict=True):
            kept.append(new)
        count += len(batch)
        while sum(map(len, waiting[0])) >= samples_per_file:
            write(samples_per_file)
    if count == 0:
        raise DataError("the dataset holds no example; there is nothing to write")
    if sum(map(len, waiting[0])):
        write(samples_per_file)
    params = {
        "n_examples": count,
        **described(groups),
        "dtype": dtype,
        "compression": compression,
        "samples_per_file": samples_per_file,
        "output_dir": str(folder),
    }
    write_json(folder / PARAMS, params)
    return paths


convert_dataset_to_HDF5 = convert_dataset_to_hdf5
"""Another spelling."""


def _groups(features: Mapping[str, np.ndarray]) -> tuple[RowGroup, ...]:
    lengths: dict[int, list[str]] = {}
    for key, value in features.items():
        if value.ndim != 2:
            raise DataError(
                f"feature {key!r}: shape {value.shape[1:]} of an example; expected one axis, the "
                "same length in all"
            )
        lengths.setdefault(value.shape[1], []).append(key)
    one = len(lengths) == 1
    return tuple(
        RowGroup("data" if one else f"data_{i}", tuple(names), length)
        for i, (length, names) in enumerate(lengths.items())
    )


def _grouped(
    features: Mapping[str, np.ndarray], groups: Sequence[RowGroup], first: int
) -> list[np.ndarray]:
    for group in groups:
        for name in group.features:
            shape = features[name].shape[1:] if name in features else None
            if shape != (group.length,):
                raise DataError(
                    f"examples from {first} on: feature {name!r} has shape {shape}, but the first "
                    f"example's has ({group.length},); pad to one length (data_collator)"
                )
    return [np.stack([features[name] for name in group.features], axis=1) for group in groups]
