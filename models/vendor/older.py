"""Release 1.6's names of encoders and encoder-decoders: almost Hugging Face's.

Decoders kept theirs. Names are without the prefix 'model.', those of 1.7 as in ``models.alias``.
"""

import re
from collections.abc import Iterable, Iterator

from wafer.models.alias import rewrite

_Rules = tuple[tuple[str, str], ...]

_BERT: _Rules = (
    (
        r"^bert(_encoder)?\.embedding_layer\.segment_embeddings",
        "bert.embeddings.token_type_embeddings",
    ),
    (
        r"^bert(_encoder)?\.embedding_layer\.position_embeddings(\.embed)?",
        "bert.embeddings.position_embeddings",
    ),
    (r"^bert(_encoder)?\.embedding_layer\.", "bert.embeddings."),
    (r"^bert(_encoder)?\.embed_ln_f\.", "bert.embeddings.LayerNorm."),
    (r"^bert(_encoder)?\.transformer_encoder\.layers\.", "bert.encoder.layer."),
    (r"\.self_attn\.proj_q_dense_layer\.", ".attention.self.query."),
    (r"\.self_attn\.proj_k_dense_layer\.", ".attention.self.key."),
    (r"\.self_attn\.proj_v_dense_layer\.", ".attention.self.value."),
    (r"\.self_attn\.proj_output_dense_layer\.", ".attention.output.dense."),
    (r"(layer\.\d+)\.norm1\.", r"\1.attention.output.LayerNorm."),
    (r"(layer\.\d+)\.ffn\.ffn\.0\.linear_layer\.", r"\1.intermediate.dense."),
    (r"(layer\.\d+)\.ffn\.ffn\.1\.linear_layer\.", r"\1.output.dense."),
    (r"(layer\.\d+)\.norm2\.", r"\1.output.LayerNorm."),
    (r"^bert(_encoder)?\.pooler\.pooler\.ffn\.0\.linear_layer\.", "bert.pooler.dense."),
    (
        r"^bert_mlm_head\.mlm_transform\.ffn\.ffn\.0\.linear_layer\.",
        "cls.predictions.transform.dense.",
    ),
    (r"^bert_mlm_head\.mlm_transform\.ln\.", "cls.predictions.transform.LayerNorm."),
    (r"^bert_mlm_head\.classifier\.ffn\.0\.linear_layer\.", "cls.predictions.decoder."),
    (r"^bert_cls_head\.classifier\.ffn\.0\.linear_layer\.", "cls.seq_relationship."),
)
_ATTENTION = {"q": "q", "k": "k", "v": "v", "output": "o"}
_T5: _Rules = (
    (r"^(encoder|decoder)_embeddings\.word_embeddings\.", r"\1_token_embedding."),
    (
        r"^(encoder|decoder)_embeddings\.position_embeddings(\.embed)?\.",
        r"\1.absolute_position_embedding.",
    ),
    (
        r"^(encoder|decoder)_embeddings\.position_embed_helper\.",
        r"\1.block.0.layer.0.SelfAttention.",
    ),
    (r"^(encoder|decoder)\.norm\.", r"\1.final_layer_norm."),
    *(
        (
            rf"\.layers\.(\d+)\.self_attn\.proj_{ours}_dense_layer\.",
            rf".block.\1.layer.0.SelfAttention.{theirs}.",
        )
        for ours, theirs in _ATTENTION.items()
    ),
    *(
        (
            rf"\.layers\.(\d+)\.multihead_attn\.proj_{ours}_dense_layer\.",
            rf".block.\1.layer.1.EncDecAttention.{theirs}.",
        )
        for ours, theirs in _ATTENTION.items()
    ),
    *((rf"\.layers\.(\d+)\.norm{n}\.", rf".block.\1.layer.{n - 1}.layer_norm.") for n in (1, 2, 3)),
    (r"^encoder\.layers\.(\d+)\.ffn\.", r"encoder.block.\1.layer.1.DenseReluDense."),
    (r"^decoder\.layers\.(\d+)\.ffn\.", r"decoder.block.\1.layer.2.DenseReluDense."),
    (r"DenseReluDense\.ffn\.0\.linear_layer_for_glu\.", "DenseReluDense.wi_0."),
    (r"DenseReluDense\.ffn\.1\.linear_layer\.", "DenseReluDense.wo."),
)
_WI = r"DenseReluDense\.ffn\.0\.linear_layer\."  # 'wi', or the second of two under GLU
_NORM = {"weight": "gamma", "bias": "beta"}  # TensorFlow's names, in some files
_OF_16 = re.compile(r"(bert\.embeddings|(encoder|decoder)\.block\.0)\..*")
IGNORED_IN_16 = (
    r"bert\.embeddings\.position_ids",
    r"cls\.predictions\.bias",
    r"(encoder|decoder)\.embed_tokens\.weight",
    r"(encoder|decoder)\.block\.[1-9]\d*\.layer\.0\.SelfAttention\.relative_attention_bias\.weight",
)


def names_of_16(name: str) -> Iterator[str]:
    """List what release 1.6 may have called a tensor; none for a decoder's.

    >>> list(names_of_16("encoder.layers.2.ffn.ffn.0.linear_layer.weight"))[0]
    'encoder.block.2.layer.1.DenseReluDense.wi.weight'
    """
    if name.startswith("bert"):
        old = rewrite(name, _BERT)
        yield old
        yield re.sub(
            r"LayerNorm\.(weight|bias)$", lambda match: f"LayerNorm.{_NORM[match[1]]}", old
        )
    elif name.startswith(("encoder", "decoder")):
        old = rewrite(name, _T5)
        yield from (re.sub(_WI, f"DenseReluDense.{wi}.", old) for wi in ("wi", "wi_1"))


def is_of_16(names: Iterable[str]) -> bool:
    """Whether tensors have the names that encoders and encoder-decoders had in release 1.6."""
    return any(_OF_16.fullmatch(name) for name in names)
