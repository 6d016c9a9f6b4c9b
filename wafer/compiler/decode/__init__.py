"""Decoding: kernels for one token, their costs and speed."""
