"""Where a training step spends its time: per-module tables from XLA's own trace."""
