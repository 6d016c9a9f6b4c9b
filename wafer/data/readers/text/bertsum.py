"""Extractive summarization (Liu 2019, BERTSUM): which sentences of a document to keep.

A row is ``[CLS] sentence [SEP] [CLS] sentence [SEP] ...`` with alternating segments; the head
scores every ``[CLS]``. Read are CSV of token ids, CNN/DailyMail's stories, and JSON
lines of sentences with labels, a reference summary, or both; without labels the sentences that
together come nearest to the reference are marked (the paper's greedy oracle).
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.pipeline import Rows
from wafer.data.batching.rowsets import RowSource, sequence_row
from wafer.data.readers.masked_lm import scored_slots
from wafer.data.readers.text.rouge import rouge, rouge_words, words
from wafer.data.readers.text.stories import read_stories
from wafer.data.text.textfiles import Row, ending, find_files, read_rows
from wafer.data.text.wordpiece import Vocabulary, load_vocabulary
from wafer.errors import DataError


class Article(NamedTuple):
    """One row and what its summary is compared with."""

    ids: list[int]  #: tokens of the row
    segments: list[int]  #: 0 and 1 in turns
    heads: list[int]  #: position of each sentence's [CLS]
    labels: list[int]  #: 1 for sentences of the summary
    sentences: list[str]  #: their texts
    reference: str  #: the summary


def oracle(sentences: Sequence[str], reference: str, most: int) -> list[int]:
    """Mark at most ``most`` sentences, each time the one that raises ROUGE-1 + ROUGE-2 most."""
    target = words(reference)
    split = [words(sentence) for sentence in sentences]
    chosen: list[int] = []
    best = 0.0
    while len(chosen) < most:
        scores = {}
        for i in set(range(len(split))) - set(chosen):
            kept = [word for j in sorted([*chosen, i]) for word in split[j]]
            score = rouge_words(kept, target)
            scores[i] = score["rouge1"] + score["rouge2"]
        if not scores:
            break
        top = max(scores, key=lambda i: (scores[i], -i))
        if scores[top] <= best:
            break
        best = scores[top]
        chosen.append(top)
    return [int(i in chosen) for i in range(len(split))]


def _text(value: str | Sequence[object]) -> str:
    return value if isinstance(value, str) else " ".join(map(str, value))


def _from_text(row: Row, vocabulary: Vocabulary, cfg: Any) -> Article:
    sentences = row.get("src", "sentences")
    if not isinstance(sentences, list) or not sentences:
        raise DataError(f"{row.where}: 'src' must be a list of sentences")
    sentences = [_text(sentence) for sentence in sentences][: cfg.max_cls_tokens]
    reference = row.values.get("tgt", row.values.get("summary"))
    if "labels" in row.values:
        labels = row.integers("labels", 0, 1)
        if len(labels) != len(row.get("src", "sentences")):
            raise DataError(f"{row.where}: {len(labels)} labels for another number of sentences")
        labels = labels[: len(sentences)]
    elif reference is None:
        raise DataError(f"{row.where}: neither 'labels' nor a summary 'tgt'; one is needed")
    else:
        labels = oracle(sentences, _joined(reference), cfg.summary_sentences)
    if reference is None:
        reference = [s for s, label in zip(sentences, labels, strict=True) if label]
    ids: list[int] = []
    segments: list[int] = []
    heads = []
    for number, sentence in enumerate(sentences):
        heads.append(len(ids))
        piece = [vocabulary.cls, *vocabulary.encode(sentence), vocabulary.sep]
        ids += piece
        segments += [number % 2] * len(piece)
    return Article(ids, segments, heads, labels, sentences, _joined(reference))


def _joined(reference: str | Sequence[str | Sequence[object]]) -> str:
    return reference if isinstance(reference, str) else " ".join(map(_text, reference))


def _from_ids(row: Row, vocabulary: Vocabulary, cfg: Any) -> Article:
    names = {"input_token_ids", "input_ids"} & set(row.values)
    ids = row.integers(
        names.pop() if names else "input_token_ids",
        0,
        vocabulary.size - 1,
        f"ids below {vocabulary.size}, the size of {vocabulary.path.name}",
    )
    segments, labels = row.integers("segment_ids", 0, 1), row.integers("labels", 0, 1)
    heads = row.integers("cls_indices")
    if len(labels) != len(heads) or len(segments) != len(ids):
        raise DataError(
            f"{row.where}: {len(labels)} labels for {len(heads)} cls_indices, {len(segments)} "
            f"segment_ids for {len(ids)} tokens; each pair must agree"
        )
    if any(not 0 <= head < len(ids) for head in heads):
        raise DataError(f"{row.where}: cls_indices {heads} beyond the {len(ids)} tokens")
    ends = [*heads[1:], len(ids)]
    sentences = [
        vocabulary.tokenizer.decode(ids[a:b], skip_special_tokens=True)
        for a, b in zip(heads, ends, strict=True)
    ]
    most = cfg.max_cls_tokens
    reference = [s for s, label in zip(sentences, labels, strict=True) if label]
    return Article(
        ids, segments, heads[:most], labels[:most], sentences[:most], " ".join(reference)
    )


class SummaryScorer:
    """ROUGE of the best-scored sentences, in their order, against the reference.

    Args:
        documents: all of them.
        count: sentences of a summary.
    """

    reads = ("logits",)

    def __init__(self, documents: Sequence[Article], count: int) -> None:
        self._documents, self._count = documents, count
        self._scores: list[dict[str, float]] = []

    def add(self, rows: Rows, outputs: Mapping[str, np.ndarray]) -> None:
        """Extract a summary of every row."""
        used_slots = rows["gather_weights"]
        for row, scores, used in zip(rows["row"], outputs["logits"], used_slots, strict=True):
            document = self._documents[int(row) - 1]
            order = np.argsort(-np.where(used != 0, scores, -np.inf), kind="stable")
            kept = order[: min(self._count, int(used.sum()))]
            summary = " ".join(document.sentences[i] for i in sorted(kept))
            self._scores.append(rouge(summary, document.reference))

    def result(self) -> dict[str, float]:
        """``eval/rouge1``, ``eval/rouge2``, ``eval/rougeL``: mean F1."""
        return {
            f"eval/{name}": float(np.mean([score[name] for score in self._scores]))
            for name in self._scores[0]
        }


def bertsum(cfg: Any, context: Context) -> Dataset:
    """Read every .jsonl, .csv and .story of the folders.

    Raises:
        DataError: a wrong row; names file and row.
    """
    files = find_files(cfg.data_dir, ["*.jsonl", "*.csv", "**/*.story"])
    stories = [file for file in files if ending(file) == ".story"]
    if cfg.story_urls is not None and not stories:
        raise DataError(f"story_urls: {cfg.data_dir[0]} holds no .story file to choose from")
    vocabulary = load_vocabulary(cfg.vocab_file, cfg.do_lower, context.vocab_size)
    documents = []
    for file in (file for file in files if ending(file) != ".story"):
        read = _from_ids if ending(file) == ".csv" else _from_text
        documents += [read(row, vocabulary, cfg) for row in read_rows(file)]
    rows = read_stories(stories, cfg.story_urls) if stories else ()
    documents += [_from_text(row, vocabulary, cfg) for row in rows]
    length = cfg.max_sequence_length

    def build(document: Article) -> Rows:
        row = sequence_row(document.ids, length, vocabulary.pad, document.segments)
        seen = [head for head in document.heads if head < length]
        return row | scored_slots(seen, document.labels[: len(seen)], cfg.max_cls_tokens)

    return Dataset(
        source=RowSource(documents, build, files[0]),
        row_length=length,
        complete=True,
        scorer=functools.partial(SummaryScorer, documents, cfg.summary_sentences),
        summary=(
            f"documents: {len(documents):,}, "
            f"{sum(sum(d.labels) for d in documents):,} of "
            f"{sum(len(d.labels) for d in documents):,} sentences in summaries"
        ),
    )
