"""Preprocessing settings, and the rows that a folder holds."""

import json
import pathlib

import h5py
import numpy as np
from helpers.records import TEXTS, write
from tokenizers import Tokenizer, models, pre_tokenizers

from wafer.data.batching.batches import host_batch, to_batch
from wafer.vendor.preprocess.load import load_settings


def word_tokenizer(folder, words, unknown):
    """A folder with a tokenizer of words, by their numbers: rows can be written down."""
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def batches(data, size, count=1):
    """The first batches of host rows."""
    loader = data.loader(size, num_epochs=None)
    rows = [next(loader) for _ in range(count)]
    loader.close()
    return rows


def device_batch(rows):
    """Host rows as the batch that a model gets."""
    return to_batch({name: value[0, 0] for name, value in host_batch(rows).items()})


def restarted(data, size):
    """The first two batches, drawn anew; a loader that goes on after the first gives the second."""
    loader = data.loader(size, num_epochs=None)
    first, state = next(loader), json.loads(json.dumps(loader.state()))
    second = next(loader)
    loader.close()
    again = data.loader(size, num_epochs=None)
    again.restore(state)
    np.testing.assert_array_equal(next(again)["input_ids"], second["input_ids"])
    again.close()
    assert (first["gather_positions"] != second["gather_positions"]).any()
    return first, second


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
