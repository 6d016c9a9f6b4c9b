"""See a run: its view in a browser, timeline of tasks and operations, Chrome trace, profile.

A trace is ``runtime.trace`` or ``machine.trace`` of a CSL program, or what
``wafer.fabric.trace.record`` returns of a ``Layout``'s.
"""

import functools
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wafer.frames import draw_heat_map, picked, write_events
from wafer.machine.arch import PORTS
from wafer.machine.tools.recording import OWN_THREAD, TASK, VIEW, Trace
from wafer.machine.tools.view.run import View, view
from wafer.models.shown.figures import new_figure
from wafer.models.shown.html import table

__all__ = [
    "VIEW",
    "Line",
    "LineProfile",
    "View",
    "chrome_trace",
    "heat_map",
    "profile",
    "profile_of",
    "profile_text",
    "timeline",
    "utilisation",
    "view",
]

_LIBRARY = Path(__file__).parents[2] / "csl" / "library"
_MOST_ROWS = 64  # of a timeline
_TASK_COLOR, _OPERATION_COLOR, _MICROTHREAD_COLOR = "tab:blue", "tab:orange", "tab:green"
_LETTERS = 110  # across a timeline
_LINKS = tuple({"W": "west", "E": "east", "S": "south", "N": "north"}.get(p, "ramp") for p in PORTS)


class Line(NamedTuple):
    """What one source line took."""

    file: str  #: as the compiler named it; of a ``Layout``, the operation
    line: int  #: from 1 on; 0 of a ``Layout``
    cycles: int  #: of all PEs together: of instructions, and of the steps of operations
    share: float  #: of all lines' cycles
    text: str  #: of the line, or the operation; '' if the file is not there any more


class LineProfile(list[Line]):
    """The lines that took any cycles, most first; printed, a table."""

    def __repr__(self) -> str:
        return profile_text(self)

    def _repr_html_(self) -> str:
        rows = [(row.cycles, f"{row.share:.1%}", _source(row), row.text) for row in self]
        return table("", ("cycles", "share", "line", "source"), rows)


def _place(number: int) -> int:
    """Tasks first, then what they wait for, then microthreads."""
    return TASK - number if number >= OWN_THREAD else number + 2


def chrome_trace(trace: Trace, path: str | None = None) -> dict[str, object]:
    """Tasks and operations as Chrome trace events (chrome://tracing, Perfetto).

    One microsecond on screen is one cycle; a process per PE, a thread each for tasks, the
    operations they wait for, and each microthread. ``args`` have file, line and, of operations,
    the elements.

    Args:
        trace: recorded.
        path: file to write too.
    """
    events, width = list[dict[str, Any]](), max(1, trace.rectangle[0] + trace.rectangle[2])
    threads = np.stack([trace.y, trace.x, trace.thread], axis=1)
    for y, x, thread in np.unique(threads, axis=0).tolist():
        where = {"ph": "M", "pid": y * width + x, "tid": _place(thread)}
        events.append(where | {"name": "process_name", "args": {"name": f"PE ({x}, {y})"}})
        kind = {TASK: "task", OWN_THREAD: "operation"}.get(thread, f"microthread {thread}")
        events.append(where | {"name": "thread_name", "args": {"name": kind}})
    columns = ["begin", "end", "x", "y", "thread", "name", "file", "line", "elements"]
    rows = zip(*(getattr(trace, column).tolist() for column in columns), strict=True)
    for begin, end, x, y, thread, name, file, line, elements in rows:
        args, label = {"file": trace.files[file], "line": line}, trace.names[name]
        if thread != TASK:
            args |= {"elements": elements, "of": label}
            label = f"line {line}" if line else trace.files[file]
        event = {"name": label, "ph": "X", "ts": begin, "dur": end - begin}
        events.append(event | {"pid": y * width + x, "tid": _place(thread), "args": args})
    return write_events(events, path)


def _write_names(axes: Any, trace: Trace, tasks: np.ndarray, y: float) -> None:
    """Write the names of a PE's tasks onto their bars, where there is room."""
    cycles = trace.cycles[1] - trace.cycles[0]
    for task in tasks.tolist():
        name, begin, end = trace.names[trace.name[task]], trace.begin[task], trace.end[task]
        name = name.removeprefix("function ").partition(" (")[0]
        if (end - begin) * _LETTERS > cycles * len(name):
            axes.text(
                (begin + end) / 2, y, name, fontsize=7, ha="center", va="center", clip_on=True
            )


def timeline(trace: Trace, path: str | None = None):  # noqa: ANN201
    """Draw tasks and operations over time, a row per PE; returns the matplotlib figure.

    The upper half of a row has the PE's tasks, the lower half its operations: orange what the
    task waits for, green microthreads. Of more than 64 PEs every n-th is drawn.

    Args:
        trace: recorded.
        path: file to write too.
    """
    pes = np.unique(np.stack([trace.y, trace.x], axis=1), axis=0)
    pes = pes[picked(len(pes), _MOST_ROWS)] if len(pes) else pes
    fig = new_figure(figsize=(9, 1.2 + 0.35 * max(1, len(pes))), layout="constrained")
    axes = fig.subplots()
    for row, (y, x) in enumerate(pes.tolist()):
        here = (trace.x == x) & (trace.y == y)
        for kind, color, below, height in (
            (trace.thread == TASK, _TASK_COLOR, -0.44, 0.44),
            (trace.thread == OWN_THREAD, _OPERATION_COLOR, 0.02, 0.2),
            (trace.thread < OWN_THREAD, _MICROTHREAD_COLOR, 0.22, 0.2),
        ):
            rows = here & kind
            spans = np.stack([trace.begin[rows], trace.end[rows] - trace.begin[rows]], axis=1)
            axes.broken_barh(spans.tolist(), (row + below, height), facecolors=color, alpha=0.8)
        _write_names(axes, trace, np.flatnonzero(here & (trace.thread == TASK)), row - 0.22)
    labels = [f"PE ({x}, {y})" for y, x in pes.tolist()]
    axes.set(xlabel="cycle", xlim=trace.cycles, yticks=range(len(pes)), yticklabels=labels)
    axes.set_title("tasks (blue), operations they wait for (orange), microthreads (green)")
    axes.set_ylim(len(pes) - 0.5, -0.5)
    if path:
        fig.savefig(path)
    return fig


def utilisation(trace: Trace) -> dict[str, np.ndarray]:
    """Return the fraction of the recorded cycles in which each PE's parts were busy.

    Returns:
        [H, W] planes: 'task', in which a task was running, and each link: 'west', 'east', 'south',
        'north', 'ramp'.
    """
    x, y, width, height = trace.rectangle
    rows, busy = trace.thread == TASK, np.zeros((height, width))
    np.add.at(busy, (trace.y[rows] - y, trace.x[rows] - x), (trace.end - trace.begin)[rows])
    links = zip(_LINKS, np.moveaxis(trace.links.sum(axis=0), -1, 0), strict=True)
    cycles = max(1, trace.cycles[1] - trace.cycles[0])
    return {name: plane / cycles for name, plane in (("task", busy), *links)}


def heat_map(
    trace: Trace | Mapping[str, np.ndarray], what: str = "task", path: str | None = None
) -> Any:
    """Draw one plane of :func:`utilisation`.

    Args:
        trace: recorded, or [H, W] planes by name.
        what: name of the plane.
        path: file to write too.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: another word.
    """
    planes = utilisation(trace) if isinstance(trace, Trace) else trace
    if what not in planes:
        raise ValueError(f"heat_map: {what!r}; there are {', '.join(planes)}")
    titles = f"{what} utilisation", "fraction of cycles busy"
    return draw_heat_map(planes[what], *titles, highest=1, path=path)


@functools.lru_cache(maxsize=64)
def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def profile_of(cycles: Mapping[tuple[str, int], int]) -> LineProfile:
    """The lines that took any cycles, most first.

    Args:
        cycles: by file and line, as ``Machine.profile`` gives them.
    """
    total = max(1, sum(cycles.values()))
    rows = sorted(cycles.items(), key=lambda row: (-row[1], row[0]))
    text = lambda file, line: "".join(_lines(file)[line - 1 : line]).strip() if line else file
    return LineProfile(
        Line(file, line, count, count / total, text(file, line))
        for (file, line), count in rows
        if count
    )


def profile(trace: Trace) -> LineProfile:
    """Return the cycles of all PEs in which an operation was running, by operation.

    An operation's cycles are those from its first to its last element, waits included. Cycles of
    instructions are in ``runtime.profile``.
    """
    rows, cycles = trace.thread != TASK, Counter[tuple[str, int]]()
    columns = (trace.file, trace.line, trace.end - trace.begin)
    for file, line, spent in zip(*(column[rows].tolist() for column in columns), strict=True):
        cycles[trace.files[file], line] += spent
    return profile_of(cycles)


def _source(row: Line) -> str:
    """File and line as a reader looks for them: from here on, or as the name of a system module.

    Nothing for an operation of a ``Layout``, which is the row's text.
    """
    if not row.line:
        return ""
    path = Path(row.file)
    if path.is_relative_to(_LIBRARY):
        name = str(path.relative_to(_LIBRARY).with_suffix("")).removeprefix("values/")
        return f"<{name}>:{row.line}"
    here = path.resolve().is_relative_to(Path.cwd())
    return f"{os.path.relpath(path) if here else path}:{row.line}"


def profile_text(profile: Sequence[Line], most: int = 30) -> str:
    """A profile as a table.

    Args:
        profile: of ``profile_of``.
        most: rows; the rest is one row.
    """
    shown = list(profile[:most])
    places = [_source(row) for row in shown]
    width = max([len(place) for place in places], default=0)
    out = [f"{'cycles':>12}  share  {'line':<{width}}  source"]
    for place, row in zip(places, shown, strict=True):
        out.append(f"{row.cycles:>12}  {row.share:>5.1%}  {place:<{width}}  {row.text}".rstrip())
    if rest := profile[most:]:
        cycles, share = sum(row.cycles for row in rest), sum(row.share for row in rest)
        out.append(f"{cycles:>12}  {share:>5.1%}  in {len(rest)} more lines")
    return "\n".join(out) + "\n"
