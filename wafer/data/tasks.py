"""What a model can learn from: the features of a row, and the tags of its metrics.

Shapes are those of one row as ``wafer.data.batching.batches.host_batch`` gives it, without the
axes of systems, micro-batches and rows. Letters: S tokens, M scored slots, K contexts.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from wafer.data.batching.sources import FEATURES, VSL_FEATURES

_COUNTED = ("lengths", "decoder_lengths", "context_lengths")  # of a batch, by its masks


class TaskFeature(NamedTuple):
    """Shape and dtype of one row's array."""

    shape: tuple[int, ...]
    dtype: str = "int32"


Features = dict[str, TaskFeature]


class DataTask(NamedTuple):
    """One kind of rows."""

    #: (section, model's configuration, S) -> features of a row
    features: Callable[[Any, Any, int], Features]
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


def _lm(section: Any, config: Any, length: int) -> Features:
    del config
    length += getattr(section, "tokens_added", 0)
    packed = _each(VSL_FEATURES, length)
    return packed if section.use_vsl else _each(FEATURES, length) | {"lengths": TaskFeature(())}


def _masked_rows(section: Any, length: int) -> Features:
    most = getattr(section, "max_predictions_per_seq", None)
    share = getattr(section, "masked_lm_prob", 0.15)
    packed = _each((*FEATURES[:2], *VSL_FEATURES[3:]), length)
    rows = packed if section.use_vsl else _rows(length)
    return rows | _gathered(most or max(1, round(length * share)))


def _mlm(section: Any, config: Any, length: int) -> Features:
    features = _masked_rows(section, length)
    if getattr(section, "disable_nsp", not config.has_nsp):
        return features
    return features | _segments(length) | {"next_sentence_label": TaskFeature(())}


def _epigenetic_mlm(section: Any, config: Any, length: int) -> Features:
    if getattr(section, "kmer_size", 1) == 1:
        states = TaskFeature((length,))
    else:  # a token of several bases may lie in several states
        states = TaskFeature((length, config.epigenetic_vocab_size), "float32")
    return _masked_rows(section, length) | {"epigenetic": states}


def _seq2seq(section: Any, config: Any, length: int) -> Features:
    del config
    source = getattr(section, "src_max_sequence_length", length)
    target = getattr(section, "tgt_max_sequence_length", None) or source
    decoder = ("decoder_input_ids", "decoder_attention_mask", "labels")
    return _rows(source) | _each(decoder, target) | {"decoder_lengths": TaskFeature(())}


def _pixels(name: str, config: Any) -> Features:
    return {name: TaskFeature(config.input_shape, "float32")}


def _dpr(section: Any, config: Any, length: int) -> Features:
    del config
    contexts = 1 + getattr(section, "num_hard_negatives", 1)
    asked = getattr(section, "questions_max_sequence_length", None) or length
    return (
        _rows(asked)
        | _each(("context_input_ids", "context_attention_mask"), contexts, length)
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
        lambda section, config, s: _segments(s) | _each(("labels",)), _ACCURACY, scored=True
    ),
    "token_classification": DataTask(
        lambda section, config, s: _segments(s) | _each(("labels", "loss_mask"), s),
        _ACCURACY,
        scored=True,
    ),
    "qa": DataTask(
        lambda section, config, s: _segments(s) | _each(("start_positions", "end_positions")),
        {},
        scored=True,
    ),
    "summarization": DataTask(
        lambda section, config, s: _segments(s) | _gathered(getattr(section, "max_cls_tokens", 50)),
        _ACCURACY,
        scored=True,
    ),
    "seq2seq": DataTask(_seq2seq, _SEQ2SEQ),
    "image": DataTask(
        lambda section, config, s: _pixels("images", config) | _each(("labels", "attention_mask")),
        _ACCURACY,
    ),
    "image_text": DataTask(
        lambda section, config, s: (
            _rows(s) | _each(("labels", "loss_mask"), s) | _pixels("pixel_values", config)
        ),
        _LANGUAGE,
    ),
    "dpr": DataTask(_dpr, _ACCURACY),
    "dpo": DataTask(
        lambda section, config, s: (
            _each((*VSL_FEATURES, "loss_mask"), 2 * s)  # side by side
            | {"reference_logps": TaskFeature((2,), "float32")}
        ),
        _ACCURACY | {"margin": "eval/margin"},
    ),
}


def row_features(section: Any, config: Any) -> Features:
    """Features of one row, every sequence at its full length.

    Exact where ``section.decides_shapes``; else the files may hold rows of other lengths.

    Args:
        section: ``train_input`` or ``eval_input``.
        config: of the model.
    """
    length = section.max_sequence_length or config.max_length or 512
    return TASKS[section.task].features(section, config, length)


def stored_features(section: Any, config: Any) -> Features:
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
