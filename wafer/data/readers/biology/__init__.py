"""Readers of DNA and of proteins."""
