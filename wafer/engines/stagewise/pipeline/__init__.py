"""Pipelined engine: stages resident in regions, micro-batches in flight."""
