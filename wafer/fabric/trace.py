"""See a program run: the machine's recording, drawn by ``wafer.machine.tools.trace``.

Programs in CSL have the same: view in a browser, timeline, heat map, Chrome trace, profile by
operation.
"""

from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from wafer.fabric.program.tables import Program
from wafer.fabric.simulator import FabricState, run
from wafer.machine.tools import trace as drawing
from wafer.machine.tools.recording import VIEW, Trace
from wafer.machine.tools.trace import View, chrome_trace, profile, profile_text, timeline, view

__all__ = [
    "Trace",
    "View",
    "chrome_trace",
    "heat_map",
    "profile",
    "profile_text",
    "record",
    "timeline",
    "view",
]

_LINKS = ("west", "east", "south", "north", "ramp")


def record(
    program: Program,
    values: Mapping[str, ArrayLike] | None = None,
    cycles: int = 1_000_000,
    **options: Any,
) -> tuple[FabricState, Trace]:
    """Run a program and keep what every PE and link did; without a check of how it ends.

    Args:
        program: as built.
        values: array name -> [H, W, n] or [n] initial values; others are 0.
        cycles: to run at most.
        options: of ``Recording``: 'rectangle' of PEs, 'begin' and 'end', 'windows', ….

    Returns:
        The state then, for :func:`view`, and the recording.

    Raises:
        CompileError: the C++ machine is not built.
    """
    state = run(program, values, cycles, record=VIEW._replace(**options))
    return state, state.machine.trace


def heat_map(seen: Trace | FabricState, what: str = "ce", path: str | None = None):  # noqa: ANN201
    """Draw what was busy for which fraction of a run's cycles.

    Args:
        seen: a final state, with a plane 'ce' and one of each link, or a recording, with 'task'.
        what: name of the plane.
        path: file to write too.

    Returns:
        The matplotlib figure.
    """
    if isinstance(seen, Trace):
        return drawing.heat_map(seen, what, path)
    busy = dict(zip(("ce", *_LINKS), (seen.busy, *seen.links), strict=True))
    total = max(1, int(seen.end.max()))
    return drawing.heat_map({name: plane / total for name, plane in busy.items()}, what, path)
