"""Adapters to other libraries: layers of Flax, and an optax transformation."""
