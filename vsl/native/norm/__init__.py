"""Normalization of rows in C++; ``wafer.vsl.norm`` calls it."""
