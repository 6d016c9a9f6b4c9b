"""Texts in pairs: prompt and completion for decoders, source and target for encoder-decoders."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.objectives import conversation
from wafer.data.batching.rowsets import RowSource, target_row
from wafer.data.batching.sources import FEATURES
from wafer.data.preprocess.rows.chat import tell_of_template
from wafer.data.text.textfiles import Row, find_files, read_rows
from wafer.data.text.turns import read_turns
from wafer.data.text.wordpiece import Vocabulary, load_vocabulary
from wafer.errors import DataError


def _opened(cfg: Any, context: Context) -> tuple[list[Any], Vocabulary, Iterator[Row]]:
    """Files of this split, the vocabulary, and the rows."""
    stem = "train" if context.training else "dev"
    files = find_files(cfg.data_dir, [f"{stem}.jsonl", f"{stem}.tsv"])
    vocabulary = load_vocabulary(cfg.vocab_file, cfg.do_lower, context.vocab_size)
    return files, vocabulary, (row for file in files for row in read_rows(file))


def _texts(row: Row, cfg: Any) -> Sequence[str]:
    """Prompts and completions in turns."""
    if cfg.multi_turn_key is None:
        return row.text(cfg.prompt_key), row.text(cfg.completion_key)
    keys, field = (cfg.multi_turn_content_key, cfg.multi_turn_role_key), cfg.multi_turn_key
    try:
        return tuple(read_turns(row.get(field), field, *keys))
    except DataError as error:
        raise DataError(f"{row.where}: {error}") from None


def prompts(cfg: Any, context: Context) -> Dataset:
    """Read JSON lines with prompts and completions; examples that are too long are left out.

    Raises:
        DataError: a wrong row; names file and row.
    """
    files, vocabulary, lines = _opened(cfg, context)
    tell_of_template(cfg.vocab_file)
    eos = vocabulary.mark(cfg, "eos_token")
    between = [] if cfg.sep_token is None else [vocabulary.id_of(cfg.sep_token)]
    asks, answers = map(vocabulary.encode, (cfg.prompt_prefix, cfg.completion_prefix))
    rows: list[dict[str, np.ndarray]] = []
    skipped = 0
    for row in lines:
        ids = [vocabulary.encode(text) for text in _texts(row, cfg)]
        pairs = zip(ids[::2], ids[1::2], strict=True)
        turns = [([*asks, *ask, *between, *answers], answer) for ask, answer in pairs]
        if not all(ask and answer for ask, answer in turns):
            raise DataError(f"{row.where}: the prompt or the completion is empty")
        features = conversation(turns, eos_id=eos, pad_id=eos)
        if features.shape[1] > cfg.max_sequence_length:
            skipped += 1
        else:
            rows.append(dict(zip(FEATURES, features, strict=True)))
    if not rows:
        raise DataError(f"{files[0]}: no examples that fit max_sequence_length")
    lengths = [len(example["labels"]) for example in rows]
    mean = float(np.mean(lengths))
    return Dataset(
        source=rows,
        row_length=cfg.max_sequence_length,
        pack=bool(cfg.use_vsl),
        mean_length=mean,
        tokenizer=vocabulary.json,
        summary=(
            f"prompts with completions: {len(rows):,} examples, {skipped:,} left out as longer "
            f"than {cfg.max_sequence_length} tokens, longest/mean = {max(lengths)}/{mean:.0f}"
        ),
    )


def seq2seq(cfg: Any, context: Context) -> Dataset:
    """Read train or dev, JSON lines or TSV, with a source and a target text per row.

    Raises:
        DataError: a wrong row; names file and row.
    """
    files, vocabulary, lines = _opened(cfg, context)
    eos = vocabulary.mark(cfg, "eos_token")
    lengths = cfg.max_sequence_length, cfg.tgt_max_sequence_length or cfg.max_sequence_length
    texts: tuple[list[str], list[str]] = [], []
    for row in lines:
        texts[0].append(row.text(cfg.src_key))
        texts[1].append(row.text(cfg.tgt_key))
    sources, targets = (
        [np.append(ids[: most - 1], np.int32(eos)) for ids in vocabulary.encode_all(side)]
        for side, most in zip(texts, lengths, strict=True)
    )
    examples = list(zip(sources, targets, strict=True))
    build = lambda pair: target_row(pair[0], pair[1], lengths, cfg.decoder_start_token_id)
    return Dataset(
        source=RowSource(examples, build, files[0]),
        row_length=cfg.max_sequence_length,
        complete=True,
        summary=f"sources with targets: {len(examples):,} pairs from {len(files)} file(s)",
    )
