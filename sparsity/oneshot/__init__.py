"""Masks chosen from data, without training: one-shot pruning, and scores before training."""

from wafer.sparsity.oneshot.prune import METHODS, Pruned, prune

__all__ = ["METHODS", "Pruned", "prune"]
