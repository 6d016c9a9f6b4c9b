"""Flax models behind one bundle of pure functions."""

from models.base import Aux, Batch, Model, Stage

__all__ = ["Aux", "Batch", "Model", "Stage"]
