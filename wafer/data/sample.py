"""Shapes of one sample, as the data of a configuration would give it: what the compiler traces."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from wafer.data.inputs import InputSection

__all__ = ["sample_features"]

Shapes = dict[str, tuple[int, ...]]


def _rows(S: int) -> Shapes:
    return {"input_ids": (1, S), "attention_mask": (1, S), "lengths": (1,)}


def _gathered(most: int) -> Shapes:
    return dict.fromkeys(("gather_positions", "gather_labels", "gather_weights"), (1, most))


def _lm(section: Any, config: Any, S: int) -> Shapes:
    del section, config
    return _rows(S) | {"labels": (1, S)}


def _mlm(section: Any, config: Any, S: int) -> Shapes:
    most = getattr(section, "max_predictions_per_seq", None) or max(1, round(0.15 * S))
    shapes = _rows(S) | _gathered(most)
    if config.head == "pretraining":
        shapes |= {"token_type_ids": (1, S), "next_sentence_label": (1,)}
    return shapes


def _classification(section: Any, config: Any, S: int) -> Shapes:
    del section, config
    return _rows(S) | {"token_type_ids": (1, S), "labels": (1,)}


def _token_classification(section: Any, config: Any, S: int) -> Shapes:
    del section, config
    return _rows(S) | {"token_type_ids": (1, S), "labels": (1, S), "loss_mask": (1, S)}


def _qa(section: Any, config: Any, S: int) -> Shapes:
    del section, config
    return _rows(S) | {"token_type_ids": (1, S), "start_positions": (1,), "end_positions": (1,)}


def _summarization(section: Any, config: Any, S: int) -> Shapes:
    del config
    return _rows(S) | {"token_type_ids": (1, S)} | _gathered(getattr(section, "max_cls_tokens", 50))


def _seq2seq(section: Any, config: Any, S: int) -> Shapes:
    del config
    target = getattr(section, "tgt_max_sequence_length", None) or S
    names = ("decoder_input_ids", "decoder_attention_mask", "labels")
    return _rows(S) | dict.fromkeys(names, (1, target)) | {"decoder_lengths": (1,)}


def _image(section: Any, config: Any, S: int) -> Shapes:
    del section, S
    return {"images": (1, config.input_size), "labels": (1,), "attention_mask": (1,)}


def _image_text(section: Any, config: Any, S: int) -> Shapes:
    tower = config.image_model
    pixels = (1, tower.num_channels, tower.image_size, tower.image_size)
    return _lm(section, config, S) | {"pixel_values": pixels}


def _dpr(section: Any, config: Any, S: int) -> Shapes:
    del config
    asked = getattr(section, "questions_max_sequence_length", None) or S
    contexts = 1 + getattr(section, "num_hard_negatives", 1)
    names = ("context_input_ids", "context_attention_mask")
    return _rows(asked) | dict.fromkeys(names, (1, contexts, S)) | {"context_lengths": (contexts,)}


def _dpo(section: Any, config: Any, S: int) -> Shapes:
    names = ("attention_span", "position_ids", "loss_mask")
    shapes = _lm(section, config, S) | dict.fromkeys(names, (1, S))
    return {k: v for k, v in shapes.items() if k != "lengths"} | {"reference_logps": (1, 2)}


_TASKS: dict[str, Callable[[Any, Any, int], Shapes]] = {
    "lm": _lm,
    "mlm": _mlm,
    "classification": _classification,
    "token_classification": _token_classification,
    "qa": _qa,
    "summarization": _summarization,
    "seq2seq": _seq2seq,
    "image": _image,
    "image_text": _image_text,
    "dpr": _dpr,
    "dpo": _dpo,
}
_REAL = {"pixel_values", "images", "reference_logps"}


def sample_features(section: InputSection, config: Any) -> dict[str, Any]:
    """Shapes of one sample's features, for ``wafer.data.batching.batches.to_batch``.

    Sequences have their full length: S of the input section, else the model's longest.

    Args:
        section: ``train_input`` or ``eval_input``.
        config: of the model.
    """
    text = getattr(config, "text_model", config)
    longest = getattr(text, "max_position_embeddings", None) or 512
    shapes = _TASKS[section.task](section, config, section.max_sequence_length or longest)
    return {
        name: jax.ShapeDtypeStruct(shape, jnp.float32 if name in _REAL else jnp.int32)
        for name, shape in shapes.items()
    }
