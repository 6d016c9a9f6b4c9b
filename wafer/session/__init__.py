"""The training run: the loop, evaluation, what a checkpoint restores, metrics and logs."""
