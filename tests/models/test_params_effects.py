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
UNTIED = {"share_embedding_weights": False}
ALIBI, RELATIVE = ({"position_embedding_type": kind} for kind in ("alibi", "relative"))
BY_ROWS = {"loss_scaling": "batch_size"}
GROUPS = {"attention_module": "multiquery_attention"}
WINDOW = {"attention_sliding_window_length": 2}
EVERY_OTHER = WINDOW | {
    "sliding_window_every_other_decoder_layer": True,
    "sliding_window_every_other_decoder_layer_pattern": "full_attention_first",
}
PARALLEL = {"parallel_attention": True}
QK_NORM = {"attention_qk_norm_layer": "rmsnorm"}
TOWER = {**SIZES, **IMAGES}
LABELS = {"num_labels": 2}
MASKED = {"mask_token_id": 1, "token_dropout": True}
WHOLE_ROTARY = {"position_embedding_type": "rotary", "rotary_fraction": 1.0}
TWO_TABLES = {"share_encoder_decoder_embedding": False}
MNIST = {"input_size": 4, "depth": 2}


def variants(name, sizes, *changes):
    """Sections of a model: as it is, and with the keys of each change."""
    return [{"name": name, **sizes, **change} for change in ({}, *changes)]


BASES = {
    DecoderConfig: [
        *variants("gpt2", TOKENS, ROTARY, WIDTHS | UNTIED, ALIBI, RELATIVE, BY_ROWS, GROUPS),
        *variants("gpt2", TOKENS, WINDOW | {"num_hidden_layers": 2}, EVERY_OTHER, PARALLEL)[1:],
        *variants("gpt2", TOKENS, QK_NORM, HALF, ROTARY | SCALED, ROTARY | WINDOW)[1:],
        *variants("llama", TOKENS),
    ],
    EncoderConfig: [
        *variants("bert", TOKENS, ROTARY, ROTARY | SCALED, WIDTHS | UNTIED, ALIBI, RELATIVE),
        *variants("bert", TOKENS, GROUPS, WINDOW, PARALLEL | {"norm_first": True}, QK_NORM)[1:],
        *variants("bert", TOKENS, HALF, {"head": "none"})[1:],
        *variants("bert-token-classifier", TOKENS, {"loss_weight": 1.0})[1:],
        *variants("bert-sequence-classifier", TOKENS),
        *variants("dpr-question-encoder", TOKENS),
        *variants("esm2", TOKENS, MASKED)[1:],
    ],
    Seq2SeqConfig: [
        *variants("t5", TOKENS, UNTIED, ROTARY, ROTARY | SCALED, WHOLE_ROTARY, WIDTHS, ALIBI),
        *variants("t5", TOKENS, {"attention_type": "scaled_dot_product"}, GROUPS, WINDOW)[1:],
        *variants("t5", TOKENS, QK_NORM, HALF, BY_ROWS, TWO_TABLES)[1:],
        *variants("transformer", TOKENS),
    ],
    VisionConfig: variants(
        *("clip-vit", TOWER, LABELS, LABELS | WIDTHS, GROUPS, QK_NORM, HALF, PARALLEL)
    ),
    DprConfig: variants("dpr", {"q_encoder": TOKENS, "ctx_encoder": TOKENS}, HALF),
    LlavaConfig: variants("llava", {"image_model": TOWER, "text_model": TOKENS}, HALF),
    FcMnistConfig: [
        {"name": "fc_mnist", **MNIST, "hidden_size": 8, "num_classes": 3},
        {"name": "fc_mnist", **MNIST, **HALF},
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
        *(
            ("initializer", {"name": name})
            for name in ("normal", "constant", "variance_scaling", "xavier_normal")
        ),
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
    "num_heads": [4],
    "low_freq_factor": [0.5],
    "target_modules": [["ffn/up"]],
    "epigenetic_vocab_size": [3],
    "activation_fn": ["gelu"],
    "image_model": [TOWER | {"filter_size": 4}],
    "freeze": [["image_model"]],
    "image_feature_select_layer_idx": [-1],
}
NARROW = [TOKENS | {"filter_size": 4}]
OTHER |= {f"{part}_encoder": NARROW for part in ("q", "ctx")} | {"text_model": NARROW}
OTHER |= {f"{part}_nonlinearity": ["relu"] for part in ("pooler", "mlm", "projector")}
OTHER |= {key: [16] for key in ("attention_inner_dim", "hidden_size")}
OTHER |= {key: [2] for key in ("mask_token_id", "rotary_dim", *WIDTHS)}


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


def listed(cls, *, always=False):
    """Keys of a class that a run lists as without effect: of some models and values, or always."""
    places = {"model"} if cls in BASES else {f"model.{name}" for name, _ in NESTED[cls]}
    rows = (row for place in places for row in rows_of(place, "drop", "refuse"))
    return {key for row in rows if not (always and (row.of or row.values)) for key in row.keys}


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
    assert idle <= listed(cls) | ELSEWHERE
    assert listed(cls, always=True) & cls.model_fields.keys() <= idle


def test_sentinels_and_positions_of_both_halves_size_the_tables():
    keys = {"vocab_size": 7, "extra_ids": 3, "src_max_position_embeddings": 9}
    cfg = models.build({"name": "transformer", **SIZES, **keys}).config
    assert (cfg.vocab_size, cfg.max_length) == (10, 9)
    keys["tgt_max_position_embeddings"] = 12
    assert models.build({"name": "transformer", **SIZES, **keys}).config.max_length == 12
    again = models.registry.parse_config(models.registry.settings_of(cfg))
    assert again == cfg


@pytest.mark.parametrize("key", ["relu_dropout_rate", "attention_sink_tokens", "use_vsl"])
def test_the_proxy_tells_effects_from_none(key):
    """Dropout and a window's sinks are traced; packing is the data's."""
    assert has_effect(DecoderConfig, key) == (key != "use_vsl")
