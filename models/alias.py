"""Dotted names of parameters, as PyTorch modules have them; filters may select by these, too.

``alias.json`` has the rules (pattern, replacement) of each family, applied one after another, then
those of a layer; and ``twins``, other names of one tensor: the last norm hangs on two modules,
relative tables and slopes have two places, and experts a layout per implementation.
"""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path

_RULES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
# Some norms are called ln_f; the ALiBi slopes that BTLM and Jais store are constants.
_NO_DECAY = ("bias", "norm", "ln_", "slopes")


def _dotted(name: str, family: str) -> str:
    for pattern, replacement in (*_RULES[family], *_RULES["layer"]):
        name = re.sub(pattern, replacement, name)
    name = re.sub(r"(kernel|scale|embedding)$", "weight", name)
    return f"model.{name.replace('/', '.')}"


def decoder_alias(name: str) -> str:
    """Translate a parameter path of a decoder.

    >>> decoder_alias("layers_3/attn/query/kernel")
    'model.transformer_decoder.layers.3.self_attn.proj_q_dense_layer.weight'
    """
    return _dotted(name, "decoder")


def encoder_alias(name: str) -> str:
    """Translate a parameter path of an encoder.

    >>> encoder_alias("layers_0/norm2/scale")
    'model.bert_encoder.transformer_encoder.layers.0.norm2.weight'
    """
    return _dotted(name, "encoder")


def seq2seq_alias(name: str) -> str:
    """Translate a parameter path of an encoder-decoder.

    >>> seq2seq_alias("decoder_layers_1/cross/query/kernel")
    'model.decoder.layers.1.multihead_attn.proj_q_dense_layer.weight'
    """
    if name.startswith("decoder_layers"):
        name = name.replace("norm2/", "norm3/").replace("norm_cross/", "norm2/")
    return _dotted(name, "seq2seq")


@functools.lru_cache(maxsize=1 << 14)
def all_names(name: str, alias: Callable[[str], str]) -> tuple[str, ...]:
    """Return every name that a filter may give a parameter: its path, its dotted name and twins.

    Args:
        name: parameter path.
        alias: path -> dotted name, a model's own.

    >>> all_names("norm_f/scale", decoder_alias)
    ('norm_f/scale', 'model.ln_f.weight', 'model.transformer_decoder.norm.weight')
    """
    dotted = alias(name)
    twins = (re.sub(pattern, other, dotted) for pattern, other in _RULES["twins"])
    return tuple(dict.fromkeys((name, dotted, *twins)))


def is_decayed(*names: str) -> bool:
    """Whether weight decay reaches a parameter: not biases, norms and slopes; embeddings too."""
    return not any(word in name.lower() for word in _NO_DECAY for name in names)
