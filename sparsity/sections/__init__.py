"""The `sparsity` section: its groups, levels shared among layers, and older releases."""
