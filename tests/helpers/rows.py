"""Preprocessing settings, and the rows that a folder holds."""

import pathlib

import h5py
import numpy as np
from helpers.records import TEXTS, write

from wafer.vendor.preprocess.load import load_settings


def settings(tmp_path, vocabulary, **keys):
    path = tmp_path / "in.jsonl"
    if not path.exists():
        write(path, [{"text": text} for text in TEXTS])
    given = {"input_dir": str(path), "output_dir": str(tmp_path / "out"), "processes": 1}
    given |= {"tokenizer_type": "HuggingFaceTokenizer", "huggingface_tokenizer": str(vocabulary)}
    given |= {"max_seq_length": 4, "min_sequence_len": 0, "display_pbar": False}
    return load_settings(None, given | keys)


def rows_in(folder, name="data"):
    blocks = []
    for path in sorted(pathlib.Path(folder).glob("*.h5")):
        with h5py.File(path) as file:
            blocks.append(file[name][:])
            assert file.attrs["n_examples"] == len(blocks[-1])
    return np.concatenate(blocks)


def same_rows(one, other):
    files = [sorted(p.name for p in folder.glob("*.h5")) for folder in (one, other)]
    assert files[0] == files[1] != []
    for name in files[0]:
        with h5py.File(one / name) as a, h5py.File(other / name) as b:
            assert list(a) == list(b)
            for key in a:
                np.testing.assert_array_equal(a[key][:], b[key][:])
