"""Config tables of encoders, encoder-decoders, the vision tower and LLaVA."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.convert.config_map import (
    ConfigMap,
    Settings,
    read_activation,
    to_foreign_config,
    to_our_settings,
    write_activation,
)
from models.convert.tables.decoder_configs import DECODER_CONFIGS
from models.errors import did_you_mean
from models.families.encoder_config import EncoderConfig
from models.families.llava import LlavaConfig
from models.families.seq2seq_config import Seq2SeqConfig

__all__ = ["OTHER_CONFIGS"]

_BERT_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "filter_size",
    "layer_norm_eps": "layer_norm_epsilon",
    "type_vocab_size": "num_segments",
    "hidden_act": "nonlinearity",
    "hidden_dropout_prob": "dropout_rate",
    "attention_probs_dropout_prob": "attention_dropout_rate",
}
# class name without the family's stem -> our model name's suffix and head
_HEADS = {
    "ForPreTraining": ("", "pretraining"),
    "ForMaskedLM": ("", "mlm"),
    "Model": ("", "none"),
    "ForSequenceClassification": ("-sequence-classifier", "classification"),
    "ForTokenClassification": ("-token-classifier", "token_classification"),
    "ForQuestionAnswering": ("-q&a", "qa"),
}
_DPR = {
    "DPRQuestionEncoder": ("dpr-question-encoder", "embedding"),
    "DPRContextEncoder": ("dpr-context-encoder", "embedding"),
    "DPRReader": ("dpr-reader", "reader"),
}
_FEED_FORWARD = {"gated-gelu": "geglu_new", "gated-silu": "swiglu", "gated-relu": "reglu"}


# class name of RoBERTa and DPR -> head, or (our model name, head)
_ROBERTA = {"RobertaForMaskedLM": "mlm", "RobertaModel": "none"}


def _of_class(foreign: Settings, known: Mapping[str, Any], default: str) -> Any:
    """Look the class up that config.json names.

    Raises:
        ValueError: a class with another head.
    """
    name = str(next(iter(foreign.get("architectures") or [default])))
    if name not in known:
        raise ValueError(
            f"config.json: architectures: {name!r} is not computed{did_you_mean(name, known)}; "
            f"known: {sorted(known)}. Another name there loads the weights that its class has"
        )
    return known[name]


def _labels(foreign: Settings) -> int:
    return len(foreign.get("id2label") or {}) or foreign.get("num_labels") or 2


def _read_bert(foreign: Settings) -> Settings:
    classes = {f"Bert{name}": found for name, found in _HEADS.items()}
    suffix, head = _of_class(foreign, classes, "BertModel")
    dropout = foreign.get("classifier_dropout")
    return {
        "name": f"bert{suffix}",
        "head": head,
        **_read_tying(foreign, head),
        "mlm_nonlinearity": read_activation(foreign["hidden_act"]),
        "max_position_embeddings": foreign["max_position_embeddings"],
        "num_labels": _labels(foreign),
        "classifier_dropout": dropout,
    }


def _read_tying(foreign: Settings, head: str) -> Settings:
    tied = foreign["tie_word_embeddings"]
    return {"share_embedding_weights": tied} if head in {"mlm", "pretraining"} else {}


def _write_bert(cfg: EncoderConfig) -> Settings:
    head = "mlm" if cfg.head == "pretraining" and not cfg.has_nsp else cfg.head
    names = {ours: foreign for foreign, (_, ours) in _HEADS.items()}
    if head not in names:
        raise ValueError(f"{cfg.name}: Hugging Face has no class for head {head!r}")
    if (cfg.embeddings_scale, cfg.logits_scale) != (1.0, 1.0):
        raise ValueError(f"{cfg.name}: Hugging Face's BERT has no muP scales")
    return {
        "architectures": [f"Bert{names[head]}"],
        "tie_word_embeddings": cfg.share_embedding_weights,
        "max_position_embeddings": cfg.max_position_embeddings,
        **_write_labels(cfg),
    }


def _write_labels(cfg: EncoderConfig) -> Settings:
    if cfg.head not in {"classification", "token_classification"}:
        return {}
    labels = {str(i): f"LABEL_{i}" for i in range(cfg.num_labels)}
    return {"id2label": labels, "label2id": {v: int(k) for k, v in labels.items()}}


def _read_roberta(foreign: Settings) -> Settings:
    """Read RoBERTa: positions start at pad id + 1, so the table has that many rows more."""
    offset = foreign["pad_token_id"] + 1
    head = _of_class(foreign, _ROBERTA, "RobertaModel")
    return {
        "head": head,
        **_read_tying(foreign, head),
        "mlm_nonlinearity": "gelu",  # in its code, whatever hidden_act is
        "position_embedding_offset": offset,
        "max_position_embeddings": foreign["max_position_embeddings"] - offset,
    }


def _write_roberta(cfg: EncoderConfig) -> Settings:
    offset = cfg.position_embedding_offset
    return {
        "architectures": ["RobertaForMaskedLM" if cfg.has_mlm else "RobertaModel"],
        "tie_word_embeddings": cfg.share_embedding_weights,
        "pad_token_id": offset - 1,
        "max_position_embeddings": cfg.max_position_embeddings + offset,
    }


_ESM = {"EsmForMaskedLM": "mlm", "EsmModel": "none"}


def _read_esm(foreign: Settings) -> Settings:
    """Read ESM-1b and ESM-2: learned positions begin after the pad id, as RoBERTa's."""
    kind = foreign["position_embedding_type"]
    if kind not in ("rotary", "absolute"):
        raise ValueError(
            f"position_embedding_type: {kind!r}; only rotary and absolute are computed"
        )
    head = _of_class(foreign, _ESM, "EsmModel")
    offset = 0 if kind == "rotary" else foreign["pad_token_id"] + 1
    return {
        "head": head,
        **_read_tying(foreign, head),
        "position_embedding_type": "learned" if offset else "rotary",
        "rotary_interleaved": False,
        "position_embedding_offset": offset,
        "max_position_embeddings": foreign["max_position_embeddings"] - offset,
        "use_embedding_layer_norm": foreign["emb_layer_norm_before"],
        "embedding_dropout_rate": 0.0,  # in its code
    }


def _write_esm(cfg: EncoderConfig) -> Settings:
    rotary, offset = cfg.position_embedding_type == "rotary", cfg.position_embedding_offset
    if rotary and (cfg.rotary_features != cfg.head_dim or cfg.pos_scaling_factor != 1.0):
        raise ValueError(f"{cfg.name}: ESM rotates all features of a head, without scaling")
    out: Settings = {"pad_token_id": 1 if rotary else offset - 1}
    return out | {
        "architectures": ["EsmForMaskedLM" if cfg.has_mlm else "EsmModel"],
        "tie_word_embeddings": cfg.share_embedding_weights,
        "position_embedding_type": "rotary" if rotary else "absolute",
        "max_position_embeddings": cfg.max_position_embeddings + offset,
        "emb_layer_norm_before": cfg.use_embedding_layer_norm,
        "rope_theta": cfg.rope_theta,
    }


def _read_dpr(foreign: Settings) -> Settings:
    name, head = _of_class(foreign, _DPR, "DPRQuestionEncoder")
    return {
        "name": name,
        "head": head,
        "max_position_embeddings": foreign["max_position_embeddings"],
        "projection_dim": foreign["projection_dim"],
    }


def _write_dpr(cfg: EncoderConfig) -> Settings:
    classes = {name: foreign for foreign, (name, _) in _DPR.items()}
    return {
        "architectures": [classes[cfg.name]],
        "projection_dim": cfg.projection_dim,
        "max_position_embeddings": cfg.max_position_embeddings,
    }


def _read_t5(foreign: Settings) -> Settings:
    """Read T5. v5 forces ``tie_word_embeddings`` and says ``scale_decoder_outputs`` instead."""
    act, scaled = foreign["feed_forward_proj"], foreign["scale_decoder_outputs"]
    if scaled is None:
        scaled = foreign["tie_word_embeddings"] is not False
    return {
        "nonlinearity": _FEED_FORWARD.get(act) or read_activation(act),
        "d_kv": foreign["d_kv"],
        "decoder_num_hidden_layers": foreign["num_decoder_layers"] or foreign["num_layers"],
        "scale_logits": scaled,
        "share_embedding_weights": scaled,
        "position_embedding_type": "relative",
        "decoder_start_token_id": foreign["decoder_start_token_id"],
    }


def _require_shared(tensors: Mapping[str, np.ndarray], shared: str, own: str) -> None:
    """Refuse halves whose embeddings are not the shared ones."""
    for name in (own.format(side) for side in ("encoder", "decoder")):
        both = name in tensors and shared in tensors
        if both and not np.array_equal(tensors[name], tensors[shared]):
            raise ValueError(f"{name} differs from {shared}: only shared embeddings are computed")


def _refine_t5(settings: Settings, tensors: Mapping[str, np.ndarray]) -> Settings:
    """Decide tying by the weights, the only rule that holds for v4 and v5 files."""
    _require_shared(tensors, "shared.weight", "{}.embed_tokens.weight")
    tied = "lm_head.weight" not in tensors or np.array_equal(
        tensors["lm_head.weight"], tensors["shared.weight"]
    )
    return settings | {"share_embedding_weights": tied}


def _write_t5(cfg: Seq2SeqConfig) -> Settings:
    names = {ours: foreign for foreign, ours in _FEED_FORWARD.items()}
    act = str(cfg.nonlinearity)
    return {
        "feed_forward_proj": names.get(act) or write_activation(act),
        "d_kv": cfg.head_dim,
        "num_decoder_layers": cfg.decoder_layers,
        "scale_decoder_outputs": cfg.scale_logits,
        "tie_word_embeddings": cfg.scale_logits,
        "is_encoder_decoder": True,
        "decoder_start_token_id": cfg.decoder_start_token_id,
        "pad_token_id": 0,
    }


def _read_marian(foreign: Settings) -> Settings:
    for a, b in (
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
        ("vocab_size", "decoder_vocab_size"),
    ):
        if foreign[b] not in (None, foreign[a]):
            raise ValueError(f"{a} and {b} differ: only equal halves are computed")
    return {
        "decoder_num_hidden_layers": foreign["decoder_layers"],
        "nonlinearity": read_activation(foreign["activation_function"]),
        "scale_embedding": foreign["scale_embedding"],
        "decoder_start_token_id": foreign["decoder_start_token_id"],
        "share_embedding_weights": foreign["tie_word_embeddings"],
        "use_bias_in_output": True,
        "layer_norm_epsilon": 1e-5,
    }


def _refine_marian(settings: Settings, tensors: Mapping[str, np.ndarray]) -> Settings:
    _require_shared(tensors, "model.shared.weight", "model.{}.embed_tokens.weight")
    return settings


def _write_marian(cfg: Seq2SeqConfig) -> Settings:
    if cfg.norms_ends or cfg.scale_logits:
        raise ValueError(f"{cfg.name}: Marian has no norm after its stacks and no scale of logits")
    return {
        "decoder_layers": cfg.decoder_layers,
        "decoder_attention_heads": cfg.num_heads,
        "decoder_ffn_dim": cfg.filter_size,
        "decoder_vocab_size": cfg.vocab_size,
        "activation_function": write_activation(cfg.nonlinearity),
        "scale_embedding": cfg.scale_embedding,
        "decoder_start_token_id": cfg.decoder_start_token_id,
        "pad_token_id": cfg.decoder_start_token_id,
        "is_encoder_decoder": True,
        "tie_word_embeddings": cfg.share_embedding_weights,
        "share_encoder_decoder_embeddings": True,
    }


_CLIP_KEYS = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "filter_size",
    "image_size": "image_size",
    "patch_size": "patch_size",
    "num_channels": "num_channels",
    "hidden_act": "nonlinearity",
    "layer_norm_eps": "layer_norm_epsilon",
    "attention_dropout": "attention_dropout_rate",
}
_CLIP = ConfigMap(
    "clip_vision_model",
    "clip-vit",
    _CLIP_KEYS,
    classes=("CLIPVisionModel", "CLIPVisionModel"),
)


def _read_llava(foreign: Settings) -> Settings:
    text = dict(foreign["text_config"] or {})
    map_ = DECODER_CONFIGS.get(text.get("model_type", "llama"))
    if map_ is None or map_.model_type != "llama":
        raise ValueError(f"text_config.model_type: {text.get('model_type')!r}, only llama converts")
    mode = foreign["vision_feature_select_strategy"]
    text.setdefault("tie_word_embeddings", foreign["tie_word_embeddings"] or False)
    return {
        "image_model": to_our_settings(_CLIP, dict(foreign["vision_config"])),
        "text_model": to_our_settings(map_, text),
        "image_token_index": foreign["image_token_index"],
        "image_feature_select_layer_idx": foreign["vision_feature_layer"],
        "image_feature_select_mode": "patch" if mode == "default" else "cls_patch",
        "projector_nonlinearity": read_activation(foreign["projector_hidden_act"]),
    }


def _write_llava(cfg: LlavaConfig) -> Settings:
    text = to_foreign_config(DECODER_CONFIGS["llama"], cfg.text_model, "float32")
    mode = cfg.image_feature_select_mode
    return {
        "architectures": ["LlavaForConditionalGeneration"],
        "vision_config": to_foreign_config(_CLIP, cfg.image_model, "float32"),
        "text_config": text,
        "image_token_index": cfg.image_token_index,
        "vision_feature_layer": cfg.image_feature_select_layer_idx,
        "vision_feature_select_strategy": "default" if mode == "patch" else "full",
        "projector_hidden_act": write_activation(cfg.projector_nonlinearity),
        "image_seq_length": cfg.image_model.patches,
        "tie_word_embeddings": cfg.text_model.share_embedding_weights,
    }


_ENCODER: Settings = {
    "keys": _BERT_KEYS,
    "required": {
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    },
}

OTHER_CONFIGS: dict[str, ConfigMap] = {
    "bert": ConfigMap("bert", "bert", read=_read_bert, write=_write_bert, **_ENCODER),
    "roberta": ConfigMap(
        "roberta", "roberta", read=_read_roberta, write=_write_roberta, **_ENCODER
    ),
    "esm": ConfigMap(
        "esm",
        "esm2",
        {
            key: ours
            for key, ours in _BERT_KEYS.items()
            if key not in ("hidden_act", "type_vocab_size")
        }
        | {key: key for key in ("rope_theta", "token_dropout", "mask_token_id")},
        required={"is_folding_model": False, "esmfold_config": None},
        read=_read_esm,
        write=_write_esm,
    ),
    "dpr": ConfigMap("dpr", "dpr-question-encoder", read=_read_dpr, write=_write_dpr, **_ENCODER),
    "t5": ConfigMap(
        "t5",
        "t5",
        {
            "vocab_size": "vocab_size",
            "d_model": "hidden_size",
            "d_ff": "filter_size",
            "num_layers": "num_hidden_layers",
            "num_heads": "num_heads",
            "relative_attention_num_buckets": "num_relative_attention_buckets",
            "relative_attention_max_distance": "max_relative_distance",
            "dropout_rate": "dropout_rate",
            "layer_norm_epsilon": "layer_norm_epsilon",
        },
        read=_read_t5,
        write=_write_t5,
        refine=_refine_t5,
        classes=("T5ForConditionalGeneration", "T5ForConditionalGeneration"),
    ),
    "marian": ConfigMap(
        "marian",
        "transformer",
        {
            "vocab_size": "vocab_size",
            "d_model": "hidden_size",
            "encoder_layers": "num_hidden_layers",
            "encoder_attention_heads": "num_heads",
            "encoder_ffn_dim": "filter_size",
            "max_position_embeddings": "max_position_embeddings",
            "dropout": "dropout_rate",
            "attention_dropout": "attention_dropout_rate",
        },
        required={
            "share_encoder_decoder_embeddings": True,
            "activation_dropout": 0.0,
            "encoder_layerdrop": 0.0,
            "decoder_layerdrop": 0.0,
        },
        read=_read_marian,
        write=_write_marian,
        refine=_refine_marian,
        classes=("MarianMTModel", "MarianMTModel"),
    ),
    "clip_vision_model": _CLIP,
    "llava": ConfigMap(
        "llava",
        "llava",
        {},
        required={"multimodal_projector_bias": True},
        read=_read_llava,
        write=_write_llava,
    ),
}
