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
from wafer.data.rowfiles.rules import RowGroup, checked_row
from wafer.data.text.textfiles import Row, find_described, read_rows, text_lines, words_of
from wafer.errors import DataError

Rows = dict[str, np.ndarray]


def _static(cfg: Any, context: Context, row: Row) -> Rows:
    names = ["input_ids", "attention_mask", "masked_lm_positions", "masked_lm_weights", "labels"]
    names += [] if cfg.disable_nsp else ["token_type_ids", "next_sentence_label"]
    features = {name: np.array(row.integers(name), np.int32) for name in names}
    pairs = ("input_ids", "attention_mask"), ("masked_lm_positions", "labels")
    for pair in pairs:
        lengths = {name: len(features[name]) for name in pair}
        if len(set(lengths.values())) > 1 or 0 in lengths.values():
            raise DataError(f"{row.where}: {lengths}; expected equal lengths, at least 1")
    groups = tuple(RowGroup(pair[0], pair, len(features[pair[0]])) for pair in pairs)
    try:
        stored = [np.stack([features[name] for name in pair]) for pair in pairs]
        checked_row(groups, stored, context.vocab_size)
    except DataError as error:
        raise DataError(f"{row.where}: {error}") from None
    out = {name: features[name] for name in ("input_ids", "attention_mask")}
    out |= {
        "gather_positions": features["masked_lm_positions"],
        "gather_labels": features["labels"],
        "gather_weights": features["masked_lm_weights"],
    }
    if not cfg.disable_nsp:
        out["token_type_ids"] = features["token_type_ids"]
        out["next_sentence_label"] = features["next_sentence_label"][0]
    return out


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
            names = ("input_ids", "input_mask", "segment_ids")
            ids, mask, segments = (row.integers(name) for name in names)
            if not len(ids) == len(mask) == len(segments) == length:
                raise DataError(
                    f"{row.where}: {len(ids)}, {len(mask)} and {len(segments)} ids, masks and "
                    f"segments, but max_sequence_length is {length}"
                )
            if context.vocab_size is not None and max(ids) >= context.vocab_size:
                raise DataError(f"{row.where}: id {max(ids)} is outside the vocabulary")
            features: dict[str, Any] = {
                "input_ids": ids,
                "attention_mask": mask,
                "token_type_ids": segments,
            }
            for part in ("start", "end"):
                features[f"{part}_positions"] = _place(row, f"{part}_position", length)
            examples.append({name: np.array(value, np.int32) for name, value in features.items()})
    return Dataset(
        source=RowSource(examples, lambda example: example, cfg.data_dir[0]),
        row_length=length,
        complete=True,
        summary=f"questions and answers: {len(examples):,} windows of {length} tokens",
    )


def _place(row: Row, name: str, outside: int) -> int:
    """Read a token's place; no answer is a place outside of the window."""
    text = str(row.get(name)).strip()
    try:
        return int(text) if text else outside
    except ValueError:
        raise DataError(f"{row.where}: {name!r} is {text!r}; expected a whole number") from None
