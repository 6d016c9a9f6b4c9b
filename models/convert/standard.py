"""Bring parameters into the one form that Hugging Face's code computes with.

muP scales have no place in most config.json files: they are folded into the weights, as the
vendor's converter does. Rotary features come in the vendor's order (adjacent pairs) or in halves:
queries and keys are permuted to the one that the target knows.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.families.decoder_config import DecoderConfig
from models.families.llava import LlavaConfig
from models.families.seq2seq_config import Seq2SeqConfig
from models.layers.block_config import BlockConfig
from models.lazy import LazyArray

__all__ = ["in_pairs", "order_rotary", "standard_form"]

Leaves = Mapping[str, Any]
_KEEP_SCALES = {"btlm", "crystalcoder", "jais"}  # their config.json holds them
# Hugging Face rotates adjacent pairs there, halves elsewhere.
_PAIRS = {"gptj", "codegen", "crystalcoder"}


def _scaled(leaf: Any, factor: float) -> Any:
    def read() -> np.ndarray:
        value = np.asarray(leaf)
        return (value.astype(np.float32) * np.float32(factor)).astype(value.dtype)

    return leaf if factor == 1.0 else LazyArray(tuple(leaf.shape), np.dtype(leaf.dtype), read)


def _transposed(leaf: Any) -> LazyArray:
    return LazyArray(tuple(leaf.shape)[::-1], np.dtype(leaf.dtype), lambda: np.asarray(leaf).T)


def _taken(leaf: Any, order: np.ndarray) -> LazyArray:
    def read() -> np.ndarray:
        return np.take(np.asarray(leaf), order, axis=-1)

    return LazyArray(tuple(leaf.shape), np.dtype(leaf.dtype), read)


def standard_form(cfg: Any, leaves: Leaves, model_type: str) -> tuple[Any, Leaves]:
    """Rewrite a model so that Hugging Face's form of it exists, where that is exact.

    Args:
        cfg: any configuration.
        leaves: parameters by path; may read themselves, and are then read late.
        model_type: of the config.json to be written.

    Returns:
        An equivalent configuration and its parameters.
    """
    if isinstance(cfg, LlavaConfig):
        text, leaves = standard_form(cfg.text_model, leaves, "llama")
        return cfg.model_copy(update={"text_model": text}), leaves
    if isinstance(cfg, Seq2SeqConfig) and model_type == "marian" and not cfg.use_bias_in_output:
        bias = np.zeros((cfg.vocab_size,), leaves["embed/token/embedding"].dtype)
        return cfg.model_copy(update={"use_bias_in_output": True}), {**leaves, "lm_head/bias": bias}
    if isinstance(cfg, DecoderConfig):
        if model_type not in _KEEP_SCALES:
            cfg, leaves = _fold_scales(cfg, leaves)
        return order_rotary(cfg, leaves, pairs=model_type in _PAIRS)
    return cfg, leaves


def in_pairs(cfg: Any, leaves: Leaves) -> tuple[Any, Leaves]:
    """Bring rotary features into adjacent pairs, the vendor's order."""
    if isinstance(cfg, DecoderConfig):
        return order_rotary(cfg, leaves, pairs=True)
    return cfg, leaves


def _fold_scales(cfg: DecoderConfig, leaves: Leaves) -> tuple[DecoderConfig, Leaves]:
    """Move muP's factors into the weights; a tied head is untied where its ends differ."""
    by_d = cfg.scale_qk_dot_by_d is not None or cfg.is_mup or cfg.attention_logits_alpha != 1.0
    scaled = by_d and cfg.softmax_scale is None and cfg.attention_type == "scaled_dot_product"
    query = cfg.attention_scale * cfg.head_dim**0.5 if scaled else 1.0
    embed, head = cfg.embeddings_scale, cfg.logits_scale
    # Clipping and norms come between a query's weights and its scale.
    stuck = query != 1.0 and (cfg.clip_qkv or cfg.attention_qk_norm_layer)
    if (embed, head, query) == (1.0, 1.0, 1.0) or stuck or cfg.position_embedding_type == "fixed":
        return cfg, leaves
    first = "embed/norm/" if cfg.embedding_layer_norm else "embed/"

    def fold(name: str, leaf: Any) -> Any:
        if name.startswith(first):
            return _scaled(leaf, embed)
        if name.startswith("lm_head/"):
            return _scaled(leaf, head)
        return _scaled(leaf, query) if "/attn/query/" in name else leaf

    out = {name: fold(name, leaf) for name, leaf in leaves.items()}
    changed: dict[str, Any] = {
        "embeddings_scale": 1.0,
        "output_logits_scale": None,
        "output_logits_alpha": None,
        "scale_qk_dot_by_d": None,
        "attention_logits_alpha": 1.0,
        "mup_base_hidden_size": None,
        "mup_base_filter_size": None,
    }
    table = 1.0 if cfg.embedding_layer_norm else embed
    if cfg.share_embedding_weights and cfg.with_lm_head and head != table:
        out["lm_head/kernel"] = _transposed(_scaled(leaves["embed/token/embedding"], head))
        changed["share_embedding_weights"] = False
    return cfg.model_copy(update=changed), out


def _rotary_order(cfg: BlockConfig, heads: int, *, pairs: bool) -> np.ndarray:
    """Order of a projection's features that turns halves into pairs, or pairs into halves."""
    size = np.arange(cfg.rotary_features)
    turned = size.reshape(2, -1).T if pairs else size.reshape(-1, 2).T
    rest = np.arange(cfg.rotary_features, cfg.head_dim)
    one = np.concatenate([turned.ravel(), rest])
    return (np.arange(heads)[:, None] * cfg.head_dim + one).ravel()


def order_rotary(
    cfg: DecoderConfig, leaves: Leaves, *, pairs: bool
) -> tuple[DecoderConfig, Leaves]:
    """Permute queries and keys so that rotary features are adjacent pairs, or halves.

    With norms on queries and keys there is no such permutation: those stay as they are.
    """
    rotary = cfg.position_embedding_type == "rotary"
    if not rotary or cfg.rotary_interleaved == pairs or cfg.attention_qk_norm_layer:
        return cfg, leaves
    orders = {
        "/attn/query/": _rotary_order(cfg, cfg.num_heads, pairs=pairs),
        "/attn/key/": _rotary_order(cfg, cfg.num_kv_heads, pairs=pairs),
    }

    def reorder(name: str, leaf: Any) -> Any:
        order = next((order for part, order in orders.items() if part in name), None)
        return leaf if order is None else _taken(leaf, order)

    out = {name: reorder(name, leaf) for name, leaf in leaves.items()}
    return cfg.model_copy(update={"rotary_interleaved": pairs}), out
