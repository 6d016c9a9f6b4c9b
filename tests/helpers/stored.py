"""What a checkpoint holds, described without its numbers."""

import hashlib

import numpy as np

from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.paths import named_leaves


def digest(data):
    """First 16 hex digits of the SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


def tree_of(path, *, lazily=False):
    """Name -> 'dtype shape hash' of every stored array."""
    return {
        name: f"{leaf.dtype} {list(leaf.shape)} {digest(np.asarray(leaf).tobytes())}"
        for name, leaf in named_leaves(load_checkpoint(path, lazily=lazily)[0])
    }


def keys_of(record):
    """Every nested key, joined by '/'."""
    keys = []
    for key, value in record.items():
        nested = isinstance(value, dict) and value
        keys += [f"{key}/{name}" for name in keys_of(value)] if nested else [key]
    return sorted(keys)
