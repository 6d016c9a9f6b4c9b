"""Pieces of a text in tokens: joined they are the text, whatever the tokenizer puts at its ends."""

import functools
import itertools

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from wafer.data.preprocess import encode
from wafer.data.preprocess.rows.layouts import layout_of
from wafer.data.preprocess.vocabulary import describe
from wafer.data.text.pieces import decode_inside, for_pieces
from wafer.vendor.preprocess.load import load_settings

TEXT = "the quick brown fox"
MARKS = ["<fim_prefix>", "<fim_middle>", "<fim_suffix>"]
_WORDS = ["▁the", "▁quick", "▁brown", "▁fox", "▁", *sorted(set(TEXT) - {" "})]


def _unigram():
    return Tokenizer(models.Unigram([(w, -float(i)) for i, w in enumerate(["?", *_WORDS])], 0))


def _metaspace(scheme):
    tokenizer = _unigram()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return tokenizer


def _prepend():
    """LLaMA's: no pre-tokenizer, the first space comes from a normalizer and is stripped."""
    tokenizer = _unigram()
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    back = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(back)
    return tokenizer


def _byte_level():
    space = pre_tokenizers.ByteLevel.alphabet()
    vocab = {token: i for i, token in enumerate(["<unk>", *sorted(space)])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZERS = {
    "always": lambda: _metaspace("always"),
    "first": lambda: _metaspace("first"),
    "prepend": _prepend,
    "byte level": _byte_level,
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pieces_joined_are_the_text_at_every_cut(kind):
    tokenizer = TOKENIZERS[kind]()
    tokenizer.add_special_tokens([*MARKS, "</s>"])
    pieces = for_pieces(tokenizer)
    mark = tokenizer.token_to_id(MARKS[0])
    whole = tokenizer.encode(TEXT).ids
    text = decode_inside(tokenizer, whole, mark)
    assert text == f" {TEXT}"  # with the space that the tokenizer put there
    assert pieces.encode(text).ids == whole
    for a, b in itertools.combinations_with_replacement(range(len(text) + 1), 2):
        cut = (text[:a], text[a:b], text[b:])
        joined = [i for part in cut for i in pieces.encode(part).ids]
        assert tokenizer.decode(joined).strip() == TEXT
        assert decode_inside(tokenizer, joined, mark) == text


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("spm_rate", [0.0, 1.0])
def test_a_row_with_a_moved_middle_holds_its_text(kind, spm_rate):
    tokenizer = TOKENIZERS[kind]()
    tokenizer.add_special_tokens([*MARKS, "</s>"])
    keys = {"mode": "FIM", "fim_rate": 1.0, "spm_rate": spm_rate, "max_seq_length": 64}
    files = {"tokenizer_type": "HuggingFaceTokenizer", "input_dir": "-"}
    settings = load_settings(None, keys | files)
    ids = describe(settings, tokenizer)
    encode.start_worker(encode.Encoder(settings, ids, tokenizer.to_str()), None)
    body = tokenizer.encode(TEXT).ids
    pre, mid, suf = (tokenizer.token_to_id(mark) for mark in MARKS)
    for seed in range(8):
        tokens = np.array([*body, ids.eos_id], np.int32)
        drawn = functools.partial(np.random.default_rng, seed)
        (row,) = layout_of(settings, ids, tokenizer).shape(tokens, drawn)
        moved = row[0].tolist()[: row[0].tolist().index(ids.eos_id)]
        at = {mark: moved.index(mark) for mark in (pre, mid, suf)}
        if spm_rate:  # pre, suf, suffix, mid, prefix, middle
            joined = moved[at[mid] + 1 :] + moved[at[suf] + 1 : at[mid]]
        else:
            joined = moved[at[pre] + 1 : at[suf]] + moved[at[mid] + 1 :]
            joined += moved[at[suf] + 1 : at[mid]]
        assert tokenizer.decode(joined).strip() == TEXT
