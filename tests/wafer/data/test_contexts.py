"""Retrieved contexts before a prompt: as many as fit whole, the best first; rows by hand."""

import pytest
from helpers.records import write
from helpers.rows import rows_in, settings
from tokenizers import Tokenizer, models, pre_tokenizers

from wafer.data.preprocess.run import preprocess
from wafer.errors import ConfigError, DataError
from wafer.models.errors import SectionError

WORDS = ["<|endoftext|>", "<sep>", *"abcdefgh"]  # ids 0, 1, 2..9
RECORD = {"ctxs": ["c d", {"title": "e", "text": "f"}], "prompt": "a b", "completion": "g"}
KEYS = {"mode": "Summarization", "contexts_key": "ctxs", "context_separator": " <sep>"}


@pytest.fixture
def vocabulary(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="h"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = tmp_path / "words" / "tokenizer.json"
    path.parent.mkdir()
    tokenizer.save(str(path))
    return path.parent


def rows_of(tmp_path, vocabulary, records, **keys):
    path = write(tmp_path / "in.jsonl", records)
    preprocess(settings(tmp_path, vocabulary, input_dir=str(path), **(KEYS | keys)))
    return rows_in(tmp_path / "out").tolist()


@pytest.mark.parametrize(
    ("length", "ids", "loss_from"),
    [
        (10, [4, 5, 1, 6, 7, 1, 2, 3, 8, 0], 7),  # both
        (9, [4, 5, 1, 2, 3, 8, 0, 0, 0], 4),  # the second does not fit whole
        (6, [2, 3, 8, 0, 0, 0], 1),  # nor does the first
    ],
)
def test_as_many_as_fit(tmp_path, vocabulary, length, ids, loss_from):
    (row,) = rows_of(tmp_path, vocabulary, [RECORD], max_seq_length=length)
    mask = [int(loss_from <= at < loss_from + 2) for at in range(length)]  # g, and the end mark
    assert row == [ids, mask, [*ids[1:], 0]]


def test_rows_are_packed_side_by_side(tmp_path, vocabulary):
    few = RECORD | {"ctxs": []}
    keys = {"mode": "Summarization_VSL", "max_seq_length": 12}
    (row,) = rows_of(tmp_path, vocabulary, [RECORD, few], **keys)
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
def test_wrong_contexts_are_said(tmp_path, vocabulary, contexts, message):
    with pytest.raises(DataError, match=message):
        rows_of(tmp_path, vocabulary, [RECORD | {"ctxs": contexts}])


def test_a_prompt_that_does_not_fit_is_left_out(tmp_path, vocabulary):
    with pytest.raises(DataError, match="no row was made"):
        rows_of(tmp_path, vocabulary, [RECORD], max_seq_length=3)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mode": "LMData"}, "contexts_key: contexts go before a prompt, but mode LMData has none"),
        ({"multi_turn_key": "messages"}, "contexts_key: .* but a conversation has none"),
    ],
)
def test_other_modes_have_no_prompt(tmp_path, vocabulary, keys, message):
    with pytest.raises((ConfigError, SectionError), match=message):
        settings(tmp_path, vocabulary, **(KEYS | keys))
