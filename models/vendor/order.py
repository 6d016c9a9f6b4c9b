"""The order in which the vendor's models register their parameters.

Optimizer states are stored under that number, not under the name. Files of layout 0.5 list their
model's keys in this order; for older ones it follows from the classes of the Model Zoo (1.8 to
2.10), a table of what comes first among the parts of one module.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

_DECODER_LAYER = (
    "self_attn",
    "norm1",
    "norm3",
    "norm1_post",
    "norm3_post",
    "multihead_attn",
    "norm2",
    "ffn",
)
_ENCODER_LAYER = ("self_attn", "ffn", "norm1", "norm2")
_OTHERS = (
    # the models
    *("bert_encoder", "bert", "bert_cls_head", "bert_mlm_head"),
    *("embedding_layer", "encoder_embeddings", "decoder_embeddings"),
    *("relative_position_encoder", "relative_position_decoder"),
    *("embedding_ln_f", "embed_ln_f", "relative_pe_helper", "ln_f"),
    *("transformer_decoder", "transformer_encoder", "encoder", "decoder", "pooler", "lm_head"),
    *("layers", "norm"),
    # embeddings, attention, experts, heads, a linear layer
    *("word_embeddings", "position_embeddings", "position_embed_helper", "segment_embeddings"),
    *("proj_q_dense_layer", "proj_k_dense_layer", "proj_v_dense_layer"),
    *("q_norm", "k_norm", "proj_output_dense_layer"),
    *("gate", "experts", "shared_experts"),
    *("mlm_transform", "ffn", "ln", "classifier"),
    *("linear_layer", "linear_layer_for_glu"),
    *("weight", "expert_weights", "bias", "expert_biases"),
)


def _place(name: str) -> list[tuple[int, int]]:
    """Where a parameter stands: per part of its name, its rank among its siblings."""
    parts = name.split(".")
    is_encoder = re.search(r"(^|\.)(transformer_encoder|encoder)\.layers\.", name) is not None
    layer = _ENCODER_LAYER if is_encoder else _DECODER_LAYER
    place = []
    for above, part in zip(("", "", *parts), parts, strict=False):
        order: Sequence[str] = layer if above == "layers" else _OTHERS
        if part.isdigit():
            place.append((-1, int(part)))
        else:
            place.append((order.index(part) if part in order else len(order), 0))
    return place


def in_order_of_registration(names: Iterable[str]) -> list[str]:
    """Sort the vendor's parameter names (without 'model.') as its modules register them.

    >>> in_order_of_registration(["lm_head.weight", "ln_f.bias", "ln_f.weight"])
    ['ln_f.weight', 'ln_f.bias', 'lm_head.weight']
    """
    return sorted(names, key=_place)


def listed_keys(spec: Any) -> list[str]:
    """List the keys of ``model`` from the record of a file's structure (layout 0.5).

    Args:
        spec: the attribute ``__spec__``, JSON; before 0.5 it is a pickle, which is not opened.

    Returns:
        In the file's order; [] when there is no such record.
    """
    try:
        node = json.loads(json.loads(spec)[1])[1]
        section = node["children_spec"][json.loads(node["context"]).index("model")]
        return [str(key) for key in json.loads(section["context"])]
    except (TypeError, ValueError, LookupError, RecursionError):
        return []
