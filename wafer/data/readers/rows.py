"""The readers of HDF5 rows by the names a params YAML uses: GPT, BERT and T5."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from tokenizers import decoders

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.pipeline import Rows, Transform
from wafer.data.batching.sources import FEATURES, Mixture, Source, Subset
from wafer.data.readers.masked_lm import hiding_states, mask_row, scored_slots
from wafer.data.rowfiles.files import CorpusSource, Hdf5Source, folder_params, is_corpus
from wafer.data.rowfiles.rules import IGNORED
from wafer.data.sections.base import InputSection, RowsInput
from wafer.data.text.textfiles import read_text
from wafer.data.text.tokenizer import load_tokenizer, token_bytes
from wafer.errors import DataError
from wafer.models.convert.tokenizer import IDS, special_ids

S = TypeVar("S", bound=Source)


def row_folders(cfg: RowsInput) -> tuple[str, ...]:
    """Return the folders that a section names, those of a mixture in its order."""
    if cfg.data_dir is not None:
        return cfg.data_dir
    return tuple(folder for part in cfg.mixture or () for folder in part.data_dir)


def require_length(cfg: InputSection, location: str, length: int) -> None:
    """Compare the rows' length with the section's, where that names one.

    Args:
        cfg: the section.
        location: file or folder, for the message.
        length: of the rows, in tokens.

    Raises:
        DataError: they differ.
    """
    if cfg.max_sequence_length not in (None, length):
        raise DataError(
            f"{location}: rows are {length} tokens long, but max_sequence_length is "
            f"{cfg.max_sequence_length}; drop the key or set it to {length}"
        )


def assemble(cfg: RowsInput, open_rows: Callable[[Sequence[str]], S]) -> tuple[Source, S, str]:
    """Open the source that a section names, cut and mixed.

    Args:
        cfg: the section.
        open_rows: folders -> source.

    Returns:
        (the source, its first part uncut, what is cut and mixed for the log).
    """
    if cfg.mixture is None:
        first = open_rows(row_folders(cfg))
        if cfg.data_subset is None and cfg.num_samples is None:
            return first, first, ""
        source = Subset(first, cfg.data_subset, cfg.num_samples)
        return source, first, f" (subset {cfg.data_subset or 'all'})"
    opened = [open_rows(entry.data_dir) for entry in cfg.mixture]
    cut = lambda rows, subset: rows if subset is None else Subset(rows, subset)
    total = sum(entry.weight for entry in cfg.mixture)
    shares = ", ".join(f"{entry.weight / total:.1%} {entry.data_dir[0]}" for entry in cfg.mixture)
    mixed = Mixture(
        [cut(rows, entry.data_subset) for rows, entry in zip(opened, cfg.mixture, strict=True)],
        [entry.weight / total for entry in cfg.mixture],
    )
    source = mixed if cfg.num_samples is None else Subset(mixed, None, cfg.num_samples)
    return source, opened[0], f" (mixture: {shares})"


def gpt_rows(cfg: Any, context: Context) -> Dataset:
    """Next-token rows, packed ones, or windows of a corpus.

    Raises:
        DataError: rows that are not what the section says; names file, and row when reading.
    """
    folders = row_folders(cfg)
    kinds = {is_corpus(folder) for folder in folders}
    if len(kinds) > 1:
        raise DataError(f"{', '.join(folders)}: some hold rows, others a corpus; use one kind")
    if kinds == {True}:
        return _corpus(cfg, context)
    source, first, note = assemble(cfg, functools.partial(_gpt_source, cfg, context))
    features, length = first.row_shape
    return Dataset(
        source=source,
        **_transformed(cfg, length),
        summary=f"HDF5: {len(source):,} rows of {length} tokens, {features} features{note}",
        **_tokenizer_of(folders),
    )


def _transformed(cfg: Any, length: int) -> dict[str, Any]:
    """Length of rows after ``data_transforms``, and the transform."""
    if not cfg.data_transforms:
        return {"row_length": length}
    transform = functools.partial(_insert, sinks=cfg.data_transforms)
    return {"row_length": length + cfg.tokens_added, "transform": transform}


def _insert(row: Rows, rng: np.random.Generator, *, sinks: Sequence[Any]) -> Rows:
    """Put sink tokens into a row; their label is their own id, without loss."""
    del rng
    for sink in sinks:
        size = len(row["input_ids"])
        if sink.sink_token_start_pos > size:
            raise DataError(
                f"data_transforms: sink_token_start_pos {sink.sink_token_start_pos} is beyond rows "
                f"of {size} tokens"
            )
        slots = [sink.sink_token_start_pos] * sink.num_sink_tokens
        end = size if sink.truncate_to_original_length else None
        row = row | {
            name: np.insert(row[name], slots, 0 if name == "attention_mask" else sink.sink_token_id)
            for name in FEATURES
        }
        row |= {name: row[name][:end] for name in FEATURES}
    return row


def _gpt_source(cfg: Any, context: Context, folders: Sequence[str]) -> Hdf5Source:
    source = Hdf5Source(folders, context.vocab_size)
    features, length = source.row_shape
    if features == 2:
        raise DataError(
            f"{folders[0]}: rows have 2 features (input_ids, attention_mask) as BERT's; read them "
            "with BertHDF5DataProcessor, or preprocess in mode LMData"
        )
    if cfg.use_vsl != (features == 5):
        raise DataError(
            f"{folders[0]}: rows have {features} features, but use_vsl is "
            f"{str(bool(cfg.use_vsl)).lower()}; VSL rows have 5 (with attention_span, "
            "position_ids), others 3"
        )
    require_length(cfg, folders[0], length)
    return source


def _corpus(cfg: Any, context: Context) -> Dataset:
    folders, length = row_folders(cfg), cfg.max_sequence_length
    if length is None:
        raise DataError(
            f"{folders[0]}: a corpus has no rows; max_sequence_length must say how long to cut them"
        )
    if cfg.use_vsl:
        raise DataError(
            f"{folders[0]}: a corpus does not know where documents end, so use_vsl cannot work; "
            "preprocess in mode LMData_VSL"
        )
    source, _, note = assemble(cfg, lambda names: CorpusSource(names, length, context.vocab_size))
    return Dataset(
        source=source,
        **_transformed(cfg, length),
        summary=f"HDF5 corpus: {len(source):,} windows of {length} tokens{note}",
        **_tokenizer_of(folders),
    )


def _tokenizer_of(folders: Sequence[str]) -> dict[str, Any]:
    """The tokenizer beside the rows, and bytes per token where every token spells its bytes."""
    path = pathlib.Path(folders[0]) / "tokenizer.json"
    if not path.is_file():
        return {}
    tokenizer = load_tokenizer(path)
    out: dict[str, Any] = {"tokenizer": read_text(path), "tokenizer_folder": path.parent}
    end = folder_params(folders[0]).get("post-process", {}).get("eos_id")
    if end is not None:
        kept = special_ids(path.parent) if path.with_name(IDS).is_file() else {}
        out["special_ids"] = kept | {"eos_token_id": end}
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        out["token_bytes"] = token_bytes(tokenizer)
    return out


def bert_rows(cfg: Any, context: Context) -> Dataset:
    """Rows to mask at every reading, or rows with masked labels.

    Raises:
        DataError: rows without the features, no id for [MASK].
    """
    packed = ("attention_span", "position_ids") if cfg.use_vsl else ()
    return _masked_rows(cfg, context, ("input_ids", "attention_mask", *packed))


def epigenetic_rows(cfg: Any, context: Context) -> Dataset:
    """Rows as BERT's with the states of their tokens.

    Raises:
        DataError: rows without the features, states outside the model's, no id for [MASK].
    """
    data = _masked_rows(cfg, context, ("input_ids", "attention_mask", "epigenetic"))
    if not cfg.mask_epigenetic or data.transform is None:
        return data
    return dataclasses.replace(data, transform=hiding_states(data.transform))


def _masked_rows(cfg: Any, context: Context, needed: tuple[str, ...]) -> Dataset:
    folders = row_folders(cfg)
    states = getattr(context.config, "epigenetic_vocab_size", None)

    source, first, note = assemble(cfg, lambda names: Hdf5Source(names, context.vocab_size, states))
    length = first.row_shape[1]
    require_length(cfg, folders[0], length)
    static = "labels" in first.features
    first.require(needed)
    most = cfg.max_predictions_per_seq or max(1, round(length * cfg.masked_lm_prob))
    if static:
        transform = functools.partial(_gathered, most=most, names=needed)
    else:
        transform = _masking(cfg, context, folders[0], most)
    how = "masked beforehand" if static else f"{cfg.masked_lm_prob:.0%} masked at every reading"
    return Dataset(
        source=source,
        row_length=length,
        complete=True,
        transform=transform,
        summary=f"HDF5: {len(source):,} rows of {length} tokens, {how}{note}",
    )


def _masking(cfg: Any, context: Context, folder: str, most: int) -> Transform:
    written = folder_params(folder).get("post-process", {})
    mask_id = written.get("mask_id") if cfg.mask_id is None else cfg.mask_id
    vocab_size = written.get("vocab_size", context.vocab_size)
    if mask_id is None or vocab_size is None:
        raise DataError(
            f"{folder}: data_params.json names no mask_id or vocab_size; give mask_id, the id of "
            "the mask token"
        )
    return functools.partial(
        _mask,
        most=most,
        rate=cfg.masked_lm_prob,
        mask_id=int(mask_id),
        vocab_size=int(vocab_size),
        special_ids=tuple(written.get("special_ids", ())),
    )


def _mask(row: Rows, rng: np.random.Generator, **how: Any) -> Rows:
    out = mask_row(row, rng, **how)
    if "next_sentence_label" in row:
        out["next_sentence_label"] = row["next_sentence_label"][0]  # stored as a row of one value
    return out


def _gathered(row: Rows, rng: np.random.Generator, *, most: int, names: tuple[str, ...]) -> Rows:
    """Static masks: labels along the row, or already gathered with their positions."""
    del rng
    labels = row["labels"]
    out = {name: row[name] for name in names}
    if "masked_lm_positions" in row:
        return out | {
            "gather_positions": row["masked_lm_positions"],
            "gather_labels": np.maximum(labels, 0),
            "gather_weights": (row["masked_lm_mask"] != 0).astype(np.int32),
        }
    positions = np.flatnonzero(labels != IGNORED)
    return out | scored_slots(positions, labels[positions], most)


_T5 = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "labels")


def t5_rows(cfg: RowsInput, context: Context) -> Dataset:
    """Source and target rows.

    Raises:
        DataError: rows without the five features.
    """
    source, first, note = assemble(cfg, lambda names: Hdf5Source(names, context.vocab_size))
    first.require(_T5, "preprocess in mode T5")
    lengths = "/".join(str(group.length) for group in first.groups)
    return Dataset(
        source=source,
        row_length=first.row_shape[1],
        complete=True,
        transform=_without_ignored,
        summary=f"HDF5: {len(source):,} source and target rows of {lengths} tokens{note}",
    )


def _without_ignored(row: Rows, rng: np.random.Generator) -> Rows:
    """Labels of -100 carry no loss; the mask says so already, and ids must be in range."""
    del rng
    out = {name: row[name] for name in _T5}
    ignored = row["labels"] == IGNORED
    return out | {
        "labels": np.where(ignored, 0, row["labels"]),
        "decoder_attention_mask": np.where(ignored, 0, row["decoder_attention_mask"]),
    }
