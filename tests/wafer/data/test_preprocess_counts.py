"""Special tokens that stand in a user's text, and prompts that are taken from it."""

import json

import numpy as np
import pytest
from helpers.records import write
from helpers.rows import rows_in

from wafer.data.batching.dataset import Dataset
from wafer.data.preprocess.run import preprocess
from wafer.data.text.tokenizer import END_OF_TEXT, load_tokenizer
from wafer.session.hints import first_words
from wafer.vendor.preprocess.load import load_settings

TEXT = f"before {END_OF_TEXT} after {END_OF_TEXT}!"


def _preprocessed(tmp_path, **keys):
    write(tmp_path / "in.jsonl", [{"text": TEXT}, {"text": "plain"}])
    settings = load_settings(
        None,
        {
            "input_dir": str(tmp_path / "in.jsonl"),
            "output_dir": str(tmp_path / "out"),
            "processes": 1,
        }
        | {"tokenizer_type": "TrainBPE", "vocab_size": 258, "max_seq_length": 16}
        | {"min_sequence_len": 1, "display_pbar": False, **keys},
    )
    report = preprocess(settings)
    tokenizer = load_tokenizer(tmp_path / "out" / "tokenizer.json")
    rows = rows_in(tmp_path / "out")
    tokens = np.concatenate([row[0][row[1] > 0] for row in rows]).tolist()
    return report, tokenizer, tokens


@pytest.mark.parametrize(("as_text", "marks"), [(False, 2), (True, 0)])
def test_a_mark_in_a_text_is_counted_or_read_as_text(tmp_path, as_text, marks):
    report, tokenizer, tokens = _preprocessed(tmp_path, encode_special_tokens=as_text)
    assert report.counts.marks == marks
    params = json.loads((tmp_path / "out" / "data_params.json").read_text())
    assert params["post-process"]["special_tokens_in_texts"] == marks
    assert ("2 special token(s), such as <|endoftext|>, stood in" in str(report)) is not as_text
    end = tokenizer.token_to_id(END_OF_TEXT)
    assert tokens.count(end) == 1 + marks  # between the documents, and those in the text
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    assert (END_OF_TEXT in text) is as_text


def test_a_prompt_is_the_beginning_of_the_training_text(tmp_path):
    _, tokenizer, tokens = _preprocessed(tmp_path)
    data = Dataset(
        source=[{"input_ids": np.array(tokens)}], row_length=16, tokenizer=tokenizer.to_str()
    )
    assert first_words(data) == "before"  # two spaces follow: the mark stands between them
    ids = np.array(tokenizer.encode('"$HOME" is `mine`, he said').ids)
    data = Dataset(source=[{"input_ids": ids}], row_length=16, tokenizer=tokenizer.to_str())
    assert first_words(data) == "HOME"
    assert first_words(Dataset(source=[{"input_ids": ids}], row_length=16)) == "The"
