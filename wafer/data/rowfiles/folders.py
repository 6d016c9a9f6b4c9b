"""Folders of HDF5 rows made from folders of HDF5 rows: shuffled, or shared out."""

import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from wafer.data.rowfiles.described import PARAMS
from wafer.data.rowfiles.files import Hdf5Source, is_corpus
from wafer.data.rowfiles.writer import described, write_json, write_rows
from wafer.errors import DataError
from wafer.models.files import made_folder


def _open(folder: str | pathlib.Path, verb: str) -> Hdf5Source:
    if is_corpus(folder):
        raise DataError(
            f"{folder}: a corpus has no rows to {verb}; shuffle: true orders its windows while "
            "training, and data_subset: 0.0-0.9 reads a part of it"
        )
    return Hdf5Source([folder])


def _write(
    source: Hdf5Source, order: np.ndarray, target: pathlib.Path, samples_per_file: int
) -> None:
    """Write the rows of ``order`` into an empty folder, with their description."""
    existing = sorted(target.glob("*.h5"))
    if existing:
        raise DataError(f"{target}: holds {existing[0].name} already; give an empty folder")
    with made_folder(target):
        for number, rows in enumerate(_files(source, order, samples_per_file)):
            path = target / f"examples_{number:05d}.h5"
            write_rows(path, source.groups, rows, attachments=source.attachments)
    params = source.params or described(source.groups)
    write_json(target / PARAMS, params | {"n_examples": len(order), "output_dir": str(target)})
    if source.paths[0].with_name("tokenizer.json").is_file():
        from wafer.models.convert.tokenizer import carry_tokenizer  # imports JAX

        carry_tokenizer(source.paths[0].parent, target, alone=True)


def _files(source: Hdf5Source, order: np.ndarray, size: int) -> Iterator[list[np.ndarray]]:
    for start in range(0, len(order), size):
        rows = [source[int(index)] for index in order[start : start + size]]
        attached = [source.attached(int(index)) for index in order[start : start + size]]
        yield [
            *(
                np.stack([np.stack([row[name] for name in group.features]) for row in rows])
                for group in source.groups
            ),
            *map(np.stack, zip(*attached, strict=True)),
        ]


def shuffle_folder(
    source: str | pathlib.Path,
    target: str | pathlib.Path,
    *,
    seed: int = 0,
    samples_per_file: int = 50_000,
) -> int:
    """Write the rows of a folder in random order, over all its files.

    Args:
        source: folder of rows.
        target: folder to write, without HDF5 files.
        seed: of the order.
        samples_per_file: rows of every file but the last; they are held in memory.

    Returns:
        Number of rows.

    Raises:
        DataError: rows that cannot be read, or a target that is not empty.
    """
    rows = _open(source, "shuffle")
    order = np.random.default_rng(seed).permutation(len(rows))
    _write(rows, order, pathlib.Path(target), samples_per_file)
    return len(order)


def split_folder(
    source: str | pathlib.Path,
    target: str | pathlib.Path,
    ratios: Sequence[float],
    *,
    seed: int = 0,
    samples_per_file: int = 50_000,
) -> dict[pathlib.Path, int]:
    """Share the rows of a folder out at random to ``target/split_0``, ``split_1``, ...

    Rows keep their order inside a part, and every row goes to exactly one.

    Args:
        source: folder of rows.
        target: folder of the parts.
        ratios: positive shares; they need not sum to 1.
        seed: of who goes where.
        samples_per_file: rows of every file but the last.

    Returns:
        folder of each part -> its rows.

    Raises:
        DataError: shares that are not positive, or leave a part without a row.
    """
    if len(ratios) < 2 or min(ratios) <= 0:
        raise DataError(f"ratios: {list(ratios)}; expected at least two positive shares")
    rows = _open(source, "split")
    ends = np.round(np.cumsum(ratios) / np.sum(ratios) * len(rows)).astype(int)
    order = np.random.default_rng(seed).permutation(len(rows))
    splits = [np.sort(row_indices) for row_indices in np.split(order, ends[:-1])]
    if min(map(len, splits)) == 0:
        raise DataError(
            f"ratios: {list(ratios)} of {len(rows)} rows leave a part without any; "
            "give fewer parts or larger shares"
        )
    out: dict[pathlib.Path, int] = {}
    for index, row_indices in enumerate(splits):
        folder = pathlib.Path(target) / f"split_{index}"
        _write(rows, row_indices, folder, samples_per_file)
        out[folder] = len(row_indices)
    return out
