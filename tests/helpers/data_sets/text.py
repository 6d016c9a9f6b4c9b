"""Columns of the text formats: a few words in which every task can be learned."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from helpers.data_sets.files import Files

Draw = np.random.Generator
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "</s>", "<|endoftext|>"]
GOOD, BAD = ["good", "fine", "great", "lovely"], ["bad", "poor", "dull", "awful"]
NAMES, PLACES = ["anna", "bob", "carl"], ["paris", "rome", "oslo"]
_OTHER = (
    "film very is was a the it this one who where lives in flew to saw . ? b c "
    "weather news sport says reports today nobody cares about lunch ##s ##ly"
)
VOCAB = [*SPECIAL, *dict.fromkeys([*GOOD, *BAD, *NAMES, *PLACES, *_OTHER.split()])]
MNLI = [
    ("bob lives in rome .", "bob lives in rome .", "entailment"),
    ("bob lives in rome .", "anna was in oslo .", "neutral"),
    ("bob lives in rome .", "nobody lives in rome .", "contradiction"),
    ("the film was good .", "the film was fine .", "-"),
]
FOLDS = ("MKV", "WWC")  # what the proteins of each fold are made of


def _homes(count: int) -> list[tuple[str, str]]:
    """Return (name, place) pairs, each name with each place in turn."""
    both = [(name, place) for name in NAMES for place in PLACES]
    return [both[i % len(both)] for i in range(count)]


def _both(stems: Sequence[str], ending: str, content: Any) -> Files:
    return {f"{stem}.{ending}": content for stem in stems}


def mnli(rng: Draw, count: int) -> Files:
    """Return GLUE's MNLI files, the mismatched part as MultiNLI's JSON lines."""
    del rng, count
    head = "index\tsentence1\tsentence2\tlabel1\tgold_label"
    lines = [head, *(f"{i}\t{a}\t{b}\tx\t{gold}" for i, (a, b, gold) in enumerate(MNLI))]
    rows = [{"sentence1": a, "sentence2": b, "gold_label": gold} for a, b, gold in MNLI[:2]]
    files = _both(("train", "dev_matched"), "tsv", lines)
    return {**files, "multinli_1.0_dev_mismatched.jsonl": rows}


def squad(rng: Draw, count: int) -> Files:
    """Return SQuAD 1.1's JSON: two questions to each context."""
    del rng, count
    paragraphs = []
    for i, name in enumerate(NAMES):
        for j, place in enumerate(PLACES):
            other = NAMES[(i + 1) % 3]
            context = f"{other} saw the film . {name} lives in {place} . it was fine ."
            answer = lambda text, context=context: [
                {"text": text, "answer_start": context.index(text)}
            ]
            qas = [
                {"id": f"w{i}{j}", "question": f"where lives {name} ?", "answers": answer(place)},
                {"id": f"p{i}{j}", "question": f"who lives in {place} ?", "answers": answer(name)},
            ]
            paragraphs.append({"context": context, "qas": qas})
    whole = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
    return _both(("train-v1.1", "dev-v1.1"), "json", whole)


def conll(rng: Draw, count: int) -> Files:
    """Return CoNLL-2003's columns: word, part of speech, chunk, entity."""
    del rng, count
    lines = ["-DOCSTART- -X- O O", ""]
    for name, place in _homes(9):
        lines += [f"{name} N I-NP B-PER", "lives V O O", "in P O O"]
        lines += [f"{place} N I-NP B-LOC", ". . O O", ""]
    return {"train.txt": lines, "dev.txt": lines[: 2 + 3 * 6]}


def bertsum(rng: Draw, count: int) -> Files:
    """Return JSON lines of documents: sentences, and a summary of two of them."""
    rows = []
    for _ in range(count):
        news = [f"the news says it is {rng.choice(GOOD)} .", f"today {rng.choice(NAMES)} reports ."]
        rest = [f"nobody cares about {word} ." for word in ("lunch", "sport", "weather")]
        rows.append({"src": list(rng.permutation([*news, *rest])), "tgt": " ".join(news)})
    return {"train.jsonl": rows}


def masked_lm(rng: Draw, count: int, *, nsp: bool = True) -> Files:
    """Return the vendor's CSV of tokens.

    Args:
        rng: not needed.
        count: rows.
        nsp: rows are sentence pairs; False leaves the tokens alone.
    """
    del rng
    columns: dict[str, list[Any]] = {"tokens": [], "segment_ids": [], "is_random_next": []}
    for i, (name, place) in enumerate(_homes(count)):
        a, b = ["[CLS]", name, "lives", "in", place, "[SEP]"], [name, "saw", "a", "film", "[SEP]"]
        b = ["the", "weather", "is", "dull", "[SEP]"] if i % 2 else b
        columns["tokens"].append([*a, *b])
        columns["segment_ids"].append([0] * len(a) + [1] * len(b))
        columns["is_random_next"].append(i % 2)
    return {"part-1.csv": columns if nsp else {"tokens": columns["tokens"]}}


def prompts(rng: Draw, count: int) -> Files:
    """Return JSON lines of prompts and completions."""
    del rng
    rows = [
        {"prompt": f"where lives {name} ?", "completion": f"in {place} ."}
        for name, place in zip(NAMES * (count // 3), PLACES * (count // 3), strict=True)
    ]
    return _both(("train", "dev"), "jsonl", rows)


def preferences(rng: Draw, count: int) -> Files:
    """Return JSON lines of pairs as ``wafer score`` leaves them."""
    rows = [
        {
            "prompt": f"where lives {name} ?",
            "chosen": f"in {place} .",
            "rejected": "nobody cares .",
            "reference_chosen_logp": -float(rng.uniform(3, 6)),
            "reference_rejected_logp": -float(rng.uniform(3, 6)),
        }
        for name, place in _homes(count)
    ]
    return _both(("train", "dev"), "jsonl", rows)


def retrieval(rng: Draw, count: int) -> Files:
    """Return DPR's JSON: questions with their context and a hard negative one."""
    del rng
    rows = []
    for name, place in zip(NAMES * (count // 3), PLACES * (count // 3), strict=True):
        other = NAMES[(NAMES.index(name) + 1) % 3]
        row = {"question": f"where lives {name} ?", "answers": [place]}
        row |= {"positive_ctxs": [{"title": name, "text": f"{name} lives in {place} ."}]}
        row |= {"hard_negative_ctxs": [{"title": other, "text": f"{other} saw a film ."}]}
        rows.append(row)
    return _both(("train", "dev"), "json", rows)


def saved_dataset(rng: Draw, count: int) -> Files:
    """Return the folder that ``save_to_disk`` of Hugging Face's ``datasets`` writes."""
    del rng
    name = "data-00000-of-00001.arrow"
    texts = [f"{name} lives in {place} ." for name, place in _homes(count)]
    return {name: {"text": texts}, "state.json": {"_data_files": [{"filename": name}]}}


_MARKS = ["<pad>", "<s>", "</s>", "<unk>"]


def t5_lines(rng: Draw, count: int) -> Files:
    """Return tokenized documents, one a line, and ``meta.dat``, which names the file."""
    lines = [" ".join(rng.choice(VOCAB[7:], rng.integers(4, 14))) for _ in range(count)]
    vocabulary = [*_MARKS, *VOCAB[7:]]
    return {"docs.txt": lines, "meta.dat": [f"docs.txt {count}"], "tokens.vocab": vocabulary}


def transformer_lines(rng: Draw, count: int) -> Files:
    """Return two files of lines that belong together, and ``meta.dat``, which names both."""
    del rng
    homes = _homes(count)
    return {
        "en.txt": [f"{name} lives in {place}" for name, place in homes],
        "de.txt": [f"{place} {name}" for name, place in homes],
        "meta.dat": [f"en.txt de.txt {count}"],
        "tokens.vocab": [*_MARKS, *VOCAB[7:]],
    }


def dna(rng: Draw, count: int) -> Files:
    """Return a FASTA file, and BED files of the states of two cell types."""
    del rng, count
    return {
        "genome.fa": [">chr1 the first", "ACGTac", "gtNN", "", ">chr2", "TTTTT"],
        "liver.bed": [
            "track name=liver",
            "# sequence start end state",
            "chr1\t2\t5\t1",
            "chr1\t0\t2\t0",
            "chr2\t0\t3\t2\tname\t0",
            "chr9\t0\t3\t2",
        ],
        "lung.bed": ["chr1 0 10 2", "chr2 1 5 0"],
    }


def proteins(rng: Draw, count: int) -> Files:
    """Return FASTA files of two folds, with their classes in tables beside them."""
    files: dict[str, list[str]] = {}
    for stem in ("train", "valid"):
        records, table = [], ["id\tlabel"]
        for i in range(count):
            letters = "".join(rng.choice(list(FOLDS[i % 2]), rng.integers(4, 12)))
            records += [f">p{i} some protein", letters[:5], letters[5:]]
            table.append(f"p{i}\t{i % 2}")
        files |= {f"{stem}.fasta": records, f"{stem}.tsv": table}
    return files
