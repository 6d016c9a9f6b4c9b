"""Rows of sentence pairs, of prompts with retrieved contexts, and parts of data; all by hand."""

import json

import numpy as np
import pytest
from helpers.records import write
from helpers.rows import batches, device_batch, rows_in, same_rows, settings, word_tokenizer

from wafer.cli import main
from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.preprocess.parts import preprocess_parts, share_out
from wafer.data.preprocess.rows.sentences import SentencePacker
from wafer.data.preprocess.run import preprocess
from wafer.data.registry import parse_input
from wafer.data.rowfiles.files import Hdf5Source
from wafer.data.rowfiles.verify import verify_folder
from wafer.errors import ConfigError, DataError
from wafer.models.errors import SectionError


def bert_words(tmp_path):
    words = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(200))]
    return word_tokenizer(tmp_path / "bert", words, "[PAD]")


def test_sentence_pairs_follow_each_other_or_come_from_elsewhere(tmp_path):
    """Document d holds the words 10 d ... 10 d + 9, one a sentence: every pair can be read off."""
    texts = ["\n".join(f"w{10 * d + i}" for i in range(10)) for d in range(20)]
    path = write(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    keys = {"mode": "MLM_NSP", "max_seq_length": 9, "input_dir": str(path)}
    words = bert_words(tmp_path)
    for processes in (1, 2):
        out = str(tmp_path / str(processes))
        preprocess(settings(tmp_path, words, **keys, processes=processes, output_dir=out))
    same_rows(tmp_path / "1", tmp_path / "2")
    rows, labels = rows_in(tmp_path / "1", "data_0"), rows_in(tmp_path / "1", "data_1")
    assert labels.shape == (len(rows), 1, 1)
    seen = set()
    for (ids, mask, segments), label in zip(rows, labels[:, 0, 0], strict=True):
        used = ids[mask == 1]
        first, second, rest = np.split(used, np.flatnonzero(used == 2) + 1)
        assert used[0] == 1
        assert rest.size == 0
        assert len(used) <= 9
        assert segments[mask == 1].tolist() == [0] * len(first) + [1] * len(second)
        a, b = first[1:-1] - 4, second[:-1] - 4  # numbers of the words
        assert (np.diff(a) == 1).all()
        assert (np.diff(b) == 1).all()
        assert len(a) > 0 < len(b)
        assert (b[0] // 10 != a[0] // 10) if label else (b[0] == a[-1] + 1)
        seen |= set(a.tolist()) | (set() if label else set(b.tolist()))
    assert len(seen) > 185  # of 200: a sentence alone at a document's end may find no partner
    assert 0.35 < labels.mean() < 0.75
    assert verify_folder(tmp_path / "1").problems == []


def test_a_model_reads_sentence_pairs(tmp_path):
    texts = ["w1 w2. w3 w4. w5 w6.", "w7 w8! w9 w10? w11"] * 4
    path = write(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    keys = {"mode": "MLM_NSP", "max_seq_length": 12, "input_dir": str(path)}
    preprocess(settings(tmp_path, bert_words(tmp_path), **keys))
    section = {"data_processor": "BertHDF5DataProcessor", "data_dir": str(tmp_path / "out")}
    section |= {"batch_size": 2, "shuffle": False}
    data = build_dataset(parse_input(section), tmp_path, Context(training=True, vocab_size=204))
    batch = device_batch(batches(data, 2)[0])
    assert batch.extras["next_sentence_label"].shape == (2,)
    assert set(np.asarray(batch.extras["segment_ids"])) == {0, 1}
    assert (np.asarray(batch.extras["masked_weights"]) > 0).any()


def test_a_packer_goes_on_from_its_state():
    rng = np.random.default_rng(0)
    documents = [np.where(rng.random(40) < 0.2, 0, rng.integers(1, 50, 40)) for _ in range(12)]
    documents = [np.append(d, 0).astype(np.int32) for d in documents]
    make = lambda: SentencePacker(8, 0, 0.1, 2, seed=3)
    one, again = make(), make()
    whole = [pair for d in documents for pair in one.add(d)]
    half = make()
    first = [pair for d in documents[:5] for pair in half.add(d)]
    again.restore(half.state())
    rest = [pair for d in documents[5:] for pair in again.add(d)]
    same = lambda a, b: all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert len(whole) == len(first + rest) > 30
    assert all(map(same, whole, first + rest))
    assert all(len(p.first) + len(p.second) <= 8 for p in whole)


LETTERS = ["<|endoftext|>", "<sep>", *"abcdefgh"]  # ids 0, 1, 2..9
RECORD = {"ctxs": ["c d", {"title": "e", "text": "f"}], "prompt": "a b", "completion": "g"}
KEYS = {"mode": "Summarization", "contexts_key": "ctxs", "context_separator": " <sep>"}


@pytest.fixture
def letters(tmp_path):
    return word_tokenizer(tmp_path / "words", LETTERS, "h")


def rows_of(tmp_path, letters, records, **keys):
    path = write(tmp_path / "in.jsonl", records)
    preprocess(settings(tmp_path, letters, input_dir=str(path), **(KEYS | keys)))
    return rows_in(tmp_path / "out").tolist()


@pytest.mark.parametrize(
    ("length", "ids", "loss_from"),
    [
        (10, [4, 5, 1, 6, 7, 1, 2, 3, 8, 0], 7),  # both
        (9, [4, 5, 1, 2, 3, 8, 0, 0, 0], 4),  # the second does not fit whole
        (6, [2, 3, 8, 0, 0, 0], 1),  # nor does the first
    ],
)
def test_as_many_as_fit(tmp_path, letters, length, ids, loss_from):
    (row,) = rows_of(tmp_path, letters, [RECORD], max_seq_length=length)
    mask = [int(loss_from <= at < loss_from + 2) for at in range(length)]  # g, and the end mark
    assert row == [ids, mask, [*ids[1:], 0]]


def test_rows_are_packed_side_by_side(tmp_path, letters):
    few = RECORD | {"ctxs": []}
    keys = {"mode": "Summarization_VSL", "max_seq_length": 12}
    (row,) = rows_of(tmp_path, letters, [RECORD, few], **keys)
    assert row[0] == [4, 5, 1, 6, 7, 1, 2, 3, 8, 2, 3, 8]
    assert row[1] == [0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1]
    assert row[4] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2]


@pytest.mark.parametrize(
    ("contexts", "message"),
    [
        ("c d", "record 1: field 'ctxs' is str, expected a list of contexts"),
        (["c", {"body": "d"}], "record 1: field 'ctxs', context 2: expected a text, or an object"),
        ([{"title": 3, "text": "d"}], "context 1: expected a text"),
    ],
)
def test_wrong_contexts_are_said(tmp_path, letters, contexts, message):
    with pytest.raises(DataError, match=message):
        rows_of(tmp_path, letters, [RECORD | {"ctxs": contexts}])


def test_a_prompt_that_does_not_fit_is_left_out(tmp_path, letters):
    with pytest.raises(DataError, match="no row was made"):
        rows_of(tmp_path, letters, [RECORD], max_seq_length=3)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mode": "LMData"}, "contexts_key: contexts go before a prompt, but mode LMData has none"),
        ({"multi_turn_key": "messages"}, "contexts_key: .* but a conversation has none"),
    ],
)
def test_other_modes_have_no_prompt(tmp_path, letters, keys, message):
    with pytest.raises((ConfigError, SectionError), match=message):
        settings(tmp_path, letters, **(KEYS | keys))


NUMBERED = ["<|endoftext|>", *(f"w{i}" for i in range(40))]  # document i is words w<i> alone


@pytest.fixture
def numbered(tmp_path):
    texts = [{"text": " ".join([w] * (2 + i % 9))} for i, w in enumerate(NUMBERED[1:])]
    write(tmp_path / "in.jsonl", texts)
    return word_tokenizer(tmp_path / "words", NUMBERED, "w0")


def ids(folder):
    return set(rows_in(folder)[:, 0].ravel().tolist()) - {0}


@pytest.mark.parametrize("mode", ["LMData", "LMData_VSL"])
def test_no_document_is_in_two_parts(tmp_path, numbered, mode):
    keys = settings(tmp_path, numbered, mode=mode)
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


def test_a_folder_with_a_missing_file_is_refused(tmp_path, numbered):
    preprocess(settings(tmp_path, numbered, files_per_record=20))
    folder = tmp_path / "out"
    count = json.loads((folder / "data_params.json").read_text())["n_examples"]
    assert len(Hdf5Source([folder])) == count
    assert len(Hdf5Source([folder, folder])) == 2 * count  # named twice
    (folder / "examples_00001.h5").unlink()
    with pytest.raises(DataError, match=r"data_params.json tells of \d+ rows, found \d+; a file"):
        Hdf5Source([folder])
