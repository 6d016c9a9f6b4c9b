"""See a program run: utilisation, heat map, filmstrip or GIF of its wavefronts, Chrome trace."""

import functools
from typing import NamedTuple

import jax
import numpy as np

from wafer.energy import Counts
from wafer.fabric.engines.batch import QUICK_COMPILE
from wafer.fabric.engines.cycle import step
from wafer.fabric.engines.state import FabricState
from wafer.fabric.program.arrays import AnyArray as Array
from wafer.fabric.program.tables import Program
from wafer.frames import draw_filmstrip, draw_heat_map, picked, write_events, write_gif

__all__ = [
    "Trace",
    "chrome_trace",
    "counts",
    "filmstrip",
    "gif",
    "heat_map",
    "record",
    "utilisation",
]

_BUSY = ("idle", "CE busy", "links busy", "both")
_PORTS = ("west", "east", "south", "north", "ramp")


class Trace(NamedTuple):
    """A recorded run.

    issued: [T, H, W] bool, cycles in which the CE did a vector step
    links: [T, 5, H, W] bool, words sent W, E, S, N and to the CE
    """

    issued: Array
    links: Array


@functools.partial(jax.jit, static_argnames="cycles", compiler_options=QUICK_COMPILE)
def record(program: Program, state: FabricState, cycles: int) -> tuple[FabricState, Trace]:
    """Run ``cycles`` cycles of the reference engine and keep what every PE and link did."""

    def one(state: FabricState, _: None) -> tuple[FabricState, Trace]:
        after = step(program, state)
        return after, Trace(after.busy > state.busy, after.links > state.links)

    return jax.lax.scan(one, state, None, length=cycles)


def utilisation(state: FabricState) -> dict[str, np.ndarray]:
    """[H, W] fractions of the run's cycles in which the CE and each link were busy."""
    total = max(1, int(state.end.max()))
    links = {name: np.asarray(state.links[i]) / total for i, name in enumerate(_PORTS)}
    return {"ce": np.asarray(state.busy) / total} | links


def counts(state: FabricState) -> Counts:
    """What a run's state has counted, for ``wafer.energy``: hops, and nothing else.

    A state knows in how many cycles the CEs did a step, not of which operation.
    """
    return Counts(hops=int(np.asarray(state.links[:4]).sum(dtype=np.int64)))


def heat_map(state: FabricState, what: str = "ce", path: str | None = None):  # noqa: ANN201
    """Draw one of :func:`utilisation`'s planes; returns the matplotlib figure."""
    planes = utilisation(state)
    if what not in planes:
        raise ValueError(f"heat_map: {what!r}; there are {list(planes)}")
    titles = f"{what} utilisation", "fraction of cycles busy"
    return draw_heat_map(planes[what], *titles, highest=1, path=path)


def _frames(trace: Trace, count: int) -> tuple[np.ndarray, list[str]]:
    moving = np.asarray(trace.issued) + 2 * np.asarray(trace.links[:, :4]).any(axis=1)
    picks = picked(len(moving), count)
    return moving[picks], [f"cycle {pick}" for pick in picks]


def filmstrip(trace: Trace, frames: int = 8, path: str | None = None):  # noqa: ANN201
    """Draw evenly spaced cycles side by side: CE busy, links busy, both; returns the figure."""
    return draw_filmstrip(*_frames(trace, frames), _BUSY, highest=3, path=path)


def gif(trace: Trace, path: str, frames: int = 60) -> None:
    """Write an animated GIF of the same planes."""
    write_gif(*_frames(trace, frames), _BUSY, highest=3, path=path)


def chrome_trace(trace: Trace, path: str | None = None) -> dict:
    """Busy intervals of every CE as Chrome trace events (chrome://tracing, Perfetto).

    One microsecond on screen is one cycle; a process per row, a thread per column.
    """
    issued = np.asarray(trace.issued)
    padded = np.pad(issued.astype(np.int8), ((1, 1), (0, 0), (0, 0)))
    edges = np.diff(padded, axis=0)
    events = []
    for y, x in np.ndindex(*issued.shape[1:]):
        begins = np.flatnonzero(edges[:, y, x] == 1)
        ends = np.flatnonzero(edges[:, y, x] == -1)
        events += [
            {"name": "CE", "ph": "X", "ts": int(begin), "dur": int(end - begin), "pid": y, "tid": x}
            for begin, end in zip(begins, ends, strict=True)
        ]
    return write_events(events, path)
