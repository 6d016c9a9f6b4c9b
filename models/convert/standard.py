"""Bring parameters into the one form that Hugging Face's code computes with.

muP scales have no place in most config.json files: they are folded into the weights. Rotary
features come in adjacent pairs or in halves: queries and keys are permuted to the order that the
target knows.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import PyTree

from wafer.models.checkpoint.lazy import LazyArray
from wafer.models.families.decoder_config import DecoderConfig
from wafer.models.families.encoder_config import EncoderConfig
from wafer.models.families.llava import LlavaConfig
from wafer.models.families.seq2seq_config import Seq2SeqConfig
from wafer.models.layers.basic import RMS_NORMS
from wafer.models.layers.block_config import BlockConfig
from wafer.models.schema import ModelConfig

Leaves = Mapping[str, Any]
_KEEP_SCALES = {"btlm", "crystalcoder", "jais"}  # their config.json holds them
_SEGMENTS = {"bert", "roberta", "dpr"}  # their code has a table of segments, always
_BESIDE_TEXT = ("image_", "projector/")  # LLaVA's parameters that are not its text model's
_SEGMENT = "embed/segment/embedding"
# Hugging Face rotates adjacent pairs there, halves elsewhere.
_PAIRS = {"gptj", "codegen", "crystalcoder"}
# Their code scales embeddings by the root of the width, and norms by 1 + the parameter.
_GEMMA = {"gemma", "gemma2", "gemma3_text"}
# Kinds of norms by key of the configuration, and names of their scales.
_NORM_SCALES = {
    "norm_type": r"(.*/)?norm(\w*)/scale",
    "attention_qk_norm_layer": r".*/attn/(query|key)_norm/scale",
}


def _later(leaf: PyTree, change: Callable[[np.ndarray], np.ndarray]) -> LazyArray:
    """Change an array, of whatever shape it keeps, when it is read."""
    read = lambda: change(np.asarray(leaf))
    return LazyArray(tuple(leaf.shape), np.dtype(leaf.dtype), read)


def _scaled(leaf: PyTree, factor: float) -> PyTree:
    scale = lambda x: (x.astype(np.float32) * np.float32(factor)).astype(x.dtype)
    return leaf if factor == 1.0 else _later(leaf, scale)


def standard_form(cfg: ModelConfig, leaves: Leaves, model_type: str) -> tuple[ModelConfig, Leaves]:
    """Rewrite a model so that Hugging Face's form of it exists, where that is exact.

    Args:
        cfg: any configuration.
        leaves: parameters by path; may read themselves, and are then read late.
        model_type: of the config.json to be written.

    Returns:
        An equivalent configuration and its parameters.
    """
    if isinstance(cfg, LlavaConfig):
        of_text = {k: leaf for k, leaf in leaves.items() if not k.startswith(_BESIDE_TEXT)}
        text, changed = standard_form(cfg.text_model, of_text, "llama")
        rest = {k: leaf for k, leaf in leaves.items() if k not in of_text}
        return cfg.model_copy(update={"text_model": text}), {**rest, **changed}
    if isinstance(cfg, Seq2SeqConfig) and model_type == "marian" and not cfg.use_bias_in_output:
        bias = np.zeros((cfg.vocab_size,), leaves["embed/token/embedding"].dtype)
        return cfg.model_copy(update={"use_bias_in_output": True}), {**leaves, "lm_head/bias": bias}
    if isinstance(cfg, Seq2SeqConfig) and model_type == "t5":
        return _as_t5(cfg, leaves)
    if isinstance(cfg, DecoderConfig):
        native = 1.0
        if model_type in _GEMMA:
            cfg, native = _as_gemma(cfg)
        if model_type not in _KEEP_SCALES:
            cfg, leaves = _fold_scales(cfg, leaves, native)
        kind = "rmsnorm-1p" if model_type in _GEMMA else "rmsnorm"
        cfg, leaves = offset_norms(cfg, leaves, kind)
    if isinstance(cfg, EncoderConfig) and model_type in _SEGMENTS and not cfg.num_segments:
        token = leaves["embed/token/embedding"]  # zeros are as no segments
        table = np.zeros((2, token.shape[1]), token.dtype)
        cfg, leaves = cfg.model_copy(update={"num_segments": 2}), {**leaves, _SEGMENT: table}
    if isinstance(cfg, DecoderConfig | EncoderConfig):
        return order_rotary(cfg, leaves, pairs=model_type in _PAIRS)
    return cfg, leaves


def in_pairs(cfg: ModelConfig, leaves: Leaves) -> tuple[ModelConfig, Leaves]:
    """Bring rotary features into adjacent pairs and norms to plain scales."""
    if isinstance(cfg, DecoderConfig | EncoderConfig):
        return order_rotary(*offset_norms(cfg, leaves, "rmsnorm"), pairs=True)
    return cfg, leaves


def offset_norms(cfg: BlockConfig, leaves: Leaves, norm_type: str) -> tuple[BlockConfig, Leaves]:
    """Rewrite RMSNorm's scales as parameters, or as 1 + parameters.

    Args:
        cfg: of a stack.
        leaves: parameters by path.
        norm_type: 'rmsnorm' or 'rmsnorm-1p'; other norms stay as they are.
    """
    keys = [key for key in _NORM_SCALES if {getattr(cfg, key), norm_type} == set(RMS_NORMS)]
    if not keys:
        return cfg, leaves
    added = 1 if norm_type == "rmsnorm" else -1
    is_norm = re.compile("|".join(_NORM_SCALES[key] for key in keys)).fullmatch
    shift = lambda x: (x.astype(np.float32) + np.float32(added)).astype(x.dtype)
    out = {k: _later(leaf, shift) if is_norm(k) else leaf for k, leaf in leaves.items()}
    return cfg.model_copy(update=dict.fromkeys(keys, norm_type)), out


def _as_gemma(cfg: DecoderConfig) -> tuple[DecoderConfig, float]:
    """Say the attention's scale in one number; return the scale of embeddings in Gemma's code."""
    native = cfg.hidden_size**0.5
    changed: dict[str, Any] = {"softmax_scale": cfg.attention_scale}
    if math.isclose(cfg.embeddings_scale, native, rel_tol=1e-6):
        changed["embeddings_scale"] = native
    return cfg.model_copy(update=changed), native


def _as_t5(cfg: Seq2SeqConfig, leaves: Leaves) -> tuple[Seq2SeqConfig, Leaves]:
    """Bring a head into the two forms that both versions of T5's code have.

    They are a shared one whose logits are scaled, and one of its own.
    """
    if cfg.share_embedding_weights == cfg.scale_logits:
        return cfg, leaves
    own = cfg.model_copy(update={"share_embedding_weights": False, "scale_logits": False})
    if not cfg.share_embedding_weights:  # only shared ones are scaled
        return own, leaves
    return own, {**leaves, "lm_head/kernel": _head_of(leaves["embed/token/embedding"])}


def _head_of(table: PyTree) -> LazyArray:
    """Turn an embedding into the kernel of a head."""
    turned = lambda: np.asarray(table).T
    return LazyArray(tuple(table.shape)[::-1], np.dtype(table.dtype), turned)


def _fold_scales(cfg: DecoderConfig, leaves: Leaves, native: float) -> tuple[DecoderConfig, Leaves]:
    """Move muP's factors into the weights; a tied head is untied where its ends differ.

    Args:
        cfg: of the model.
        leaves: parameters by path.
        native: scale of embeddings that the target computes.
    """
    by_d = cfg.scale_qk_dot_by_d is not None or cfg.is_mup or cfg.attention_logits_alpha != 1.0
    scaled = by_d and cfg.softmax_scale is None and cfg.attention_type == "scaled_dot_product"
    query = cfg.attention_scale * cfg.head_dim**0.5 if scaled else 1.0
    embed, head = cfg.embeddings_scale / native, cfg.logits_scale
    # Clipping and norms come between a query's weights and its scale.
    stuck = query != 1.0 and (cfg.clip_qkv or cfg.attention_qk_norm_layer)
    if (embed, head, query) == (1.0, 1.0, 1.0) or stuck or cfg.position_embedding_type == "fixed":
        return cfg, leaves
    first = "embed/norm/" if cfg.embedding_layer_norm else "embed/"

    def fold(name: str, leaf: PyTree) -> PyTree:
        if name.startswith(first):
            return _scaled(leaf, embed)
        if name.startswith("lm_head/"):
            return _scaled(leaf, head)
        return _scaled(leaf, query) if "/attn/query/" in name else leaf

    out = {name: fold(name, leaf) for name, leaf in leaves.items()}
    changed: dict[str, Any] = {
        "embeddings_scale": native,
        "output_logits_scale": None,
        "output_logits_alpha": None,
        "scale_qk_dot_by_d": None,
        "attention_logits_alpha": 1.0,
        "mup_base_hidden_size": None,
        "mup_base_filter_size": None,
    }
    table = 1.0 if cfg.embedding_layer_norm else embed
    if cfg.share_embedding_weights and cfg.with_lm_head and head != table:
        out["lm_head/kernel"] = _head_of(_scaled(leaves["embed/token/embedding"], head))
        changed["share_embedding_weights"] = False
    return cfg.model_copy(update=changed), out


def _rotary_order(cfg: BlockConfig, heads: int, *, pairs: bool) -> np.ndarray:
    """Order of a projection's features that turns halves into pairs, or pairs into halves."""
    size = np.arange(cfg.rotary_features)
    turned = size.reshape(2, -1).T if pairs else size.reshape(-1, 2).T
    rest = np.arange(cfg.rotary_features, cfg.head_dim)
    one = np.concatenate([turned.ravel(), rest])
    return (np.arange(heads)[:, None] * cfg.head_dim + one).ravel()


def order_rotary(cfg: BlockConfig, leaves: Leaves, *, pairs: bool) -> tuple[BlockConfig, Leaves]:
    """Permute queries, keys and their norms: rotary features become adjacent pairs, or halves."""
    if cfg.position_embedding_type != "rotary" or cfg.rotary_interleaved == pairs:
        return cfg, leaves
    is_rotated = re.compile(r".*/attn/(query|key)(_norm)?/.*").fullmatch

    def reorder(name: str, leaf: PyTree) -> PyTree:
        if not is_rotated(name):
            return leaf
        order = _rotary_order(cfg, leaf.shape[-1] // cfg.head_dim, pairs=pairs)
        return _later(leaf, lambda x: np.take(x, order, axis=-1))

    out = {name: reorder(name, leaf) for name, leaf in leaves.items()}
    return cfg.model_copy(update={"rotary_interleaved": pairs}), out
