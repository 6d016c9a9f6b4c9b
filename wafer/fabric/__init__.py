"""The fabric: a grid of processing elements that you program in CSL's terms.

A :class:`Layout` collects colours, routes, arrays and tasks, whose operations are CSL's builtins on
descriptors; ``layout.build()`` checks it. :func:`simulate` runs the program on the fastest engine
that can, wavelet by wavelet, and gives the final :class:`FabricState`: :func:`read` an array,
:func:`cycles` count the run; faults and deadlocks are raised with PE, colour and cycle.
:func:`count_cycles` times a data-oblivious program without its values, :func:`run_many` runs small
programs side by side, ``trace`` draws a run, ``library`` has the published collectives and kernels.
"""

from wafer.fabric import library, trace
from wafer.fabric.engines.batch import run_many, stack
from wafer.fabric.engines.cycle import check_finished, cycles, init, read, run, simulate, step
from wafer.fabric.engines.planes import count_cycles
from wafer.fabric.engines.state import FabricState
from wafer.fabric.errors import DeadlockError, FabricError, FaultError, RouteError, SramError
from wafer.fabric.program.layout import Layout
from wafer.fabric.program.ops import (
    Const,
    Op,
    WaveletArg,
    activate,
    block,
    control_wavelet,
    exit_teardown,
    fabin,
    fabout,
    faddh,
    fadds,
    fmach,
    fmacs,
    fmaxs,
    fmovh,
    fmovs,
    fmulh,
    fmuls,
    fsubh,
    fsubs,
    mem,
    mov32,
    unblock,
    work,
)
from wafer.fabric.program.tables import Filter, Program
from wafer.spec import WSE2, WSE3, WaferSpec

__all__ = [
    "WSE2",
    "WSE3",
    "Const",
    "DeadlockError",
    "FabricError",
    "FabricState",
    "FaultError",
    "Filter",
    "Layout",
    "Op",
    "Program",
    "RouteError",
    "SramError",
    "WaferSpec",
    "WaveletArg",
    "activate",
    "block",
    "check_finished",
    "control_wavelet",
    "count_cycles",
    "cycles",
    "exit_teardown",
    "fabin",
    "fabout",
    "faddh",
    "fadds",
    "fmach",
    "fmacs",
    "fmaxs",
    "fmovh",
    "fmovs",
    "fmulh",
    "fmuls",
    "fsubh",
    "fsubs",
    "init",
    "library",
    "mem",
    "mov32",
    "read",
    "run",
    "run_many",
    "simulate",
    "stack",
    "step",
    "trace",
    "unblock",
    "work",
]
