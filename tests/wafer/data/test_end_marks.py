"""The token after an answer: the section's, the default, or the one that the files name."""

import json

import pytest
from tokenizers import Tokenizer, models as kinds, pre_tokenizers

from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.readers.text.preferences import read_pairs
from wafer.data.registry import parse_input
from wafer.errors import DataError

WORDS = {"<unk>": 0, "<s>": 1, "</s>": 2, "who": 3, "anna": 4, "bob": 5, "<end>": 6}
PAIR = {"prompt": "who", "chosen": "anna", "rejected": "bob", "completion": "anna"}
PAIR |= {"source": "who", "target": "anna"}
NAMED = {"eos_token": {"content": "</s>"}, "bos_token": "<s>"}


def section(folder, processor, words=WORDS, **keys):
    """A section whose vocabulary has a folder of its own."""
    tokenizer = Tokenizer(kinds.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "train.jsonl").write_text(json.dumps(PAIR) + "\n")
    values = {"data_processor": processor, "data_dir": str(folder), "batch_size": 1}
    values |= {"vocab_file": str(folder / "tokenizer.json"), "max_sequence_length": 8}
    return parse_input(values | keys)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_ids.json", "config.json"])
def test_answers_end_as_the_files_of_the_tokenizer_say(tmp_path, name):
    ids = {"eos_token_id": [2, 6], "bos_token_id": 1}
    (tmp_path / name).write_text(json.dumps(NAMED if name == "tokenizer_config.json" else ids))
    dpo = section(tmp_path, "PreferenceDataProcessor")
    (pair,), _ = read_pairs(dpo, [tmp_path / "train.jsonl"], None)
    assert [answer[2].tolist()[-1] for answer in pair.answers] == [2, 2]
    prompts = section(tmp_path, "PromptCompletionDataProcessor")
    row = build_dataset(prompts, tmp_path, Context(training=True)).source[0]
    assert row["labels"].tolist()[-1] == 2


def test_a_named_token_and_a_default_that_is_there_win(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(NAMED))
    both = WORDS | {"<|endoftext|>": 7}
    for words, keys, end in ((both, {}, 7), (WORDS, {"eos_token": "<end>"}, 6)):
        dpo = section(tmp_path, "PreferenceDataProcessor", words, **keys)
        (pair,), _ = read_pairs(dpo, [tmp_path / "train.jsonl"], None)
        assert pair.answers[0][2].tolist()[-1] == end


def test_a_token_that_no_file_names_is_an_error(tmp_path):
    for keys in ({}, {"eos_token": "<eot>"}):
        dpo = section(tmp_path, "PreferenceDataProcessor", **keys)
        with pytest.raises(DataError, match="no token <"):
            read_pairs(dpo, [tmp_path / "train.jsonl"], None)
