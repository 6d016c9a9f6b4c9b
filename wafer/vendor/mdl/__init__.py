"""Checkpoints of the Model Zoo (``.mdl``) of every release, both ways: weights and optimizer."""
