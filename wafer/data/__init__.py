"""Data: sources, tokenizers and deterministic, resumable batches on grain."""
