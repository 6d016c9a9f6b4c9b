"""A user's flags of JAX that change types, broadcasting and what may be NaN."""

import contextlib
import os
from collections.abc import Iterator

import jax

STRICT = {"JAX_ENABLE_X64": "1", "JAX_DEBUG_NANS": "1", "JAX_NUMPY_RANK_PROMOTION": "raise"}
STRICT |= {"JAX_NUMPY_DTYPE_PROMOTION": "strict"}


def environment() -> dict[str, str]:
    """This process's environment with the flags."""
    return os.environ | STRICT


@contextlib.contextmanager
def strict_flags() -> Iterator[None]:
    """Set the flags of this process, threads that are begun inside included."""
    names = {name.lower(): name for name in STRICT}
    kept = {name: jax.config.values[name] for name in names}
    for name, variable in names.items():
        value = STRICT[variable]
        jax.config.update(name, value == "1" or value)
    try:
        yield
    finally:
        for name, value in kept.items():
            jax.config.update(name, value)
