"""The fabric: a grid of processing elements that you program in CSL's terms.

A :class:`Layout` collects colors, routes, arrays and tasks, whose operations are CSL's builtins on
descriptors; ``layout.build()`` checks it. :func:`simulate` runs the program on ``wafer.machine``,
wavelet by wavelet, and gives the final :class:`FabricState`: :func:`read` an array,
:func:`cycles` count the run; faults and deadlocks are raised with PE, color and cycle.
:func:`count_cycles` times a data-oblivious program without its values, :func:`run` runs one that
may not end, ``trace`` draws a run, ``library`` has the published collectives and kernels.
"""

from wafer.fabric import library, trace
from wafer.fabric.errors import DeadlockError, FabricError, FaultError, RouteError, SramError
from wafer.fabric.planes import count_cycles
from wafer.fabric.program import ops
from wafer.fabric.program.emit import emit
from wafer.fabric.program.layout import Layout
from wafer.fabric.program.ops import *  # noqa: F403 -- all operations and descriptors
from wafer.fabric.program.tables import Filter, Program
from wafer.fabric.simulator import FabricState, check_finished, cycles, read, run, simulate
from wafer.spec import WSE2, WSE3, WaferSpec

__all__ = [
    "WSE2",
    "WSE3",
    "DeadlockError",
    "FabricError",
    "FabricState",
    "FaultError",
    "Filter",
    "Layout",
    "Program",
    "RouteError",
    "SramError",
    "WaferSpec",
    "check_finished",
    "count_cycles",
    "cycles",
    "emit",
    "library",
    "read",
    "run",
    "simulate",
    "trace",
]
__all__ += ops.__all__
