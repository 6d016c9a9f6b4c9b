"""Keys of config.json: defaults of transformers' classes, other spellings, keys not known."""

import contextlib
import math

import jax.numpy as jnp
import numpy as np
import pytest

from wafer.models.convert import config_from_hf, config_to_hf
from wafer.models.convert.api import _CONFIGS
from wafer.models.convert.tables.class_defaults import CLASS_ALIASES, CLASS_DEFAULTS
from wafer.models.layers.basic import ACTIVATIONS
from wafer.models.layers.block_config import MoeConfig
from wafer.models.registry import build


def _config(**foreign):
    return build(config_from_hf(foreign)).config


class _Watched(dict):
    """A configuration that counts the keys that are read."""

    def __init__(self, content):
        super().__init__(content)
        self.seen = set()

    def __getitem__(self, key):
        self.seen.add(key)
        return super().__getitem__(key)

    def get(self, key, default=None):
        self.seen.add(key)
        return super().get(key, default)

    def __or__(self, other):
        changed = _Watched({**self, **other})
        changed.seen = self.seen
        return changed


@pytest.mark.parametrize("kind", sorted(CLASS_DEFAULTS))
def test_every_key_with_a_default_is_read(kind):
    map_ = _CONFIGS[kind]
    seen = {*map_.keys, *map_.required}
    window = {"use_sliding_window": True, "max_window_layers": 0}
    for choice in ({}, {"alibi": True}, {"new_decoder_architecture": True}, window):
        foreign = _Watched({**CLASS_DEFAULTS[kind], **map_.required, **choice})
        map_.read(foreign)
        seen |= foreign.seen
    if kind in {"bert", "roberta"}:  # of the class with a head
        name = {"bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM"}[kind]
        foreign = _Watched({**CLASS_DEFAULTS[kind], "architectures": [name]})
        map_.read(foreign)
        seen |= foreign.seen
    assert CLASS_DEFAULTS[kind].keys() <= seen


EXPERTS = {"num_experts": 64, "top_k": 8, "load_balancing_loss_coef": 0.001}
EXPERTS |= {"use_load_balancing_loss": False}
# Of configuration files as they were published: keys, and what they mean.
PUBLISHED = {
    "bloom-1b1": (
        {"model_type": "bloom", "n_embed": 1536, "n_layer": 24, "num_attention_heads": 16}
        | {"offset_alibi": 100, "skip_bias_add": True, "unk_token_id": 0, "n_inner": None},
        {"hidden_size": 1536, "num_hidden_layers": 24, "num_heads": 16, "filter_size": 6144},
    ),
    "falcon-7b": (
        {"model_type": "falcon", "apply_residual_connection_post_layernorm": False},
        {"max_position_embeddings": 2048, "num_heads": 71, "num_kv_heads": 1},
    ),
    "falcon-7b of 2023": (
        {"model_type": "RefinedWebModel", "architectures": ["RWForCausalLM"], "n_layer": 32}
        | {"hidden_size": 4544, "n_head": 71, "multi_query": True, "parallel_attn": True},
        {"num_kv_heads": 1, "use_untied_layer_norm": False, "num_hidden_layers": 32},
    ),
    "falcon-40b of 2023": (
        {"model_type": "RefinedWeb", "architectures": ["RWForCausalLM"], "n_layer": 60}
        | {"hidden_size": 8192, "n_head": 128, "n_head_kv": 8},
        {"num_kv_heads": 8, "use_untied_layer_norm": True, "num_heads": 128},
    ),
    "jais-13b": (
        {"model_type": "jais", "activation_function": "swiglu", "embeddings_scale": 14.6}
        | {"n_inner": 13653, "scale_qk_dot_by_d": True, "width_scale": 0.05}
        | {"position_embedding_type": "alibi", "reorder_and_upcast_attn": False},
        {"embeddings_scale": 14.6, "logits_scale": 0.05, "scale_qk_dot_by_d": True},
    ),
    "mistral-7b": (
        {"model_type": "mistral", "sliding_window": None},  # null is no window, absent is 4,096
        {"num_kv_heads": 8, "attention_sliding_window_length": None},
    ),
    "qwen2.5-0.5b": (
        {"model_type": "qwen2", "hidden_size": 896, "num_attention_heads": 14}
        | {"num_key_value_heads": 2, "max_window_layers": 24, "sliding_window": 32768}
        | {"use_mrope": False, "use_sliding_window": False, "rope_theta": 1000000.0},
        {"num_kv_heads": 2, "attention_sliding_window_length": None, "rope_theta": 1e6}
        | {"use_projection_bias_in_attention": True, "use_ffn_bias_in_attention": False},
    ),
    "qwen3-30b-a3b": (
        {"model_type": "qwen3_moe", "head_dim": 128, "intermediate_size": 6144}
        | {"moe_intermediate_size": 768, "norm_topk_prob": True, "num_experts": 64}
        | {"decoder_sparse_step": 1, "mlp_only_layers": [], "max_window_layers": 48},
        {"filter_size": 768, "attention_inner_dim": 4096, "attention_qk_norm_eps": 1e-6}
        | {"moe": MoeConfig(**EXPERTS)},
    ),
    "olmo-2-1b": (
        {"model_type": "olmo2", "num_attention_heads": 16, "num_key_value_heads": 16}
        | {"rms_norm_eps": 1e-06, "rope_theta": 500000, "hidden_size": 2048},
        {"layer_norm_epsilon": 1e-6, "attention_qk_norm_eps": 1e-6, "num_kv_heads": 16}
        | {"norm_outputs_only": True, "attention_qk_norm_whole": True},
    ),
    "phi-3-mini-4k": (
        {"model_type": "phi3", "original_max_position_embeddings": 4096, "sliding_window": 2047}
        | {"embd_pdrop": 0.0, "resid_pdrop": 0.1, "attention_bias": False},
        {"attention_sliding_window_length": 2047, "residual_dropout_rate": 0.1},
    ),
    "phi-4-mini without its long form": (
        {"model_type": "phi3", "partial_rotary_factor": 0.75, "num_attention_heads": 24},
        {"rotary_features": 96, "rotary_interleaved": False},
    ),
    "gemma-2b": (
        {"model_type": "gemma", "hidden_act": "gelu", "num_key_value_heads": 1}
        | {"hidden_size": 2048, "num_attention_heads": 8},
        {"nonlinearity": "geglu_new", "num_kv_heads": 1, "embeddings_scale": 2048**0.5},
    ),
    "gemma-3-1b": (
        {"model_type": "gemma3_text", "cache_implementation": "hybrid", "sliding_window": 512}
        | {"sliding_window_pattern": 6, "rope_local_base_freq": 10000, "rope_theta": 1000000}
        | {"hidden_size": 1152, "num_attention_heads": 4, "num_key_value_heads": 1},
        {"full_attention_interval": 6, "attention_sliding_window_length": 512}
        | {"rope_theta": 1e6, "rope_theta_local": 1e4, "attention_inner_dim": 1024},
    ),
    "smollm2-135m": (
        {"model_type": "llama", "is_llama_config": True, "rope_interleaved": False}
        | {"tie_word_embeddings": True, "rope_theta": 100000},
        {"share_embedding_weights": True, "rope_theta": 1e5},
    ),
    "starcoder2-3b": (
        {"model_type": "starcoder2", "mlp_type": "default", "norm_type": "layer_norm"}
        | {"residual_dropout": 0.1, "sliding_window": 4096, "rope_theta": 999999.4420358813},
        {"residual_dropout_rate": 0.1, "attention_sliding_window_length": 4096}
        | {"num_kv_heads": 2, "use_ffn_bias": True, "norm_type": "layernorm"},
    ),
    "opt-125m": (
        {"model_type": "opt", "_remove_final_layer_norm": False, "activation_dropout": 0.0}
        | {"word_embed_proj_dim": 768, "prefix": "</s>", "layerdrop": 0.0},
        {"position_embedding_offset": 2, "nonlinearity": "relu", "residual_dropout_rate": 0.1},
    ),
    "gpt-j-6b": (
        {"model_type": "gptj", "rotary": True, "scale_attn_weights": True},
        {"max_position_embeddings": 2048, "rotary_features": 64, "share_embedding_weights": False},
    ),
    "codegen-350M": ({"model_type": "codegen", "n_ctx": 2048}, {"max_position_embeddings": 2048}),
    "starcoder": (
        {"model_type": "gpt_bigcode", "inference_runner": 0, "validate_runner_input": True},
        {"nonlinearity": "gelu_new", "num_kv_heads": 1, "layer_norm_epsilon": 1e-5},
    ),
    "gpt-neox-20b": (
        {"model_type": "gpt_neox", "attention_probs_dropout_prob": 0, "hidden_act": "gelu_fast"},
        {"nonlinearity": "gelu_new", "rotary_features": 24, "share_embedding_weights": False},
    ),
    "bert": (
        {"model_type": "bert", "hidden_act": "gelu_python", "position_embedding_type": "absolute"}
        | {"pooler_type": "first_token_transform", "directionality": "bidi"},
        {"layer_norm_epsilon": 1e-12, "nonlinearity": "gelu", "max_position_embeddings": 512},
    ),
    "roberta": (
        {"model_type": "roberta"},
        {"vocab_size": 50265, "max_position_embeddings": 510, "position_embedding_offset": 2},
    ),
    "dpr": ({"model_type": "dpr"}, {"projection_dim": 0, "num_segments": 2}),
    "marian": (
        {"model_type": "marian", "static_position_embeddings": True, "normalize_before": False},
        {"decoder_start_token_id": 58100, "filter_size": 4096, "scale_embedding": False},
    ),
    "t5": ({"model_type": "t5", "n_positions": 512}, {"filter_size": 2048, "nonlinearity": "relu"}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_mean_what_they_mean_in_transformers(name):
    foreign, expected = PUBLISHED[name]
    cfg = _config(**foreign)
    assert {key: getattr(cfg, key) for key in expected} == expected
    assert _config(**config_to_hf(cfg)) == cfg


# What transformers 4 writes into nested configurations besides the class's own keys.
DUMPED = dict.fromkeys(("cross_attention_hidden_size", "prefix", "bad_words_ids", "sep_token_id"))
DUMPED |= dict.fromkeys(("begin_suppress_tokens", "suppress_tokens"))
DUMPED |= dict.fromkeys(("add_cross_attention", "tie_encoder_decoder", "is_decoder"), False)
DUMPED |= dict.fromkeys(("torchscript", "use_bfloat16", "tf_legacy_loss"), False)
DUMPED |= {"tie_word_embeddings": True, "pruned_heads": {}, "diversity_penalty": 0.0}
DUMPED |= {"typical_p": 1.0, "return_dict": True, "num_beam_groups": 1}
DUMPED |= {"remove_invalid_values": False, "encoder_no_repeat_ngram_size": 0}
DUMPED |= {"exponential_decay_length_penalty": 2}


@pytest.mark.parametrize("kind", sorted(CLASS_DEFAULTS))
def test_a_configuration_that_transformers_4_wrote_in_full_is_read(kind):
    assert config_from_hf({**DUMPED, "model_type": kind})["name"]


def test_llava_has_the_defaults_of_both_its_parts():
    vision = {"hidden_size": 1024, "num_attention_heads": 16, "patch_size": 14, "vocab_size": 7}
    cfg = _config(model_type="llava", vision_config=vision, text_config={"vocab_size": 32064})
    assert (cfg.text_model.hidden_size, cfg.text_model.num_kv_heads) == (4096, 32)
    assert (cfg.image_model.filter_size, cfg.image_model.nonlinearity) == (3072, "quick_gelu")
    assert _config(model_type="llava").image_model.filter_size == 4096


def test_mixtral_keeps_the_coefficient_that_its_loss_does_not_use():
    cfg = _config(model_type="mixtral", router_aux_loss_coef=0.02)
    assert cfg.moe.balance_weight == 0.0
    written = config_to_hf(cfg)
    assert (written["router_aux_loss_coef"], written["output_router_logits"]) == (0.02, False)
    used = _config(model_type="mixtral", router_aux_loss_coef=0.02, output_router_logits=True)
    assert used.moe.balance_weight == 0.02
    written = config_to_hf(used)  # transformers 4.57 generates nothing where the first is true
    assert (written["output_router_logits"], written["use_load_balancing_loss"]) == (False, True)
    assert _config(**written) == used


YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}
PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
SHARE = "partial_rotary_factor: .*rotates all"
HALF = {"partial_rotary_factor": 0.5}
ROTATE_ALL = ("llama", "mistral", "mixtral", "falcon", "qwen2", "qwen3", "qwen3_moe", "olmo2")
ROTATE_ALL += ("gemma", "starcoder2")
TWO = ["full_attention", "sliding_attention"]
REFUSED = [
    ("gpt_neo", {}, r"'gpt_neo' cannot be converted.*gpt_neox"),
    ("bert", {"position_embedding_type": "relative_key"}, "only 'absolute' is"),
    ("bert", {"is_decoder": True}, "is_decoder: True, only False is computed"),
    ("bert", {"tie_word_embeddings": "no"}, "'no', expected bool"),
    ("bert", {"architectures": ["BertForMultipleChoice"]}, "'BertForMultipleChoice' is not comp"),
    ("roberta", {"architectures": ["RobertaForSequenceClassification"]}, "'RobertaForSe.* is not"),
    ("esm", {"position_embedding_type": "relative_key"}, "only rotary and absolute are computed"),
    ("gpt2", {"architectures": ["GPT2DoubleHeadsModel"]}, "'GPT2DoubleHeadsModel' is not comp"),
    ("gpt2", {"pruned_heads": {"0": [1]}}, "pruned_heads: .*only {} is"),
    ("gpt2", {"attention_head_type": "multiquery"}, "attention_head_type: 'mul"),
    ("gpt2", {"n_head": "12"}, "n_head: '12', expected a number"),
    ("gpt2", {"num_hidden_layers": 0}, "n_layer: 0, expected a positive number"),
    ("btlm", {"alibi_scaling": 2}, "alibi_scaling: 2, expected dict"),
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "'LlamaFor.* is not comp"),
    ("llama", {"sliding_window": 4}, "sliding_window: 4, a key that llama does"),
    ("llama", {"rope_thetta": 1}, "rope_thetta: 1, .*did you mean 'rope_theta'"),
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config: "),
    ("llama", {"hidden_act": "gelu"}, "hidden_act: 'gelu', only 'silu'"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "'linear' needs factor"),
    (
        "llama",
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        "needs low_freq_factor, high",
    ),
    ("llama", {"rope_parameters": YARN | {"rope_type": "dynamic"}}, "'dynamic' is not computed"),
    ("llama", {"rope_parameters": YARN | {"rope_type": "longrope"}}, "'longrope' is not computed"),
    ("llama", {"rope_parameters": YARN | {"mscale": 1.0}}, "mscale: a DeepSeek variant"),
    (
        "qwen3",
        PLAIN | {"rope_scaling": YARN},
        "rope_scaling: .* but rope_parameters: .* Remove one",
    ),
    ("qwen3", {"rope_scaling": PLAIN["rope_parameters"], "rope_parameters": YARN}, "Remove one"),
    ("qwen3", {"rope_scaling": YARN, "rope_parameters": YARN | {"rope_theta": 1e6}}, "Remove one"),
    (
        "gemma3_text",
        {"rope_parameters": {"full_attention": PLAIN["rope_parameters"]}, "rope_scaling": YARN},
        "Remove one",
    ),
    *((kind, HALF, SHARE) for kind in ROTATE_ALL),
    *((kind, {"rope_parameters": HALF}, SHARE) for kind in ROTATE_ALL),
    ("gemma2", {"layer_types": ["full_attention"] * 4}, r"one of .* for each layer .26"),
    ("gemma2", {"num_hidden_layers": 3, "layer_types": TWO}, r"one of .* for each layer .3"),
    (
        "gemma2",
        {"num_hidden_layers": 1, "layer_types": ["linear"]},
        r"\['linear'\]; expected one of",
    ),
    ("gemma2", {"hidden_activation": "tanh"}, "activation 'tanh' of a gate; expected"),
    (
        "gemma3_text",
        {"num_hidden_layers": 4, "layer_types": [*TWO, *TWO[::-1]]},
        "none of the 4 la",
    ),
    ("gemma3_text", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping: 30.0, only None"),
    ("gemma3_text", {"rope_parameters": {"sliding_attention": YARN}}, "type 'yarn' is not comp"),
    ("qwen2", {"use_sliding_window": True}, "expected a window in none of the 32 layers"),
    ("qwen3_moe", {"mlp_only_layers": [0]}, r"mlp_only_layers: \[0\], only \[\] is computed"),
    (
        "phi3",
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "'linear' is not computed in phi3",
    ),
    ("phi3", {"rope_scaling": {"type": "longrope", "factor": 2.0}}, "'longrope' is not computed"),
    ("opt", {"word_embed_proj_dim": 512}, r"proj_dim: 512 is not computed; expected .* .768. or"),
    ("t5", {"architectures": ["T5EncoderModel"]}, "'T5EncoderModel' is not computed"),
    ("t5", {"dense_act_fn": "silu"}, "'silu', but feed_forward_proj: 'relu' has"),
    ("t5", {"is_gated_act": True}, "is_gated_act: True, but feed_forward_proj"),
    ("mpt", {"logit_scale": 0.5}, "logit_scale: 0.5, a key that mpt does not"),
    ("mpt", {"attn_config": {"rope": True}}, "attn_config.rope: True is not"),
    ("mpt", {"attn_config": {"alibi": False}}, "alibi: False is not"),
    ("mpt", {"attn_config": {"alibi_bias_max": 16}}, "only 8 is"),
    ("mpt", {"attn_config": {"qk_ln": True}}, "qk_ln: True is not computed"),
    ("mpt", {"attn_config": {"ropee": 1}}, "ropee: 1, a key .*mean 'rope'"),
    ("mpt", {"no_bias": False}, "no_bias: False, only True is computed"),
    ("mpt", {"norm_type": "rmsnorm"}, "norm_type: 'rmsnorm' is not computed"),
    ("mpt", {"attn_config": {"attn_type": "mqa"}}, "attn_type: 'mqa' is not"),
    ("bloom", {"n_head": 8, "num_attention_heads": 16}, "both mean the same"),
    ("marian", {"decoder_vocab_size": 7}, "vocab_size and decoder_vocab_size di"),
    ("gptj", {"activation_function": "prelu"}, "activation 'prelu' is not comp"),
    ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise: 0.1, only"),
]


@pytest.mark.parametrize(("kind", "keys", "says"), REFUSED)
def test_what_would_change_the_result_is_refused_by_name(kind, keys, says):
    with pytest.raises(ValueError, match=says):
        config_from_hf({"model_type": kind, **keys})


def test_values_beside_those_that_are_refused():
    """A whole share of rotary features, YaRN and back, one layer of full attention."""
    assert config_from_hf({"model_type": "llama", "partial_rotary_factor": 1.0})
    cfg = _config(model_type="llama", rope_parameters=YARN)
    assert cfg.pos_scaling_type == "yarn"
    written = config_to_hf(cfg)
    assert written["rope_parameters"]["rope_type"] == "yarn"
    assert _config(**written) == cfg
    v4 = {"rope_scaling": YARN | {"type": "yarn"}, "rope_theta": 1e4}
    assert _config(model_type="llama", **v4, rope_parameters=YARN) == cfg
    one = _config(model_type="gemma2", num_hidden_layers=1, layer_types=["full_attention"])
    assert one.attention_sliding_window_length is None
    assert config_to_hf(one)["layer_types"] == ["full_attention"]
    mpt = _config(model_type="mpt", attn_config={"clip_qkv": 0.9, "softmax_scale": 0.21})
    assert (mpt.clip_qkv, mpt.softmax_scale) == (0.9, 0.21)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_window_from_a_layer_of_qwen(kind, first):
    """Layers from ``max_window_layers`` on, as in transformers' class; written and read again."""
    window = {"use_sliding_window": True, "sliding_window": 4, "num_hidden_layers": 2}
    cfg = _config(model_type=kind, **window, max_window_layers=first)
    window = cfg.attention_sliding_window_length
    assert window == (4 if first < 2 else None)
    assert [window is not None and local for local in cfg.local_layers] == [first < 1, first < 2]
    assert _config(**config_to_hf(cfg)) == cfg


def test_qwen3_moe_has_its_window_in_all_layers():
    """Transformers' class takes ``max_window_layers`` from files and does not read it."""
    window = {"use_sliding_window": True, "sliding_window": 4, "num_hidden_layers": 2}
    for unread in ({}, {"max_window_layers": 48}, {"max_window_layers": 1}):
        cfg = _config(model_type="qwen3_moe", **window, **unread)
        assert (cfg.attention_sliding_window_length, cfg.local_layers) == (4, [True, True])


@pytest.mark.parametrize("kind", sorted(CLASS_DEFAULTS))
def test_null_of_a_truth_value_is_false_and_of_a_size_refused(kind):
    """As in transformers' code: ``if config.key``, and errors where a number is needed."""
    defaults = {**CLASS_DEFAULTS[kind], **_CONFIGS[kind].required}
    for key, default in defaults.items():
        null = {"model_type": kind, key: None}
        if key == "no_bias":  # nothing reads it there
            assert config_from_hf(null) == config_from_hf({"model_type": kind})
        elif isinstance(default, bool):
            try:
                expected = config_from_hf({"model_type": kind, key: False})
            except ValueError:
                with pytest.raises(ValueError, match=f"{key}: False"):
                    config_from_hf(null)
            else:
                assert config_from_hf(null) == expected, key
        elif key in SIZES:
            with pytest.raises(ValueError, match=f"{key}: null, expected a value"):
                config_from_hf(null)


# Of each class: keys whose null ends there in an error.
SIZES = {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "d_model"}
SIZES |= {"n_embd", "n_layer", "n_head", "n_positions", "layer_norm_epsilon", "layer_norm_eps"}
SIZES |= {"activation_function", "hidden_act", "hidden_activation", "query_pre_attn_scalar"}
SIZES |= {"norm_epsilon", "ffn_dim", "moe_intermediate_size", "num_experts_per_tok"}
SIZES |= {"rms_norm_eps", "type_vocab_size", "projection_dim", "feed_forward_proj", "rotary_pct"}


@pytest.mark.parametrize(
    ("kind", "key", "expected"),
    [
        ("gemma2", "final_logit_softcapping", {"final_logit_softcapping": None}),
        ("gemma2", "attn_logit_softcapping", {"attention_logit_softcapping": None}),
        ("gemma2", "sliding_window", {"attention_sliding_window_length": None}),
        ("mistral", "num_key_value_heads", {"num_kv_heads": 32}),
        ("llama", "head_dim", {"head_dim": 128}),
        ("gpt2", "n_inner", {"filter_size": 3072}),
        ("gpt2", "scale_attn_weights", {"attention_type": "dot_product"}),
        ("gpt_neox", "use_parallel_residual", {"parallel_attention": False}),
        ("gpt_bigcode", "multi_query", {"num_kv_heads": 12}),
        ("bert", "tie_word_embeddings", {"share_embedding_weights": False}),
        ("t5", "num_decoder_layers", {"decoder_layers": 6}),
        ("llama", "rope_theta", {"rope_theta": 10000.0}),
    ],
)
def test_what_null_says_comes_back(kind, key, expected):
    """transformers 4.57, by its code; ``test_called.py`` compares Gemma 2 without caps."""
    cfg = _config(**{"model_type": kind, key: None})
    assert {name: getattr(cfg, name) for name in expected} == expected
    assert _config(**config_to_hf(cfg)) == cfg


def test_mpt_says_that_its_filters_have_one_width(caplog):
    cfg = _config(model_type="mpt", d_model=64, n_heads=2, expansion_ratio=2)
    assert cfg.filter_size == 256
    assert "expansion_ratio: 2 has no effect" in caplog.text
    learned = build({"name": "mpt", "position_embedding_type": "learned"}).config
    with pytest.raises(ValueError, match=r"attn_config\.alibi: False is not computed"):
        config_to_hf(learned)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"problem_type": "multi_label_classification"}, "'multi_label_classification' .2 labels"),
        ({"problem_type": "regression"}, "'regression' .2 labels. has a loss that is not"),
        ({"num_labels": 1}, "'regression' .1 labels. has a loss that is not computed"),
    ],
)
def test_a_loss_of_sentences_that_is_not_computed_is_refused(given, message):
    """transformers: BCE, and the squared error, which one label alone means, too."""
    bert = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    with pytest.raises(ValueError, match=message):
        config_from_hf(bert | given)
    one = config_from_hf(bert | {"problem_type": "single_label_classification"})
    assert one == config_from_hf(bert)
    config_from_hf(bert | given | {"architectures": ["BertForTokenClassification"]})  # no effect


@pytest.mark.parametrize("kind", sorted(CLASS_DEFAULTS))
def test_no_value_ends_in_another_error(kind):
    keys = [*CLASS_DEFAULTS[kind], *CLASS_ALIASES.get(kind, {}), "architectures", "id2label"]
    for key in keys:
        for value in ("x", [], [1], {}, {"a": 1}, -1, 0, 1.5, True, None):
            with contextlib.suppress(ValueError):
                config_from_hf({"model_type": kind, key: value})


def test_activations_of_transformers_by_hand():
    x = jnp.asarray([-20.0, -1.0, 0.0, 1.0, 20.0])
    gelu = [0.0, -0.5 * math.erfc(1 / math.sqrt(2)), 0.0, 0.841345, 10.0]
    np.testing.assert_allclose(ACTIVATIONS["gelu_10"](x), gelu, atol=1e-6)
    np.testing.assert_allclose(ACTIVATIONS["hardswish"](x), [0, -1 / 3, 0, 2 / 3, 20], atol=1e-6)
    softplus = [4.539993e-5, 0.559698, 0.832555, 1.145977, 4.472136]
    np.testing.assert_allclose(ACTIVATIONS["sqrtsoftplus"](x), softplus, rtol=1e-4)
    deviations = (np.asarray(x) - 0.707107) / 0.282095
    laplace = [0.5 * math.erfc(-d / math.sqrt(2)) for d in deviations]
    np.testing.assert_allclose(ACTIVATIONS["laplace"](x), laplace, atol=1e-6)


def test_an_activation_is_written_under_transformers_own_name():
    sizes = {"vocab_size": 8, "hidden_size": 8, "num_heads": 2, "num_hidden_layers": 1}
    cfg = build({"name": "gpt2", **sizes, "nonlinearity": "squared_relu"}).config
    assert config_to_hf(cfg)["activation_function"] == "relu2"
    cfg = build({"name": "gpt2", **sizes, "nonlinearity": "squared_gelu"}).config
    with pytest.raises(ValueError, match="activation 'squared_gelu' is not computed"):
        config_to_hf(cfg)
