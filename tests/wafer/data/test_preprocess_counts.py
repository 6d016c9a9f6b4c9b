"""Special tokens in a text, positions with loss, sizes of vocabularies, and a full disk."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest
from helpers.records import write
from helpers.rows import rows_in, same_rows, settings
from helpers.vendor_data import hook_file, run

from wafer.data.batching.dataset import Dataset
from wafer.data.preprocess.run import preprocess
from wafer.data.preprocess.vocabulary import build_vocabulary
from wafer.data.text.tokenizer import END_OF_TEXT, load_tokenizer
from wafer.errors import DataError
from wafer.session.hints import first_words
from wafer.vendor.preprocess.load import load_settings

TEXT = f"before {END_OF_TEXT} after {END_OF_TEXT}!"


def _preprocessed(tmp_path, **keys):
    write(tmp_path / "in.jsonl", [{"text": TEXT}, {"text": "plain"}])
    trained = {"tokenizer_type": "TrainBPE", "vocab_size": 258, "max_seq_length": 16}
    keys |= trained | {"min_sequence_len": 1}
    report = preprocess(settings(tmp_path, None, **keys))
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
    made = lambda ids, **keys: Dataset(source=[{"input_ids": ids}], row_length=16, **keys)
    told = lambda *ids, **keys: first_words(made(*ids, **keys))
    whole = {"tokenizer": tokenizer.to_str()}
    assert told(np.array(tokens), **whole) == "before"  # the mark stands between two spaces
    ids = np.array(tokenizer.encode('"$HOME" is `mine`, he said').ids)
    assert (told(ids, **whole), told(ids)) == ("HOME", "The")


@pytest.mark.parametrize("mode", ["LMData", "MLM", "T5"])
def test_what_carries_loss_is_counted(tmp_path, mode):
    """Next tokens and a decoder's; those of a masked model are drawn when rows are read."""
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.jsonl", [{"text": "the cat sat on the mat " * 20}] * 8)
    keys = {"mode": mode, "input_dir": str(tmp_path / "in"), "output_dir": str(tmp_path / "out")}
    keys |= {"tokenizer_type": "TrainBPE", "vocab_size": 400, "max_seq_length": 64, "processes": 1}
    keys |= {"tgt_max_sequence_length": 32} if mode == "T5" else {}
    report = preprocess(load_settings(None, keys | {"min_sequence_len": 0, "display_pbar": False}))
    count = report.params["post-process"].get("loss_valid_tokens")
    if mode == "MLM":
        assert count is None
        assert "those that carry loss are drawn at every reading" in str(report)
    else:
        rows = rows_in(tmp_path / "out", "data_1" if mode == "T5" else "data")
        assert count == rows[:, 1].sum() > 0
        assert f"{count:,} carry loss" in str(report)


def _settings(mode, size):
    keys = {"tokenizer_type": "TrainBPE", "input_dir": "in", "output_dir": "out"}
    return load_settings(None, keys | {"mode": mode, "vocab_size": size})


@pytest.mark.parametrize("mode", ["LMData", "MLM", "FIM"])
def test_special_tokens_are_counted(mode):
    texts = ["the quick brown fox jumps over the lazy dog"] * 3
    assert build_vocabulary(_settings(mode, 270), texts).get_vocab_size() == 270


def test_no_room_for_special_tokens():
    with pytest.raises(DataError, match=r"vocab_size: 260 .* \[MASK\]; use 261 or more"):
        build_vocabulary(_settings("MLM", 260), [])


LIMITED = """
import resource, sys
from wafer.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(main(sys.argv[2:]))
"""


def test_a_file_that_the_disk_does_not_take_is_one_error_and_no_file(tmp_path):
    letters = random.Random(0)
    texts = ["".join(letters.choices("abcdefgh", k=99)) for _ in range(60)]
    path = hook_file(tmp_path, [{"text": text} for text in texts])
    command = ["data", "preprocess", "-p", str(path), "--display_pbar", "false"]
    for size, file in ((100, "tokenizer.json"), (40_000, "")):
        limited = [sys.executable, "-c", LIMITED, str(size), *command]
        ended = subprocess.run(limited, capture_output=True, text=True, check=False)
        assert ended.returncode == 1  # HDF5 would crash when the process ends
        assert ended.stderr.count("\n") == 1
        assert f"{file}: File too large. The disk takes no more" in ended.stderr
        assert (tmp_path / "out").exists() == (not file)
    left = {file.name for file in (tmp_path / "out").iterdir()}
    assert left == {"tokenizer.json", "tokenizer_config.json", "special_ids.json"}
    run(path)
    run(path, output_dir=str(tmp_path / "whole"))
    same_rows(tmp_path / "out", tmp_path / "whole")
