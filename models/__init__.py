"""Flax models behind one bundle of pure functions."""

from models.base import Aux, Batch, Model, Stage
from models.convert import from_hf, to_hf
from models.counts import flops_per_token, parameter_count
from models.generation import generate
from models.losses import metric_values
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
    "list_models",
    "metric_values",
    "parameter_count",
    "to_hf",
]
