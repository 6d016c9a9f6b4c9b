"""Published collectives and kernels: as bulk functions with a clock, and as PE programs.

A bulk function takes and returns ``[H, W, ...]`` tiles and the clock of every PE, is pure and
differentiable in its floating inputs, and charges the cycles its docstring states. A function
``..._program`` writes the same thing operation by operation, for the engines. ``timing`` has the
closed forms.
"""

# ruff: noqa: F403 -- every file lists its own public names
from wafer.fabric.library import (
    collectives,
    dense,
    kernel_programs,
    lookup,
    lowering,
    routes,
    solver,
    sparse,
    stencil,
    timing,
)
from wafer.fabric.library.collectives import *
from wafer.fabric.library.dense import *
from wafer.fabric.library.kernel_programs import *
from wafer.fabric.library.lookup import *
from wafer.fabric.library.lowering import *
from wafer.fabric.library.routes import *
from wafer.fabric.library.solver import *
from wafer.fabric.library.sparse import *
from wafer.fabric.library.stencil import *

__all__ = ["timing"]
__all__ += collectives.__all__
__all__ += dense.__all__
__all__ += kernel_programs.__all__
__all__ += lookup.__all__
__all__ += lowering.__all__
__all__ += routes.__all__
__all__ += solver.__all__
__all__ += sparse.__all__
__all__ += stencil.__all__
