"""See a program run: utilisation, heat map, filmstrip or GIF of its wavefronts, Chrome trace."""

import functools
import json
import pathlib
from typing import NamedTuple

import jax
import numpy as np

from wafer.fabric.engines.batch import QUICK_COMPILE
from wafer.fabric.engines.cycle import step
from wafer.fabric.engines.state import FabricState
from wafer.fabric.program.arrays import AnyArray as Array
from wafer.fabric.program.tables import Program

__all__ = ["Trace", "chrome_trace", "filmstrip", "gif", "heat_map", "record", "utilisation"]

_PORTS = ("north", "east", "south", "west", "ramp")


class Trace(NamedTuple):
    """A recorded run.

    issued: [T, H, W] bool, cycles in which the CE did a vector step
    links: [T, 5, H, W] bool, words sent N, E, S, W and to the CE
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


def heat_map(state: FabricState, what: str = "ce", path: str | None = None):  # noqa: ANN201
    """Draw one of :func:`utilisation`'s planes; returns the matplotlib figure."""
    from matplotlib import figure

    planes = utilisation(state)
    if what not in planes:
        raise ValueError(f"heat_map: {what!r}; there are {list(planes)}")
    fig = figure.Figure(figsize=(6, 4))
    axes = fig.subplots()
    image = axes.imshow(planes[what], vmin=0, vmax=1, cmap="inferno", aspect="auto")
    fig.colorbar(image, label="fraction of cycles busy")
    axes.set(title=f"{what} utilisation", xlabel="x", ylabel="y")
    if path:
        fig.savefig(path)
    return fig


def _frames(trace: Trace, count: int) -> tuple[list[int], np.ndarray]:
    moving = np.asarray(trace.issued) + 2 * np.asarray(trace.links[:, :4]).any(axis=1)
    picks = np.linspace(0, len(moving) - 1, min(count, len(moving))).astype(int)
    return [int(p) for p in picks], moving[picks]


def filmstrip(trace: Trace, frames: int = 8, path: str | None = None):  # noqa: ANN201
    """Draw evenly spaced cycles side by side: CE busy, links busy, both; returns the figure."""
    from matplotlib import figure

    picks, planes = _frames(trace, frames)
    fig = figure.Figure(figsize=(2 * len(picks), 2.4))
    axes = np.atleast_1d(fig.subplots(1, len(picks)))
    for axis, cycle, plane in zip(axes, picks, planes, strict=True):
        axis.imshow(plane, vmin=0, vmax=3, cmap="inferno", aspect="auto")
        axis.set(title=f"cycle {cycle}", xticks=[], yticks=[])
    if path:
        fig.savefig(path)
    return fig


def gif(trace: Trace, path: str, frames: int = 60) -> None:
    """Write an animated GIF of the same planes."""
    from matplotlib import animation, figure

    picks, planes = _frames(trace, frames)
    fig = figure.Figure(figsize=(4, 3))
    axes = fig.subplots()
    image = axes.imshow(planes[0], vmin=0, vmax=3, cmap="inferno", aspect="auto")
    writer = animation.PillowWriter(fps=10)
    with writer.saving(fig, path, dpi=80):
        for cycle, plane in zip(picks, planes, strict=True):
            image.set_data(plane)
            axes.set_title(f"cycle {cycle}")
            writer.grab_frame()


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
    out = {"traceEvents": events, "displayTimeUnit": "ms"}
    if path:
        pathlib.Path(path).write_text(json.dumps(out))
    return out
