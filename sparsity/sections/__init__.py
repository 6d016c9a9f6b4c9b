"""The `sparsity` section: its groups, and levels shared among layers."""
