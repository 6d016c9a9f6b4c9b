"""Keys of ``config.json`` by model_type: their defaults, other spellings, and which are harmless.

``class_defaults.json`` has those of transformers' configuration classes (5.24; of version 4 for
keys that left), and of the remote code of BTLM, Jais and CrystalCoder. null: absent.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
# Bookkeeping, outputs that a caller asks for, generation, training, other heads; and what the
# class's code does not read, or what chooses among ways to the same result.
_COMMON = frozenset(_TABLES["harmless"].pop("of every class"))
HARMLESS: Mapping[str, frozenset[str]] = {
    kind: _COMMON | {*keys} for kind, keys in _TABLES["harmless"].items()
}
CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = _TABLES["defaults"]
#: other spelling -> key: transformers' ``attribute_map``, and names of files published before it
CLASS_ALIASES: Mapping[str, Mapping[str, str]] = _TABLES["aliases"]
#: ids of special tokens that a config.json means which lacks the keys
CLASS_IDS: Mapping[str, Mapping[str, int]] = _TABLES["ids"]
