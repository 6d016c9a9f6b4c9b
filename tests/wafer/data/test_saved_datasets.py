"""Folders that Hugging Face's ``datasets`` saved; the golden one by its release 5.2.0."""

import json
import shutil

import pytest
from helpers.finetune_data import VOCAB, vocab
from helpers.paths import GOLDEN
from helpers.records import write

from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.registry import parse_input
from wafer.errors import DataError

pytest.importorskip("pyarrow")
SAVED = GOLDEN / "saved_dataset"
ID = {token: index for index, token in enumerate(VOCAB)}
END = ID["<|endoftext|>"]


def ids(text):
    return [ID[token] for token in text.split()]


def read(tmp_path, folder=SAVED, training=True, **keys):
    values = {"batch_size": 1, "max_sequence_length": 4, "vocab_file": vocab(tmp_path)} | keys
    own = {"data_processor": "HuggingFaceDataProcessor", "data_dir": str(folder)}
    data = build_dataset(parse_input(own | values), tmp_path, Context(training=training))
    return [{k: v.tolist() for k, v in data.source[i].items()} for i in range(len(data.source))]


def saved(folder, records, **state):
    """A folder as ``save_to_disk`` writes it."""
    folder.mkdir()
    write(folder / "data-00000-of-00001.arrow", records)
    files = [{"filename": "data-00000-of-00001.arrow"}]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_split": None} | state))
    return folder


def test_texts_stand_end_to_end(tmp_path):
    """Eleven tokens of two shards in rows of four: the last three are dropped."""
    first, second = read(tmp_path)
    assert first["labels"] == ids("anna lives in rome")
    assert first["input_ids"] == [END, *ids("anna lives in")]
    assert second["labels"] == ids("bob saw the film")
    assert second["input_ids"] == [END, *ids("bob saw the")]
    assert first["attention_mask"] == [1, 1, 1, 1]


def test_vendor_keys_and_the_parts_of_a_dictionary(tmp_path):
    vendor = {"split": "test", "shuffle": True, "shuffle_seed": 1337, "shuffle_buffer": 16}
    vendor |= {"num_workers": 8, "prefetch_factor": 10, "persistent_workers": True}
    assert [row["labels"] for row in read(tmp_path, **vendor)] == [ids("carl was in oslo")]
    by_default = read(tmp_path, training=False)
    assert by_default == read(tmp_path, **vendor)


def test_records_of_their_own_for_packing(tmp_path):
    rows = read(tmp_path, use_vsl=True, eos_token="<|endoftext|>")
    texts = ["anna lives in rome", "<|endoftext|>", "bob saw the film", "<|endoftext|>"]
    assert [row["labels"] for row in rows] == [*map(ids, texts), [*ids("it was fine"), END]]


def test_ids_that_were_saved(tmp_path):
    records = [
        {"input_ids": [7, 8, 9], "attention_mask": [1, 1, 0]},
        {"input_ids": [10, 11, 12], "attention_mask": [1, 1, 1]},
    ]
    (row,) = read(tmp_path, saved(tmp_path / "a", records))
    assert (row["input_ids"], row["labels"]) == ([END, 7, 8, 10], [7, 8, 10, 11])


def test_lists_of_texts_are_joined(tmp_path):
    folder = saved(tmp_path / "a", [{"answers.text": ["anna lives", "in rome"]}])
    (row,) = read(tmp_path, folder, text_key="answers.text")
    assert row["labels"] == ids("anna lives in rome")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"split": "dev"}, r"saved_dataset has train, test; looked for dev"),
        ({"text_key": "body"}, r"00000-of-00002.arrow: no column 'body' \(text_key\).*has: text"),
        ({"max_sequence_length": 12}, "3 records with 11 tokens fill no row of 12"),
        ({"bos_token": "<s>"}, "vocab.txt: no token <s>"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path, keys, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, **keys)


def test_wrong_folders_are_said(tmp_path):
    with pytest.raises(DataError, match=r"neither state.json nor dataset_dict.json"):
        read(tmp_path, tmp_path)
    folder = saved(tmp_path / "a", [{"text": "it"}], _split="train[:10]")
    with pytest.raises(DataError, match=r"split: 'test', but .*a holds 'train\[:10\]'"):
        read(tmp_path, folder, split="test")
    folder = saved(tmp_path / "b", [{"input_ids": [7, 99]}])
    with pytest.raises(DataError, match=r"arrow: record 1: .*ids below 5\d, the size of vocab.txt"):
        read(tmp_path, folder)
    folder = tmp_path / "c"
    shutil.copytree(SAVED / "train", folder)
    whole = (folder / "data-00000-of-00002.arrow").read_bytes()
    (folder / "data-00000-of-00002.arrow").write_bytes(whole[:300])
    with pytest.raises(DataError, match=r"c/data-00000-of-00002.arrow: cannot be read"):
        read(tmp_path, folder)
