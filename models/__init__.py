"""Flax models behind one bundle of pure functions."""

from models.base import Aux, Batch, Model, Stage
from models.losses import metric_values
from models.registry import build, list_models

__all__ = ["Aux", "Batch", "Model", "Stage", "build", "list_models", "metric_values"]
