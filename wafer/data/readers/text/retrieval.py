"""DPR's published JSON: questions with a positive context and hard negatives (Karpukhin 2020).

A row is a question and 1 + N contexts, its own first; the other questions' contexts of the batch
are further negatives. A context is ``[CLS] title [SEP] text [SEP]``.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.rowsets import RowSource, sequence_row
from wafer.data.text.textfiles import find_files, read_json
from wafer.data.text.wordpiece import load_vocabulary
from wafer.errors import DataError


def _texts(location: str, entry: Any, negatives: int) -> list[str]:
    """The question, then title and text of each context."""
    try:
        positive = entry["positive_ctxs"][:1]
        hard = [*entry.get("hard_negative_ctxs", []), *entry.get("negative_ctxs", [])]
        chosen = [*positive, *hard[:negatives]]
        contexts = [text for c in chosen for text in (c.get("title", ""), c["text"])]
        question = entry["question"]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{location}: {error!r}; expected question, positive_ctxs / title, text, "
            "hard_negative_ctxs"
        ) from None
    if not positive or len(chosen) < 1 + negatives:
        raise DataError(
            f"{location}: {len(positive)} positive and {len(hard)} negative contexts; needed are 1 "
            f"and {negatives} (num_hard_negatives)"
        )
    return [question, *contexts]


def _read(paths: Sequence[Any], negatives: int) -> Iterator[list[str]]:
    for path in paths:
        entries = read_json(path)
        if not isinstance(entries, list):
            raise DataError(f"{path}: expected a list of questions")
        for number, entry in enumerate(entries, 1):
            yield _texts(f"{path}, row {number}", entry, negatives)


def retrieval(cfg: Any, context: Context) -> Dataset:
    """Read train.json or dev.json (also biencoder-*-train.json).

    Raises:
        DataError: a wrong entry; names file and row.
    """
    stem = "train" if context.training else "dev"
    files = find_files(cfg.data_dir, [f"{stem}.json", f"*-{stem}.json"])
    vocabulary = load_vocabulary(cfg.vocab_file, cfg.do_lower, context.vocab_size)
    examples = vocabulary.encode_rows(list(_read(files, cfg.num_hard_negatives)))
    length = cfg.max_sequence_length
    asked = cfg.questions_max_sequence_length or length

    def build(ids: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        cls, sep, pad = vocabulary.marks
        question, *texts = ids
        row = sequence_row([cls, *question[: asked - 2], sep], asked, pad)
        contexts = [
            sequence_row([*[cls, *title, sep, *text][: length - 1], sep], length, pad)
            for title, text in zip(texts[::2], texts[1::2], strict=True)
        ]
        return row | {f"context_{k}": np.stack([c[k] for c in contexts]) for k in contexts[0]}

    return Dataset(
        source=RowSource(examples, build, files[0]),
        row_length=length,
        complete=True,
        summary=f"questions with contexts: {len(examples):,}, {1 + cfg.num_hard_negatives} each",
    )
