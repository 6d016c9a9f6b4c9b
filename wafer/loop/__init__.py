"""The vendor's way of writing loops, in JAX: statements instead of one pure function.

``import wafer.loop as cstorch`` and the examples of the vendor's documents port line by line;
``loss.backward()`` becomes ``cstorch.backward(loss)``, ``torch`` functions become ``jax.numpy``.
"""

from wafer.loop import amp, optim, sparse, utils
from wafer.loop.files import load, save
from wafer.loop.machine import Backend, backend, current_backend
from wafer.loop.model import CompiledModel, backward, compile
from wafer.loop.step import checkpoint_closure, step_closure, trace
from wafer.loop.utils.cluster import CSConfig
from wafer.loop.utils.data import DataExecutor, DataLoader

compile_step = trace  # its first name

__all__ = [
    "Backend",
    "CSConfig",
    "CompiledModel",
    "DataExecutor",
    "DataLoader",
    "amp",
    "backend",
    "backward",
    "checkpoint_closure",
    "compile",
    "compile_step",
    "current_backend",
    "load",
    "optim",
    "save",
    "sparse",
    "step_closure",
    "trace",
    "utils",
]
