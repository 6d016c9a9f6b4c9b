"""Which rows a model learns from, and under which names its metrics are reported."""

from collections.abc import Mapping
from typing import Any

from models.decoder_config import DecoderConfig
from models.dpr import DprConfig
from models.encoder_config import EncoderConfig
from models.fc_mnist import FcMnistConfig
from models.llava import LlavaConfig
from models.seq2seq_config import Seq2SeqConfig
from wafer.data.batching.dataset import Context

__all__ = ["context_of", "metric_tags", "tasks_of"]

_FAMILIES: Mapping[type, tuple[str, ...]] = {
    DecoderConfig: ("lm",),
    LlavaConfig: ("image_text", "lm"),
    Seq2SeqConfig: ("seq2seq",),
    FcMnistConfig: ("image",),
    DprConfig: ("dpr",),
}
_HEADS = {
    "pretraining": "mlm",
    "mlm": "mlm",
    "classification": "classification",
    "token_classification": "token_classification",
    "qa": "qa",
    "summarization": "summarization",
}

# Task -> the model's metric -> the vendor's TensorBoard tag; what is not named is not shown.
_TAGS: Mapping[str, Mapping[str, str]] = {
    "lm": {"perplexity": "eval/lm_perplexity", "accuracy": "eval/accuracy"},
    "seq2seq": {"perplexity": "eval/perplexity_lm", "accuracy": "eval/accuracy_lm"},
    "mlm": {
        "mlm/perplexity": "eval/mlm_perplexity",
        "mlm/accuracy": "eval/accuracy_masked_lm",
        "nsp/accuracy": "eval/accuracy_cls",
    },
    "image_text": {"perplexity": "eval/lm_perplexity", "accuracy": "eval/accuracy"},
    "classification": {"accuracy": "eval/accuracy"},
    "token_classification": {"accuracy": "eval/accuracy"},
    "summarization": {"accuracy": "eval/accuracy"},
    "image": {"accuracy": "eval/accuracy"},
    "dpr": {"accuracy": "eval/accuracy"},
    "qa": {},
    "dpo": {"accuracy": "eval/accuracy", "margin": "eval/margin"},
}


def tasks_of(config: Any) -> tuple[str, ...]:
    """Tasks whose rows a model takes, the usual one first; () for a model without a loss."""
    if getattr(config, "dpo", None) is not None:
        return ("dpo",)
    for cls, tasks in _FAMILIES.items():
        if isinstance(config, cls):
            return tasks if getattr(config, "with_lm_head", True) else ()
    if isinstance(config, EncoderConfig) and config.head in _HEADS:
        return (_HEADS[config.head],)
    return ()


def metric_tags(task: str, values: Mapping[str, float]) -> dict[str, float]:
    """Put a model's metrics under the vendor's tags."""
    tags = _TAGS[task]
    return {tags[name]: value for name, value in values.items() if name in tags}


def context_of(config: Any, *, training: bool) -> Context:
    """Collect what the data has to fit."""
    shape = None
    classes = getattr(config, "num_labels", None)
    if isinstance(config, FcMnistConfig):
        shape, classes = (config.input_size,), config.num_classes
    if isinstance(config, LlavaConfig):
        tower = config.image_model
        shape = (tower.num_channels, tower.image_size, tower.image_size)
    return Context(training, classes, getattr(config, "vocab_size", None), shape)
