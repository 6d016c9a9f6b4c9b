"""The vendor's way of writing loops, in JAX: statements instead of one pure function.

``import wafer.loop as cstorch`` and the examples of the vendor's documents port line by line;
``loss.backward()`` becomes ``cstorch.backward(loss)``, ``torch`` functions become ``jax.numpy``.
"""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wafer.loop import amp, distributed, metrics, nn, optim, settings, sparse, utils
from wafer.loop.distributed import CSConfig
from wafer.loop.elsewhere import explain
from wafer.loop.files import load, save
from wafer.loop.machine import (
    Backend,
    backend,
    configure,
    current_backend,
    manual_seed,
    use_cs,
)
from wafer.loop.tracing.model import CompiledModel, Parameter, backward, compile
from wafer.loop.tracing.step import checkpoint_closure, step_closure, trace
from wafer.loop.utils.data import DataExecutor, DataLoader
from wafer.loop.utils.tensorboard import save_summaries, summarize_scalar
from wafer.version import __version__

compile_step = trace  # its first name
scalar_summary = summarize_scalar  # its first name
backends = SimpleNamespace(csx=settings.csx)
"""``backends.csx``: settings of the vendor's hardware, which change nothing here."""
from_numpy = make_constant = jnp.asarray
to_numpy = np.asarray
name_scope = jax.named_scope


def current_executor() -> DataExecutor | None:
    """Return the loop that is running, or None."""
    return current_backend().executor


def pol(**levels: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a function unchanged: the vendor's precision levels mean nothing here."""
    del levels
    return lambda fn: fn


def current_pol() -> int:
    """Return the precision level that was assigned, 0 unless one was."""
    return settings.csx.precision.optimization_level


__all__ = [
    "Backend",
    "CSConfig",
    "CompiledModel",
    "DataExecutor",
    "DataLoader",
    "Parameter",
    "__version__",
    "amp",
    "backend",
    "backends",
    "backward",
    "checkpoint_closure",
    "compile",
    "compile_step",
    "configure",
    "current_backend",
    "current_executor",
    "current_pol",
    "distributed",
    "from_numpy",
    "load",
    "make_constant",
    "manual_seed",
    "metrics",
    "name_scope",
    "nn",
    "optim",
    "pol",
    "save",
    "save_summaries",
    "scalar_summary",
    "sparse",
    "step_closure",
    "summarize_scalar",
    "to_numpy",
    "trace",
    "use_cs",
    "utils",
]

__getattr__ = functools.partial(explain, __name__)
