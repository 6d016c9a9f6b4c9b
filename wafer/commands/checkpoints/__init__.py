"""Verbs that read or rewrite checkpoints."""
