"""Implementations of attention with what they share, and the primitives of native operations."""
