"""Datasets that Hugging Face's ``datasets`` saved: Arrow files of texts or of token ids."""

import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.sources import DocumentSource
from wafer.data.preprocess.records import find_inputs
from wafer.data.text.tables import SLICE, arrow_tables, few_rows
from wafer.data.text.textfiles import read_json
from wafer.data.text.wordpiece import Vocabulary, load_vocabulary
from wafer.errors import DataError

_IDS = "input_ids"  # the column of a dataset that was tokenized before it was saved


def _part(cfg: Any, context: Context, place: str) -> pathlib.Path:
    """The folder of one split."""
    folder = pathlib.Path(place)
    several = folder / "dataset_dict.json"
    if not several.is_file():
        if not (folder / "state.json").is_file():
            raise DataError(
                f"data_dir: {folder} holds neither state.json nor dataset_dict.json; expected a "
                "folder that save_to_disk of Hugging Face's datasets wrote"
            )
        state = read_json(folder / "state.json")
        own = state.get("_split") if isinstance(state, dict) else None
        if cfg.split and isinstance(own, str) and own.partition("[")[0] != cfg.split:
            raise DataError(f"split: {cfg.split!r}, but {folder} holds {own!r}")
        return folder
    content = read_json(several)
    splits = content.get("splits") if isinstance(content, dict) else None
    splits = [name for name in splits or () if isinstance(name, str)]
    usual = ("train",) if context.training else ("validation", "test")
    candidates = (cfg.split,) if cfg.split else usual
    split = next((name for name in candidates if name in splits), None)
    if split is None:
        raise DataError(
            f"split: {folder} has {', '.join(splits) or 'no splits'}; looked for "
            f"{' or '.join(candidates)}"
        )
    return folder / split


def _text(value: object) -> str | None:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return " ".join(value)
    return value if isinstance(value, str) else None


def _numbers(value: object, mask: object = None, *, size: int) -> np.ndarray | None:
    """[n] int32 ids where the mask is not 0; None where the column holds something else."""
    try:
        ids = np.asarray(value, np.int64)
        ids = ids if mask is None else ids[np.asarray(mask, np.int64) != 0]
    except (IndexError, OverflowError, TypeError, ValueError):
        return None
    good = ids.ndim == 1 and (not ids.size or 0 <= ids.min() <= ids.max() < size)
    return ids.astype(np.int32) if good else None


def _records(table: Any, key: str, vocabulary: Vocabulary) -> Iterator[np.ndarray | None]:
    """Ids of every record of a batch; None for one that holds something else."""
    names = table.schema.names
    if key in names:
        rows = few_rows([table.column(key)])
        while few := [_text(value) for (value,) in itertools.islice(rows, SLICE)]:
            known = iter(vocabulary.encode_all([text for text in few if text is not None]))
            yield from (None if text is None else next(known) for text in few)
    elif _IDS in names:
        wanted = [name for name in (_IDS, "attention_mask") if name in names]
        for value, *mask in few_rows([table.column(name) for name in wanted]):
            yield _numbers(value, *mask, size=vocabulary.size)
    else:
        raise DataError(f"no column {key!r} (text_key) or {_IDS!r}; it has: {', '.join(names)}")


def _documents(path: pathlib.Path, key: str, vocabulary: Vocabulary) -> Iterator[np.ndarray]:
    count = 0
    try:
        for table, _ in arrow_tables(path):
            for ids in _records(table, key, vocabulary):
                count += 1
                if ids is None:
                    raise DataError(
                        f"record {count}: expected text in {key!r}, or in {_IDS!r} ids below "
                        f"{vocabulary.size}, the size of {vocabulary.path.name}"
                    )
                yield ids
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except (EOFError, OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read after record {count}: {error}") from error


def hugging_face(cfg: Any, context: Context) -> Dataset:
    """Read saved datasets whole; for larger ones there is ``wafer data preprocess``.

    Raises:
        DataError: no saved dataset, no such split or column, a wrong record; names the file.
    """
    vocabulary = load_vocabulary(cfg.vocab_file, cfg.do_lower, context.vocab_size)
    begin = vocabulary.mark(cfg, "bos_token")
    end = [] if cfg.eos_token is None else [vocabulary.id_of(cfg.eos_token)]
    files = find_inputs([str(_part(cfg, context, place)) for place in cfg.data_dir], None)
    documents = [
        np.append(ids, np.array(end, np.int32))
        for file in files
        for ids in _documents(file, cfg.text_key, vocabulary)
    ]
    length = cfg.max_sequence_length
    if cfg.use_vsl:
        rows = [ids[at : at + length] for ids in documents for at in range(0, len(ids), length)]
    else:  # end to end; an incomplete last row is dropped
        tokens = np.concatenate([*documents, np.empty(0, np.int32)]).astype(np.int32)
        rows = list(tokens[: len(tokens) // length * length].reshape(-1, length))
    if not rows:
        raise DataError(
            f"{cfg.data_dir[0]}: {len(documents):,} records with "
            f"{sum(map(len, documents)):,} tokens fill no row of {length}; shorten "
            "max_sequence_length, or set use_vsl"
        )
    source = DocumentSource(rows, begin, length)
    mean = float(source.lengths.mean())
    return Dataset(
        source=source,
        row_length=length,
        pack=bool(cfg.use_vsl),
        mean_length=mean,
        tokenizer=vocabulary.json,
        summary=(
            f"saved dataset: {len(documents):,} records of {len(files)} file(s), "
            f"{source.lengths.sum():,} tokens in {len(rows):,} examples, mean {mean:.0f}"
        ),
    )
