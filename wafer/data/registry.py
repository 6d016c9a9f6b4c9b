"""From an input section of the params YAML to a dataset: the vendor's processor names and ours."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import Tokenizer

from models.errors import did_you_mean
from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.sources import DocumentSource, SyntheticSource
from wafer.data.readers.pystdlib import load_corpus, yardsticks
from wafer.data.readers.rows import bert_rows, gpt_rows, t5_rows
from wafer.data.readers.tasks import TASKS
from wafer.data.readers.tokens import bert_csv, t5_dynamic
from wafer.data.text.tokenizer import END_OF_TEXT, load_tokenizer, token_bytes, train_bpe
from wafer.errors import DataError

__all__ = ["PROCESSORS", "READERS", "build_dataset"]


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
    "SyntheticDataProcessor": _synthetic,
}


READERS: Mapping[str, Callable[[Any, Context], Dataset]] = {
    **TASKS,
    "GptHDF5DataProcessor": gpt_rows,
    "GptHDF5MapDataProcessor": gpt_rows,
    "BertHDF5DataProcessor": bert_rows,
    "BertCSVDataProcessor": bert_csv,
    "T5HDF5DataProcessor": t5_rows,
    "T5DynamicDataProcessor": t5_dynamic,
}


def _kept(dataset: Dataset, model_dir: str | pathlib.Path, context: Context | None) -> Dataset:
    """Keep the training data's tokenizer beside the checkpoints, for ``wafer generate``."""
    target = pathlib.Path(model_dir) / "tokenizer.json"
    if dataset.tokenizer is not None and context is not None and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial")
        partial.write_bytes(dataset.tokenizer.read_bytes())
        partial.replace(target)
    return dataset


def build_dataset(
    cfg: Any, model_dir: str | pathlib.Path, context: Context | None = None
) -> Dataset:
    """Build the dataset an input section names.

    Args:
        cfg: validated ``train_input`` or ``eval_input``.
        model_dir: where a trained tokenizer is kept.
        context: which input it is, and what the model takes; None is training data of any model.

    Raises:
        DataError: unknown processor, or files that do not hold what the section says.
    """
    if cfg.data_processor in READERS:
        return _kept(READERS[cfg.data_processor](cfg, context or Context()), model_dir, context)
    if cfg.data_processor not in PROCESSORS:
        known = [*PROCESSORS, *READERS]
        raise DataError(
            f"data_processor {cfg.data_processor!r} is not known"
            f"{did_you_mean(cfg.data_processor, known)}; known: {', '.join(known)}"
        )
    return PROCESSORS[cfg.data_processor](cfg, pathlib.Path(model_dir))
