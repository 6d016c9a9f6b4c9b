"""Static, GMP, SET and RigL, and static masks drawn on the host; ``base`` has the registry."""
