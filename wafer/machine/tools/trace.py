"""See a run: timeline of tasks and operations, film of the wavelets, Chrome trace, profile.

A trace is ``runtime.trace`` or ``machine.trace`` of a CSL program, or what
``wafer.fabric.trace.record`` returns of a ``Layout``'s.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from wafer.frames import draw_filmstrip, draw_heat_map, picked, write_events, write_gif
from wafer.machine.arch import PORTS
from wafer.machine.tools.lines import Line, profile_of, profile_text
from wafer.machine.tools.recording import OWN_THREAD, TASK, Trace

__all__ = [
    "chrome_trace",
    "filmstrip",
    "gif",
    "heat_map",
    "profile",
    "profile_text",
    "timeline",
    "utilisation",
]

_MOST_ROWS = 64  # of a timeline
_TASK_COLOR, _OPERATION_COLOR, _MICROTHREAD_COLOR = "tab:blue", "tab:orange", "tab:green"
_WORDS = "words a cycle"
_LINKS = tuple({"W": "west", "E": "east", "S": "south", "N": "north"}.get(p, "ramp") for p in PORTS)


def _thread(number: int) -> str:
    if number == TASK:
        return "task"
    return "operation" if number == OWN_THREAD else f"microthread {number}"


def _place(number: int) -> int:
    """Tasks first, then what they wait for, then microthreads."""
    return TASK - number if number >= OWN_THREAD else number + 2


def chrome_trace(trace: Trace, path: str | None = None) -> dict[str, Any]:
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
        events.append(where | {"name": "thread_name", "args": {"name": _thread(thread)}})
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


def timeline(trace: Trace, path: str | None = None):  # noqa: ANN201
    """Draw tasks and operations over time, a row per PE; returns the matplotlib figure.

    The upper half of a row has the PE's tasks, the lower half its operations: orange what the
    task waits for, green microthreads. Of more than 64 PEs every n-th is drawn.

    Args:
        trace: recorded.
        path: file to write too.
    """
    from matplotlib import figure

    pes = np.unique(np.stack([trace.y, trace.x], axis=1), axis=0)
    pes = pes[picked(len(pes), _MOST_ROWS)] if len(pes) else pes
    fig = figure.Figure(figsize=(9, 1.2 + 0.35 * max(1, len(pes))), layout="constrained")
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
    labels = [f"PE ({x}, {y})" for y, x in pes.tolist()]
    axes.set(xlabel="cycle", xlim=trace.cycles, yticks=range(len(pes)), yticklabels=labels)
    axes.set_title("tasks (blue), operations they wait for (orange), microthreads (green)")
    axes.set_ylim(len(pes) - 0.5, -0.5)
    if path:
        fig.savefig(path)
    return fig


def _frames(trace: Trace, count: int) -> tuple[np.ndarray, list[str]]:
    """[n, H, W] words over the links to the neighbours and down the ramp, per cycle; titles."""
    words = trace.links.sum(axis=3) / trace.every
    if not len(words):
        words = np.zeros((1, *words.shape[1:]))
    first = np.linspace(0, len(words), min(count, len(words)) + 1).astype(int)[:-1]
    means = np.add.reduceat(words, first) / np.diff([*first, len(words)])[:, None, None]
    return means, [f"cycle {trace.cycles[0] + pick * trace.every}" for pick in first]


def filmstrip(trace: Trace, frames: int = 8, path: str | None = None):  # noqa: ANN201
    """Draw equal spans of cycles side by side: how many words a cycle each router passes on.

    Args:
        trace: recorded.
        frames: at most.
        path: file to write too.

    Returns:
        The matplotlib figure.
    """
    planes, titles = _frames(trace, frames)
    return draw_filmstrip(planes, titles, _WORDS, highest=max(planes.max(), 1e-9), path=path)


def gif(trace: Trace, path: str, frames: int = 60) -> None:
    """Write an animated GIF of the same planes.

    Args:
        trace: recorded.
        path: of the file.
        frames: at most.
    """
    planes, titles = _frames(trace, frames)
    write_gif(planes, titles, _WORDS, highest=max(planes.max(), 1e-9), path=path)


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


def profile(trace: Trace) -> list[Line]:
    """Return the cycles of all PEs in which an operation was running, by operation.

    An operation's cycles are those from its first to its last element, waits included. Cycles of
    instructions are in ``runtime.profile``.
    """
    rows, cycles = trace.thread != TASK, Counter[tuple[str, int]]()
    columns = (trace.file, trace.line, trace.end - trace.begin)
    for file, line, spent in zip(*(column[rows].tolist() for column in columns), strict=True):
        cycles[trace.files[file], line] += spent
    return profile_of(cycles)
