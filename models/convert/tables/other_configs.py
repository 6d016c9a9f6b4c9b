"""Config tables of encoders, encoder-decoders, the vision tower and LLaVA."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from wafer.models.convert.config_map import (
    ConfigMap,
    Settings,
    read_activation,
    to_foreign_config,
    to_our_settings,
    write_activation,
)
from wafer.models.convert.tables.decoder_configs import DECODER_CONFIGS
from wafer.models.convert.tables.other_tables import MARIAN_TABLE, T5_TABLE
from wafer.models.errors import did_you_mean
from wafer.models.families.encoder_config import EncoderConfig
from wafer.models.families.seq2seq_config import Seq2SeqConfig

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
    "max_position_embeddings": "max_position_embeddings",
}
_TIES = {"tie_word_embeddings": "share_embedding_weights"}
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
_ONE_LABEL = "single_label_classification"
_FEED_FORWARD = {"gated-gelu": "geglu_new", "gated-silu": "swiglu", "gated-relu": "reglu"}


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


def _read_bert(foreign: Settings) -> Settings:
    classes = {f"Bert{name}": found for name, found in _HEADS.items()}
    suffix, head = _of_class(foreign, classes, "BertModel")
    labels = len(foreign.get("id2label") or {}) or foreign.get("num_labels") or 2
    kind = foreign["problem_type"] or ("regression" if labels == 1 else _ONE_LABEL)
    if head == "classification" and kind != _ONE_LABEL:
        raise ValueError(
            f"problem_type: {kind!r} ({labels} labels) has a loss that is not computed; only "
            f"{_ONE_LABEL!r} is"
        )
    return {
        "name": f"bert{suffix}",
        "head": head,
        "num_labels": labels,
        "classifier_dropout": foreign.get("classifier_dropout"),
    }


def _write_bert(cfg: EncoderConfig) -> Settings:
    head = "mlm" if cfg.head == "pretraining" and not cfg.has_nsp else cfg.head
    names = {ours: foreign for foreign, (_, ours) in _HEADS.items()}
    if head not in names:
        raise ValueError(f"{cfg.name}: Hugging Face has no class for head {head!r}")
    if (cfg.embeddings_scale, cfg.logits_scale) != (1.0, 1.0):
        raise ValueError(f"{cfg.name}: Hugging Face's BERT has no muP scales")
    out: Settings = {"architectures": [f"Bert{names[head]}"]}
    if cfg.head in {"classification", "token_classification"}:
        labels = {str(i): f"LABEL_{i}" for i in range(cfg.num_labels)}
        out |= {"id2label": labels, "label2id": {v: int(k) for k, v in labels.items()}}
    return out


def _head_of(foreign: Settings, stem: str) -> Settings:
    """Read the head of a family with two classes."""
    known = {f"{stem}ForMaskedLM": "mlm", f"{stem}Model": "none"}
    return {"head": _of_class(foreign, known, f"{stem}Model")}


def _class_of(cfg: EncoderConfig, stem: str) -> Settings:
    return {"architectures": [f"{stem}ForMaskedLM" if cfg.has_mlm else f"{stem}Model"]}


def _read_esm(foreign: Settings) -> Settings:
    """Read ESM-1b and ESM-2: learned positions begin after the pad id, as RoBERTa's."""
    kind = foreign["position_embedding_type"]
    if kind not in ("rotary", "absolute"):
        raise ValueError(
            f"position_embedding_type: {kind!r}; only rotary and absolute are computed"
        )
    offset = 0 if kind == "rotary" else foreign["pad_token_id"] + 1
    return {
        **_head_of(foreign, "Esm"),
        "position_embedding_type": "learned" if offset else "rotary",
        "position_embedding_offset": offset,
        "max_position_embeddings": foreign["max_position_embeddings"] - offset,
    }


def _write_esm(cfg: EncoderConfig) -> Settings:
    rotary, offset = cfg.position_embedding_type == "rotary", cfg.position_embedding_offset
    if rotary and (cfg.rotary_features != cfg.head_dim or cfg.pos_scaling_factor != 1.0):
        raise ValueError(f"{cfg.name}: ESM rotates all features of a head, without scaling")
    return {
        **_class_of(cfg, "Esm"),
        "pad_token_id": 1 if rotary else offset - 1,
        "position_embedding_type": "rotary" if rotary else "absolute",
        "max_position_embeddings": cfg.max_position_embeddings + offset,
    }


def _read_t5(foreign: Settings) -> Settings:
    """Read T5. v5 forces ``tie_word_embeddings`` and says ``scale_decoder_outputs`` instead."""
    act, scaled = foreign["feed_forward_proj"], foreign["scale_decoder_outputs"]
    if scaled is None:
        scaled = foreign["tie_word_embeddings"] is not False
    gated, _, inner = act.rpartition("-")
    derived = {"is_gated_act": gated == "gated"}
    derived["dense_act_fn"] = "gelu_new" if act == "gated-gelu" else inner
    for key, value in derived.items():  # transformers' classes take these where a file has them
        if foreign.get(key) not in (None, value):
            raise ValueError(
                f"{key}: {foreign[key]!r}, but feed_forward_proj: {act!r} has {value!r}"
            )
    return {
        "nonlinearity": _FEED_FORWARD.get(act) or read_activation(act),
        "attention_inner_dim": foreign["d_kv"] * foreign["num_heads"],
        "decoder_num_hidden_layers": foreign["num_decoder_layers"] or foreign["num_layers"],
        "scale_logits": scaled,
        "share_embedding_weights": scaled,
        "position_embedding_type": "relative",
    }


def _shared_table(tensors: Mapping[str, np.ndarray], *names: str) -> np.ndarray | None:
    """Return the embedding that both halves share, under whichever of its names a file has it.

    Raises:
        ValueError: the file has it twice, with other values.
    """
    first, *others = [name for name in names if name in tensors] or [""]
    for name in others:
        if not np.array_equal(tensors[name], tensors[first]):
            raise ValueError(f"{name} differs from {first}: only shared embeddings are computed")
    return tensors[first] if first else None


def _refine_t5(settings: Settings, tensors: Mapping[str, np.ndarray]) -> Settings:
    """Decide tying by the weights, the only rule that holds for v4 and v5 files."""
    table = _shared_table(tensors, *T5_TABLE)
    head = "lm_head.weight"
    tied = table is None or head not in tensors or np.array_equal(tensors[head], table)
    if not tied and settings["scale_logits"]:
        raise ValueError(
            "lm_head.weight differs from the embedding, and config.json scales the logits of a "
            "shared one (scale_decoder_outputs, or tie_word_embeddings without it); write "
            "scale_decoder_outputs: false for a head of its own"
        )
    return settings | {"share_embedding_weights": tied}


def _read_marian(foreign: Settings) -> Settings:
    for a, b in (
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
        ("vocab_size", "decoder_vocab_size"),
    ):
        if foreign[b] not in (None, foreign[a]):
            raise ValueError(f"{a} and {b} differ: only equal halves are computed")
    return {"decoder_num_hidden_layers": foreign["decoder_layers"]}


def _refine_marian(settings: Settings, tensors: Mapping[str, np.ndarray]) -> Settings:
    _shared_table(tensors, *MARIAN_TABLE)
    return settings


def _write_marian(cfg: Seq2SeqConfig) -> Settings:
    if cfg.norms_ends or cfg.scale_logits:
        raise ValueError(f"{cfg.name}: Marian has no norm after its stacks and no scale of logits")
    return {
        "decoder_layers": cfg.decoder_layers,
        "decoder_attention_heads": cfg.num_heads,
        "decoder_ffn_dim": cfg.filter_size,
        "decoder_vocab_size": cfg.vocab_size,
        "pad_token_id": cfg.decoder_start_token_id,
        "is_encoder_decoder": True,
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
        "image_feature_select_mode": "patch" if mode == "default" else "cls_patch",
    }


_ENCODER: Settings = {
    "required": {
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    },
}
_ESM_KEYS = {key: key for key in ("rope_theta", "token_dropout", "mask_token_id")} | {
    "emb_layer_norm_before": "use_embedding_layer_norm"
}

OTHER_CONFIGS: dict[str, ConfigMap] = {
    "bert": ConfigMap(
        "bert",
        "bert",
        _BERT_KEYS | _TIES | {"hidden_act": ("nonlinearity", "mlm_nonlinearity")},
        read=_read_bert,
        write=_write_bert,
        **_ENCODER,
    ),
    "roberta": ConfigMap(
        "roberta",
        "roberta",
        _BERT_KEYS | _TIES,
        fixed={"mlm_nonlinearity": "gelu"},  # in its code, whatever hidden_act is
        # Positions start at pad id + 1, so the table has that many rows more.
        read=lambda foreign: {
            **_head_of(foreign, "Roberta"),
            "position_embedding_offset": (offset := foreign["pad_token_id"] + 1),
            "max_position_embeddings": foreign["max_position_embeddings"] - offset,
        },
        write=lambda cfg: {
            **_class_of(cfg, "Roberta"),
            "pad_token_id": cfg.position_embedding_offset - 1,
            "max_position_embeddings": cfg.max_position_embeddings + cfg.position_embedding_offset,
        },
        **_ENCODER,
    ),
    "esm": ConfigMap(
        "esm",
        "esm2",
        {k: v for k, v in _BERT_KEYS.items() if k not in ("hidden_act", "type_vocab_size")}
        | _TIES
        | _ESM_KEYS,
        fixed={"rotary_interleaved": False, "embedding_dropout_rate": 0.0},  # in its code
        required={"is_folding_model": False, "esmfold_config": None},
        read=_read_esm,
        write=_write_esm,
    ),
    "dpr": ConfigMap(
        "dpr",
        "dpr-question-encoder",
        _BERT_KEYS | {"projection_dim": "projection_dim"},
        read=lambda foreign: dict(
            zip(("name", "head"), _of_class(foreign, _DPR, "DPRQuestionEncoder"), strict=True)
        ),
        write=lambda cfg: {
            "architectures": [k for k, (name, _) in _DPR.items() if name == cfg.name]
        },
        **_ENCODER,
    ),
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
            "decoder_start_token_id": "decoder_start_token_id",
        },
        read=_read_t5,
        write=lambda cfg: {
            "feed_forward_proj": (
                {ours: foreign for foreign, ours in _FEED_FORWARD.items()}.get(cfg.nonlinearity)
                or write_activation(str(cfg.nonlinearity))
            ),
            "d_kv": cfg.head_dim,
            "num_decoder_layers": cfg.decoder_layers,
            "scale_decoder_outputs": cfg.scale_logits,
            "tie_word_embeddings": cfg.scale_logits,
            "is_encoder_decoder": True,
            "pad_token_id": 0,
        },
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
            "activation_function": "nonlinearity",
            "scale_embedding": "scale_embedding",
            "decoder_start_token_id": "decoder_start_token_id",
            **_TIES,
        },
        fixed={"use_bias_in_output": True, "layer_norm_epsilon": 1e-5},
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
        {
            "image_token_index": "image_token_index",
            "vision_feature_layer": "image_feature_select_layer_idx",
            "projector_hidden_act": "projector_nonlinearity",
        },
        required={"multimodal_projector_bias": True},
        read=_read_llava,
        write=lambda cfg: {
            "architectures": ["LlavaForConditionalGeneration"],
            "vision_config": to_foreign_config(_CLIP, cfg.image_model, "float32"),
            "text_config": to_foreign_config(DECODER_CONFIGS["llama"], cfg.text_model, "float32"),
            "vision_feature_select_strategy": (
                "default" if cfg.image_feature_select_mode == "patch" else "full"
            ),
            "image_seq_length": cfg.image_model.patches,
            "tie_word_embeddings": cfg.text_model.share_embedding_weights,
        },
    ),
}
