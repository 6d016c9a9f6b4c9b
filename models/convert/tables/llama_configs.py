"""Config tables of LLaMA and its kin: Mistral, Mixtral, Gemma 2; what other decoders share."""

from wafer.models.convert.config_map import Settings, read_activation, read_rope, write_rope
from wafer.models.families.decoder_config import DecoderConfig

KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_heads",
    "max_position_embeddings": "max_position_embeddings",
    "tie_word_embeddings": "share_embedding_weights",
}
LLAMA_KEYS = {
    **KEYS,
    "intermediate_size": "filter_size",
    "rms_norm_eps": "layer_norm_epsilon",
    "attention_dropout": "attention_dropout_rate",
}
_BALANCES = "use_load_balancing_loss"  # a key of ours in Mixtral's config.json
BIAS = ("use_projection_bias_in_attention", "use_ffn_bias_in_attention")


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


def read_llama(foreign: Settings) -> Settings:
    """Read LLaMA, Mistral and Mixtral."""
    heads = foreign["num_attention_heads"]
    size = foreign["head_dim"] or foreign["hidden_size"] // heads
    settings = full_rope(foreign, size) | grouped_heads(heads, foreign["num_key_value_heads"])
    if size * heads != foreign["hidden_size"]:
        settings["attention_inner_dim"] = size * heads
    if foreign.get("num_local_experts"):
        settings["moe"] = {
            "num_experts": foreign["num_local_experts"],
            "top_k": foreign["num_experts_per_tok"],
            "load_balancing_loss_coef": foreign["router_aux_loss_coef"],
            "use_load_balancing_loss": bool(foreign["output_router_logits"] or foreign[_BALANCES]),
        }
    return settings


def write_llama(cfg: DecoderConfig) -> Settings:
    """Write LLaMA, Mistral and Mixtral."""
    out: Settings = {
        **write_rope(cfg),
        "head_dim": cfg.head_dim,
        "num_key_value_heads": cfg.num_kv_heads,
    }
    if cfg.moe and (cfg.moe.num_shared_experts or cfg.moe.null_expert_bias):
        raise ValueError("moe: Mixtral has neither num_shared_experts nor null_expert_bias")
    if cfg.moe:
        out |= {
            "num_local_experts": cfg.moe.num_experts,
            "num_experts_per_tok": cfg.moe.top_k,
            "router_aux_loss_coef": cfg.moe.load_balancing_loss_coef,
            "output_router_logits": False,  # with it, transformers 4.57 cannot generate
            _BALANCES: cfg.moe.use_load_balancing_loss,
        }
    return out


_WINDOWS = {
    "sliding_window_first": ("sliding_attention", "full_attention"),
    "full_attention_first": ("full_attention", "sliding_attention"),
    None: ("full_attention", "full_attention"),
}


def read_gemma2(foreign: Settings) -> Settings:
    """Read Gemma 2, whose code scales embeddings by the root of the width."""
    heads, size = foreign["num_attention_heads"], foreign["head_dim"]
    kinds, count = foreign["layer_types"], foreign["num_hidden_layers"]
    kinds = kinds if isinstance(count, int) else None  # the schema refuses such a count
    patterns = [p for p in _WINDOWS if kinds is None or kinds == _layer_types(p, count)]
    if not patterns:
        raise ValueError(
            f"layer_types: {kinds}; only a window on every other of the {count} layers, or on "
            "none, is computed"
        )
    pattern = patterns[-1 if kinds else 0]  # the only layer, a full one, needs no window
    windows: Settings = {"sliding_window_every_other_decoder_layer_pattern": pattern}
    if pattern is None:
        windows = {"attention_sliding_window_length": None}
    return {
        **windows,
        **full_rope(foreign, size),
        **grouped_heads(heads, foreign["num_key_value_heads"]),
        "attention_inner_dim": size * heads,
        "softmax_scale": foreign["query_pre_attn_scalar"] ** -0.5,
        "embeddings_scale": foreign["hidden_size"] ** 0.5,
        "nonlinearity": {"gelu": "geglu", "gelu_new": "geglu_new"}[
            read_activation(foreign["hidden_activation"])
        ],
    }


def _layer_types(pattern: str | None, count: int) -> list[str]:
    return [_WINDOWS[pattern][i % 2] for i in range(count)]


def write_gemma2(cfg: DecoderConfig) -> Settings:
    """Write Gemma 2."""
    scalar = cfg.attention_scale**-2
    pattern, window = (
        cfg.sliding_window_every_other_decoder_layer_pattern,
        cfg.attention_sliding_window_length,
    )
    if window is None:  # transformers needs a number, also of windows that no layer has
        pattern, window = None, cfg.max_position_embeddings
    return {
        **write_rope(cfg),
        "hidden_activation": {"geglu": "gelu"}.get(str(cfg.nonlinearity), "gelu_pytorch_tanh"),
        "head_dim": cfg.head_dim,
        "num_key_value_heads": cfg.num_kv_heads,
        "query_pre_attn_scalar": round(scalar) if abs(scalar - round(scalar)) < 1e-4 else scalar,
        "layer_types": _layer_types(pattern, cfg.num_hidden_layers),
        "sliding_window": window,
    }
