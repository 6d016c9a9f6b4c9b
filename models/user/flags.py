"""JAX's flags of types and broadcasting, set to what a configuration means by its types.

A configuration says "float32"; a user's ``JAX_ENABLE_X64=1`` would make that float64 wherever an
array has the default type. What is computed for a configuration is computed inside ``own_flags``.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

_OWN = {
    "jax_enable_x64": False,
    "jax_numpy_rank_promotion": "allow",
    "jax_numpy_dtype_promotion": "standard",
}


@contextlib.contextmanager
def own_flags() -> Iterator[None]:
    """Compute in the configured types, whatever the user's flags; a decorator, too.

    The flags of this thread are set and restored. Where jax is not loaded yet, the environment that
    it and child processes read is set instead, and restored; jax keeps the flags.
    """
    with contextlib.ExitStack() as stack:
        if "jax" in sys.modules:
            _enter(stack)
        else:
            stack.callback(_restore, {name.upper(): os.environ.get(name.upper()) for name in _OWN})
            os.environ.update({name.upper(): str(value).lower() for name, value in _OWN.items()})
        yield


def enter_own_flags() -> None:
    """Set the flags of this thread for good: the initializer of a pool of threads."""
    _enter(contextlib.ExitStack())


def update_flags() -> None:
    """Set the flags of the process for good."""
    import jax

    for name, value in _OWN.items():
        jax.config.update(name, value)


@contextlib.contextmanager
def with_nan() -> Iterator[None]:
    """Let NaN and infinities pass where they are meant, under ``JAX_DEBUG_NANS`` too."""
    import jax

    with jax.debug_nans(False), jax.debug_infs(False):
        yield


def _enter(stack: contextlib.ExitStack) -> None:
    import jax

    setters: dict[str, Callable[[Any], Any]] = {
        "jax_enable_x64": jax.enable_x64,
        "jax_numpy_rank_promotion": jax.numpy_rank_promotion,
        "jax_numpy_dtype_promotion": jax.numpy_dtype_promotion,
    }
    for name, value in _OWN.items():
        if getattr(jax.config, name) != value:  # each change of a flag compiles anew
            stack.enter_context(setters[name](value))


def _restore(environment: dict[str, str | None]) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
