"""From an input section of the params YAML to a dataset: the vendor's processor names and ours."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from models.paths import close_names
from wafer.data.pipeline import Loader
from wafer.data.pystdlib import load_corpus, yardsticks
from wafer.data.sources import DocumentSource, Hdf5Source, Source, SyntheticSource
from wafer.data.tokenizer import END_OF_TEXT, load_tokenizer, token_bytes, train_bpe
from wafer.errors import DataError

__all__ = ["PROCESSORS", "Dataset", "build_dataset"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """A source and what the run needs to know about it.

    Attributes:
        source: the examples.
        row_length: S, the longest sequence and the length of a packed row.
        pack: several examples per row (VSL), built on the fly.
        mean_length: tokens per example, or None where it is not known without reading all.
        token_bytes: [V] bytes per token, for bits per byte; None without a tokenizer.
        references: name -> bits per byte of other compressors on the same text.
        summary: one line for the log.
        shuffle: whether the order is shuffled, and with which seed.
        shuffle_seed: of the order.
    """

    source: Source
    row_length: int
    pack: bool = False
    mean_length: float | None = None
    token_bytes: np.ndarray | None = None
    references: Mapping[str, float] = dataclasses.field(default_factory=dict)
    summary: str = ""
    shuffle: bool = False
    shuffle_seed: int = 0

    def batches(self, batch_size: int) -> int | None:
        """Batches of one pass; for packed rows the nearest estimate, None when unknown."""
        if not self.pack:
            return len(self.source) // batch_size
        if self.mean_length is None:
            return None
        return math.ceil(len(self.source) * self.mean_length / (batch_size * self.row_length))

    def loader(self, batch_size: int, num_epochs: int | None, drop_last: bool = True) -> Loader:
        """Open a loader over ``batch_size`` rows a batch."""
        return Loader(
            self.source,
            batch_size=batch_size,
            row_length=self.row_length,
            pack=self.pack,
            shuffle=self.shuffle,
            seed=self.shuffle_seed,
            num_epochs=num_epochs,
            drop_last=drop_last,
        )


def _common(cfg: Any) -> dict[str, Any]:
    return {"shuffle": bool(cfg.shuffle), "shuffle_seed": cfg.shuffle_seed or 0}


def _pystdlib(cfg: Any, model_dir: pathlib.Path) -> Dataset:
    corpus = load_corpus(cfg.source_dir, cfg.max_bytes)
    path = model_dir / "tokenizer.json"
    if path.exists():  # a resumed run must keep its vocabulary
        tokenizer = load_tokenizer(path)
    else:
        tokenizer = train_bpe(corpus.train, cfg.vocab_size)
        model_dir.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")  # a kill while writing must not leave half a file
        tokenizer.save(str(partial))
        partial.replace(path)
    texts = corpus.train if cfg.split == "train" else corpus.held_out
    source, end = _encode(tokenizer, texts, cfg.max_sequence_length), cfg.split != "train"
    sizes = token_bytes(tokenizer)
    mean = float(source.lengths.mean())
    return Dataset(
        source=source,
        row_length=cfg.max_sequence_length,
        pack=bool(cfg.use_vsl),
        mean_length=mean,
        token_bytes=sizes,
        references=yardsticks(texts) if end else {},
        summary=(
            f"Python standard library, {cfg.split}: {len(texts):,} functions, "
            f"{sum(len(t.encode()) for t in texts) / 1e6:.2f} MB, {source.lengths.sum():,} tokens, "
            f"longest/mean = {source.lengths.max()}/{mean:.0f} = {source.lengths.max() / mean:.1f} "
            f"(text sha256 {corpus.digest[:12]})"
        ),
        **_common(cfg),
    )


def _encode(tokenizer: Tokenizer, texts: tuple[str, ...], max_length: int) -> DocumentSource:
    end: Any = tokenizer.token_to_id(END_OF_TEXT)
    documents = [[*e.ids, end] for e in tokenizer.encode_batch_fast(list(texts))]
    return DocumentSource(documents, end, max_length)


def _hdf5(cfg: Any, model_dir: pathlib.Path) -> Dataset:
    del model_dir
    folders = [cfg.data_dir] if isinstance(cfg.data_dir, str) else list(cfg.data_dir)
    source = Hdf5Source(folders)
    features, row_length = source.row_shape
    if cfg.use_vsl != (features == 5):
        raise DataError(
            f"{folders[0]}: rows have {features} features, but use_vsl is "
            f"{str(bool(cfg.use_vsl)).lower()}; VSL rows have 5 (with attention_span, "
            "position_ids), others 3"
        )
    if cfg.max_sequence_length not in (None, row_length):
        raise DataError(
            f"{folders[0]}: rows are {row_length} tokens long, but max_sequence_length is "
            f"{cfg.max_sequence_length}; drop the key or set it to {row_length}"
        )
    return Dataset(
        source=source,
        row_length=row_length,
        summary=f"HDF5: {len(source):,} rows of {row_length} tokens, {features} features",
        **_common(cfg),
    )


def _synthetic(cfg: Any, model_dir: pathlib.Path) -> Dataset:
    del model_dir
    source = SyntheticSource(
        cfg.num_examples, cfg.vocab_size, cfg.max_sequence_length, cfg.shuffle_seed or 0
    )
    return Dataset(
        source=source,
        row_length=cfg.max_sequence_length,
        pack=bool(cfg.use_vsl),
        summary=f"synthetic: {len(source):,} examples of up to {cfg.max_sequence_length} tokens",
        **_common(cfg),
    )


PROCESSORS: Mapping[str, Callable[[Any, pathlib.Path], Dataset]] = {
    "PyStdlibDataProcessor": _pystdlib,
    "GptHDF5DataProcessor": _hdf5,
    "GptHDF5MapDataProcessor": _hdf5,
    "SyntheticDataProcessor": _synthetic,
}


def build_dataset(cfg: Any, model_dir: str | pathlib.Path) -> Dataset:
    """Build the dataset an input section names.

    Args:
        cfg: validated ``train_input`` or ``eval_input``.
        model_dir: where a trained tokenizer is kept.

    Raises:
        DataError: unknown processor, or files that do not hold what the section says.
    """
    if cfg.data_processor not in PROCESSORS:
        raise DataError(
            f"data_processor {cfg.data_processor!r} is not known"
            f"{close_names(cfg.data_processor, PROCESSORS)}; known: {', '.join(PROCESSORS)}"
        )
    return PROCESSORS[cfg.data_processor](cfg, pathlib.Path(model_dir))
