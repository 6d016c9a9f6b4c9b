"""The fabric: a grid of processing elements that you program in CSL's terms.

Layers, from the user's down to the machine's:

- ``collectives`` and ``kernels``: bulk dataflow functions on ``[H, W, ...]`` arrays,
  differentiable, with the cycle at which each PE is done (closed form);
- ``program``, ``ops``: routes per colour and operation lists per class of PE, the one form that
  every engine reads; ``lowering`` writes the collectives in it;
- engines: ``dense`` (the reference: payloads, switches, tasks), ``planes`` (timing only, 32 PEs
  per word), ``native`` (the same planes in C++), ``actor`` (data-dependent handlers).
"""

from wafer.fabric.engines.batch import run_many, stack
from wafer.fabric.engines.cycle import check_finished, cycles, init, read, run, simulate, step
from wafer.fabric.engines.state import FabricState
from wafer.fabric.errors import DeadlockError, FabricError, FaultError, RouteError, SramError
from wafer.fabric.program.layout import Layout
from wafer.fabric.program.tables import Filter, Program

__all__ = [
    "DeadlockError",
    "FabricError",
    "FabricState",
    "FaultError",
    "Filter",
    "Layout",
    "Program",
    "RouteError",
    "SramError",
    "check_finished",
    "cycles",
    "init",
    "read",
    "run",
    "run_many",
    "simulate",
    "stack",
    "step",
]
