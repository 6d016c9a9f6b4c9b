"""The fabric: a grid of processing elements that you program in CSL's terms.

A :class:`Layout` collects colors, routes, arrays and tasks, whose operations are CSL's builtins on
descriptors; ``layout.build()`` checks it. :func:`simulate` runs the program on ``wafer.machine``,
wavelet by wavelet, and gives the final :class:`FabricState`: :func:`read` an array,
:func:`cycles` count the run; faults and deadlocks are raised with PE, color and cycle.
:func:`count_cycles` times a data-oblivious program without its values, :func:`run` runs one that
may not end, ``trace`` draws a run, ``library`` has the published collectives and kernels.
"""

# ruff: noqa: F403 -- files list their own public names
from wafer.fabric import errors, library, simulator, trace
from wafer.fabric.errors import *
from wafer.fabric.planes import count_cycles
from wafer.fabric.program import ops
from wafer.fabric.program.emit import emit
from wafer.fabric.program.layout import Layout
from wafer.fabric.program.ops import *
from wafer.fabric.program.tables import Filter, Program
from wafer.fabric.simulator import *
from wafer.spec import WSE2, WSE3, WaferSpec

__all__ = [
    "WSE2",
    "WSE3",
    "Filter",
    "Layout",
    "Program",
    "WaferSpec",
    "count_cycles",
    "emit",
    "library",
    "trace",
]
__all__ += errors.__all__
__all__ += ops.__all__
__all__ += simulator.__all__
