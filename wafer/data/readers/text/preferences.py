"""Preference pairs: a prompt with a chosen and a rejected answer, one pair to a row."""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.objectives import conversation
from wafer.data.batching.rowsets import RowSource, fixed
from wafer.data.text.textfiles import Row, find_files, read_rows
from wafer.data.text.wordpiece import load_vocabulary
from wafer.errors import DataError

LOGP_KEYS = ("reference_chosen_logp", "reference_rejected_logp")  # what `wafer score` adds


class Preference(NamedTuple):
    """One example."""

    row: Row  #: where it stands and what it says
    #: [3, n] rows of input ids, loss mask, labels: the chosen and the rejected answer
    answers: tuple[np.ndarray, np.ndarray]


def read_pairs(
    cfg: Any, files: Sequence[pathlib.Path], vocab_size: int | None
) -> tuple[list[Preference], int]:
    """Read and tokenize pairs.

    Args:
        cfg: the input section: vocabulary, keys, lengths.
        files: to read.
        vocab_size: ids must be below; None does not look.

    Returns:
        (the pairs that fit ``max_sequence_length``, how many do not).

    Raises:
        DataError: a wrong row; names file and row.
    """
    vocabulary = load_vocabulary(cfg.vocab_file, cfg.do_lower, vocab_size)
    eos = vocabulary.mark(cfg, "eos_token")
    sep = [] if cfg.sep_token is None else [vocabulary.id_of(cfg.sep_token)]
    pairs, skipped = [], 0
    for row in (row for file in files for row in read_rows(file)):
        prompt = vocabulary.encode(row.text(cfg.prompt_key)) + sep
        answers = [vocabulary.encode(row.text(key)) for key in (cfg.chosen_key, cfg.rejected_key)]
        if not all(answers) or not prompt:
            raise DataError(f"{row.where}: the prompt or an answer is empty")
        rows = [conversation([(prompt, answer)], eos_id=eos, pad_id=eos) for answer in answers]
        if max(part.shape[1] for part in rows) > cfg.max_sequence_length:
            skipped += 1
        else:
            pairs.append(Preference(row, (rows[0], rows[1])))
    if not pairs:
        raise DataError(f"{files[0]}: no pair that fits max_sequence_length")
    return pairs, skipped


def pair_row(answers: Sequence[np.ndarray], length: int) -> dict[str, np.ndarray]:
    """Lay two answers side by side, [2 * length]: two documents that do not see each other."""
    halves: list[dict[str, np.ndarray]] = []
    for ids, loss, labels in answers:
        count = len(ids)
        halves.append(
            {
                "input_ids": fixed(ids, length),
                "attention_mask": fixed(np.ones(count, np.int32), length),
                "loss_mask": fixed(loss, length),
                "labels": fixed(labels, length),
                "attention_span": fixed(np.arange(count)[::-1], length),
                "position_ids": fixed(np.arange(count), length),
            }
        )
    return {key: np.concatenate([half[key] for half in halves]) for key in halves[0]}


def preferences(cfg: Any, context: Context) -> Dataset:
    """Read train.jsonl or dev.jsonl as ``wafer score`` wrote it.

    Raises:
        DataError: a wrong row, or one without the reference's log-probabilities.
    """
    files = find_files(cfg.data_dir, ["train.jsonl" if context.training else "dev.jsonl"])
    pairs, skipped = read_pairs(cfg, files, context.vocab_size)
    for pair in pairs:
        for key in LOGP_KEYS:
            value = pair.row.values.get(key)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise DataError(
                    f"{pair.row.where}: {key!r} is {value!r}; `wafer score --params X.yaml "
                    "--checkpoint_path DIR --input pairs.jsonl --output train.jsonl` computes it"
                )
    logps = lambda pair: [pair.row.values[key] for key in LOGP_KEYS]
    build = lambda pair: (
        pair_row(pair.answers, cfg.max_sequence_length)
        | {"reference_logps": np.asarray(logps(pair), np.float32)}
    )
    return Dataset(
        source=RowSource(pairs, build, cfg.data_dir),
        row_length=2 * cfg.max_sequence_length,
        complete=True,
        summary=(
            f"preferences: {len(pairs):,} pairs, {skipped:,} left out as longer than "
            f"{cfg.max_sequence_length} tokens"
        ),
    )
