"""Config tables of the decoder families."""

import logging

from wafer.models.convert.config_map import OF_ALL, ConfigMap, Settings, read_rope, write_rope
from wafer.models.convert.tables.class_defaults import HARMLESS
from wafer.models.convert.tables.llama_configs import (
    BIAS,
    KEYS,
    LLAMA_CONFIGS,
    causal,
    full_rope,
    grouped_heads,
)
from wafer.models.errors import did_you_mean
from wafer.models.families.decoder_config import DecoderConfig

_LOG = logging.getLogger(__name__)

_GPT_KEYS = {
    "vocab_size": "vocab_size",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_heads",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "activation_function": "nonlinearity",
    "tie_word_embeddings": "share_embedding_weights",
    "embd_pdrop": "embedding_dropout_rate",
    "resid_pdrop": "residual_dropout_rate",
    "attn_pdrop": "attention_dropout_rate",
}
_GPT2_KEYS = _GPT_KEYS | {"scale_attn_by_inverse_layer_idx": "scale_qk_dot_by_layer_idx"}
_BTLM_KEYS = _GPT2_KEYS | {
    "position_embedding_type": "position_embedding_type",
    "mup_embeddings_scale": "embeddings_scale",
    "mup_scale_qk_dot_by_d": "scale_qk_dot_by_d",
}


def _read_gpt2(foreign: Settings) -> Settings:
    scaled = foreign["scale_attn_weights"]
    return {
        "filter_size": foreign["n_inner"] or 4 * foreign["n_embd"],
        "attention_type": "scaled_dot_product" if scaled else "dot_product",
    }


def _write_gpt2(cfg: DecoderConfig) -> Settings:
    scaled = cfg.attention_type == "scaled_dot_product"
    # llama.cpp's converter reads the context's length under the older name alone
    context = {"n_ctx": cfg.max_position_embeddings}
    return context | {"n_inner": cfg.filter_size, "scale_attn_weights": scaled}


def _read_btlm(foreign: Settings) -> Settings:
    """Read BTLM and Jais; muP scales come from config, slopes from the checkpoint."""
    factor = (foreign.get("alibi_scaling") or {}).get("factor")
    if foreign.get("alibi_scaling") and factor is None:
        raise ValueError("alibi_scaling: only a fixed factor is computed, not train_seq_len")
    return {
        **_read_gpt2(foreign),
        "alibi_slopes_in_checkpoint": foreign["position_embedding_type"] == "alibi",
        "pos_scaling_factor": factor or 1.0,
        "output_logits_scale": foreign["mup_output_alpha"] * foreign["mup_width_scale"],
    }


def _write_btlm(cfg: DecoderConfig) -> Settings:
    factor = cfg.pos_scaling_factor
    return {
        **_write_gpt2(cfg),
        "mup_output_alpha": cfg.logits_scale,
        "mup_width_scale": 1.0,
        "mup_scale_qk_dot_by_d": bool(cfg.scale_qk_dot_by_d),
        "alibi_scaling": None if factor == 1.0 else {"type": "linear", "factor": factor},
    }


def _read_bigcode(foreign: Settings) -> Settings:
    kv_heads = 1 if foreign["multi_query"] else None
    settings = _read_gpt2(foreign) | grouped_heads(foreign["n_head"], kv_heads)
    return settings if kv_heads else settings | {"attention_module": "aiayn_attention"}


def _write_bigcode(cfg: DecoderConfig) -> Settings:
    out = _write_gpt2(cfg)
    if cfg.nonlinearity == "gelu_new":
        out["activation_function"] = "gelu_pytorch_tanh"
    return out | {"multi_query": cfg.num_kv_heads == 1, "num_key_value_heads": cfg.num_kv_heads}


def _read_gptj(foreign: Settings) -> Settings:
    """Read rotary features; all of a head where the key is null."""
    rotary = foreign["rotary_dim"] or foreign["n_embd"] // foreign["n_head"]
    return {"filter_size": foreign["n_inner"] or 4 * foreign["n_embd"], "rotary_dim": rotary}


def _write_gptj(cfg: DecoderConfig) -> Settings:
    return {"n_inner": cfg.filter_size, "rotary_dim": cfg.rotary_features}


def _write_neox(cfg: DecoderConfig) -> Settings:
    share = cfg.rotary_features / cfg.head_dim
    both = {"rotary_pct": share, "rotary_emb_base": cfg.rope_theta}
    return write_rope(cfg, partial=True) | both


def _read_falcon(foreign: Settings) -> Settings:
    heads = foreign["num_attention_heads"]
    # The type of the first 40b, whose code had no key for it.
    new = foreign["new_decoder_architecture"] or foreign.get("model_type") == "RefinedWeb"
    multi = foreign["multi_query"]
    kv_heads = foreign["num_kv_heads"] or heads if new else (1 if multi else heads)
    norms = foreign["num_ln_in_parallel_attn"] or 2
    settings: Settings = {
        "filter_size": foreign["ffn_hidden_size"] or 4 * foreign["hidden_size"],
        "parallel_attention": new or foreign["parallel_attn"],
        "use_untied_layer_norm": new and norms == 2,
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
        "alibi": alibi,
        "multi_query": new or cfg.num_kv_heads == 1,
        "new_decoder_architecture": new,
        "num_kv_heads": cfg.num_kv_heads,
        "num_ln_in_parallel_attn": (2 if cfg.use_untied_layer_norm else 1) if new else None,
        "parallel_attn": cfg.parallel_attention,
    }


# Of ``attn_config``: the one value that transformers' code computes with, and the code of MPT's
# makers, too; then what changes nothing while those are so.
_MPT_ATTENTION: Settings = {
    "alibi": True,
    "alibi_bias_max": 8,
    "attn_type": "multihead_attention",
    "kv_n_heads": None,
    "prefix_lm": False,
    "qk_gn": False,
    "qk_ln": False,
    "rope": False,
    "sliding_window_size": -1,
}
_MPT_HARMLESS = {"attn_impl", "attn_uses_sequence_id", "fused_qkv", "rope_dail_config"}
_MPT_HARMLESS |= {"rope_hf_config", "rope_impl", "rope_theta", "tie_word_embeddings"}


def _read_mpt(foreign: Settings) -> Settings:
    """Read MPT. Its filters are 4 times wider, whatever ``expansion_ratio`` says."""
    attn = foreign["attn_config"] or {}
    given = {key: value for key, value in attn.items() if value is not None}
    read = {"clip_qkv", "softmax_scale", "attn_pdrop", *_MPT_ATTENTION}
    known = {*_MPT_HARMLESS, *HARMLESS["mpt"], *OF_ALL, *read}
    wrong = [
        f"attn_config.{key}: {value!r} is not computed, only {_MPT_ATTENTION[key]!r} is"
        for key, value in given.items()
        if value != _MPT_ATTENTION.get(key, value)
    ]
    wrong += [
        f"attn_config.{key}: {given[key]!r}, a key that mpt does not have here"
        f"{did_you_mean(key, read) or '; it has ' + ', '.join(sorted(read))}"
        for key in given
        if key not in known
    ]
    if foreign["norm_type"] not in (None, "layernorm", "low_precision_layernorm"):
        wrong.append(f"norm_type: {foreign['norm_type']!r} is not computed, only 'layernorm' is")
    if wrong:
        raise ValueError(f"config.json of mpt: {'; '.join(wrong)}")
    if foreign["expansion_ratio"] not in (None, 4):
        message = "config.json of mpt: expansion_ratio: %s has no effect; the filters are 4 times"
        _LOG.warning(message + " as wide as the model", foreign["expansion_ratio"])
    return {
        "filter_size": 4 * foreign["d_model"],
        "clip_qkv": given.get("clip_qkv"),
        "softmax_scale": given.get("softmax_scale"),
        "attention_dropout_rate": given.get("attn_pdrop", 0.0),
    }


def _write_mpt(cfg: DecoderConfig) -> Settings:
    if cfg.filter_size != 4 * cfg.hidden_size:
        raise ValueError("filter_size: Hugging Face's MPT is always 4 times hidden_size wide")
    return {
        "expansion_ratio": 4,
        "learned_pos_emb": True,
        "attn_config": {
            "alibi": cfg.position_embedding_type == "alibi",  # another is refused
            "alibi_bias_max": 8,
            "attn_pdrop": 0,  # of training; transformers 5 refuses a file with a fraction here
            "clip_qkv": cfg.clip_qkv,
            "softmax_scale": cfg.softmax_scale,
            "prefix_lm": False,
            "qk_ln": False,
            "model_type": "",
        },
    }


_GPT2 = {
    "head": "LMHeadModel",
    "required": {"reorder_and_upcast_attn": False, "add_cross_attention": False},
}
_BTLM = _GPT2 | {"read": _read_btlm, "write": _write_btlm}
_GPTJ = {"fixed": {"rotary_interleaved": True}, "read": _read_gptj, "write": _write_gptj}
_DROPOUT_KEYS = {
    "hidden_dropout": "residual_dropout_rate",
    "attention_dropout": "attention_dropout_rate",
}

DECODER_CONFIGS: dict[str, ConfigMap] = {
    "gpt2": causal("gpt2", "GPT2", _GPT2_KEYS, read=_read_gpt2, write=_write_gpt2, **_GPT2),
    "gpt_bigcode": causal(
        "gpt_bigcode",
        "GPTBigCode",
        _GPT_KEYS,
        name="starcoder",
        required={"add_cross_attention": False},
        read=_read_bigcode,
        write=_write_bigcode,
    ),
    "btlm": causal("btlm", "BTLM", _BTLM_KEYS, **_BTLM),
    "jais": causal("jais", "JAIS", _BTLM_KEYS, **_BTLM),
    "crystalcoder": causal(
        "crystalcoder",
        "CrystalCoder",
        _BTLM_KEYS,
        fixed={"rotary_interleaved": True},
        read=lambda foreign: _read_btlm(foreign) | _read_gptj(foreign),
        write=lambda cfg: _write_btlm(cfg) | _write_gptj(cfg),
        **_GPT2,
    ),
    "gptj": causal("gptj", "GPTJ", _GPT_KEYS, **_GPTJ),
    "codegen": causal("codegen", "CodeGen", _GPT_KEYS, **_GPTJ),
    "gpt_neox": causal(
        "gpt_neox",
        "GPTNeoX",
        {
            **KEYS,
            **_DROPOUT_KEYS,
            "intermediate_size": "filter_size",
            "layer_norm_eps": "layer_norm_epsilon",
            "hidden_act": "nonlinearity",
            "use_parallel_residual": ("parallel_attention", "use_untied_layer_norm"),
            "attention_bias": BIAS,
        },
        name="gpt-neox",
        read=lambda foreign: read_rope(
            foreign, foreign["hidden_size"] // foreign["num_attention_heads"]
        ),
        write=_write_neox,
    ),
    "bloom": causal(
        "bloom",
        "Bloom",
        {
            **_DROPOUT_KEYS,
            "vocab_size": "vocab_size",
            "hidden_size": "hidden_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_heads",
            "seq_length": "max_position_embeddings",
            "layer_norm_epsilon": "layer_norm_epsilon",
            "apply_residual_connection_post_layernorm": "residual_after_norm",
            "tie_word_embeddings": "share_embedding_weights",
        },
        fixed={"nonlinearity": "gelu_new"},
        required={"slow_but_exact": False},
        read=lambda foreign: {"filter_size": 4 * foreign["hidden_size"]},
    ),
    "falcon": causal(
        "falcon",
        "Falcon",
        {
            **KEYS,
            **_DROPOUT_KEYS,
            "layer_norm_epsilon": "layer_norm_epsilon",
            "activation": "nonlinearity",
            "bias": ("use_ffn_bias", *BIAS),
        },
        fixed={"attention_module": "aiayn_attention"},
        required={"apply_residual_connection_post_layernorm": False},
        read=_read_falcon,
        write=_write_falcon,
    ),
    "mpt": causal(
        "mpt",
        "Mpt",
        {
            "vocab_size": "vocab_size",
            "d_model": "hidden_size",
            "n_layers": "num_hidden_layers",
            "n_heads": "num_heads",
            "max_seq_len": "max_position_embeddings",
            "layer_norm_epsilon": "layer_norm_epsilon",
            "tie_word_embeddings": "share_embedding_weights",
            "emb_pdrop": "embedding_dropout_rate",
            "resid_pdrop": "residual_dropout_rate",
        },
        fixed={"nonlinearity": "gelu", "position_embedding_type": "alibi"},
        required={"no_bias": True},
        read=_read_mpt,
        write=_write_mpt,
    ),
    **LLAMA_CONFIGS,
}
