"""Attention to a key-value cache in C++; ``wafer.vsl.implementations.cached`` calls it."""
