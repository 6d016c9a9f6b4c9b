"""What is written for Hugging Face must compute there what it computes here."""

from typing import Any

from wafer.models.schema import ModelConfig

# Knobs of training and drawing, and heads' sizes that the weights' shapes settle.
_TRAINING = (
    "initializer",
    "dropout",
    "loss",
    "label_smoothing",
    "lora",
    "freeze",
    "num_labels",
    "dpo",
)
# Knobs of which only the effect counts; ``computed`` adds it in one spelling.
_SPELLINGS = {
    "rotary_dim",
    "rotary_fraction",
    "rope_theta",
    "rotary_interleaved",
    "pos_scaling_type",
    "pos_scaling_factor",
    "pos_scaling_extra_args",
    "alibi_trainable_slopes",
    "alibi_slopes_in_checkpoint",
    "num_relative_attention_buckets",
    "max_relative_distance",
    "max_position_embeddings",
    "src_max_position_embeddings",
    "tgt_max_position_embeddings",
    "attention_module",
    "extra_attention_params",
    "attention_inner_dim",
    "attention_type",
    "softmax_scale",
    "scale_qk_dot_by_d",
    "attention_logits_alpha",
    "attention_qk_norm_eps",
    "sliding_window_every_other_decoder_layer",
    "sliding_window_every_other_decoder_layer_pattern",
    "full_attention_interval",
    "mup_base_hidden_size",
    "mup_base_filter_size",
    "output_logits_scale",
    "output_logits_alpha",
    "scale_output_logits_by_d",
    "decoder_num_hidden_layers",
    "tgt_vocab_size",
    "extra_ids",
    "final_norm",
    "head",
    "disable_nsp",
    "use_pooler",
    "mlm_nonlinearity",
    "pooler_nonlinearity",
}


def computed(cfg: Any) -> dict[str, object]:
    """Reduce a stack's configuration to what decides its outputs, in one spelling."""
    left_out = _SPELLINGS | ModelConfig.model_fields.keys()
    out = {
        name: getattr(cfg, name)
        for name in type(cfg).model_fields
        if name not in left_out and not any(part in name for part in _TRAINING)
    }
    out |= {
        "num_kv_groups": cfg.num_kv_heads,
        "head size": cfg.head_dim,
        "attention scale": round(cfg.attention_scale, 9),
        "scaled_cosine": cfg.attention_type == "scaled_cosine",
    }
    for name in (
        *("logits_scale", "attention_scales", "embeddings_factor", "decoder_layers"),
        *("has_mlm", "has_nsp", "pools"),
    ):
        out[name] = getattr(cfg, name, None)
    out["final_norm"] = getattr(cfg, "norms_ends", None)
    if cfg.attention_sliding_window_length is None:  # then no layer has a window
        out["rope_theta_local"] = None
    else:
        out["layers with a window"] = cfg.local_layers
    if cfg.attention_qk_norm_layer:
        out["attention_qk_norm_eps"] = cfg.attention_qk_norm_eps
    scores = getattr(cfg, "with_lm_head", getattr(cfg, "has_mlm", True))
    if not scores:  # what a head would have does not matter
        for name in ("use_bias_in_output", "share_embedding_weights", "logits_scale"):
            out[name] = None
    if out["has_mlm"]:
        out["mlm_nonlinearity"] = cfg.mlm_nonlinearity
    if out["pools"]:
        out["pooler_nonlinearity"] = cfg.pooler_nonlinearity
    return out | _positions(cfg)


def _positions(cfg: Any) -> dict[str, Any]:
    kind = cfg.position_embedding_type
    if kind == "rotary":
        rule = cfg.pos_scaling_extra_args if cfg.pos_scaling_type != "linear" else None
        names = ("rotary_features", "rope_theta", "rotary_interleaved", "pos_scaling_factor")
        return {name: getattr(cfg, name) for name in names} | {"pos_scaling_extra_args": rule}
    if kind == "alibi":
        stored = cfg.alibi_trainable_slopes or cfg.alibi_slopes_in_checkpoint
        return {"pos_scaling_factor": cfg.pos_scaling_factor, "slopes in checkpoint": stored}
    if kind == "relative":
        names = ("num_relative_attention_buckets", "max_relative_distance")
        return {name: getattr(cfg, name) for name in names}
    if kind == "learned" and not hasattr(cfg, "image_slots"):  # a tower's follow from its patches
        return {"max_position_embeddings": cfg.max_position_embeddings}
    return {}


def differences(ours: ModelConfig, other: ModelConfig) -> list[str]:
    """List the knobs in which two configurations compute differently, a line each."""
    wrong = []
    parts = [getattr(cfg, "parts", (cfg,)) for cfg in (ours, other)]
    for one, another in zip(*parts, strict=True):
        a, b = computed(one), computed(another)
        wrong += [f"{k}: {a[k]!r} here, {b.get(k)!r} there" for k in a if a[k] != b.get(k)]
    return wrong


def require_same(ours: ModelConfig, returned: ModelConfig, model_type: str) -> None:
    """Refuse a configuration that Hugging Face's form would not bring back.

    Args:
        ours: what is to be written.
        returned: what the written config.json reads as.
        model_type: of that config.json, for the message.

    Raises:
        ValueError: every knob that differs: its value here, its value there.
    """
    wrong = differences(ours, returned)
    if wrong:
        raise ValueError(
            f"{ours.name}: Hugging Face's {model_type} cannot compute this model:\n  "
            + "\n  ".join(wrong)
            + "\nTrained with the values on the right, it could be written"
        )
