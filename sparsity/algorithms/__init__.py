"""Static, GMP, SET and RigL, and masks of a seed; ``base`` has the registry."""
