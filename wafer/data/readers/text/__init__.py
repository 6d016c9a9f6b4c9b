"""Readers of texts, pairs of texts, and their labels."""
