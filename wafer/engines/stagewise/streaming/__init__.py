"""Weight streaming engine: weights in MemoryX, moved one layer at a time."""
