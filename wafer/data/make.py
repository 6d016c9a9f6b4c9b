"""Four small valid data sets, each with a run file that trains on it: ``wafer data make``."""

import gzip
import pathlib
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import yaml

from wafer.data.batching.sources import FEATURES
from wafer.data.rowfiles.rules import RowGroup
from wafer.data.rowfiles.writer import write_rows
from wafer.errors import ConfigError, Problem
from wafer.models.errors import did_you_mean
from wafer.models.files import made_folder, write_text

_GOOD, _BAD = ["good", "fine", "great", "lovely"], ["bad", "poor", "dull", "awful"]
_PAIRS = [(name, place) for name in ("anna", "bob", "carl") for place in ("paris", "rome", "oslo")]
_VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "</s>", *_GOOD, *_BAD),
    *("anna", "bob", "carl", "paris", "rome", "oslo", "this", "film", "is", "very", "."),
    *("flew", "to", "saw"),
]
_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_heads": 2,
    "filter_size": 64,
    "max_position_embeddings": 64,
    "dropout_rate": 0.0,
}
_T5 = {
    "src_vocab_size": 64,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_heads": 2,
    "encoder_num_hidden_layers": 1,
    "dropout_rate": 0.0,
}
_FILES = {"data_dir": "{dir}"}
_WORDS = _FILES | {"vocab_file": "{dir}/vocab.txt", "max_sequence_length": 32}


class DataSet(NamedTuple):
    """A small data set of one processor."""

    write: Callable[[pathlib.Path, np.random.Generator], None]  #: its files into a folder
    model: Mapping[str, Any]  #: section of the smallest model that learns from it
    keys: Mapping[str, Any] = _FILES  #: of the input section; '{dir}' stands for the folder


def _token_rows(folder: pathlib.Path, rng: np.random.Generator) -> None:
    """Write rows of ids that count on from a random one: [24, 3, 16]."""
    ids = 5 + (rng.integers(5, 64, (24, 1)) + np.arange(17)) % 59  # the first five are special
    mask = np.arange(16) < rng.integers(8, 17, (24, 1))
    rows = np.stack([ids[:, :-1] * mask, mask, ids[:, 1:] * mask], axis=1)
    write_rows(folder / "rows.h5", [RowGroup("data", FEATURES, 16)], [rows])


def _sentiments(folder: pathlib.Path, rng: np.random.Generator) -> None:
    """Write GLUE's SST-2 files: a sentence and its class on each line."""
    for stem in ("train", "dev"):
        lines = ["sentence\tlabel"]
        for i in range(32):
            word = rng.choice(_GOOD if i % 2 else _BAD)
            lines.append(f"this film is {'very ' * int(rng.integers(3))}{word} .\t{i % 2}")
        _write_lines(folder / f"{stem}.tsv", lines)
    _write_lines(folder / "vocab.txt", _VOCABULARY)


def _pairs(folder: pathlib.Path, rng: np.random.Generator) -> None:
    """Write sources and targets, a pair on each line."""
    del rng
    lines = [f"{name} flew to {place} .\t{place} saw {name}" for name, place in _PAIRS]
    for stem in ("train", "dev"):
        _write_lines(folder / f"{stem}.tsv", ["source\ttarget", *lines])
    _write_lines(folder / "vocab.txt", _VOCABULARY)


def _images(folder: pathlib.Path, rng: np.random.Generator) -> None:
    """Write IDX files of 2 x 2 pixels: bright pixel number c is class c."""
    del rng
    for stem, ending, size in (("train", ".gz", 40), ("t10k", "", 20)):
        labels = np.arange(size) % 4
        images = (255 * np.eye(4)[labels]).reshape(size, 2, 2)
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            data = head + array.astype(np.uint8).tobytes()
            path = folder / f"{stem}-{name}-ubyte{ending}"
            path.write_bytes(gzip.compress(data) if ending else data)


def _write_lines(path: pathlib.Path, lines: Iterable[str]) -> None:
    write_text(path, "".join(f"{line}\n" for line in lines))


DATA_SETS: dict[str, DataSet] = {
    "GptHDF5DataProcessor": DataSet(_token_rows, _SIZES | {"name": "gpt2"}),
    "SST2DataProcessor": DataSet(
        _sentiments, _SIZES | {"name": "bert-sequence-classifier"}, _WORDS
    ),
    "Seq2SeqDataProcessor": DataSet(
        _pairs, _T5 | {"name": "t5"}, _WORDS | {"tgt_max_sequence_length": 8}
    ),
    "MNISTDataProcessor": DataSet(
        _images,
        {"name": "fc_mnist", "input_size": 4, "hidden_size": 16, "depth": 2, "num_classes": 4},
    ),
}


def run_file(name: str, dataset: DataSet, folder: str | pathlib.Path) -> dict[str, Any]:
    """Return the sections of a short run on a data set.

    Args:
        name: of the processor.
        dataset: its data set.
        folder: of the files.
    """
    data: dict[str, Any] = {"data_processor": name, "batch_size": 8}
    for key, value in dataset.keys.items():
        data[key] = value.format(dir=folder) if isinstance(value, str) else value
    return {
        "train_input": data | {"shuffle": True},
        "eval_input": data,
        "model": dict(dataset.model),
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.01},
        "runconfig": {
            "max_steps": 4,
            "eval_frequency": 4,
            "checkpoint_steps": 4,
            "seed": 1,
            "model_dir": str(pathlib.Path(folder) / "run"),
        },
    }


def write_set(name: str, data: DataSet, folder: str | pathlib.Path, seed: int = 0) -> pathlib.Path:
    """Write a data set, and ``params.yaml``, which trains on it.

    Args:
        name: of the processor.
        data: its data set.
        folder: where to; it is made.
        seed: of what is drawn.

    Returns:
        The run file.
    """
    root = pathlib.Path(folder)
    path = root / "params.yaml"
    with made_folder(root):
        data.write(root, np.random.default_rng(seed))
        write_text(path, yaml.safe_dump(run_file(name, data, root), sort_keys=False))
    return path


def make_data(name: str, folder: str | pathlib.Path, seed: int = 0) -> pathlib.Path:
    """Write one of the ``DATA_SETS``; see ``write_set``.

    Raises:
        ConfigError: a processor without a set.
    """
    if name not in DATA_SETS:
        known = ", ".join(DATA_SETS)
        message = f"{name!r}: no set is made for it{did_you_mean(name, DATA_SETS)}; made: {known}"
        raise ConfigError([Problem(("data_processor",), message)])
    return write_set(name, DATA_SETS[name], folder, seed)
