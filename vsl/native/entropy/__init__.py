"""Cross-entropy of rows of scores in C++; ``wafer.vsl.entropy`` calls it."""
