"""The vendor's tokenized text: BERT's CSV, T5's lines with spans to hide, Transformer's pairs."""

import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.objectives import corrupt_spans, longest_source
from wafer.data.batching.rowsets import RowSource, fixed, target_row
from wafer.data.readers.rows import require_length
from wafer.data.rowfiles.rules import IGNORED
from wafer.data.text.textfiles import Row, find_described, read_rows, text_lines, words_of
from wafer.errors import DataError

Rows = dict[str, np.ndarray]


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
            own = {name: value.shape for name, value in example.items()}
            shape = shape or own
            if own != shape:
                raise DataError(f"{row.where}: features of {own}, but the first row's are {shape}")
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


def _vocabulary(cfg: Any) -> dict[str, int]:
    path = pathlib.Path(cfg.src_vocab_file)
    if not path.is_file():
        raise DataError(f"src_vocab_file: no such file: {path}")
    words = text_lines(path)
    fold = str.lower if cfg.do_lower else str
    vocabulary = {fold(word.split("\t")[0]): index for index, word in enumerate(words)}
    for key in ("oov_token", "eos_token", "pad_token"):
        if fold(getattr(cfg, key)) not in vocabulary:
            raise DataError(
                f"{key}: {getattr(cfg, key)!r} is not in {path}; name the token it has, or add it"
            )
    return vocabulary


def _pieces(cfg: Any, vocabulary: Mapping[str, int], longest: int) -> Iterator[np.ndarray]:
    fold = str.lower if cfg.do_lower else str
    unknown = vocabulary[fold(cfg.oov_token)]
    for path in find_described(cfg.src_data_dir, ["*.txt"], "src_data_dir"):
        for line in text_lines(path):
            ids = [vocabulary.get(fold(token), unknown) for token in words_of(line)]
            for at in range(0, len(ids), longest):
                if len(ids) - at > 1:  # one token leaves nothing to hide
                    yield np.array(ids[at : at + longest], np.int32)


def _corrupted(row: Rows, rng: np.random.Generator, *, cfg: Any, ids: Mapping[str, int]) -> Rows:
    pair = corrupt_spans(row["tokens"][: int(row["length"])], rng, vocab_size=ids["size"])
    source, target = (np.append(part, np.int32(ids["eos"])) for part in pair)
    lengths = cfg.src_max_sequence_length, cfg.tgt_max_sequence_length
    return {"row": row["row"]} | target_row(source, target, lengths, ids["start"], ids["pad"])


def t5_dynamic(cfg: Any, context: Context) -> Dataset:
    """Read T5DynamicDataProcessor's lines; the spans to hide are drawn at every reading.

    Raises:
        DataError: a missing file or token, targets that cannot fit.
    """
    vocabulary = _vocabulary(cfg)
    lengths = cfg.src_max_sequence_length, cfg.tgt_max_sequence_length
    longest = longest_source(*lengths, cfg.extra_ids)
    size = len(vocabulary) + cfg.extra_ids
    if context.vocab_size is not None and size > context.vocab_size:
        raise DataError(
            f"src_vocab_file: {len(vocabulary)} tokens and {cfg.extra_ids} sentinels, but the "
            f"model's vocabulary has {context.vocab_size}"
        )
    fold = str.lower if cfg.do_lower else str
    pad = vocabulary[fold(cfg.pad_token)]
    ids = {
        "size": size,
        "eos": vocabulary[fold(cfg.eos_token)],
        "pad": pad,
        "start": vocabulary.get(fold(cfg.sos_token), pad),
    }
    examples = list(_pieces(cfg, vocabulary, longest))
    build = lambda tokens: {"tokens": fixed(tokens, longest), "length": np.int32(len(tokens))}
    return Dataset(
        source=RowSource(examples, build, cfg.src_data_dir[0]),
        row_length=cfg.src_max_sequence_length,
        complete=True,
        transform=functools.partial(_corrupted, cfg=cfg, ids=ids),
        summary=f"T5 text: {len(examples):,} pieces of up to {longest} tokens, spans hidden anew",
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
    vocabulary = _vocabulary(cfg)
    fold = str.lower if cfg.do_lower else str
    if context.vocab_size is not None and len(vocabulary) > context.vocab_size:
        raise DataError(
            f"src_vocab_file: {len(vocabulary)} tokens, but the model's vocabulary has "
            f"{context.vocab_size}"
        )
    marks = {key: vocabulary[fold(getattr(cfg, f"{key}_token"))] for key in ("oov", "eos", "pad")}
    start = vocabulary.get(fold(cfg.sos_token), marks["pad"])
    width, height = cfg.src_max_sequence_length, cfg.tgt_max_sequence_length
    encode = lambda line: [vocabulary.get(fold(t), marks["oov"]) for t in words_of(line)]
    examples, seen = [], 0
    for names in _pairs_of_files(cfg.src_data_dir):
        sources, targets = (list(text_lines(name)) for name in names)
        if len(sources) != len(targets):
            raise DataError(f"{names[0]} has {len(sources)} lines, {names[1]} {len(targets)}")
        seen += len(sources)
        for source, target in zip(map(encode, sources), map(encode, targets), strict=True):
            if 0 < len(source) < width and 0 < len(target) < height:
                examples.append((source, [*target, marks["eos"]]))
    if not examples:
        raise DataError(f"{cfg.src_data_dir[0]}: no pair of lines that fits {width} and {height}")
    build = lambda pair: target_row(pair[0], pair[1], (width, height), start, marks["pad"])
    return Dataset(
        source=RowSource(examples, build, cfg.src_data_dir[0]),
        row_length=width,
        complete=True,
        summary=f"pairs of lines: {len(examples):,} of {seen:,} fit {width} and {height} tokens",
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
