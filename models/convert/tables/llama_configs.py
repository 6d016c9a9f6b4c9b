"""Config tables of decoders with LLaMA's layout; what other decoders share."""

from collections.abc import Callable, Mapping
from typing import Any

from wafer.models.convert.config_map import (
    ConfigMap,
    Settings,
    read_gated,
    read_rope,
    write_activation,
    write_rope,
)
from wafer.models.families.decoder_config import DecoderConfig
from wafer.models.layers.basic import GATED

KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_heads",
    "max_position_embeddings": "max_position_embeddings",
    "tie_word_embeddings": "share_embedding_weights",
}
BIAS = ("use_projection_bias_in_attention", "use_ffn_bias_in_attention")
_WINDOW = "attention_sliding_window_length"
_LLAMA_KEYS = {
    **KEYS,
    "intermediate_size": "filter_size",
    "rms_norm_eps": "layer_norm_epsilon",
    "attention_dropout": "attention_dropout_rate",
}
_WINDOW_KEYS = _LLAMA_KEYS | {"sliding_window": _WINDOW}
_BALANCES = "use_load_balancing_loss"  # a key of ours in Mixtral's config.json


def full_rope(foreign: Settings, head_dim: int) -> Settings:
    """Read rotary settings of a class that rotates all features of a head."""
    rope = read_rope(foreign, head_dim)
    if rope["rotary_dim"] != head_dim:
        raise ValueError(
            f"partial_rotary_factor: {rope['rotary_dim']} of {head_dim} features would be rotated; "
            f"transformers' {foreign.get('model_type')} rotates all; remove the key or set it to 1"
        )
    return rope


def grouped_heads(heads: int, count: int | None) -> Settings:
    """Read how many key/value heads there are; None is one for each query head."""
    if count is None or count == heads:
        return {}
    return {
        "attention_module": "multiquery_attention",
        "extra_attention_params": {"num_kv_groups": count},
    }


def causal(
    model_type: str,
    stem: str,
    keys: Mapping[str, str | tuple[str, ...]],
    *,
    head: str = "ForCausalLM",
    name: str | None = None,
    body: str | None = None,
    fixed: Settings = {},  # noqa: B006 never changed
    **rest: Any,
) -> ConfigMap:
    """Map a decoder; its dropout is given part by part.

    Args:
        model_type: of config.json.
        stem: of its classes' names.
        keys: see ``ConfigMap``.
        head: end of the name of the class with a language-model head.
        name: our model name, where it is another.
        body: name of the class without a head, where it is another.
        fixed: see ``ConfigMap``.
        **rest: the same.
    """
    classes, fixed = (f"{stem}{head}", body or f"{stem}Model"), {"dropout_rate": 0.0, **fixed}
    return ConfigMap(model_type, name or model_type, keys, fixed, classes=classes, **rest)


def _read_llama(
    foreign: Settings, rope: Callable[[Settings, int], Settings] = full_rope
) -> Settings:
    """Read heads, positions and experts.

    Args:
        foreign: config.json.
        rope: reads rotary settings, see ``full_rope``.
    """
    heads = foreign["num_attention_heads"]
    size = foreign["head_dim"] or foreign["hidden_size"] // heads
    settings = rope(foreign, size) | grouped_heads(heads, foreign["num_key_value_heads"])
    if size * heads != foreign["hidden_size"]:
        settings["attention_inner_dim"] = size * heads
    if foreign.get("num_local_experts"):
        settings["moe"] = {
            "num_experts": foreign["num_local_experts"],
            "top_k": foreign["num_experts_per_tok"],
            "load_balancing_loss_coef": foreign["router_aux_loss_coef"],
            "use_load_balancing_loss": bool(foreign["output_router_logits"] or foreign[_BALANCES]),
            "normalize_top_k": foreign.get("norm_topk_prob", True),
        }
    return settings


def _write_llama(cfg: DecoderConfig) -> Settings:
    """Write heads, positions and experts."""
    out: Settings = {
        **write_rope(cfg),
        "head_dim": cfg.head_dim,
        "num_key_value_heads": cfg.num_kv_heads,
    }
    if cfg.moe and (cfg.moe.num_shared_experts or cfg.moe.null_expert_bias):
        raise ValueError(
            f"moe: {cfg.name} has neither num_shared_experts nor null_expert_bias in Hugging Face"
        )
    if cfg.moe:
        out |= {
            "num_local_experts": cfg.moe.num_experts,
            "num_experts_per_tok": cfg.moe.top_k,
            "router_aux_loss_coef": cfg.moe.load_balancing_loss_coef,
            "output_router_logits": False,  # with it, transformers 4.57 cannot generate
            _BALANCES: cfg.moe.use_load_balancing_loss,
        }
    return out


_KINDS = ("sliding_attention", "full_attention")
_EVERY_OTHER = "sliding_window_every_other_decoder_layer"


def _read_layer_types(foreign: Settings, has_window: Callable[[int], bool]) -> Settings:
    """Read which layers have a window.

    Args:
        foreign: config.json.
        has_window: whether the i-th layer has one where ``layer_types`` is null.
    """
    kinds, count = foreign.get("layer_types"), foreign["num_hidden_layers"]
    if not isinstance(count, int):  # refused by the schema
        return {}
    if kinds is None:
        kinds = [_KINDS[not has_window(i)] for i in range(count)]
    if len(kinds) != count or any(kind not in _KINDS for kind in kinds):
        raise ValueError(f"layer_types: {kinds}; expected one of {_KINDS} for each layer ({count})")
    full = [kind == _KINDS[1] for kind in kinds]
    if all(full):
        return {_WINDOW: None}
    first = full.index(True) if any(full) else count
    every_other = first < 2 and full == [(i + first) % 2 == 0 for i in range(count)]
    if not every_other and full != [(i + 1) % (first + 1) == 0 for i in range(count)]:
        raise ValueError(
            f"layer_types: {kinds} is not computed; expected a window in none of the {count} "
            "layers, in all, in every other one, or in all but every n-th"
        )
    return {
        _EVERY_OTHER: every_other,
        f"{_EVERY_OTHER}_pattern": "sliding_window_first" if first else "full_attention_first",
        "full_attention_interval": None if every_other or first == count else first + 1,
    }


def _write_layer_types(cfg: DecoderConfig) -> list[str]:
    """Write which layers have a window."""
    window = cfg.attention_sliding_window_length is not None
    return [_KINDS[not (window and local)] for local in cfg.local_layers]


def _read_qwen(foreign: Settings, first: int | None = None) -> Settings:
    """Read Qwen 2 and 3: the layers from ``max_window_layers`` on may have a window."""
    window = foreign["sliding_window"] if foreign["use_sliding_window"] else None
    start: int = foreign["max_window_layers"] if first is None else first
    return {
        **_read_llama(foreign),
        _WINDOW: window,
        **_read_layer_types(foreign, lambda i: window is not None and i >= start),
    }


def _write_qwen(cfg: DecoderConfig) -> Settings:
    """Write Qwen 2 and 3."""
    window = cfg.attention_sliding_window_length
    return {
        **_write_llama(cfg),
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": cfg.num_hidden_layers if window is None else 0,
        "layer_types": _write_layer_types(cfg),
    }


def _read_qwen_moe(foreign: Settings) -> Settings:
    """Read Qwen 3 with experts, whose code has no ``max_window_layers``."""
    return _read_qwen(foreign, first=0)


def _write_qwen_moe(cfg: DecoderConfig) -> Settings:
    """Write Qwen 3 with experts, whose window is in all layers."""
    out = {
        k: v for k, v in _write_qwen(cfg).items() if k not in {"layer_types", "max_window_layers"}
    }
    if cfg.moe:
        out |= {
            "num_experts": out.pop("num_local_experts"),
            "norm_topk_prob": cfg.moe.normalize_top_k,
        }
    return out


def _read_phi3(foreign: Settings) -> Settings:
    """Read Phi-3, whose class knows plain positions and longrope."""
    settings = _read_llama(foreign, read_rope)
    if kind := settings.get("pos_scaling_type"):
        raise ValueError(
            f"rope_scaling: type {kind!r} is not computed in phi3, transformers reads longrope "
            "alone there; expected null"
        )
    return settings


def _write_phi3(cfg: DecoderConfig) -> Settings:
    """Write Phi-3."""
    return {
        **_write_llama(cfg),
        **write_rope(cfg, partial=True),
        "partial_rotary_factor": cfg.rotary_features / cfg.head_dim,
        "original_max_position_embeddings": cfg.max_position_embeddings,
    }


def _read_gemma(foreign: Settings, activation: object) -> Settings:
    """Read what every Gemma has: its code scales embeddings by the root of the width."""
    return {
        **_read_llama(foreign),
        "attention_inner_dim": foreign["head_dim"] * foreign["num_attention_heads"],
        "embeddings_scale": foreign["hidden_size"] ** 0.5,
        "nonlinearity": read_gated(activation),
    }


def _read_gemma1(foreign: Settings) -> Settings:
    """Read Gemma 1, whose older files say gelu and mean its approximation."""
    act = foreign["hidden_act"]
    return _read_gemma(foreign, "gelu_pytorch_tanh" if act == "gelu" else act)


def _write_gemma(cfg: DecoderConfig) -> Settings:
    """Write what every Gemma has."""
    return {
        **_write_llama(cfg),
        "hidden_activation": write_activation(GATED.get(str(cfg.nonlinearity))),
    }


def _write_gemma1(cfg: DecoderConfig) -> Settings:
    """Write Gemma 1."""
    out = _write_gemma(cfg)
    return out | {"hidden_act": out["hidden_activation"]}


def _read_gemma2(
    foreign: Settings, has_window: Callable[[int], bool] = lambda i: i % 2 == 0
) -> Settings:
    """Read Gemma 2; ``has_window`` as in ``_read_layer_types``."""
    return {
        **_read_gemma(foreign, foreign["hidden_activation"]),
        **_read_layer_types(foreign, has_window),
        "softmax_scale": foreign["query_pre_attn_scalar"] ** -0.5,
    }


def _write_gemma2(cfg: DecoderConfig) -> Settings:
    """Write Gemma 2."""
    scalar = cfg.attention_scale**-2
    window = cfg.attention_sliding_window_length
    return {
        **_write_gemma(cfg),
        "query_pre_attn_scalar": round(scalar) if abs(scalar - round(scalar)) < 1e-4 else scalar,
        "layer_types": _write_layer_types(cfg),
        # transformers needs a number, also of windows that no layer has
        "sliding_window": cfg.max_position_embeddings if window is None else window,
    }


def _read_gemma3(foreign: Settings) -> Settings:
    """Read Gemma 3, whose layers with a window have rotary frequencies of their own."""
    rope, interval = foreign["rope_parameters"] or {}, foreign["sliding_window_pattern"]
    local = rope.get("sliding_attention") or {}
    if (kind := local.get("rope_type", "default")) != "default":
        raise ValueError(f"rope_parameters.sliding_attention: type {kind!r} is not computed")
    full = foreign | {"rope_parameters": rope.get("full_attention")}
    return {
        **_read_gemma2(full, lambda i: (i + 1) % interval != 0),
        "rope_theta_local": local.get("rope_theta") or foreign["rope_local_base_freq"],
    }


def _write_gemma3(cfg: DecoderConfig) -> Settings:
    """Write Gemma 3, its rotary frequencies as transformers 4 and 5 spell them."""
    out, local = _write_gemma2(cfg), cfg.rope_theta_local or cfg.rope_theta
    rope = {"rope_type": "default", "rope_theta": local}
    return out | {
        "rope_local_base_freq": local,
        "rope_parameters": {"full_attention": out["rope_parameters"], "sliding_attention": rope},
    }


def _read_opt(foreign: Settings) -> Settings:
    """Read OPT without projections of its embeddings."""
    width = foreign["word_embed_proj_dim"]
    if width not in (None, foreign["hidden_size"]):
        raise ValueError(
            f"word_embed_proj_dim: {width} is not computed; expected hidden_size "
            f"({foreign['hidden_size']}) or null"
        )
    return {}


_LLAMA = {"required": {"hidden_act": "silu"}, "read": _read_llama, "write": _write_llama}
_QWEN = _LLAMA | {"read": _read_qwen, "write": _write_qwen}
_NORM_KEYS = {"rms_norm_eps": ("layer_norm_epsilon", "attention_qk_norm_eps")}
_BIAS_KEYS = _LLAMA_KEYS | {"attention_bias": BIAS}
_GEMMA_KEYS = _WINDOW_KEYS | _BIAS_KEYS | {"final_logit_softcapping": "final_logit_softcapping"}
_EXPERT_KEYS = {"moe_intermediate_size": "filter_size"}
_EXPERT_KEYS |= {k: ours for k, ours in _BIAS_KEYS.items() if k != "intermediate_size"}

LLAMA_CONFIGS: dict[str, ConfigMap] = {
    "llama": causal("llama", "Llama", _BIAS_KEYS | {"mlp_bias": "use_ffn_bias"}, **_LLAMA),
    "mistral": causal("mistral", "Mistral", _WINDOW_KEYS, **_LLAMA),
    "mixtral": causal(
        "mixtral",
        "Mixtral",
        _WINDOW_KEYS,
        required={"hidden_act": "silu", "router_jitter_noise": 0.0},
        read=_read_llama,
        write=_write_llama,
    ),
    "qwen2": causal("qwen2", "Qwen2", _LLAMA_KEYS, **_QWEN),
    "qwen3": causal("qwen3", "Qwen3", _BIAS_KEYS | _NORM_KEYS, **_QWEN),
    "qwen3_moe": causal(
        "qwen3_moe",
        "Qwen3Moe",
        _EXPERT_KEYS | _NORM_KEYS,
        required={"hidden_act": "silu", "decoder_sparse_step": 1, "mlp_only_layers": []},
        read=_read_qwen_moe,
        write=_write_qwen_moe,
    ),
    "olmo2": causal("olmo2", "Olmo2", _BIAS_KEYS | _NORM_KEYS, **_LLAMA),
    "phi3": causal(
        "phi3",
        "Phi3",
        _WINDOW_KEYS | {"resid_pdrop": "residual_dropout_rate"},
        required={"hidden_act": "silu"},
        read=_read_phi3,
        write=_write_phi3,
    ),
    "gemma": causal(
        "gemma",
        "Gemma",
        _BIAS_KEYS,
        required={"use_bidirectional_attention": None},
        read=_read_gemma1,
        write=_write_gemma1,
    ),
    "gemma2": causal(
        "gemma2",
        "Gemma2",
        _GEMMA_KEYS | {"attn_logit_softcapping": "attention_logit_softcapping"},
        required={"use_bidirectional_attention": None},
        read=_read_gemma2,
        write=_write_gemma2,
    ),
    "gemma3_text": causal(
        "gemma3_text",
        "Gemma3",
        _GEMMA_KEYS | _NORM_KEYS,
        body="Gemma3TextModel",
        required={"use_bidirectional_attention": False, "attn_logit_softcapping": None},
        read=_read_gemma3,
        write=_write_gemma3,
    ),
    "starcoder2": causal(
        "starcoder2",
        "Starcoder2",
        {
            **KEYS,
            "intermediate_size": "filter_size",
            "norm_epsilon": "layer_norm_epsilon",
            "hidden_act": "nonlinearity",
            "sliding_window": _WINDOW,
            "attention_dropout": "attention_dropout_rate",
            "residual_dropout": "residual_dropout_rate",
            "embedding_dropout": "embedding_dropout_rate",
            "use_bias": ("use_ffn_bias", *BIAS),
        },
        read=_read_llama,
        write=_write_llama,
    ),
    "opt": causal(
        "opt",
        "OPT",
        {
            **KEYS,
            "ffn_dim": "filter_size",
            "activation_function": "nonlinearity",
            "do_layer_norm_before": "norm_first",
            "dropout": "residual_dropout_rate",
            "attention_dropout": "attention_dropout_rate",
            "enable_bias": ("use_ffn_bias", *BIAS),
        },
        required={
            "_remove_final_layer_norm": False,
            "layer_norm_elementwise_affine": True,
            "layerdrop": 0.0,
        },
        read=_read_opt,
        write=lambda cfg: {"word_embed_proj_dim": cfg.hidden_size},
    ),
}
