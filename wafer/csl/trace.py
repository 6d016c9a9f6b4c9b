"""See a run: timeline of tasks and operations, film of the wavelets, Chrome trace, profile.

The names are those of ``wafer.fabric.trace``. A trace is ``runtime.trace`` or ``machine.trace``.
"""

from typing import Any

import numpy as np

from wafer.frames import draw_filmstrip, draw_heat_map, picked, write_events, write_gif
from wafer.machine.lines import profile_text
from wafer.machine.recording import TASK, Trace

__all__ = ["chrome_trace", "filmstrip", "gif", "heat_map", "profile_text", "timeline"]

_MOST_ROWS = 64  # of a timeline
_TASK_COLOR, _OPERATION_COLOR, _MICROTHREAD_COLOR = "tab:blue", "tab:orange", "tab:green"
_WORDS = "words a cycle"
_PORTS = ("west", "east", "south", "north", "ramp")
_OWN_THREAD = 8


def _thread(number: int) -> str:
    if number == TASK:
        return "task"
    return "operation" if number == _OWN_THREAD else f"microthread {number}"


def _place(number: int) -> int:
    """Tasks first, then what they wait for, then microthreads."""
    return TASK - number if number >= _OWN_THREAD else number + 2


def chrome_trace(trace: Trace, path: str | None = None) -> dict[str, Any]:
    """Tasks and operations as Chrome trace events (chrome://tracing, Perfetto).

    One microsecond on screen is one cycle; a process per PE, a thread each for tasks, the
    operations they wait for, and each microthread. ``args`` have file, line and, of operations,
    the elements.

    Args:
        trace: recorded.
        path: file to write too.
    """
    events, columns = list[dict[str, Any]](), max(1, trace.rectangle[0] + trace.rectangle[2])
    threads = np.stack([trace.y, trace.x, trace.thread], axis=1)
    for y, x, thread in np.unique(threads, axis=0).tolist():
        where = {"ph": "M", "pid": y * columns + x, "tid": _place(thread)}
        events.append(where | {"name": "process_name", "args": {"name": f"PE ({x}, {y})"}})
        events.append(where | {"name": "thread_name", "args": {"name": _thread(thread)}})
    rows = zip(
        *(getattr(trace, name).tolist() for name in ("begin", "end", "x", "y", "thread", "name")),
        *(getattr(trace, name).tolist() for name in ("file", "line", "elements")),
        strict=True,
    )
    for begin, end, x, y, thread, name, file, line, elements in rows:
        args = {"file": trace.files[file], "line": line}
        label = trace.names[name]
        if thread != TASK:
            args |= {"elements": elements, "of": label}
            label = f"line {line}"
        events.append(
            {
                "name": label,
                "ph": "X",
                "ts": begin,
                "dur": end - begin,
                "pid": y * columns + x,
                "tid": _place(thread),
                "args": args,
            }
        )
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
            (trace.thread == _OWN_THREAD, _OPERATION_COLOR, 0.02, 0.2),
            (trace.thread < _OWN_THREAD, _MICROTHREAD_COLOR, 0.22, 0.2),
        ):
            rows = here & kind
            spans = np.stack([trace.begin[rows], trace.end[rows] - trace.begin[rows]], axis=1)
            axes.broken_barh(spans.tolist(), (row + below, height), facecolors=color, alpha=0.8)
    labels = [f"PE ({x}, {y})" for y, x in pes.tolist()]
    axes.set(xlabel="cycle", xlim=trace.cycles, yticks=range(len(pes)), yticklabels=labels)
    axes.set_title("tasks (blue), operations they wait for (orange), microthreads (green)")
    axes.invert_yaxis()
    if path:
        fig.savefig(path)
    return fig


def _frames(trace: Trace, count: int) -> tuple[np.ndarray, list[str]]:
    """[n, H, W] words over the links to the neighbours and down the ramp, per cycle; titles."""
    words = trace.links.sum(axis=3) / trace.every
    if not len(words):
        words = np.zeros((1, *words.shape[1:]))
    picks = picked(len(words), count)
    return words[picks], [f"cycle {trace.cycles[0] + pick * trace.every}" for pick in picks]


def filmstrip(trace: Trace, frames: int = 8, path: str | None = None):  # noqa: ANN201
    """Draw evenly spaced windows of cycles side by side: how many words each router passes on.

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


def heat_map(trace: Trace, what: str = "task", path: str | None = None):  # noqa: ANN201
    """Draw the fraction of the recorded cycles in which something was busy on each PE.

    Args:
        trace: recorded.
        what: 'task', or a link: 'west', 'east', 'south', 'north', 'ramp'.
        path: file to write too.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: another word.
    """
    x, y, width, height = trace.rectangle
    cycles = max(1, trace.cycles[1] - trace.cycles[0])
    if what in _PORTS:
        busy = trace.links[..., _PORTS.index(what)].sum(axis=0)
    elif what == "task":
        rows, busy = trace.thread == TASK, np.zeros((height, width))
        spans = (trace.end - trace.begin)[rows]
        np.add.at(busy, (trace.y[rows] - y, trace.x[rows] - x), spans)
    else:
        raise ValueError(f"heat_map: {what!r}; there are task, {', '.join(_PORTS)}")
    title = f"{what} utilisation"
    return draw_heat_map(busy / cycles, title, "fraction of cycles busy", highest=1, path=path)
