"""Cross-entropy of rows of scores in C++; ``vsl.entropy`` calls it."""
