"""Key tables of encoders, encoder-decoders, the vision tower and LLaVA."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from wafer.models.convert.codecs import PATCHES, SAME, leading_one
from wafer.models.convert.engine import (
    Table,
    TensorRow,
    embedding,
    linear,
    linears,
    norm,
    repeated,
    under,
)
from wafer.models.convert.tables.decoder_tables import DECODER_TABLES
from wafer.models.families.encoder_config import EncoderConfig
from wafer.models.families.llava import LlavaConfig
from wafer.models.families.seq2seq_config import Seq2SeqConfig
from wafer.models.families.vision import VisionConfig

# Names of the one embedding of both halves; a file may hold any of them.
T5_TABLE = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
MARIAN_TABLE = tuple(f"model.{name}" for name in T5_TABLE)
_TOKENS = "embeddings.word_embeddings.weight"
_ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"}
_DPR_PREFIX = {
    "dpr-question-encoder": "question_encoder.",
    "dpr-context-encoder": "ctx_encoder.",
    "dpr-reader": "span_predictor.encoder.",
}


def _trunk(
    cfg: EncoderConfig,
    *,
    first: str = "LayerNorm",
    attention: str = "attention.output.LayerNorm",
    output: str = "output.LayerNorm",
) -> list[TensorRow]:
    """Rows of the layers and embeddings; the keywords are the names of their norms."""
    layer, theirs, ours = "encoder.layer.{i}", "encoder.layer.{i}.attention", "layers_{i}/attn"
    rows = [
        *embedding("embeddings.word_embeddings", "embed/token"),
        *embedding("embeddings.position_embeddings", "embed/position"),
        *embedding("embeddings.token_type_embeddings", "embed/segment"),
        *norm(f"embeddings.{first}", "embed/norm"),
        *linears(f"{theirs}.self", ours, {name: name for name in ("query", "key", "value")}),
        *linear(f"{theirs}.output.dense", f"{ours}/out"),
        *norm(f"{layer}.{attention}", "layers_{i}/norm1"),
        *linear(f"{layer}.intermediate.dense", "layers_{i}/ffn/up"),
        *linear(f"{layer}.output.dense", "layers_{i}/ffn/down"),
        *norm(f"{layer}.{output}", "layers_{i}/norm2"),
        *linear("pooler.dense", "pooler"),
    ]
    return repeated(rows, cfg.num_hidden_layers)


def _old_norms(prefix: str) -> Callable[[str], Iterable[str]]:
    """Files from TensorFlow say gamma and beta; trunks come with and without prefix."""

    def spellings(name: str) -> Iterable[str]:
        names = [name, name.removeprefix(prefix), prefix + name]
        old = [n.replace(".weight", ".gamma").replace(".bias", ".beta") for n in names]
        return names + [n for n in old if "LayerNorm." in n]

    return spellings


def _with_heads(cfg: EncoderConfig, stem: str, head: str, heads: list[TensorRow]) -> Table:
    """Add the heads, and what scores the vocabulary.

    An untied head has the bias twice: transformers 4 reads the first, transformers 5 the decoder's.

    Args:
        cfg: whose layers are counted.
        stem: of the trunk's tensors where there is a head.
        head: of the tensors that score.
        heads: rows of the other heads.
    """
    prefix = "" if cfg.head == "none" else f"{stem}."
    untied = cfg.has_mlm and not cfg.ties_head
    first, decoder = f"{head}.bias", f"{head}.decoder.bias"
    bias, other = (decoder, first) if untied else (first, decoder)
    plain = _old_norms(f"{stem}.")
    copies = rf"{re.escape(head)}\.decoder\..*"
    return Table(
        rows=[
            *under(_trunk(cfg), prefix),
            *heads,
            *linear(f"{head}.decoder", "lm_head"),
            TensorRow(bias, ("lm_head_bias",), SAME),
        ],
        ignored=[*([copies] if cfg.ties_head else []), r".*embeddings\.position_ids"],
        spellings=lambda name: [*plain(name), *([other] if name == bias else [])],
        unused=[rf"({stem}\.)?(pooler|cls|lm_head|classifier|qa_outputs)\..*"],
        copies={first: decoder} if untied else {},
        tied=(f"{prefix}{_TOKENS}", f"{head}.decoder.weight") if cfg.ties_head else None,
    )


def _bert(cfg: EncoderConfig) -> Table:
    heads = [
        *linear("cls.predictions.transform.dense", "mlm_dense"),
        *norm("cls.predictions.transform.LayerNorm", "mlm_norm"),
        *linear("cls.seq_relationship", "nsp"),
        *linear("classifier", "classifier"),
        *linear("qa_outputs", "span"),
    ]
    return _with_heads(cfg, "bert", "cls.predictions", heads)


def _roberta(cfg: EncoderConfig) -> Table:
    heads = [
        *linear("lm_head.dense", "mlm_dense"),
        *norm("lm_head.layer_norm", "mlm_norm"),
        *linear("classifier", "classifier"),
        *linear("qa_outputs", "span"),
    ]
    return _with_heads(cfg, "roberta", "lm_head", heads)


def _esm(cfg: EncoderConfig) -> Table:
    norms = {"first": "layer_norm", "attention": "attention.LayerNorm", "output": "LayerNorm"}
    rows = [*_trunk(cfg, **norms), *norm("encoder.emb_layer_norm_after", "norm_f")]
    prefix = "" if cfg.head == "none" else "esm."
    heads = [
        *linear("lm_head.dense", "mlm_dense"),
        *norm("lm_head.layer_norm", "mlm_norm"),
        *linear("lm_head.decoder", "lm_head"),
        TensorRow("lm_head.bias", ("lm_head_bias",), SAME),
    ]
    return Table(
        rows=[*under(rows, prefix), *heads],
        ignored=[
            r".*embeddings\.position_ids",
            r".*rotary_embeddings?\.inv_freq",
            *([r"lm_head\.decoder\.weight"] if cfg.ties_head else []),
        ],
        spellings=_old_norms("esm."),
        unused=[r"(esm\.)?(pooler|lm_head|contact_head|classifier)\..*"],
        tied=(f"{prefix}{_TOKENS}", "lm_head.decoder.weight") if cfg.ties_head else None,
    )


def _dpr(cfg: EncoderConfig) -> Table:
    prefix = _DPR_PREFIX[cfg.name]
    heads = [
        *linear(f"{prefix}encode_proj", "projection"),
        *linear("span_predictor.qa_outputs", "span"),
        *linear("span_predictor.qa_classifier", "relevance"),
    ]
    return Table(
        rows=[*under(_trunk(cfg), f"{prefix}bert_model."), *heads],
        ignored=[r".*embeddings\.position_ids"],
        spellings=_old_norms("-"),
        unused=[r".*\.bert_model\.pooler\..*"],
    )


def _t5_stack(side: str, layers: int) -> list[TensorRow]:
    block, ours = f"{side}.block.{{i}}.layer", f"{side}_layers_{{i}}"
    ffn = 2 if side == "decoder" else 1
    rows = [*norm(f"{block}.0.layer_norm", f"{ours}/norm1")]
    pairs = [("0.SelfAttention", "attn")]
    if side == "decoder":
        pairs.append(("1.EncDecAttention", "cross"))
        rows += norm(f"{block}.1.layer_norm", f"{ours}/norm_cross")
    for foreign, own in pairs:
        names = {"q": "query", "k": "key", "v": "value", "o": "out"}
        rows += linears(f"{block}.{foreign}", f"{ours}/{own}", names)
    dense = f"{block}.{ffn}.DenseReluDense"
    rows += [
        *linear(f"{dense}.wi", f"{ours}/ffn/up"),
        *linear(f"{dense}.wi_1", f"{ours}/ffn/up"),
        *linear(f"{dense}.wi_0", f"{ours}/ffn/gate"),
        *linear(f"{dense}.wo", f"{ours}/ffn/down"),
        *norm(f"{block}.{ffn}.layer_norm", f"{ours}/norm2"),
    ]
    table = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
    return [
        *repeated(rows, layers),
        *embedding(table, f"{side}_position/relative"),
        *norm(f"{side}.final_layer_norm", f"{side}_norm_f"),
    ]


def _t5(cfg: Seq2SeqConfig) -> Table:
    rows = [
        *embedding("shared", "embed/token"),
        *_t5_stack("encoder", cfg.num_hidden_layers),
        *_t5_stack("decoder", cfg.decoder_layers),
        *linear("lm_head", "lm_head"),
    ]
    unwanted = ".wi." if cfg.gated else ".wi_1."
    rows = [row for row in rows if unwanted not in row.foreign]
    ignored = [
        r"(encoder|decoder)\.embed_tokens\.weight",
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ]
    shared, *others = T5_TABLE
    aliases = lambda name: others if name == shared else ()
    if not cfg.share_embedding_weights:
        return Table(rows, ignored, aliases)
    ignored.append(r"lm_head\.weight")
    return Table(rows, ignored, aliases, tied=(shared, "lm_head.weight"))


def _marian_stack(side: str, layers: int) -> list[TensorRow]:
    layer, ours = f"model.{side}.layers.{{i}}", f"{side}_layers_{{i}}"
    rows = [*norm(f"{layer}.self_attn_layer_norm", f"{ours}/norm1")]
    pairs = [("self_attn", "attn")]
    if side == "decoder":
        pairs.append(("encoder_attn", "cross"))
        rows += norm(f"{layer}.encoder_attn_layer_norm", f"{ours}/norm_cross")
    for foreign, own in pairs:
        rows += linears(f"{layer}.{foreign}", f"{ours}/{own}", _ATTENTION)
    rows += [
        *linear(f"{layer}.fc1", f"{ours}/ffn/up"),
        *linear(f"{layer}.fc2", f"{ours}/ffn/down"),
        *norm(f"{layer}.final_layer_norm", f"{ours}/norm2"),
    ]
    return repeated(rows, layers)


def _marian(cfg: Seq2SeqConfig) -> Table:
    rows = [
        *embedding("model.shared", "embed/token"),
        *_marian_stack("encoder", cfg.num_hidden_layers),
        *_marian_stack("decoder", cfg.decoder_layers),
        *linear("lm_head", "lm_head")[:1],
        TensorRow("final_logits_bias", ("lm_head/bias",), leading_one()),
    ]
    # The sinusoids are computed: a table saved in half precision would change the logits.
    ignored = [r"model\.(encoder|decoder)\.embed_(tokens|positions)\.weight"]
    shared, *others = MARIAN_TABLE
    aliases = lambda name: others if name == shared else ()
    if not cfg.share_embedding_weights:  # transformers 5 ties nothing then
        copies = dict.fromkeys(others, shared)
        return Table(rows, ignored, aliases, copies=copies)
    tied = (shared, "lm_head.weight")
    ignored.append(r"lm_head\.weight")
    return Table(rows, ignored, aliases, tied=tied)


def _vision_rows(cfg: VisionConfig) -> list[TensorRow]:
    layer = "encoder.layers.{i}"
    rows = [
        TensorRow("embeddings.class_embedding", ("embed/class_embedding",), SAME),
        TensorRow("embeddings.patch_embedding.weight", ("embed/patch_embedding/kernel",), PATCHES),
        *embedding("embeddings.position_embedding", "embed/position"),
        *norm("pre_layrnorm", "embed/norm"),
        *linears(f"{layer}.self_attn", "layers_{i}/attn", _ATTENTION),
        *norm(f"{layer}.layer_norm1", "layers_{i}/norm1"),
        *linear(f"{layer}.mlp.fc1", "layers_{i}/ffn/up"),
        *linear(f"{layer}.mlp.fc2", "layers_{i}/ffn/down"),
        *norm(f"{layer}.layer_norm2", "layers_{i}/norm2"),
        *norm("post_layernorm", "norm_f"),
    ]
    return repeated(rows, cfg.num_hidden_layers)


def _llava_spellings(name: str) -> Iterable[str]:
    """List the two newer spellings of a key of llava-1.5's own files."""
    saved = name.replace("vision_tower.vision_model.", "vision_tower.")
    memory = saved.replace("language_model.model.", "language_model.")
    head = memory.removeprefix("language_model.") if ".lm_head." in memory else f"model.{memory}"
    return [saved, head, f"model.{name}"]


def _llava(cfg: LlavaConfig) -> Table:
    text = DECODER_TABLES["llama"](cfg.text_model)
    rows = [
        *under(_vision_rows(cfg.image_model), "vision_tower.vision_model.", "image_"),
        *linear("multi_modal_projector.linear_1", "projector/up"),
        *linear("multi_modal_projector.linear_2", "projector/down"),
        *under(list(text.rows), "language_model."),
    ]
    tied = text.tied and (f"language_model.{text.tied[0]}", f"language_model.{text.tied[1]}")
    ignored = [r".*embeddings\.position_ids", *(rf"(.*\.)?{name}" for name in text.ignored)]
    return Table(rows=rows, ignored=ignored, spellings=_llava_spellings, tied=tied)


OTHER_TABLES: dict[str, Callable[[Any], Table]] = {
    "bert": _bert,
    "roberta": _roberta,
    "esm": _esm,
    "dpr": _dpr,
    "t5": _t5,
    "marian": _marian,
    "clip_vision_model": lambda cfg: Table(
        rows=under(_vision_rows(cfg), "vision_model."),
        ignored=[r".*embeddings\.position_ids"],
        spellings=lambda name: [name.removeprefix("vision_model.")],
        unused=[r"(text_model|text_projection|visual_projection|logit_scale).*"],
    ),
    "llava": _llava,
}
