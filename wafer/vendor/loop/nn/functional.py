"""Functions of the vendor's ``nn.functional``."""

from jax.nn import one_hot

__all__ = ["one_hot"]
