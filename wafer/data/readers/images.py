"""Images with classes: MNIST's IDX files and scikit-learn's digits."""

import gzip
import math
import pathlib
import struct
import zlib
from typing import Any

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.rowsets import RowSource
from wafer.data.text.textfiles import find_files
from wafer.errors import DataError

_MEAN, _STD = 0.1307, 0.3081  # of MNIST's training pixels
_UNSIGNED_BYTE = 0x08


def read_idx(path: pathlib.Path) -> np.ndarray:
    """Read an IDX file of unsigned bytes (LeCun), gzipped or not.

    Raises:
        DataError: damaged, or something else.
    """
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        zero, kind, rank = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{rank}I", data, 4)
    except (OSError, EOFError, struct.error, zlib.error) as error:
        raise DataError(f"{path}: not an IDX file ({error})") from None
    body = data[4 + 4 * rank :]
    if zero or kind != _UNSIGNED_BYTE or len(body) != math.prod(shape):
        raise DataError(
            f"{path}: not a whole IDX file of bytes: type {kind:#04x}, shape {shape}, "
            f"{len(body)} bytes of values"
        )
    return np.frombuffer(body, np.uint8).reshape(shape)


def _dataset(
    cfg: Any, context: Context, images: np.ndarray, labels: np.ndarray, location: object
) -> Dataset:
    pixels = images.shape[1]
    if context.input_shape not in (None, (pixels,)):
        raise DataError(
            f"{location}: images of {pixels} pixels, but model.input_size is "
            f"{context.input_shape[0]}; set it to {pixels}"
        )
    classes = context.num_labels
    if classes is not None and labels.max() >= classes:
        row = int(labels.argmax())
        raise DataError(
            f"{location}, row {row + 1}: label {labels[row]} is outside the model's {classes} "
            "classes (model.num_classes)"
        )
    build = lambda example: {
        "images": images[example],
        "labels": np.asarray(labels[example], np.int32),
        "attention_mask": np.asarray(1, np.int32),  # this row is there
    }
    return Dataset(
        source=RowSource(range(len(images)), build, location),
        row_length=1,
        complete=True,
        summary=f"{location}: {len(images):,} images of {pixels} pixels",
    )


def mnist(cfg: Any, context: Context) -> Dataset:
    """Read train-* or t10k-* images and labels.

    Raises:
        DataError: files that are missing, damaged, or do not belong together.
    """
    stem = "train" if context.training else "t10k"
    files = []
    for name in (f"{stem}-images*idx3-ubyte*", f"{stem}-labels*idx1-ubyte*"):
        folders = [*cfg.data_dir, *(f"{d}/MNIST/raw" for d in cfg.data_dir)]  # torchvision's place
        existing = [d for d in folders if any(pathlib.Path(d).glob(name))]
        files.append(find_files(existing[:1] or cfg.data_dir, [name])[0])
    images, labels = map(read_idx, files)
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataError(
            f"{files[0]} has shape {images.shape} and {files[1]} {labels.shape}; expected "
            "[N, rows, columns] and [N]"
        )
    flat = images.reshape(len(images), -1).astype(np.float32) / 255
    return _dataset(cfg, context, (flat - _MEAN) / _STD, labels, files[0])


def digits(cfg: Any, context: Context) -> Dataset:
    """Load scikit-learn's digits; the last fifth is held out.

    Raises:
        DataError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError(
            "DigitsDataProcessor reads the digits that scikit-learn brings, and it is not "
            "installed: pip install scikit-learn"
        ) from None
    pixels, labels = map(np.asarray, load_digits(return_X_y=True))
    training = context.training if cfg.split is None else cfg.split == "train"
    part = slice(0, len(pixels) * 4 // 5) if training else slice(len(pixels) * 4 // 5, None)
    images = (pixels[part] / 8 - 1).astype(np.float32)  # 0..16 -> -1..1
    return _dataset(cfg, context, images, labels[part], "scikit-learn's digits")
