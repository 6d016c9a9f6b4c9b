"""The vendor's dotted parameter names, so that filters written for them select ours."""

import re

__all__ = ["decoder_alias"]

_DECODER = (
    (r"embed/token/embedding", "embedding_layer.word_embeddings.weight"),
    (r"embed/position/embedding", "embedding_layer.position_embeddings.embed.weight"),
    (r"embed/norm/", "embedding_ln_f."),
    (r"position/relative/embedding", "relative_pe_helper.relative_attention_bias.weight"),
    (r"position/slopes", "relative_pe_helper.slopes"),
    (r"layers_(\d+)/", r"transformer_decoder.layers.\1."),
    (r"norm_f/", "ln_f."),
    (r"lm_head/", "lm_head."),
    (r"norm2_post/", "norm4."),
    (r"norm1_post/", "norm2."),
    (r"norm2/", "norm3."),
    (r"norm1/", "norm1."),
    (r"attn/(query|key|value)/", lambda m: f"self_attn.proj_{m[1][0]}_dense_layer."),
    (r"attn/(query|key)_norm/", r"self_attn.\1_norm."),
    (r"attn/out/", "self_attn.proj_output_dense_layer."),
    (r"moe/router/", "ffn.gate."),
    (r"moe/experts_(\d+)/", r"ffn.experts.\1/"),
    (r"(^|[./])(ffn|experts\.\d+)/up/", r"\1\2.ffn.0.linear_layer."),
    (r"(^|[./])(ffn|experts\.\d+)/gate/", r"\1\2.ffn.0.linear_layer_for_glu."),
    (r"(^|[./])(ffn|experts\.\d+)/down/", r"\1\2.ffn.1.linear_layer."),
)


def decoder_alias(name: str) -> str:
    """Translate a parameter path to the Model Zoo's name (2.1 and later).

    >>> decoder_alias("layers_3/attn/query/kernel")
    'model.transformer_decoder.layers.3.self_attn.proj_q_dense_layer.weight'
    """
    for pattern, replacement in _DECODER:
        name = re.sub(pattern, replacement, name)
    name = re.sub(r"(kernel|scale|embedding)$", "weight", name)
    return f"model.{name.replace('/', '.')}"
