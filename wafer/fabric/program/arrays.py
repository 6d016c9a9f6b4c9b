"""One name for what is NumPy on the host and JAX under a trace."""

from typing import Any

__all__ = ["AnyArray"]

# Clocks and programs stay NumPy until they are traced; the two array types share no useful base.
AnyArray = Any
