"""BERT pre-training from the vendor's CSV: sentence pairs, masked anew whenever a row is read."""

import functools
from typing import Any

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.objectives import mask_tokens
from wafer.data.batching.pipeline import Rows, Transform
from wafer.data.batching.rowsets import Ids, RowSource, fixed, sequence_row
from wafer.data.text.textfiles import Row, find_described, read_rows
from wafer.data.text.wordpiece import Vocabulary, load_vocabulary
from wafer.errors import DataError

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<pad>", "<mask>")


# ids with special tokens, their segments, whether the second text is a random one
_Pair = tuple[list[int], list[int] | None, int]


def _read(row: Row, vocabulary: Vocabulary, cfg: Any, last: int) -> _Pair:
    known = vocabulary.tokenizer.token_to_id
    unknown = vocabulary.id_of("[UNK]", "<unk>")
    ids = []
    for token in row.words("tokens"):
        special = token in _SPECIAL
        index = known(token.lower() if cfg.do_lower and not special else token)
        ids.append(unknown if index is None else index)
    length = cfg.max_sequence_length
    if cfg.disable_nsp:
        return ids[:length], None, 0
    if len(ids) > length:
        raise DataError(
            f"{row.where}: {len(ids)} tokens, but max_sequence_length is {length}; sentence pairs "
            "cannot be cut, raise it or write shorter ones (disable_nsp: true cuts)"
        )
    segments = row.integers("segment_ids", 0, last, "segments of the model")
    if len(segments) < len(ids):
        raise DataError(f"{row.where}: {len(segments)} segment_ids for {len(ids)} tokens")
    is_random = str(row.get("is_random_next")).strip().lower()
    if is_random not in {"0", "1", "true", "false"}:
        raise DataError(f"{row.where}: is_random_next is {is_random!r}; expected 0 or 1")
    return ids, segments[: len(ids)], int(is_random in {"1", "true"})


def scored_slots(positions: Ids, labels: Ids, most: int) -> dict[str, np.ndarray]:
    """The positions a head scores, with labels and weights, [most] int32 each."""
    count = min(len(positions), most)
    return {
        "gather_positions": fixed(positions, most),
        "gather_labels": fixed(labels, most),
        "gather_weights": fixed([1] * count, most),
    }


def mask_row(
    row: dict[str, np.ndarray], rng: np.random.Generator, *, most: int, **how: Any
) -> dict[str, np.ndarray]:
    """Hide tokens of a row, at most ``most``; ``how`` is for ``mask_tokens``."""
    count = int(np.count_nonzero(row["attention_mask"]))
    tokens = row["input_ids"][:count]
    hidden, target = mask_tokens(tokens, rng, most=most, **how)
    whole = np.concatenate([hidden, row["input_ids"][count:]]).astype(np.int32)
    at = np.flatnonzero(target)
    return row | {"input_ids": whole} | scored_slots(at, tokens[at], most)


def hiding_states(mask: Transform) -> Transform:
    """Take the epigenetic states of the tokens to predict away, after ``mask`` has chosen them."""

    def transform(row: Rows, rng: np.random.Generator) -> Rows:
        row = mask(row, rng)
        states = row["epigenetic"].copy()
        chosen = row["gather_positions"][row["gather_weights"] != 0]
        states[chosen] = -1 if states.ndim == 1 else 0
        return row | {"epigenetic": states}

    return transform


def masked_lm(cfg: Any, context: Context) -> Dataset:
    """Read the CSV files of the folders: tokens; segment_ids and is_random_next of sentence pairs.

    Raises:
        DataError: a wrong row; names file and row.
    """
    files = find_described(cfg.data_dir, ["*.csv"])
    vocabulary = load_vocabulary(cfg.vocab_file, cfg.do_lower, context.vocab_size)
    examples = [
        _read(row, vocabulary, cfg, context.last_segment)
        for file in files
        for row in read_rows(file)
    ]

    def build(example: _Pair) -> Rows:
        ids, segments, is_random = example
        row = sequence_row(ids, cfg.max_sequence_length, vocabulary.pad, segments)
        label = {} if cfg.disable_nsp else {"next_sentence_label": np.asarray(is_random, np.int32)}
        return row | label

    known = map(vocabulary.tokenizer.token_to_id, _SPECIAL)
    mask = functools.partial(
        mask_row,
        most=cfg.max_predictions_per_seq,
        rate=cfg.masked_lm_prob,
        mask_id=vocabulary.id_of("[MASK]", "<mask>"),
        vocab_size=vocabulary.size,
        special_ids=tuple(index for index in known if index is not None),
    )
    return Dataset(
        source=RowSource(examples, build, files[0]),
        row_length=cfg.max_sequence_length,
        complete=True,
        transform=mask,
        summary=f"masked language modelling: {len(examples):,} rows from {len(files)} file(s)",
    )
