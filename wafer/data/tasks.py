"""What a model can learn from: the features of a row, and the tags of its metrics.

Shapes are those of one row as ``wafer.data.batching.batches.host_batch`` gives it, without the
axes of systems, micro-batches and rows. Letters: S tokens, M scored slots, K contexts.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

from wafer.data.batching.sources import FEATURES, VSL_FEATURES
from wafer.data.sections.base import InputSection

_COUNTED = ("lengths", "decoder_lengths", "context_lengths")  # of a batch, by its masks


class TaskFeature(NamedTuple):
    """Shape and dtype of one row's array."""

    shape: tuple[int, ...]
    dtype: str = "int32"


Features = dict[str, TaskFeature]


class RowSizes(NamedTuple):
    """Keys of an input section that decide shapes; the defaults where its class has no such key."""

    length: int  #: S, of ``max_sequence_length`` or the model
    use_vsl: bool = False
    tokens_added: int = 0  #: to each row, by transforms
    max_predictions_per_seq: int | None = None  #: None: that share of a row
    masked_lm_prob: float = 0.15
    disable_nsp: bool | None = None  #: None: as the model
    kmer_size: int = 1
    src_max_sequence_length: int | None = None  #: None: S
    tgt_max_sequence_length: int | None = None  #: None: as the source
    max_cls_tokens: int = 50
    num_hard_negatives: int = 1
    questions_max_sequence_length: int | None = None  #: None: S

    @classmethod
    def of(cls, section: InputSection, config: Any) -> Self:
        """Read a section; ``config`` is the model's."""
        length = section.max_sequence_length or config.max_length or 512
        keys = [name for name in cls._fields[1:] if hasattr(section, name)]
        return cls(length, **{name: getattr(section, name) for name in keys})


class DataTask(NamedTuple):
    """One kind of rows."""

    #: (sizes, model's configuration) -> features of a row
    features: Callable[[RowSizes, Any], Features]
    #: the model's metric -> its TensorBoard tag; what is not named is not shown
    tags: Mapping[str, str]
    scored: bool = False  #: whether its metrics need whole outputs (``Dataset.scorer``)


def _each(names: tuple[str, ...], *shape: int) -> Features:
    return dict.fromkeys(names, TaskFeature(shape))


def _rows(length: int) -> Features:
    return _each(("input_ids", "attention_mask"), length) | {"lengths": TaskFeature(())}


def _segments(length: int) -> Features:
    return _rows(length) | {"token_type_ids": TaskFeature((length,))}


def _gathered(most: int) -> Features:
    return _each(("gather_positions", "gather_labels", "gather_weights"), most)


def _lm(sizes: RowSizes, config: object) -> Features:
    del config
    length = sizes.length + sizes.tokens_added
    packed = _each(VSL_FEATURES, length)
    return packed if sizes.use_vsl else _each(FEATURES, length) | {"lengths": TaskFeature(())}


def _masked_rows(sizes: RowSizes) -> Features:
    packed = _each((*FEATURES[:2], *VSL_FEATURES[3:]), sizes.length)
    rows = packed if sizes.use_vsl else _rows(sizes.length)
    share = max(1, round(sizes.length * sizes.masked_lm_prob))
    return rows | _gathered(sizes.max_predictions_per_seq or share)


def _mlm(sizes: RowSizes, config: Any) -> Features:
    features = _masked_rows(sizes)
    if not config.has_nsp if sizes.disable_nsp is None else sizes.disable_nsp:
        return features
    return features | _segments(sizes.length) | {"next_sentence_label": TaskFeature(())}


def _epigenetic_mlm(sizes: RowSizes, config: Any) -> Features:
    if sizes.kmer_size == 1:
        states = TaskFeature((sizes.length,))
    else:  # a token of several bases may lie in several states
        states = TaskFeature((sizes.length, config.epigenetic_vocab_size), "float32")
    return _masked_rows(sizes) | {"epigenetic": states}


def _seq2seq(sizes: RowSizes, config: object) -> Features:
    del config
    source = sizes.src_max_sequence_length or sizes.length
    target = sizes.tgt_max_sequence_length or source
    decoder = ("decoder_input_ids", "decoder_attention_mask", "labels")
    return _rows(source) | _each(decoder, target) | {"decoder_lengths": TaskFeature(())}


def _pixels(name: str, config: Any) -> Features:
    return {name: TaskFeature(config.input_shape, "float32")}


def _dpr(sizes: RowSizes, config: object) -> Features:
    del config
    contexts = 1 + sizes.num_hard_negatives
    return (
        _rows(sizes.questions_max_sequence_length or sizes.length)
        | _each(("context_input_ids", "context_attention_mask"), contexts, sizes.length)
        | {"context_lengths": TaskFeature((contexts,))}
    )


_ACCURACY = {"accuracy": "eval/accuracy"}
_LANGUAGE = {"perplexity": "eval/lm_perplexity"} | _ACCURACY
_MLM = {
    "mlm/perplexity": "eval/mlm_perplexity",
    "mlm/accuracy": "eval/accuracy_masked_lm",
    "nsp/accuracy": "eval/accuracy_cls",
}
_SEQ2SEQ = {"perplexity": "eval/perplexity_lm", "accuracy": "eval/accuracy_lm"}

TASKS: dict[str, DataTask] = {
    "lm": DataTask(_lm, _LANGUAGE),
    "mlm": DataTask(_mlm, _MLM),
    "epigenetic_mlm": DataTask(_epigenetic_mlm, _MLM),
    "classification": DataTask(
        lambda sizes, config: _segments(sizes.length) | _each(("labels",)), _ACCURACY, scored=True
    ),
    "token_classification": DataTask(
        lambda sizes, config: (
            _segments(sizes.length) | _each(("labels", "loss_mask"), sizes.length)
        ),
        _ACCURACY,
        scored=True,
    ),
    "qa": DataTask(
        lambda sizes, config: _segments(sizes.length) | _each(("start_positions", "end_positions")),
        {},
        scored=True,
    ),
    "summarization": DataTask(
        lambda sizes, config: _segments(sizes.length) | _gathered(sizes.max_cls_tokens),
        _ACCURACY,
        scored=True,
    ),
    "seq2seq": DataTask(_seq2seq, _SEQ2SEQ),
    "image": DataTask(
        lambda sizes, config: _pixels("images", config) | _each(("labels", "attention_mask")),
        _ACCURACY,
    ),
    "image_text": DataTask(
        lambda sizes, config: (
            _rows(sizes.length)
            | _each(("labels", "loss_mask"), sizes.length)
            | _pixels("pixel_values", config)
        ),
        _LANGUAGE,
    ),
    "dpr": DataTask(_dpr, _ACCURACY),
    "dpo": DataTask(
        lambda sizes, config: (
            _each((*VSL_FEATURES, "loss_mask"), 2 * sizes.length)  # side by side
            | {"reference_logps": TaskFeature((2,), "float32")}
        ),
        _ACCURACY | {"margin": "eval/margin"},
    ),
}


def row_features(section: InputSection, config: object) -> Features:
    """Features of one row, every sequence at its full length.

    Exact where ``section.decides_shapes``; else the files may hold rows of other lengths.

    Args:
        section: ``train_input`` or ``eval_input``.
        config: of the model.
    """
    return TASKS[section.task].features(RowSizes.of(section, config), config)


def stored_features(section: InputSection, config: object) -> Features:
    """Features of a row as it is read: without the lengths, which a batch counts.

    Args:
        section: ``train_input`` or ``eval_input``.
        config: of the model.
    """
    return {k: v for k, v in row_features(section, config).items() if k not in _COUNTED}


def metric_tags(task: str, values: Mapping[str, float]) -> dict[str, float]:
    """Put a model's metrics under their tags."""
    tags = TASKS[task].tags
    return {tags[name]: value for name, value in values.items() if name in tags}
