"""Config tables of the decoder families."""

from typing import Any

from models.convert.config_map import (
    ConfigMap,
    Settings,
    read_activation,
    read_rope,
    write_activation,
    write_rope,
)
from models.convert.tables.llama_configs import (
    KEYS,
    LLAMA_KEYS,
    full_rope,
    grouped_heads,
    read_gemma2,
    read_llama,
    tied,
    write_gemma2,
    write_llama,
)
from models.families.decoder_config import DecoderConfig

__all__ = ["DECODER_CONFIGS"]

_GPT_KEYS = {
    "vocab_size": "vocab_size",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_heads",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "embd_pdrop": "embedding_dropout_rate",
    "resid_pdrop": "residual_dropout_rate",
    "attn_pdrop": "attention_dropout_rate",
}


def _shape(foreign: Settings) -> Settings:
    """Read what all GPT-like configs share: the inner size, the activation, the head."""
    return {
        "filter_size": foreign["n_inner"] or 4 * foreign["n_embd"],
        "nonlinearity": read_activation(foreign["activation_function"]),
        "dropout_rate": 0.0,
        **tied(foreign),
    }


def _write_gpt(cfg: DecoderConfig) -> Settings:
    return {
        "n_inner": cfg.filter_size,
        "activation_function": write_activation(cfg.nonlinearity),
        "tie_word_embeddings": cfg.share_embedding_weights,
    }


def _read_gpt2(foreign: Settings) -> Settings:
    scaled = foreign["scale_attn_weights"]
    return {
        **_shape(foreign),
        "attention_type": "scaled_dot_product" if scaled else "dot_product",
        "scale_qk_dot_by_layer_idx": foreign.get("scale_attn_by_inverse_layer_idx", False),
    }


def _write_gpt2(cfg: DecoderConfig) -> Settings:
    return {
        **_write_gpt(cfg),
        "scale_attn_weights": cfg.attention_type == "scaled_dot_product",
        "scale_attn_by_inverse_layer_idx": cfg.scale_qk_dot_by_layer_idx,
    }


def _read_btlm(foreign: Settings) -> Settings:
    """Read BTLM and Jais; muP scales come from config, slopes from the checkpoint."""
    factor = (foreign.get("alibi_scaling") or {}).get("factor")
    if foreign.get("alibi_scaling") and factor is None:
        raise ValueError("alibi_scaling: only a fixed factor is computed, not train_seq_len")
    position = foreign["position_embedding_type"]
    gate = foreign["mup_output_alpha"] * foreign["mup_width_scale"]
    return {
        **_read_gpt2(foreign),
        "position_embedding_type": position,
        "alibi_slopes_in_checkpoint": position == "alibi",
        "pos_scaling_factor": factor or 1.0,
        "embeddings_scale": foreign["mup_embeddings_scale"],
        "output_logits_scale": gate,
        "scale_qk_dot_by_d": foreign["mup_scale_qk_dot_by_d"],
    }


def _write_btlm(cfg: DecoderConfig) -> Settings:
    factor = cfg.pos_scaling_factor
    return {
        **_write_gpt2(cfg),
        "position_embedding_type": cfg.position_embedding_type,
        "mup_embeddings_scale": cfg.embeddings_scale,
        "mup_output_alpha": cfg.logits_scale,
        "mup_width_scale": 1.0,
        "mup_scale_qk_dot_by_d": bool(cfg.scale_qk_dot_by_d),
        "alibi_scaling": None if factor == 1.0 else {"type": "linear", "factor": factor},
    }


def _read_crystal(foreign: Settings) -> Settings:
    """Read CrystalCoder: BTLM's keys, with rotary positions in adjacent pairs."""
    size = foreign["n_embd"] // foreign["n_head"]
    rotary = {"rotary_dim": foreign["rotary_dim"] or size, "rotary_interleaved": True}
    return _read_btlm(foreign) | rotary


def _write_crystal(cfg: DecoderConfig) -> Settings:
    return {**_write_btlm(cfg), "rotary_dim": cfg.rotary_features}


def _read_bigcode(foreign: Settings) -> Settings:
    kv_heads = 1 if foreign["multi_query"] else None
    settings = _read_gpt2(foreign) | grouped_heads(foreign["n_head"], kv_heads)
    if kv_heads is None:
        settings |= {"attention_module": "aiayn_attention"}
    return settings


def _write_bigcode(cfg: DecoderConfig) -> Settings:
    out = _write_gpt2(cfg)
    out.pop("scale_attn_by_inverse_layer_idx")
    if cfg.nonlinearity == "gelu_new":
        out["activation_function"] = "gelu_pytorch_tanh"
    return out | {"multi_query": cfg.num_kv_heads == 1, "num_key_value_heads": cfg.num_kv_heads}


def _read_gptj(foreign: Settings) -> Settings:
    size = foreign["n_embd"] // foreign["n_head"]
    return {
        **_shape(foreign),
        "rotary_dim": foreign["rotary_dim"] or size,
        "rotary_interleaved": True,
    }


def _write_gptj(cfg: DecoderConfig) -> Settings:
    return {**_write_gpt(cfg), "rotary_dim": cfg.rotary_features}


def _read_neox(foreign: Settings) -> Settings:
    parallel, bias = foreign["use_parallel_residual"], foreign["attention_bias"]
    return {
        **read_rope(foreign, foreign["hidden_size"] // foreign["num_attention_heads"]),
        **tied(foreign),
        "nonlinearity": read_activation(foreign["hidden_act"]),
        "parallel_attention": parallel,
        "use_untied_layer_norm": parallel,
        "use_projection_bias_in_attention": bias,
        "use_ffn_bias_in_attention": bias,
        "dropout_rate": 0.0,
    }


def _write_neox(cfg: DecoderConfig) -> Settings:
    return {
        **write_rope(cfg, partial=True),
        "hidden_act": write_activation(cfg.nonlinearity),
        "use_parallel_residual": cfg.parallel_attention,
        "attention_bias": cfg.use_projection_bias_in_attention,
        "tie_word_embeddings": cfg.share_embedding_weights,
    }


def _read_bloom(foreign: Settings) -> Settings:
    return {
        **tied(foreign),
        "hidden_size": foreign["hidden_size"],
        "filter_size": 4 * foreign["hidden_size"],
        "max_position_embeddings": foreign["seq_length"],
        "nonlinearity": "gelu_new",
        "residual_after_norm": foreign["apply_residual_connection_post_layernorm"],
        "dropout_rate": 0.0,
    }


def _write_bloom(cfg: DecoderConfig) -> Settings:
    return {
        "hidden_size": cfg.hidden_size,
        "seq_length": cfg.max_position_embeddings,
        "apply_residual_connection_post_layernorm": cfg.residual_after_norm,
        "tie_word_embeddings": cfg.share_embedding_weights,
    }


def _read_falcon(foreign: Settings) -> Settings:
    heads, bias = foreign["num_attention_heads"], foreign["bias"]
    # The type of the first 40b, whose code had no key for it.
    new = foreign["new_decoder_architecture"] or foreign.get("model_type") == "RefinedWeb"
    multi = foreign["multi_query"]
    kv_heads = foreign["num_kv_heads"] or heads if new else (1 if multi else heads)
    parallel = new or foreign["parallel_attn"]
    norms = foreign["num_ln_in_parallel_attn"] or 2
    settings: Settings = {
        **tied(foreign),
        "filter_size": foreign["ffn_hidden_size"] or 4 * foreign["hidden_size"],
        "nonlinearity": read_activation(foreign["activation"]),
        "parallel_attention": parallel,
        "use_untied_layer_norm": new and norms == 2,
        "use_projection_bias_in_attention": bias,
        "use_ffn_bias_in_attention": bias,
        "use_ffn_bias": bias,
        "attention_module": "aiayn_attention",
        "dropout_rate": 0.0,
        **grouped_heads(heads, kv_heads),
    }
    if foreign["alibi"]:
        return settings | {"position_embedding_type": "alibi", "alibi_style": "falcon"}
    return settings | full_rope(foreign, foreign["hidden_size"] // heads)


def _write_falcon(cfg: DecoderConfig) -> Settings:
    alibi = cfg.position_embedding_type == "alibi"
    new = cfg.parallel_attention and (cfg.num_kv_heads > 1 or cfg.use_untied_layer_norm)
    return {
        **({} if alibi else write_rope(cfg)),
        "ffn_hidden_size": cfg.filter_size,
        "activation": write_activation(cfg.nonlinearity),
        "alibi": alibi,
        "bias": cfg.use_ffn_bias,
        "multi_query": new or cfg.num_kv_heads == 1,
        "new_decoder_architecture": new,
        "num_kv_heads": cfg.num_kv_heads,
        "num_ln_in_parallel_attn": (2 if cfg.use_untied_layer_norm else 1) if new else None,
        "parallel_attn": cfg.parallel_attention,
        "tie_word_embeddings": cfg.share_embedding_weights,
    }


def _read_mpt(foreign: Settings) -> Settings:
    """Read MPT. HF fixes no biases, filters 4 times wider and alibi_bias_max 8 in its code."""
    attn = foreign["attn_config"] or {}
    for key in ("prefix_lm", "qk_ln", "rope", "sliding_window_size", "kv_n_heads"):
        if attn.get(key, -1) not in (None, False, -1):
            raise ValueError(f"attn_config.{key}: {attn[key]!r} is not computed")
    if attn.get("attn_type", "multihead_attention") != "multihead_attention":
        raise ValueError(f"attn_config.attn_type: {attn['attn_type']!r} is not computed")
    return {
        **tied(foreign),
        "filter_size": 4 * foreign["d_model"],
        "position_embedding_type": "alibi" if attn.get("alibi", True) else "learned",
        "nonlinearity": "gelu",
        "clip_qkv": attn.get("clip_qkv"),
        "softmax_scale": attn.get("softmax_scale"),
        "attention_dropout_rate": attn.get("attn_pdrop", 0.0),
        "dropout_rate": 0.0,
    }


def _write_mpt(cfg: DecoderConfig) -> Settings:
    if cfg.filter_size != 4 * cfg.hidden_size:
        raise ValueError("filter_size: Hugging Face's MPT is always 4 times hidden_size wide")
    return {
        "expansion_ratio": 4,
        "no_bias": True,
        "learned_pos_emb": True,
        "tie_word_embeddings": cfg.share_embedding_weights,
        "attn_config": {
            "alibi": cfg.position_embedding_type == "alibi",
            "alibi_bias_max": 8,
            "attn_pdrop": 0,  # of training; transformers 5 refuses a file with a fraction here
            "clip_qkv": cfg.clip_qkv,
            "softmax_scale": cfg.softmax_scale,
            "prefix_lm": False,
            "qk_ln": False,
            "model_type": "",
        },
    }


def _causal(model_type: str, name: str, stem: str, keys: Settings, **rest: Any) -> ConfigMap:
    classes = (f"{stem}LMHeadModel" if stem == "GPT2" else f"{stem}ForCausalLM", f"{stem}Model")
    return ConfigMap(model_type, name, keys, classes=rest.pop("classes", classes), **rest)


_GPT2_REQUIRED = {"reorder_and_upcast_attn": False, "add_cross_attention": False}
_GPT2 = {"read": _read_gpt2, "write": _write_gpt2}
_BIGCODE = {
    "required": {"add_cross_attention": False},
    "read": _read_bigcode,
    "write": _write_bigcode,
}
_REMOTE = {"keys": _GPT_KEYS, "read": _read_btlm, "write": _write_btlm, "required": _GPT2_REQUIRED}
_MIXTRAL: Settings = {
    "required": {"hidden_act": "silu", "router_jitter_noise": 0.0},
    "read": read_llama,
    "write": write_llama,
}
_LLAMA = {"required": {"hidden_act": "silu"}, "read": read_llama, "write": write_llama}

DECODER_CONFIGS: dict[str, ConfigMap] = {
    "gpt2": _causal("gpt2", "gpt2", "GPT2", _GPT_KEYS, required=_GPT2_REQUIRED, **_GPT2),
    "gpt_bigcode": _causal("gpt_bigcode", "starcoder", "GPTBigCode", _GPT_KEYS, **_BIGCODE),
    "btlm": ConfigMap("btlm", "btlm", classes=("BTLMLMHeadModel", "BTLMModel"), **_REMOTE),
    "jais": ConfigMap("jais", "jais", classes=("JAISLMHeadModel", "JAISModel"), **_REMOTE),
    "crystalcoder": ConfigMap(
        "crystalcoder",
        "crystalcoder",
        _GPT_KEYS,
        required=_GPT2_REQUIRED,
        read=_read_crystal,
        write=_write_crystal,
        classes=("CrystalCoderLMHeadModel", "CrystalCoderModel"),
    ),
    "gptj": _causal("gptj", "gptj", "GPTJ", _GPT_KEYS, read=_read_gptj, write=_write_gptj),
    "codegen": _causal(
        "codegen", "codegen", "CodeGen", _GPT_KEYS, read=_read_gptj, write=_write_gptj
    ),
    "gpt_neox": _causal(
        "gpt_neox",
        "gpt-neox",
        "GPTNeoX",
        {
            **KEYS,
            "intermediate_size": "filter_size",
            "layer_norm_eps": "layer_norm_epsilon",
            "hidden_dropout": "residual_dropout_rate",
            "attention_dropout": "attention_dropout_rate",
        },
        read=_read_neox,
        write=_write_neox,
    ),
    "bloom": _causal(
        "bloom",
        "bloom",
        "Bloom",
        {
            "vocab_size": "vocab_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_heads",
            "layer_norm_epsilon": "layer_norm_epsilon",
            "hidden_dropout": "residual_dropout_rate",
            "attention_dropout": "attention_dropout_rate",
        },
        required={"slow_but_exact": False},
        read=_read_bloom,
        write=_write_bloom,
    ),
    "falcon": _causal(
        "falcon",
        "falcon",
        "Falcon",
        {
            **KEYS,
            "layer_norm_epsilon": "layer_norm_epsilon",
            "hidden_dropout": "residual_dropout_rate",
            "attention_dropout": "attention_dropout_rate",
        },
        required={"apply_residual_connection_post_layernorm": False},
        read=_read_falcon,
        write=_write_falcon,
    ),
    "mpt": _causal(
        "mpt",
        "mpt",
        "Mpt",
        {
            "vocab_size": "vocab_size",
            "d_model": "hidden_size",
            "n_layers": "num_hidden_layers",
            "n_heads": "num_heads",
            "max_seq_len": "max_position_embeddings",
            "layer_norm_epsilon": "layer_norm_epsilon",
            "emb_pdrop": "embedding_dropout_rate",
            "resid_pdrop": "residual_dropout_rate",
        },
        read=_read_mpt,
        write=_write_mpt,
    ),
    "llama": _causal("llama", "llama", "Llama", LLAMA_KEYS, **_LLAMA),
    "mistral": _causal("mistral", "mistral", "Mistral", LLAMA_KEYS, **_LLAMA),
    "mixtral": _causal("mixtral", "mixtral", "Mixtral", LLAMA_KEYS, **_MIXTRAL),
    "gemma2": _causal(
        "gemma2",
        "gemma2",
        "Gemma2",
        {
            **LLAMA_KEYS,
            "attention_dropout": "attention_dropout_rate",
            "sliding_window": "attention_sliding_window_length",
            "attn_logit_softcapping": "attention_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        required={"use_bidirectional_attention": None},
        read=read_gemma2,
        write=write_gemma2,
    ),
}
