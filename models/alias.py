"""The vendor's dotted parameter names, so that filters written for them select ours."""

import functools
import re
from collections.abc import Callable

_Rules = tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]

_LAYER: _Rules = (
    (r"attn/(query|key|value)/", lambda m: f"self_attn.proj_{m[1][0]}_dense_layer."),
    (r"attn/(query|key)_norm/", lambda m: f"self_attn.{m[1][0]}_norm."),
    (r"attn/out/", "self_attn.proj_output_dense_layer."),
    (r"moe/router/", "ffn.gate."),
    (r"moe/experts_(\d+)/", r"ffn.experts.experts.\1/"),
    (r"moe/shared_experts_(\d+)/", r"ffn.experts.shared_experts.\1/"),
    (r"(^|[./])(ffn|experts\.\d+)/up/", r"\1\2.ffn.0.linear_layer."),
    (r"(^|[./])(ffn|experts\.\d+)/gate/", r"\1\2.ffn.0.linear_layer_for_glu."),
    (r"(^|[./])(ffn|experts\.\d+)/down/", r"\1\2.ffn.1.linear_layer."),
)
_DECODER: _Rules = (
    (r"embed/token/embedding", "embedding_layer.word_embeddings.weight"),
    (r"embed/position/embedding", "embedding_layer.position_embeddings.embed.weight"),
    (r"embed/norm/", "embedding_ln_f."),
    (
        r"position/relative/embedding",
        "embedding_layer.position_embed_helper.relative_attention_bias.weight",
    ),
    (r"position/slopes", "embedding_layer.position_embed_helper.slopes"),
    (r"layers_(\d+)/", r"transformer_decoder.layers.\1."),
    (r"norm_f/", "ln_f."),
    (r"lm_head/", "lm_head."),
    (r"norm2_post/", "norm3_post."),
    (r"norm1_post/", "norm1_post."),
    (r"norm2/", "norm3."),
    (r"norm1/", "norm1."),
)


def rewrite(name: str, rules: _Rules) -> str:
    """Apply (pattern, replacement) rules one after another."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def _dotted(name: str, rules: _Rules) -> str:
    name = re.sub(r"(kernel|scale|embedding)$", "weight", rewrite(name, (*rules, *_LAYER)))
    return f"model.{name.replace('/', '.')}"


def decoder_alias(name: str) -> str:
    """Translate a parameter path to the Model Zoo's name (2.1 and later).

    >>> decoder_alias("layers_3/attn/query/kernel")
    'model.transformer_decoder.layers.3.self_attn.proj_q_dense_layer.weight'
    """
    return _dotted(name, _DECODER)


_ENCODER: _Rules = (
    (r"^embed/token/embedding", "bert_encoder.embedding_layer.word_embeddings.weight"),
    (r"^embed/segment/embedding", "bert_encoder.embedding_layer.segment_embeddings.weight"),
    (r"^embed/epigenetic/embedding", "bert_encoder.embedding_layer.epigenetic_embeddings.weight"),
    (r"^embed/position/embedding", "bert_encoder.embedding_layer.position_embeddings.embed.weight"),
    (r"^embed/norm/", "bert_encoder.embed_ln_f."),
    (r"^norm_f/", "bert_encoder.transformer_encoder.norm."),
    (r"^layers_(\d+)/", r"bert_encoder.transformer_encoder.layers.\1."),
    (r"^pooler/", "bert_encoder.pooler.pooler.ffn.0.linear_layer."),
    (r"^mlm_dense/", "bert_mlm_head.mlm_transform.ffn.ffn.0.linear_layer."),
    (r"^mlm_norm/", "bert_mlm_head.mlm_transform.ln."),
    (r"^lm_head/", "bert_mlm_head.classifier.ffn.0.linear_layer."),
    (r"^lm_head_bias$", "bert_mlm_head.classifier.ffn.0.linear_layer.bias"),
    (r"^nsp/", "bert_cls_head.classifier.ffn.0.linear_layer."),
)
_SEQ2SEQ: _Rules = (
    (r"^embed/token/embedding", "encoder_embeddings.word_embeddings.weight"),
    (r"^decoder_embed/token/embedding", "decoder_embeddings.word_embeddings.weight"),
    (r"^embed/position/embedding", "encoder_embeddings.position_embeddings.embed.weight"),
    (r"^decoder_embed/position/embedding", "decoder_embeddings.position_embeddings.embed.weight"),
    (r"^(encoder|decoder)_layers_(\d+)/", r"\1.layers.\2."),
    (r"^(encoder|decoder)_norm_f/", r"\1.norm."),
    (
        r"^(encoder|decoder)_position/relative/embedding",
        r"\1_embeddings.position_embed_helper.relative_attention_bias.weight",
    ),
    (r"cross/(query|key|value)/", lambda m: f"multihead_attn.proj_{m[1][0]}_dense_layer."),
    (r"cross/out/", "multihead_attn.proj_output_dense_layer."),
)


def encoder_alias(name: str) -> str:
    """Translate a parameter path of an encoder.

    >>> encoder_alias("layers_0/norm2/scale")
    'model.bert_encoder.transformer_encoder.layers.0.norm2.weight'
    """
    return _dotted(name, _ENCODER)


def seq2seq_alias(name: str) -> str:
    """Translate a parameter path of an encoder-decoder.

    >>> seq2seq_alias("decoder_layers_1/cross/query/kernel")
    'model.decoder.layers.1.multihead_attn.proj_q_dense_layer.weight'
    """
    if name.startswith("decoder_layers"):
        name = name.replace("norm2/", "norm3/").replace("norm_cross/", "norm2/")
    return _dotted(name, _SEQ2SEQ)


# Other names of one tensor in the vendor's models: the last norm hangs on two modules, relative
# tables and slopes moved in release 2.1, and experts have a layout per ``moe_implementation``.
_EXPERT = r"ffn\.experts\.experts\.\d+\.ffn\.(\d)\.(linear_layer\w*)"
_SYNONYMS: tuple[tuple[str, str], ...] = (
    (r"(?<![\w])ln_f\.(weight|bias)$", r"transformer_decoder.norm.\1"),
    (r"\.(encoder|decoder)_embeddings\.position_embed_helper\.", r".relative_position_\1."),
    (r"\.embedding_layer\.position_embed_helper\.", ".relative_pe_helper."),
    (r"(ffn\.experts\.experts\.\d+)\.ffn\.", r"\1."),  # experimental
    (_EXPERT + r"\.weight$", r"ffn.experts.fused_ffns.\1.\2.expert_weights"),  # optimized
    (_EXPERT + r"\.bias$", r"ffn.experts.fused_ffns.\1.\2.expert_biases"),
)


def all_names(name: str, alias: Callable[[str], str]) -> tuple[str, ...]:
    """Return every name that a filter may give a parameter: ours, the vendor's and its twins.

    Args:
        name: our parameter path.
        alias: our path -> the vendor's name, a model's own.

    >>> all_names("norm_f/scale", decoder_alias)
    ('norm_f/scale', 'model.ln_f.weight', 'model.transformer_decoder.norm.weight')
    """
    layer = _NUMBER.search(name) if alias in _OURS else None
    if layer is None:
        return _names(name, alias)
    alike = f"{name[: layer.start(1)]}{_ANY}{name[layer.end(1) :]}"
    return tuple(each.replace(_ANY, layer[1]) for each in _names_of_alike(alike, alias))


def _names(name: str, alias: Callable[[str], str]) -> tuple[str, ...]:
    theirs = alias(name)
    twins = (re.sub(pattern, other, theirs) for pattern, other in _SYNONYMS)
    return tuple(dict.fromkeys((name, theirs, *twins)))


# Our own rules take a layer's number as it is: layers that differ in it alone are named once.
_OURS = frozenset((decoder_alias, encoder_alias, seq2seq_alias))
_NUMBER, _ANY = re.compile(r"layers_(\d+)/"), "918273645"
_names_of_alike = functools.lru_cache(maxsize=4096)(_names)


# Some norms are called ln_f; the ALiBi slopes that BTLM and Jais store are constants.
_NO_DECAY = ("bias", "norm", "ln_", "slopes")


def is_decayed(*names: str) -> bool:
    """Whether weight decay reaches a parameter: not biases, norms and slopes; embeddings too."""
    return not any(word in name.lower() for word in _NO_DECAY for name in names)
