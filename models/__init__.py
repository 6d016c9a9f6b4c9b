"""Flax models behind one bundle of pure functions.

Public names are loaded when they are used: a configuration is checked without jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.base import Aux, Batch, Model, Stage
    from models.convert import from_hf, to_hf
    from models.counts import flops_per_token, parameter_count
    from models.families.fc_mnist import image_batch
    from models.generation import generate
    from models.losses import metric_values
    from models.paths import named_leaves
    from models.registry import build, list_models

__all__ = [
    "Aux",
    "Batch",
    "Model",
    "Stage",
    "build",
    "flops_per_token",
    "from_hf",
    "generate",
    "image_batch",
    "list_models",
    "metric_values",
    "named_leaves",
    "parameter_count",
    "to_hf",
]

_OWNERS = {
    "base": ("Aux", "Batch", "Model", "Stage"),
    "convert": ("from_hf", "to_hf"),
    "counts": ("flops_per_token", "parameter_count"),
    "families.fc_mnist": ("image_batch",),
    "generation": ("generate",),
    "losses": ("metric_values",),
    "paths": ("named_leaves",),
    "registry": ("build", "list_models"),
}
_OWNER = {name: module for module, names in _OWNERS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _OWNER:
        raise AttributeError(f"module 'models' has no attribute {name!r}")
    return getattr(importlib.import_module(f"models.{_OWNER[name]}"), name)
