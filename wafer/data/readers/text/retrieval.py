"""DPR's published JSON: questions with a positive context and hard negatives (Karpukhin 2020).

A row is a question and 1 + N contexts, its own first; the other questions' contexts of the batch
are further negatives. A context is ``[CLS] title [SEP] text [SEP]``.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.rowsets import RowSource, fixed, sequence_row
from wafer.data.text.textfiles import find_files, read_json
from wafer.data.text.wordpiece import Vocabulary, load_vocabulary
from wafer.errors import DataError


class _Example(NamedTuple):
    """question: ids; contexts: (title ids, text ids), the positive one first."""

    question: np.ndarray
    contexts: list[tuple[np.ndarray, np.ndarray]]


def _texts(where: str, entry: Any, negatives: int) -> tuple[str, list[tuple[str, str]]]:
    try:
        positive = entry["positive_ctxs"][:1]
        hard = [*entry.get("hard_negative_ctxs", []), *entry.get("negative_ctxs", [])]
        chosen = [(c.get("title", ""), c["text"]) for c in (*positive, *hard[:negatives])]
        question = entry["question"]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{where}: {error!r}; expected question, positive_ctxs / title, text, "
            "hard_negative_ctxs"
        ) from None
    if not positive or len(chosen) < 1 + negatives:
        raise DataError(
            f"{where}: {len(positive)} positive and {len(hard)} negative contexts; needed are 1 "
            f"and {negatives} (num_hard_negatives)"
        )
    return question, chosen


def _features(
    vocabulary: Vocabulary, lengths: tuple[int, int], example: _Example
) -> Mapping[str, np.ndarray]:
    cls, sep = vocabulary.cls, vocabulary.sep
    row = sequence_row([cls, *example.question[: lengths[0] - 2], sep], lengths[0], vocabulary.pad)
    ids, masks = [], []
    for title, text in example.contexts:
        tokens = [*[cls, *title, sep, *text][: lengths[1] - 1], sep]
        ids.append(fixed(tokens, lengths[1], vocabulary.pad))
        masks.append(fixed([1] * len(tokens), lengths[1]))
    return row | {"context_input_ids": np.stack(ids), "context_attention_mask": np.stack(masks)}


def _read(paths: Sequence[Any], negatives: int) -> tuple[list[str], list[list[tuple[str, str]]]]:
    questions, contexts = [], []
    for path in paths:
        entries = read_json(path)
        if not isinstance(entries, list):
            raise DataError(f"{path}: expected a list of questions")
        for number, entry in enumerate(entries, 1):
            question, chosen = _texts(f"{path}, row {number}", entry, negatives)
            questions.append(question)
            contexts.append(chosen)
    return questions, contexts


def retrieval(cfg: Any, context: Context) -> Dataset:
    """Read train.json or dev.json (also biencoder-*-train.json).

    Raises:
        DataError: a wrong entry; names file and row.
    """
    stem = "train" if context.training else "dev"
    files = find_files(cfg.data_dir, [f"{stem}.json", f"*-{stem}.json"])
    vocabulary = load_vocabulary(cfg.vocab_file, cfg.do_lower, context.vocab_size)
    questions, contexts = _read(files, cfg.num_hard_negatives)
    flat = [text for chosen in contexts for pair in chosen for text in pair]
    encoded = iter(vocabulary.encode_all(flat))
    pairs = [[(next(encoded), next(encoded)) for _ in chosen] for chosen in contexts]
    examples = list(map(_Example, vocabulary.encode_all(questions), pairs))
    length = cfg.max_sequence_length
    lengths = (cfg.questions_max_sequence_length or length, length)
    return Dataset(
        source=RowSource(examples, functools.partial(_features, vocabulary, lengths), files[0]),
        row_length=length,
        complete=True,
        summary=f"questions with contexts: {len(examples):,}, {1 + cfg.num_hard_negatives} each",
    )
