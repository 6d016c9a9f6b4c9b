"""Random rows for every task, for timing, smoke tests and first looks at a model."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.readers.synthetic import SyntheticSource
from wafer.data.readers.text.preferences import pair_row
from wafer.data.tasks import TaskFeature, stored_features
from wafer.errors import DataError


class _Row(NamedTuple):
    """One row on its way."""

    rng: np.random.Generator  #: of this row alone
    vocab: int  #: V; ids are from 1
    classes: int  #: of labels
    #: shape of a sequence -> which of its places hold tokens
    valid: Callable[[tuple[int, ...]], np.ndarray]


def _ids(row: _Row, shape: tuple[int, ...]) -> np.ndarray:
    return row.rng.integers(1, row.vocab, shape) * row.valid(shape)


def _mask(row: _Row, shape: tuple[int, ...]) -> np.ndarray:
    return row.valid(shape) if shape else np.ones((), bool)


def _normal(row: _Row, shape: tuple[int, ...]) -> np.ndarray:
    return row.rng.standard_normal(shape)


def _states(row: _Row, shape: tuple[int, ...]) -> np.ndarray:
    """One state per token, as its number or as shares of all; none where there is no token."""
    tokens = shape if len(shape) == 1 else shape[:-1]
    drawn = np.where(row.valid(tokens), row.rng.integers(0, row.classes, tokens), -1)
    return drawn if tokens == shape else drawn[..., None] == np.arange(shape[-1])


_DRAWN: Mapping[str, Callable[[_Row, tuple[int, ...]], np.ndarray]] = {
    "input_ids": _ids,
    "decoder_input_ids": _ids,
    "context_input_ids": _ids,
    "attention_mask": _mask,
    "decoder_attention_mask": _mask,
    "context_attention_mask": _mask,
    "loss_mask": _mask,
    "token_type_ids": lambda row, shape: (
        (valid := row.valid(shape)) & (2 * np.arange(shape[-1]) >= valid.sum(-1))
    ),
    "epigenetic": _states,
    "next_sentence_label": lambda row, shape: row.rng.integers(0, 2, shape),
    "images": _normal,
    "pixel_values": _normal,
}
_CLASSES = {"classification", "token_classification", "image"}  # whose labels are no tokens


def _gathered(row: _Row, most: int, length: int, classes: int) -> dict[str, np.ndarray]:
    """Slots that are scored, the first of a row that has fewer places than slots."""
    places = np.flatnonzero(row.valid((length,)))
    count = min(most, len(places))
    weights = np.arange(most) < count
    positions = np.sort(row.rng.choice(places, count, replace=False))
    return {
        "gather_positions": np.pad(positions, (0, most - count)),
        "gather_labels": row.rng.integers(0, classes, most) * weights,
        "gather_weights": weights,
    }


@dataclasses.dataclass(frozen=True)
class RandomRows:
    """Rows of a task, a function of (seed, index) alone."""

    task: str  #: a name of ``wafer.data.tasks.TASKS``
    features: Mapping[str, TaskFeature]  #: of a row, as the task has them
    num_examples: int  #: rows of one epoch
    vocab_size: int  #: ids are drawn from [1, vocab_size)
    classes: int  #: labels are drawn from [0, classes)
    seed: int  #: changes every row

    def __len__(self) -> int:
        return self.num_examples

    def _row(self, index: int) -> _Row:
        rng = np.random.default_rng((self.seed, index))
        masks: dict[tuple[int, ...], np.ndarray] = {}

        def valid(shape: tuple[int, ...]) -> np.ndarray:
            if shape not in masks:
                most = shape[-1]
                counts = rng.integers(max(1, most // 8), most + 1, (*shape[:-1], 1))
                masks[shape] = np.arange(most) < counts
            return masks[shape]

        return _Row(rng, self.vocab_size, self.classes, valid)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        row, out = self._row(index), {}
        if self.task == "dpo":
            return self._pair(row)
        for name, feature in self.features.items():
            if name in _DRAWN:
                out[name] = _DRAWN[name](row, feature.shape)
            elif name == "labels" and self.task in _CLASSES:
                drawn = row.rng.integers(0, row.classes, feature.shape)
                out[name] = drawn * _mask(row, feature.shape)
            elif name == "labels":
                out[name] = _ids(row, feature.shape)
            elif name == "gather_positions":
                length = self.features["input_ids"].shape[-1]
                classes = 2 if self.task == "summarization" else self.vocab_size
                out |= _gathered(row, feature.shape[0], length, classes)
            elif name == "start_positions":
                count = int(row.valid(self.features["input_ids"].shape).sum())
                first, last = np.sort(row.rng.integers(0, count, 2))
                out |= {name: np.asarray(first), "end_positions": np.asarray(last)}
        return {name: value.astype(self.features[name].dtype) for name, value in out.items()}

    def _pair(self, row: _Row) -> dict[str, np.ndarray]:
        """Two answers side by side, and what a reference would have said of them."""
        length = self.features["input_ids"].shape[0] // 2
        counts = row.rng.integers(max(1, length // 8), length + 1, 2)
        answers = [row.rng.integers(1, row.vocab, (3, count)) for count in counts]
        for answer in answers:
            answer[1] = 1  # every token is the answer's
        logps = {"reference_logps": -row.rng.random(2).astype(np.float32)}
        return pair_row([answer.astype(np.int32) for answer in answers], length) | logps


def random_rows(cfg: Any, context: Context) -> Dataset:
    """Make the rows of a section.

    Raises:
        DataError: nobody says how many tokens or classes there are, or images have another size.
    """
    config = context.config
    if config is None:
        raise DataError(f"{cfg.data_processor}: rows have the shapes of a model; none is given")
    vocab = cfg.vocab_size or context.vocab_size or 2
    model_classes = getattr(config, "epigenetic_vocab_size", None) or context.num_labels
    classes = cfg.num_classes or model_classes or 2
    shape = context.input_shape
    if cfg.image_size is not None and shape is not None and cfg.image_size not in shape:
        raise DataError(f"image_size: {cfg.image_size}, but the model takes {shape}")
    limits = (
        ("vocab_size", vocab, context.vocab_size, "tokens"),
        ("num_classes", classes, model_classes, "labels"),
    )
    for key, asked, limit, what in limits:
        if limit is not None and asked > limit:
            raise DataError(f"{key}: {asked}, but the model has {limit} {what}")
    features = stored_features(cfg, config)
    length = cfg.max_sequence_length or config.max_length or 512
    summary = f"random rows for {cfg.task}: {cfg.num_examples:,}"
    if cfg.task == "lm":
        source = SyntheticSource(cfg.num_examples, vocab, length, cfg.seed)
        return Dataset(source=source, row_length=length, pack=cfg.use_vsl, summary=summary)
    rows = RandomRows(cfg.task, features, cfg.num_examples, vocab, classes, cfg.seed)
    longest = max((f.shape[-1] for f in features.values() if f.shape), default=1)
    return Dataset(source=rows, row_length=longest, complete=True, summary=summary)
