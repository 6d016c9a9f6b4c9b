"""A trained vocabulary has as many tokens as was asked for."""

import pytest

from wafer.data.preprocess.vocabulary import build_vocabulary
from wafer.errors import DataError
from wafer.vendor.preprocess.load import load_settings


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
