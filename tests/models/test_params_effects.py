"""No field of a model without effect: a key changes what is traced, is refused, or is listed.

Each key takes other legal values, one at a time, on small models. Another jaxpr of
the loss or of the drawing of parameters, another constant, or another number that the run asks the
configuration for is an effect. Keys without one are rows of ``KEYS``, which a run logs.
"""

import functools
import hashlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.effects import legal_values

from wafer import models, vsl
from wafer.models.base import Batch
from wafer.models.families.decoder_config import DecoderConfig
from wafer.models.families.dpr import DprConfig
from wafer.models.families.encoder_config import EncoderConfig
from wafer.models.families.fc_mnist import FcMnistConfig, image_batch
from wafer.models.families.llava import LlavaConfig
from wafer.models.families.preference import DpoConfig
from wafer.models.families.seq2seq_config import Seq2SeqConfig
from wafer.models.families.vision import VisionConfig
from wafer.models.layers.block_config import FactorConfig, FixedSparse, LoraConfig, MoeConfig
from wafer.models.layers.positions import RopeScaling
from wafer.models.schema import Initializer
from wafer.vendor.keys import rows_of
from wafer.vendor.runfile import read as translate

SIZES = {"hidden_size": 8, "num_heads": 2, "filter_size": 8, "num_hidden_layers": 1}
TOKENS = {"vocab_size": 7, "max_position_embeddings": 4, **SIZES}
WIDTHS = {"mup_base_hidden_size": 4, "mup_base_filter_size": 4}
ROTARY = {"position_embedding_type": "rotary", "rotary_dim": 4}
YARN = {"original_max_position_embeddings": 4}
LLAMA3 = {**YARN, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED = {"pos_scaling_factor": 2.0, "pos_scaling_type": "llama3", "pos_scaling_extra_args": LLAMA3}
IMAGES = {"image_size": 4, "patch_size": 2, "num_channels": 3}
HALF = {"mixed_precision": True, "fp16_type": "float16"}
TOWER = {**SIZES, **IMAGES}
BASES = {
    DecoderConfig: [
        {"name": "gpt2", **TOKENS},
        {"name": "gpt2", **TOKENS, **ROTARY},
        {"name": "gpt2", **TOKENS, **WIDTHS, "share_embedding_weights": False},
        {"name": "gpt2", **TOKENS, "position_embedding_type": "alibi"},
        {"name": "gpt2", **TOKENS, "position_embedding_type": "relative"},
        {"name": "gpt2", **TOKENS, "loss_scaling": "batch_size"},
        {"name": "gpt2", **TOKENS, "attention_module": "multiquery_attention"},
        {"name": "gpt2", **TOKENS, "attention_sliding_window_length": 2, "num_hidden_layers": 2},
        {
            "name": "gpt2",
            **TOKENS,
            "attention_sliding_window_length": 2,
            "sliding_window_every_other_decoder_layer": True,
            "sliding_window_every_other_decoder_layer_pattern": "full_attention_first",
        },
        {"name": "gpt2", **TOKENS, "parallel_attention": True},
        {"name": "gpt2", **TOKENS, "attention_qk_norm_layer": "rmsnorm"},
        {"name": "gpt2", **TOKENS, **HALF},
        {"name": "llama", **TOKENS},
        {"name": "gpt2", **TOKENS, **ROTARY, **SCALED},
    ],
    EncoderConfig: [
        {"name": "bert", **TOKENS},
        {"name": "bert", **TOKENS, **ROTARY},
        {"name": "bert", **TOKENS, **ROTARY, **SCALED},
        {"name": "bert", **TOKENS, **WIDTHS, "share_embedding_weights": False},
        {"name": "bert", **TOKENS, "position_embedding_type": "alibi"},
        {"name": "bert", **TOKENS, "position_embedding_type": "relative"},
        {"name": "bert", **TOKENS, "attention_module": "multiquery_attention"},
        {"name": "bert", **TOKENS, "attention_sliding_window_length": 2},
        {"name": "bert", **TOKENS, "norm_first": True, "parallel_attention": True},
        {"name": "bert", **TOKENS, "attention_qk_norm_layer": "rmsnorm"},
        {"name": "bert", **TOKENS, **HALF},
        {"name": "bert-token-classifier", **TOKENS, "loss_weight": 1.0},
        {"name": "bert-sequence-classifier", **TOKENS},
        {"name": "dpr-question-encoder", **TOKENS},
        {"name": "bert", **TOKENS, "head": "none"},
        {"name": "esm2", **TOKENS, "mask_token_id": 1, "token_dropout": True},
    ],
    Seq2SeqConfig: [
        {"name": "t5", **TOKENS},
        {"name": "t5", **TOKENS, "share_embedding_weights": False},
        {"name": "t5", **TOKENS, **ROTARY},
        {"name": "t5", **TOKENS, **ROTARY, **SCALED},
        {"name": "t5", **TOKENS, "position_embedding_type": "rotary", "rotary_fraction": 1.0},
        {"name": "t5", **TOKENS, **WIDTHS},
        {"name": "t5", **TOKENS, "position_embedding_type": "alibi"},
        {"name": "t5", **TOKENS, "attention_type": "scaled_dot_product"},
        {"name": "t5", **TOKENS, "attention_module": "multiquery_attention"},
        {"name": "t5", **TOKENS, "attention_sliding_window_length": 2},
        {"name": "t5", **TOKENS, "attention_qk_norm_layer": "rmsnorm"},
        {"name": "t5", **TOKENS, **HALF},
        {"name": "t5", **TOKENS, "loss_scaling": "batch_size"},
        {"name": "t5", **TOKENS, "share_encoder_decoder_embedding": False},
        {"name": "transformer", **TOKENS},
    ],
    VisionConfig: [
        {"name": "clip-vit", **SIZES, **IMAGES},
        {"name": "clip-vit", **SIZES, **IMAGES, "num_labels": 2},
        {"name": "clip-vit", **SIZES, **IMAGES, "num_labels": 2, **WIDTHS},
        {"name": "clip-vit", **SIZES, **IMAGES, "attention_module": "multiquery_attention"},
        {"name": "clip-vit", **SIZES, **IMAGES, "attention_qk_norm_layer": "rmsnorm"},
        {"name": "clip-vit", **SIZES, **IMAGES, **HALF},
        {"name": "clip-vit", **SIZES, **IMAGES, "parallel_attention": True},
    ],
    DprConfig: [
        {"name": "dpr", "q_encoder": TOKENS, "ctx_encoder": TOKENS},
        {"name": "dpr", "q_encoder": TOKENS, "ctx_encoder": TOKENS, **HALF},
    ],
    LlavaConfig: [
        {"name": "llava", "image_model": TOWER, "text_model": TOKENS},
        {"name": "llava", "image_model": TOWER, "text_model": TOKENS, **HALF},
    ],
    FcMnistConfig: [
        {"name": "fc_mnist", "input_size": 4, "hidden_size": 8, "depth": 2, "num_classes": 3},
        {"name": "fc_mnist", "input_size": 4, "depth": 2, **HALF},
    ],
}
# Sections within a model's; the rest of it stays the same.
NESTED = {
    MoeConfig: [("moe", {"num_experts": 4, "load_balancing_loss_coef": 0.5})],
    LoraConfig: [("lora_params", {"r": 2, "target_modules": ["attn/query", "ffn/up"]})],
    FactorConfig: [("factors", {"form": "doped", "sparsity": 0.5})],
    FixedSparse: [
        ("fixed_sparse_attention", {"local_attn_ctx": 2, "vert_size": 1, "num_verts": 2})
    ],
    RopeScaling: [
        ("pos_scaling_extra_args", LLAMA3 | {"original_max_position_embeddings": 100}),
        ("pos_scaling_extra_args", {"original_max_position_embeddings": 100}),
    ],
    DpoConfig: [("dpo", {"loss_type": "dpop"}), ("dpo", {})],
    Initializer: [
        ("initializer", {"name": "truncated_normal", "std": 0.5, "a": -1.0, "b": 1.0}),
        ("initializer", {"name": "normal"}),
        ("initializer", {"name": "constant"}),
        ("initializer", {"name": "variance_scaling"}),
        ("initializer", {"name": "xavier_normal"}),
    ],
}
UNIFORM = {"name": "uniform", "a": -1.0, "b": 1.0}
NORMAL = {"name": "normal", "std": 0.5}
# Values of keys whose annotation does not tell any.
OTHER = {
    "name": ["cerebras-gpt"],
    "pos_scaling_extra_args": [LLAMA3 | {"original_max_position_embeddings": 64}],
    "rotary_fraction": [0.5],
    "num_relative_attention_buckets": [8],
    "moe": [{"num_experts": 2}],
    "lora_params": [{"r": 2}],
    "factors": [{"form": "doped", "sparsity": 0.5}],
    "fixed_sparse_attention": [{"local_attn_ctx": 2, "vert_size": 1, "every_other_layer": False}],
    "extra_attention_params": [{"num_kv_groups": 2}],
    "dpo": [{}],
    "nonlinearity": ["relu", "swiglu"],
    "compute_dtype": ["bfloat16"],
    "position_embedding_type": ["fixed", "rotary"],
    "attention_inner_dim": [16],
    "hidden_size": [16],
    "num_heads": [4],
    "low_freq_factor": [0.5],
    "target_modules": [["ffn/up"]],
    "epigenetic_vocab_size": [3],
    "mask_token_id": [2],
    "activation_fn": ["gelu"],
    "pooler_nonlinearity": ["relu"],
    "mlm_nonlinearity": ["relu"],
    "q_encoder": [TOKENS | {"filter_size": 4}],
    "ctx_encoder": [TOKENS | {"filter_size": 4}],
    "image_model": [TOWER | {"filter_size": 4}],
    "text_model": [TOKENS | {"filter_size": 4}],
    "projector_nonlinearity": ["relu"],
    "freeze": [["image_model"]],
    "image_feature_select_layer_idx": [-1],
    "rotary_dim": [2],
    "mup_base_hidden_size": [2],
    "mup_base_filter_size": [2],
}


def values(cls, key):
    """Other legal values of a key, from its annotation."""
    if key in OTHER:
        return OTHER[key]
    if key.endswith("initializer"):
        return [UNIFORM, NORMAL]
    return legal_values(cls.model_fields[key].annotation, (1, 2, 3))


def batch(cfg):
    """Two rows of four slots with every task's further arrays; images as the tower wants them."""
    lengths, pair = jnp.asarray([3, 4]), jnp.asarray([1, 0])
    layout = vsl.padded_layout(lengths, 4)
    tokens, weights = jnp.arange(8) % 7, jnp.ones(8)
    if isinstance(cfg, FcMnistConfig):
        return image_batch(jnp.ones((2, cfg.input_size)), pair)
    extras = {"source_tokens": tokens, "source_layout": layout, "segment_ids": tokens % 2}
    extras |= {"context_tokens": tokens, "context_layout": layout}
    extras |= {"next_sentence_label": pair, "class_labels": pair}
    extras |= {"start_positions": pair, "end_positions": pair}
    extras["reference_logps"] = jnp.ones((2, 2))
    tower = getattr(cfg, "image_model", cfg)
    if isinstance(tower, VisionConfig):
        extras["pixel_values"] = jnp.ones((2, tower.num_channels, *[tower.image_size] * 2))
    if states := getattr(cfg, "epigenetic_vocab_size", None):
        extras["epigenetic"] = jnp.ones((8, states))
    return Batch(tokens, tokens, weights, layout, extras)


def traced(fn, *args):
    """What a function does as text and constants; the shapes of its results."""
    closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
    text = re.sub(r"0x[0-9a-f]+", "", str(closed.jaxpr))
    return [text, *(np.asarray(const).tobytes() for const in closed.consts)], shapes


# What a run asks a configuration for, besides the model.
ASKED = ("tasks", "max_length", "uses_dropout", "enable_vts", "mup_rates", "head_dim", "freeze")


@functools.cache
def fingerprint(section):
    """Hash of what is traced; '' where the section is refused."""
    try:
        model = models.build(translate({"model": _thawed(section)}).sections["model"])
        cfg, key = model.config, jax.random.key(0)
        parts, params = traced(model.init, key)
    except ValueError:
        return ""
    parts += [str(getattr(cfg, name, "")) for name in ASKED]
    parts += traced(model.loss if cfg.tasks else model.apply, params, batch(cfg), key)[0]
    encoded = [part if isinstance(part, bytes) else part.encode() for part in parts]
    return hashlib.sha256(b"\0".join(encoded)).hexdigest()


def _frozen(value):
    if isinstance(value, dict):
        return "map", tuple((k, _frozen(v)) for k, v in value.items())
    return ("list", tuple(map(_frozen, value))) if isinstance(value, list) else value


def _thawed(value):
    if not isinstance(value, tuple):
        return value
    kind, items = value
    return {k: _thawed(v) for k, v in items} if kind == "map" else [_thawed(v) for v in items]


def listed(cls):
    """Keys of a class that a run lists as without effect."""
    places = {"model"} if cls in BASES else {f"model.{name}" for name, _ in NESTED[cls]}
    return {key for place in places for row in rows_of(place, "drop", "refuse") for key in row.keys}


# Keys of both halves that a traced loss does not show, and what does.
ELSEWHERE = {
    "decoder_start_token_id",  # the first token that is generated
    "src_max_position_embeddings",  # of a Transformer: the next test but one
    "tgt_max_position_embeddings",
}


def sections(cls):
    """Yield (section, path to the keys of ``cls`` in it)."""
    for base in BASES.get(cls, ()):
        yield {"dropout_rate": 0.1, **base} if "dropout_rate" in cls.model_fields else base, ()
    for name, own in NESTED.get(cls, ()):
        outer = {"name": "gpt2", **TOKENS, "num_hidden_layers": 2, "dropout_rate": 0.1}
        if name.startswith("pos_scaling"):
            kind = "llama3" if "low_freq_factor" in own else "yarn"
            outer |= {**ROTARY, "hidden_size": 16, "rotary_dim": 8, "pos_scaling_factor": 2.0}
            outer["pos_scaling_type"] = kind
        yield outer | {name: own}, (name,)


def with_key(section, path, key, value):
    own = {key: value} if not path else {path[0]: section[path[0]] | {key: value}}
    return _frozen(section | own)


def has_effect(cls, key):
    """Whether no value of the key that is taken leaves all small models as they are."""
    taken = False
    for number, (section, path) in enumerate(sections(cls)):
        if number and key in listed(cls):
            break
        own = section[path[0]] if path else section
        for value in values(cls, key):
            if own.get(key, cls.model_fields[key].default) == value:
                continue
            other = fingerprint(with_key(section, path, key, value))
            if other and other != fingerprint(_frozen(section)):
                return True
            taken |= bool(other)
    return not taken


@pytest.mark.slow
@pytest.mark.parametrize("cls", [pytest.param(c, id=c.__name__) for c in (*BASES, *NESTED)])
def test_a_key_without_effect_is_listed(cls):
    for section, _ in sections(cls):
        assert fingerprint(_frozen(section)), section
    idle = {key for key in cls.model_fields if not has_effect(cls, key)}
    assert sorted(idle ^ ((listed(cls) | ELSEWHERE) & cls.model_fields.keys())) == []


def test_labels_of_masked_tokens_are_smoothed():
    """(1 - e) of the label's loss + e of the mean over the vocabulary."""
    base = {"name": "bert", **TOKENS, "disable_nsp": True}
    plain, smooth = (models.build(base | {"label_smoothing": e}) for e in (0.0, 0.25))
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(8, 7)))
    data = batch(plain.config)
    losses = [m.objective({"logits": logits}, data) for m in (plain, smooth)]
    log_p = np.asarray(jax.nn.log_softmax(logits))
    expected = 0.75 * float(losses[0].loss_sum) - 0.25 * log_p.mean(-1).sum()
    assert float(losses[1].loss_sum) == pytest.approx(expected, rel=1e-5)


def test_sentinels_and_positions_of_both_halves_size_the_tables():
    keys = {"vocab_size": 7, "extra_ids": 3, "src_max_position_embeddings": 9}
    cfg = models.build({"name": "transformer", **SIZES, **keys}).config
    assert (cfg.vocab_size, cfg.max_length) == (10, 9)
    keys["tgt_max_position_embeddings"] = 12
    assert models.build({"name": "transformer", **SIZES, **keys}).config.max_length == 12
    again = models.registry.parse_config(models.registry.settings_of(cfg))
    assert again == cfg
    with pytest.raises(ValueError, match="extra_ids"):
        models.build({"name": "t5", **TOKENS, "extra_ids": -1})
    pattern = "sliding_window_every_other_decoder_layer_pattern"
    balanced = {"num_experts": 2, "load_balancing_loss_coef": 0.1}
    for name, key, value in (
        ("bert", "scale_qk_dot_by_layer_idx", True),
        ("bert", pattern, "full_attention_first"),
        ("bert", "moe", balanced),
        ("t5", pattern, "full_attention_first"),
        ("t5", "position_embedding_offset", 1),
        ("clip-vit", "position_embedding_type", "alibi"),
        ("clip-vit", "embedding_dropout_rate", 0.5),
    ):
        sizes = TOWER if name == "clip-vit" else TOKENS
        with pytest.raises(ValueError, match=key):
            models.build({"name": name, **sizes, key: value})


@pytest.mark.parametrize("key", ["relu_dropout_rate", "attention_sink_tokens", "use_vsl"])
def test_the_proxy_tells_effects_from_none(key):
    """Dropout and a window's sinks are traced; packing is the data's."""
    assert has_effect(DecoderConfig, key) == (key != "use_vsl")
