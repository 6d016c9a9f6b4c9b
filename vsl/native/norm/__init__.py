"""Normalization of rows in C++; ``vsl.norm`` calls it."""
