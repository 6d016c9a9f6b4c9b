"""No field without effect: every declared key changes what is traced, is refused, or is listed.

Each key takes other legal values, one at a time, on small models of its family. Another jaxpr of
the loss or of the drawing of parameters, another constant, or another number that the run asks the
configuration for is an effect. Keys without one are rows of ``IGNORED``, which a run logs.
"""

import functools
import hashlib
import re
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import models
import vsl
from models.base import Batch
from models.families.decoder_config import DecoderConfig
from models.families.encoder_config import EncoderConfig
from models.families.seq2seq_config import Seq2SeqConfig
from wafer.config.vendor.keys import IGNORED

SIZES = {"hidden_size": 8, "num_heads": 2, "filter_size": 8, "num_hidden_layers": 1}
TOKENS = {"vocab_size": 7, "max_position_embeddings": 4, **SIZES}
WIDTHS = {"mup_base_hidden_size": 4, "mup_base_filter_size": 4}
ROTARY = {"position_embedding_type": "rotary", "rotary_dim": 2}
YARN = {"original_max_position_embeddings": 4}
LLAMA3 = {**YARN, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
BASES = {
    DecoderConfig: [
        {"name": "gpt2", **TOKENS},
        {"name": "gpt2", **TOKENS, **ROTARY},
        {"name": "gpt2", **TOKENS, **WIDTHS, "share_embedding_weights": False},
        {"name": "gpt2", **TOKENS, "position_embedding_type": "alibi"},
        {"name": "gpt2", **TOKENS, "position_embedding_type": "relative"},
        {"name": "gpt2", **TOKENS, "loss_scaling": "batch_size"},
        {"name": "gpt2", **TOKENS, "attention_module": "multiquery_attention"},
        {"name": "gpt2", **TOKENS, "attention_sliding_window_length": 2},
        {
            "name": "gpt2",
            **TOKENS,
            "attention_sliding_window_length": 2,
            "sliding_window_every_other_decoder_layer": True,
        },
        {"name": "gpt2", **TOKENS, "parallel_attention": True},
        {"name": "gpt2", **TOKENS, "attention_qk_norm_layer": "rmsnorm"},
        {"name": "gpt2", **TOKENS, "mixed_precision": True},
        {"name": "llama", **TOKENS},
        {
            "name": "gpt2",
            **TOKENS,
            **ROTARY,
            "pos_scaling_factor": 2.0,
            "pos_scaling_type": "llama3",
            "pos_scaling_extra_args": LLAMA3,
        },
    ],
    EncoderConfig: [
        {"name": "bert", **TOKENS},
        {"name": "bert-token-classifier", **TOKENS},
        {"name": "bert-sequence-classifier", **TOKENS},
        {"name": "bert", **TOKENS, **ROTARY},
        {"name": "bert", **TOKENS, **WIDTHS},
        {"name": "bert", **TOKENS, "position_embedding_type": "alibi"},
        {"name": "bert", **TOKENS, "position_embedding_type": "relative"},
        {"name": "bert", **TOKENS, "attention_module": "multiquery_attention"},
        {"name": "bert", **TOKENS, "attention_qk_norm_layer": "rmsnorm"},
        {"name": "bert", **TOKENS, "attention_sliding_window_length": 2},
        {"name": "bert", **TOKENS, "mixed_precision": True},
        {"name": "bert", **TOKENS, "parallel_attention": True, "norm_first": True},
        {"name": "bert", **TOKENS, "head": "none"},
        {"name": "dpr-question-encoder", **TOKENS},
    ],
    Seq2SeqConfig: [
        {"name": "t5", **TOKENS},
        {"name": "t5", **TOKENS, **WIDTHS},
        {"name": "t5", **TOKENS, "attention_type": "scaled_dot_product"},
        {"name": "t5", **TOKENS, "share_encoder_decoder_embedding": False},
        {"name": "transformer", **TOKENS},
        {"name": "t5", **TOKENS, **ROTARY},
        {"name": "t5", **TOKENS, "position_embedding_type": "learned"},
        {"name": "t5", **TOKENS, "position_embedding_type": "alibi"},
        {"name": "t5", **TOKENS, "attention_module": "multiquery_attention"},
        {"name": "t5", **TOKENS, "attention_qk_norm_layer": "rmsnorm"},
        {"name": "t5", **TOKENS, "attention_sliding_window_length": 2},
        {"name": "t5", **TOKENS, "mixed_precision": True},
        {"name": "t5", **TOKENS, "loss_scaling": "batch_size"},
    ],
}
UNIFORM = {"name": "uniform", "a": -1.0, "b": 1.0}
NORMAL = {"name": "normal", "std": 0.5}
# Values of keys whose annotation does not tell any.
OTHER = {
    "name": ["cerebras-gpt"],
    "pos_scaling_extra_args": [LLAMA3 | {"low_freq_factor": 2.0}],
    "rotary_fraction": [0.5],
    "num_relative_attention_buckets": [8],
    "moe": [{"num_experts": 2}],
    "lora_params": [{"r": 2}],
    "factors": [{"form": "doped", "sparsity": 0.5}],
    "fixed_sparse_attention": [{"local_attn_ctx": 2, "vert_size": 1}],
    "extra_attention_params": [{"num_kv_groups": 2}],
    "dpo": [{}],
    "nonlinearity": ["relu", "swiglu"],
    "encoder_nonlinearity": ["relu"],
    "pooler_nonlinearity": ["relu"],
    "mlm_nonlinearity": ["relu"],
    "compression": ["x"],
    "attention_kernel": ["x"],
    "compute_dtype": ["bfloat16"],
    "compute_eval_metrics": [False],
    "position_embedding_type": ["fixed", "rotary"],
    "attention_inner_dim": [16],
    "hidden_size": [16],
    "num_heads": [4],
    "rotary_dim": [4],
    "epigenetic_vocab_size": [3],
    "head": ["qa"],
    "mup_base_hidden_size": [2],
    "mup_base_filter_size": [2],
}


def values(cls, key):
    """Other legal values of a key, from its annotation."""
    if key in OTHER:
        return OTHER[key]
    if key.endswith("initializer"):
        return [UNIFORM, NORMAL]
    default, out = cls.model_fields[key].default, []
    kinds = [cls.model_fields[key].annotation]
    while kinds:
        kind = kinds.pop()
        kinds += [k for k in typing.get_args(kind) if isinstance(k, type) or typing.get_args(k)]
        if typing.get_origin(kind) is typing.Literal:
            out += typing.get_args(kind)
        elif kind is bool:
            out += [True, False]
        elif kind is int:
            out += [1, 2, 3]
        elif kind is float:
            out += [0.25, 0.75, 2.5]
    return [value for value in out if value != default and value is not None]


def batch(cfg):
    lengths = jnp.asarray([3, 4])
    layout = vsl.padded_layout(lengths, 4)
    tokens, weights = jnp.arange(8) % 7, jnp.ones(8)
    extras = {}
    if isinstance(cfg, Seq2SeqConfig):
        extras = {"source_tokens": tokens[::-1], "source_layout": layout}
    elif isinstance(cfg, EncoderConfig):
        row = jnp.zeros(2, jnp.int32)
        extras = {"next_sentence_label": row, "class_labels": row, "start_positions": row}
        extras |= {"end_positions": row, "epigenetic": tokens % 3}
        if cfg.head == "summarization":
            ones = jnp.ones(2)
            extras |= {"masked_positions": row, "masked_labels": row, "masked_weights": ones}
    return Batch(tokens, tokens, weights, layout, extras)


def traced(fn, *args):
    closed = jax.make_jaxpr(fn)(*args)
    text = re.sub(r"0x[0-9a-f]+", "", str(closed.jaxpr))
    return text, *(np.asarray(const).tobytes() for const in closed.consts)


# What a run asks a configuration for, besides the model.
ASKED = ("tasks", "max_length", "uses_dropout", "enable_vts", "mup_rates", "head_dim")


@functools.cache
def fingerprint(section):
    """Hash of what is traced; '' where the section is refused."""
    try:
        model = models.build({key: _thawed(value) for key, value in section})
        cfg, key = model.config, jax.random.key(0)
        params = jax.eval_shape(model.init, key)
    except ValueError:
        return ""
    parts = [*traced(model.init, key), *(str(getattr(cfg, name)) for name in ASKED)]
    data = batch(cfg)
    if cfg.tasks and cfg.tasks != ("dpo",):
        parts += traced(model.loss, params, data, key)
    else:
        parts += traced(model.apply, params, data, key)
    encoded = [part if isinstance(part, bytes) else part.encode() for part in parts]
    return hashlib.sha256(b"\0".join(encoded)).hexdigest()


def _frozen(value):
    return tuple((k, _frozen(v)) for k, v in value.items()) if isinstance(value, dict) else value


def _thawed(value):
    return {k: _thawed(v) for k, v in value} if isinstance(value, tuple) else value


LISTED = {key for row in IGNORED if row.section == "model" for key in row.keys.split()}


def has_effect(cls, key):
    """Whether some value of the key changes a small model; refused values do not count."""
    for base in BASES[cls][: 1 if key in LISTED else None]:
        known = _frozen({"dropout_rate": 0.1, **base})
        for value in values(cls, key):
            if dict(known).get(key, cls.model_fields[key].default) == value:
                continue
            other = fingerprint(_frozen({"dropout_rate": 0.1, **base, key: value}))
            if other and other != fingerprint(known):
                return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("cls", [pytest.param(c, id=c.__name__) for c in BASES])
def test_a_key_without_effect_is_listed(cls):
    idle = {key for key in cls.model_fields if not has_effect(cls, key)}
    assert idle == LISTED & cls.model_fields.keys()


@pytest.mark.parametrize("key", ["relu_dropout_rate", "attention_sink_tokens", "tf_summary"])
def test_the_proxy_tells_effects_from_none(key):
    """Dropout and a window's sinks are traced; the norms' summary is not."""
    assert has_effect(DecoderConfig, key) == (key != "tf_summary")
