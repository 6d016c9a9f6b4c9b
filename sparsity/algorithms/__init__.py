"""Static, GMP, SET and RigL, and the release 1.8 rule; ``base`` has the registry."""
