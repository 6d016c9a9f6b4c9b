"""Published collectives and kernels: as bulk functions with a clock, and as PE programs.

A bulk function takes and returns ``[H, W, ...]`` tiles and the clock of every PE, is pure and
differentiable in its floating inputs, and charges the cycles its docstring states. A function
``..._program`` writes the same thing operation by operation, for the engines. ``timing`` has the
closed forms.
"""

# ruff: noqa: F403 -- every file lists its own public names
from wafer.fabric.library import (
    collectives,
    kernel_programs,
    kernels,
    lowering,
    routes,
    stencils,
    timing,
)
from wafer.fabric.library.collectives import *
from wafer.fabric.library.kernel_programs import *
from wafer.fabric.library.kernels import *
from wafer.fabric.library.lowering import *
from wafer.fabric.library.routes import *
from wafer.fabric.library.stencils import *

__all__ = ["timing"]
__all__ += collectives.__all__
__all__ += kernel_programs.__all__
__all__ += kernels.__all__
__all__ += lowering.__all__
__all__ += routes.__all__
__all__ += stencils.__all__
