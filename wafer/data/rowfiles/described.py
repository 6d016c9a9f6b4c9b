"""What an HDF5 file of rows holds, found out before a row is read.

Someone else's file may lead out of itself, promise rows that were never stored, or be damaged so
that the HDF5 library hangs or crashes: a process of its own looks first, for a limited time.
"""

import contextlib
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import h5py

from wafer.data.batching.sources import FEATURES, PAIR_FEATURES, VSL_FEATURES
from wafer.data.rowfiles.rules import ATTACHED, RowGroup
from wafer.errors import DataError
from wafer.models.files import not_a_file
from wafer.models.guarded import call_in_subprocess

PARAMS = "data_params.json"
DAMAGE = (OSError, KeyError, RuntimeError, TypeError, ValueError)  # what h5py raises over it
_MASKED = FEATURES[:2]
_BY_COUNT = {
    2: _MASKED,
    3: FEATURES,
    4: (*_MASKED, *VSL_FEATURES[3:]),
    5: VSL_FEATURES,
    6: PAIR_FEATURES,
}
_IMAGE_ROW = ("text_input_ids", "loss_mask", "labels", "key_padding_mask", "token_modality_idx")
# of older rows for LLaVA; the last is 1 at real tokens
_OLD_IMAGE_ROW = (*_IMAGE_ROW[:3], *VSL_FEATURES[3:], "attention_mask")
_CHUNK = 256 << 20  # bytes of one chunk, which is in memory as a whole to read a row of it


class Described(NamedTuple):
    """What a file holds."""

    groups: tuple[RowGroup, ...]  #: its datasets; empty for a corpus
    size: int  #: rows, or tokens of a corpus
    promised: int | None  #: the attribute ``n_examples``, or None

    @property
    def corpus(self) -> bool:
        """Whether it is one list of tokens."""
        return not self.groups


def require_file(path: str | pathlib.Path, expected: str) -> None:
    """Refuse a pipe, a device or a folder, which a library would wait for or read without end.

    Args:
        path: to be opened.
        expected: description for the message.

    Raises:
        DataError: does not name the path.
        OSError: nothing is there.
    """
    problem = not_a_file(pathlib.Path(path))
    if problem:
        raise DataError(f"{problem}; expected {expected}")


@contextlib.contextmanager
def open_rows(path: pathlib.Path) -> Iterator[h5py.File]:
    """Open a file to read.

    Raises:
        DataError: it is not a whole HDF5 file, or damaged where it is read; names the file.
    """
    try:
        with _open(path) as file:
            yield file
    except DataError as error:
        raise DataError(f"{path}: {error}") from error.__cause__


@contextlib.contextmanager
def _open(path: str | pathlib.Path) -> Iterator[h5py.File]:
    """Open a file to read; the errors do not name it."""
    try:
        require_file(path, "an HDF5 file")
        file = h5py.File(path, "r")
    except DataError:
        raise
    except DAMAGE as error:
        message = f"not a readable HDF5 file ({error}); it may be truncated, write it again"
        raise DataError(message) from error
    try:
        with file:
            yield file
    except DataError:
        raise
    except DAMAGE as error:
        raise DataError(f"damaged HDF5 ({error}); write it again") from error


def own_dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """Return a dataset whose values lie in no other file.

    Raises:
        DataError: it is something else.
        KeyError: there is none.
    """
    link = file.get(name, getlink=True)
    if link is None:
        raise KeyError(f"no dataset {name!r}")
    if not isinstance(link, h5py.HardLink):
        raise DataError(f"{name!r} is a link to elsewhere; expected the dataset itself")
    data: Any = file[name]
    if not isinstance(data, h5py.Dataset):
        raise DataError(f"{name!r} is a group; expected a dataset")
    if data.is_virtual or data.external:
        raise DataError(f"dataset {name!r} has its values in other files; expected them here")
    return data


def _stored(file: h5py.File, name: str) -> h5py.Dataset:
    """A dataset of integers whose every value lies in this file.

    Raises:
        DataError: it is something else.
    """
    data = own_dataset(file, name)
    if data.dtype.kind not in "iu":
        raise DataError(f"dataset {name!r} holds {data.dtype}; expected integers, such as int32")
    if data.chunks is None:
        stored, all_ = data.id.get_storage_size(), data.nbytes
    else:
        if math.prod(data.chunks) * data.dtype.itemsize > _CHUNK:
            raise DataError(f"dataset {name!r} has chunks of {data.chunks}; expected single rows")
        along = [-(-n // c) for n, c in zip(data.shape, data.chunks, strict=True)]
        stored, all_ = data.id.get_num_chunks(), math.prod(along)
    if stored < all_:
        raise DataError(
            f"dataset {name!r} of shape {data.shape} was never filled: {stored:,} of {all_:,} "
            f"{'bytes' if data.chunks is None else 'chunks'} are there"
        )
    return data


def _features(
    name: str, shape: tuple[int, ...], params: dict[str, Any], *, images: bool
) -> tuple[str, ...]:
    names = params.get("features" if name == "data" else f"{name}_features")
    if images and not names:
        names = _OLD_IMAGE_ROW if shape[1] == 6 else _IMAGE_ROW[: shape[1]]
    if name == "labels":
        names = ("labels", "masked_lm_positions", "masked_lm_mask")[: shape[1]]
    features = tuple(names) if names else _BY_COUNT.get(shape[1])
    if features is None or len(features) != shape[1]:
        named = f"{len(features)} features ({', '.join(features)})" if features else ""
        raise DataError(
            f"dataset {name!r} has shape {shape}; "
            + (
                f"{PARAMS} names {named}"
                if named
                else "expected [N, 3, S] (input_ids, mask, labels), [N, 5, S] (plus "
                "attention_span, position_ids) or [N, 6, S] (of a chosen and a rejected answer), "
                f"or a {PARAMS} that names the features"
            )
        )
    return features


def look(path: str, params: dict[str, Any]) -> Described:
    """``describe``, in the process that calls it; the errors do not name the file."""
    with _open(path) as file:
        promised: Any = file.attrs.get("n_examples")
        promised = None if promised is None else int(promised)
        names = sorted(name for name in map(str, file) if name == "data" or name[:5] == "data_")
        if "labels" in file and names:
            names.append("labels")  # BERT rows with static masks
        if not names:
            raise DataError("holds no dataset 'data'")
        datasets = {name: _stored(file, name) for name in names}
        if names[0] == "data" and datasets["data"].ndim == 1:
            return Described((), len(datasets["data"]), promised)
        groups = []
        for name, data in datasets.items():
            if data.ndim not in (3, 4) or 0 in data.shape[1:]:
                raise DataError(f"dataset {name!r} has shape {data.shape}; expected [N, F, S]")
            contexts = data.shape[2] if data.ndim == 4 else 0
            features = _features(name, data.shape, params, images=ATTACHED[0] in file)
            groups.append(RowGroup(name, features, data.shape[-1], contexts))
        counts = {len(data) for data in datasets.values()}
        if len(counts) > 1:
            raise DataError(f"its datasets {', '.join(names)} have {sorted(counts)} rows")
        return Described(tuple(groups), counts.pop(), promised)


def describe(path: pathlib.Path, params: dict[str, Any]) -> Described:
    """What a file holds.

    Args:
        path: the file.
        params: content of ``data_params.json``, which may name the features.

    Raises:
        DataError: it does not hold rows or tokens; names the file.
    """
    function, whole = "wafer.data.rowfiles.described:look", os.path.abspath(path)
    try:
        groups, size, promised = call_in_subprocess(function, whole, params)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    return Described(tuple(RowGroup(n, tuple(f), *own) for n, f, *own in groups), size, promised)
