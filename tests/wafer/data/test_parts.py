"""Parts of data: no document on two sides, and none missing."""

import json

import pytest
from helpers.records import write
from helpers.rows import rows_in, settings
from tokenizers import Tokenizer, models, pre_tokenizers

from wafer.cli import main
from wafer.data.preprocess.parts import preprocess_parts, share_out
from wafer.data.preprocess.run import preprocess
from wafer.data.rowfiles.files import Hdf5Source
from wafer.errors import DataError

WORDS = ["<|endoftext|>", *(f"w{i}" for i in range(40))]  # document i is words w<i> alone


@pytest.fixture
def vocabulary(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (tmp_path / "words").mkdir()
    tokenizer.save(str(tmp_path / "words" / "tokenizer.json"))
    write(
        tmp_path / "in.jsonl",
        [{"text": " ".join([w] * (2 + i % 9))} for i, w in enumerate(WORDS[1:])],
    )
    return tmp_path / "words"


def ids(folder):
    return set(rows_in(folder)[:, 0].ravel().tolist()) - {0}


@pytest.mark.parametrize("mode", ["LMData", "LMData_VSL"])
def test_no_document_is_in_two_parts(tmp_path, vocabulary, mode):
    keys = settings(tmp_path, vocabulary, mode=mode)
    preprocess(keys)
    out, parts = str(tmp_path / "out"), str(tmp_path / "parts")
    assert main(["data", "split", "-i", out, "-o", parts, "--ratios", "0.8,0.2"]) == 0
    first, second = (ids(tmp_path / "parts" / f"split_{i}") for i in range(2))
    assert first & second == set()
    assert first | second == set(range(1, 41))
    assert 4 <= len(second) <= 13
    direct = keys.model_copy(update={"split": (0.8, 0.2), "output_dir": str(tmp_path / "direct")})
    list(preprocess_parts(direct))
    assert ids(tmp_path / "direct" / "split_1") == second
    with pytest.raises(DataError, match="holds all 2 parts already"):
        list(preprocess_parts(direct))
    (tmp_path / "in.jsonl").unlink()
    assert main(["data", "split", "-i", out, "-o", f"{parts}2", "--ratios", "1,1"]) == 1
    row = ["data", "split", "-i", out, "-o", f"{parts}3", "--ratios", "1,1", "--by", "row"]
    assert main(row) == 0


def test_every_part_has_a_document_and_equal_ones_stay_together():
    parts = share_out([("a" * 99,), ("b",), ("b",), ("c",)], [0.98, 0.01, 0.01], 0)
    assert sorted(parts.part_of((text,)) for text in ("a" * 99, "b", "c")) == [0, 1, 2]
    with pytest.raises(DataError, match="3 parts, but only 2 different"):
        share_out([("a",), ("b",), ("a",)], [1, 1, 1], 0)


def test_a_folder_with_a_missing_file_is_refused(tmp_path, vocabulary):
    preprocess(settings(tmp_path, vocabulary, files_per_record=20))
    folder = tmp_path / "out"
    assert (
        len(Hdf5Source([folder]))
        == json.loads((folder / "data_params.json").read_text())["n_examples"]
    )
    assert len(Hdf5Source([folder, folder])) == 2 * len(Hdf5Source([folder]))  # named twice
    (folder / "examples_00001.h5").unlink()
    with pytest.raises(
        DataError, match=r"data_params.json tells of \d+ rows, found \d+; a file is"
    ):
        Hdf5Source([folder])
