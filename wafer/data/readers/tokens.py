"""Tokenized text: CSV of ids for BERT, T5's lines with spans to hide, Transformer's pairs."""

import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.objectives import corrupt_spans, longest_source
from wafer.data.batching.pipeline import Rows
from wafer.data.batching.rowsets import RowSource, fixed, target_row
from wafer.data.readers.rows import require_length
from wafer.data.rowfiles.rules import IGNORED
from wafer.data.text.textfiles import Row, find_described, read_rows, text_lines, words_of
from wafer.errors import DataError


def _require_equal(row: Row, columns: Mapping[str, Sequence[int]]) -> None:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise DataError(f"{row.where}: {lengths}; expected equal lengths, at least 1")


def _ids(row: Row, context: Context, name: str, low: int = 0) -> list[int]:
    return row.integers(
        name, low, context.last_id, f"ids below the vocabulary of {context.last_id + 1}"
    )


def _tokens(row: Row, context: Context, mask: str, segments: str | None) -> Rows:
    """Ids, mask and segments [S] of a row, from columns of these names."""
    columns = {"input_ids": _ids(row, context, "input_ids"), mask: row.integers(mask, 0, 1)}
    if segments is not None:
        columns[segments] = row.integers(segments, 0, context.last_segment, "segments of the model")
    _require_equal(row, columns)
    if not any(columns[mask]):
        raise DataError(f"{row.where}: {mask} is 0 everywhere: nothing is read of such a row")
    names = ("input_ids", "attention_mask", "token_type_ids")
    values = (np.array(values, np.int32) for values in columns.values())
    return dict(zip(names, values, strict=False))


def _static(cfg: Any, context: Context, row: Row) -> Rows:
    out = _tokens(row, context, "attention_mask", None if cfg.disable_nsp else "token_type_ids")
    slots = {
        "masked_lm_positions": row.integers("masked_lm_positions", 0, len(out["input_ids"]) - 1),
        "labels": _ids(row, context, "labels", IGNORED),
        "masked_lm_weights": row.integers("masked_lm_weights", 0, 1),
    }
    _require_equal(row, slots)
    for i, (label, weight) in enumerate(
        zip(slots["labels"], slots["masked_lm_weights"], strict=True)
    ):
        if label < 0 and (weight or label != IGNORED):
            raise DataError(
                f"{row.where}: labels[{i}] is {label} with the weight {weight}; expected an id, or "
                f"{IGNORED} with the weight 0"
            )
    for name, values in zip(("positions", "labels", "weights"), slots.values(), strict=True):
        out[f"gather_{name}"] = np.maximum(np.array(values, np.int32), 0)
    if not cfg.disable_nsp:
        out["next_sentence_label"] = _one(row, "next_sentence_label", 1)
    return out


def _one(row: Row, name: str, high: int) -> np.ndarray:
    values = row.integers(name, 0, high)
    if len(values) != 1:
        raise DataError(f"{row.where}: {name} has {len(values)} values; expected one")
    return np.asarray(values[0], np.int32)


def bert_csv(cfg: Any, context: Context) -> Dataset:
    """Read BertCSVDataProcessor's files: features as lists of numbers, masks drawn beforehand.

    Raises:
        DataError: a wrong row, or rows of different lengths; names file and row.
    """
    examples: list[Rows] = []
    shape: Mapping[str, tuple[int, ...]] = {}
    for path in find_described(cfg.data_dir, ["*.csv"]):
        for row in read_rows(path):
            example = _static(cfg, context, row)
            dims = {name: value.shape for name, value in example.items()}
            shape = shape or dims
            if dims != shape:
                raise DataError(f"{row.where}: features of {dims}, but the first row's are {shape}")
            examples.append(example)
    source = RowSource(examples, lambda example: example, cfg.data_dir[0])
    length = len(examples[0]["input_ids"])
    require_length(cfg, cfg.data_dir[0], length)
    return Dataset(
        source=source,
        row_length=length,
        complete=True,
        summary=f"BERT CSV: {len(examples):,} rows of {length} tokens, masked beforehand",
    )


class _Words(NamedTuple):
    """A vocabulary of one token a line."""

    ids: dict[str, int]  #: token -> id
    fold: Callable[[str], str]  #: what is done to tokens first
    unknown: int  #: id of what the vocabulary lacks
    end: int  #: id that ends a row
    pad: int  #: id of padding
    start: int  #: first input of the decoder

    def encode(self, line: str) -> list[int]:
        return [self.ids.get(self.fold(token), self.unknown) for token in words_of(line)]


def _words(cfg: Any, context: Context, sentinels: int = 0) -> _Words:
    path = pathlib.Path(cfg.src_vocab_file)
    if not path.is_file():
        raise DataError(f"src_vocab_file: no such file: {path}")
    fold = str.lower if cfg.do_lower else str
    ids = {fold(line.split("\t")[0]): index for index, line in enumerate(text_lines(path))}
    marks = {key: fold(getattr(cfg, key)) for key in ("oov_token", "eos_token", "pad_token")}
    for key, mark in marks.items():
        if mark not in ids:
            raise DataError(
                f"{key}: {getattr(cfg, key)!r} is not in {path}; name the token it has, or add it"
            )
    if context.vocab_size is not None and len(ids) + sentinels > context.vocab_size:
        more = f" and {sentinels} sentinels" if sentinels else ""
        raise DataError(
            f"src_vocab_file: {len(ids)} tokens{more}, but the model's vocabulary has "
            f"{context.vocab_size}"
        )
    unknown, end, pad = (ids[mark] for mark in marks.values())
    return _Words(ids, fold, unknown, end, pad, ids.get(fold(cfg.sos_token), pad))


def t5_dynamic(cfg: Any, context: Context) -> Dataset:
    """Read T5DynamicDataProcessor's lines; the spans to hide are drawn at every reading.

    Raises:
        DataError: a missing file or token, targets that cannot fit.
    """
    words = _words(cfg, context, cfg.extra_ids)
    lengths = cfg.src_max_sequence_length, cfg.tgt_max_sequence_length
    longest = longest_source(*lengths, cfg.extra_ids)
    pieces: list[np.ndarray] = []
    for path in find_described(cfg.src_data_dir, ["*.txt"], "src_data_dir"):
        for ids in map(words.encode, text_lines(path)):
            parts = (ids[at : at + longest] for at in range(0, len(ids) - 1, longest))
            pieces += [np.array(span, np.int32) for span in parts]

    def corrupted(row: Rows, rng: np.random.Generator) -> Rows:
        tokens = row["tokens"][: int(row["length"])]
        pair = corrupt_spans(tokens, rng, vocab_size=len(words.ids) + cfg.extra_ids)
        source, target = (np.append(part, np.int32(words.end)) for part in pair)
        return {"row": row["row"]} | target_row(source, target, lengths, words.start, words.pad)

    build = lambda tokens: {"tokens": fixed(tokens, longest), "length": np.int32(len(tokens))}
    return Dataset(
        source=RowSource(pieces, build, cfg.src_data_dir[0]),
        row_length=cfg.src_max_sequence_length,
        complete=True,
        transform=corrupted,
        summary=f"T5 text: {len(pieces):,} pieces of up to {longest} tokens, spans hidden anew",
    )


def _pairs_of_files(folders: Sequence[str]) -> Iterator[tuple[pathlib.Path, pathlib.Path]]:
    """Yield the files that each ``meta.dat`` names ("SOURCES TARGETS LINES")."""
    for folder in map(pathlib.Path, folders):
        meta = folder / "meta.dat"
        if not meta.is_file():
            raise DataError(f"{meta}: no such file; each line names sources, targets and lines")
        for number, line in enumerate(text_lines(meta), 1):
            words = words_of(line)
            if words and len(words) < 2:
                raise DataError(f"{meta}, line {number}: {line!r}; expected two files and a count")
            if words:
                pair = [
                    path if path.is_file() else folder / path for path in map(pathlib.Path, words)
                ]
                for path in pair[:2]:
                    if not path.is_file():
                        raise DataError(f"{meta}: names {path.name}, which does not exist")
                yield pair[0], pair[1]


def transformer_pairs(cfg: Any, context: Context) -> Dataset:
    """Read TransformerDynamicDataProcessor's lines: sources as they are, targets with both marks.

    Raises:
        DataError: a missing file or token, files of different lengths, no pair that fits.
    """
    words = _words(cfg, context)
    width, height = cfg.src_max_sequence_length, cfg.tgt_max_sequence_length
    examples, total = [], 0
    for names in _pairs_of_files(cfg.src_data_dir):
        sources, targets = (list(text_lines(name)) for name in names)
        if len(sources) != len(targets):
            raise DataError(f"{names[0]} has {len(sources)} lines, {names[1]} {len(targets)}")
        total += len(sources)
        for pair in zip(sources, targets, strict=True):
            source, target = map(words.encode, pair)
            if 0 < len(source) < width and 0 < len(target) < height:
                examples.append((source, [*target, words.end]))
    if not examples:
        raise DataError(f"{cfg.src_data_dir[0]}: no pair of lines that fits {width} and {height}")
    build = lambda pair: target_row(pair[0], pair[1], (width, height), words.start, words.pad)
    return Dataset(
        source=RowSource(examples, build, cfg.src_data_dir[0]),
        row_length=width,
        complete=True,
        summary=f"pairs of lines: {len(examples):,} of {total:,} fit {width} and {height} tokens",
    )


def qa_csv(cfg: Any, context: Context) -> Dataset:
    """Read BertQADataProcessor's CSV; answers outside the window carry no loss.

    Raises:
        DataError: a wrong row; names file and row.
    """
    length = cfg.max_sequence_length
    examples: list[Rows] = []
    for path in find_described(cfg.data_dir, ["*.csv"]):
        for row in read_rows(path):
            features = _tokens(row, context, "input_mask", "segment_ids")
            if len(features["input_ids"]) != length:
                raise DataError(
                    f"{row.where}: {len(features['input_ids'])} ids, but max_sequence_length is "
                    f"{length}"
                )
            start, end = (_place(row, f"{part}_position", length) for part in ("start", "end"))
            if end < start:
                raise DataError(
                    f"{row.where}: end_position {end} is before start_position {start} (none is "
                    f"{length}); expected the answer's first and last token, or none of both"
                )
            examples.append(features | {"start_positions": start, "end_positions": end})
    return Dataset(
        source=RowSource(examples, lambda example: example, cfg.data_dir[0]),
        row_length=length,
        complete=True,
        summary=f"questions and answers: {len(examples):,} windows of {length} tokens",
    )


def _place(row: Row, name: str, outside: int) -> np.ndarray:
    """Read a token's place; no answer is a place outside of the window."""
    given = str(row.get(name)).strip()
    return _one(row, name, 2**31 - 1) if given else np.asarray(outside, np.int32)
