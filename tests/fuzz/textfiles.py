"""JSON lines of records, and ``tokenizer.json``."""

import json

import numpy as np

from fuzz.mutations import EDGES, damaged
from wafer.data.preprocess.records import TEXT, batches
from wafer.data.text.tokenizer import load_tokenizer, token_bytes, train_bpe

_ODD = [
    b'{"text": "\\ud800"}',
    b'{"text": "\xed\xa0\x80"}',
    b'{"text": 5}',
    b'{"a": "b"}',
    b"[" * 100_000,
    b'{"text":' * 100_000,
    b'{"text": "' + b"9" * 6000 + b'"}',
    b"9" * 6000,
    b'{"text": NaN}',
    b'{"text": null, "text": "x"}',
    b"\xff\xfe{\0}\0",
    b"null",
    b'{"text": "\0"}',
]


def line_files(rng, folder):
    """Damaged lines, and lines of odd content."""
    sound = b"".join(
        json.dumps({"text": "word \u00e9 \U0001f600 " * n}).encode() + b"\n" for n in range(5)
    )
    while True:
        content = damaged(sound, rng) if rng.random() < 0.5 else sound + rng.choice(_ODD) + b"\n"
        yield "a.jsonl", content, _all_text


def _all_text(records):
    texts = [text for record in records for text in record.values]
    json.dumps(texts, ensure_ascii=False).encode()
    return "" if all(isinstance(text, str) for text in texts) else "no text"


def read_lines(path):
    """All records of a file."""
    return [record for batch in batches([path], TEXT) for record in batch.records]


def tokenizer_files(rng, folder):
    """Damaged tokenizers; ids at the edges, parts of other types, patterns that are none."""
    sound = train_bpe(["some words to learn some words from"], 300).to_str().encode()
    odd = [None, 1, "x", [], {}, {"type": "BPE"}, {"type": "Nothing"}, "(((", [[[]]]]
    while True:
        if rng.random() < 0.5:
            yield "tokenizer.json", damaged(sound, rng), None
            continue
        content = json.loads(sound)
        kind = rng.randrange(3)
        if kind == 0:
            content[rng.choice(list(content))] = rng.choice(odd)
        elif kind == 1:
            vocabulary = content["model"]["vocab"]
            vocabulary[rng.choice(list(vocabulary))] = rng.choice(EDGES)
        else:
            content["model"][rng.choice(list(content["model"]))] = rng.choice(odd)
        yield "tokenizer.json", json.dumps(content).encode(), None


def read_tokenizer(path):
    """Loaded, measured, and used once."""
    tokenizer = load_tokenizer(path)
    assert np.all(token_bytes(tokenizer) >= 0)
    return tokenizer
