"""What a run did when: tasks and operations as intervals, words over links by windows of cycles."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from wafer.errors import CompileError
from wafer.machine.arch import PORTS
from wafer.machine.image import Image
from wafer.machine.setup import colors_of
from wafer.machine.tools.reports import task_label
from wafer.models.shown.html import table

# The thread of a task itself; an operation has 0 to 7, or 8 in its task's own thread.
TASK, OWN_THREAD = 9, 8
_MOST_BYTES = 1 << 30  # of the counts of links, and of the runs that words are in
_MOST_SIDE = 128  # PEs of a rectangle whose words are recorded, unless it is given
_LAST = (1 << 63) - 1  # cycle
EVENT = np.dtype(  # of a task or an operation, as the machine keeps it
    [
        *(("begin", "<i8"), ("end", "<i8"), ("cell", "<i4"), ("lane", "<i4"), ("pc", "<i4")),
        *(("task", "<i4"), ("task_id", "<i4"), ("elements", "<u4")),
    ]
)
STATE = np.dtype(
    [("cycle", "<i8"), *((n, "<i4") for n in ("cell", "state", "pc"))]
    + [(n, "<u4") for n in ("path", "turns", "stride")]
)
RUN = np.dtype([(name, "<u4") for name in ("begin", "key", "count", "stride")])
ROUTE = np.dtype(
    [("cycle", "<i8"), ("cell", "<i4"), *((n, "u1") for n in ("slot", "rx", "tx", "position"))]
)
VALUE = np.dtype([("cell", "<i4"), ("lane", "<i4"), ("word", "<u4")])
# What the machine keeps, in the order of ``csl_recording`` in native/machine.cc.
_ROWS = ("links", "events", "states", "runs", "routes", "values")
ROWS = dict(zip(_ROWS, (np.dtype("<u4"), EVENT, STATE, RUN, ROUTE, VALUE), strict=True))


class Recording(NamedTuple):
    """What is to be recorded of a run."""

    begin: int = 0  #: begin, end: cycles [begin, end); None: to the run's end
    end: int | None = None
    #: (x, y, width, height) of PEs; None: all, or with ``words`` the first 128 x 128
    rectangle: tuple[int, int, int, int] | None = None
    #: tasks and operations that have ended; after so many no more are kept
    events: int = 2_000_000
    #: of cycles in which words over links are counted. They are one cycle long at first and double
    #: when a run takes more
    windows: int = 256
    #: changes of PEs' states that are kept; beyond, those of every 2nd, 4th, … cycle are. 0: none
    states: int = 0
    words: int = 0  #: runs of words of a color at a PE; after so many no more are kept. 0: none
    values: int = 0  #: of words that enter queues, in the same way


RECORDED: ContextVar[tuple[Recording, list[Any]] | None] = ContextVar("recorded", default=None)
"""What new machines record, and those that were made meanwhile."""
_MOST_RECORDED = 8  # machines: a script may make thousands


@contextmanager
def recorded(recording: Recording) -> Iterator[list[Any]]:
    """Let the first machines that ``machine_for`` makes within record their runs.

    Args:
        recording: of each of them.

    Yields:
        The machines, in order.
    """
    machines: list[Any] = []
    token = RECORDED.set((recording, machines))
    try:
        yield machines
    finally:
        RECORDED.reset(token)


def asked() -> tuple[Recording | None, list[Any]]:
    """What the next machine is to record, and the list that it joins if it records."""
    recording, machines = RECORDED.get() or (None, [])
    return (recording, machines) if len(machines) < _MOST_RECORDED else (None, [])


class Detail(NamedTuple):
    """What the view shows besides intervals and links: rows as the machine keeps them."""

    #: [n] STATE; by PE, then by cycle: what it does from a cycle on; path, turns and stride as
    #: docs/concepts/view-format.md has them
    states: np.ndarray
    #: [n] RUN; key: of ports the lowest 5 bits, then the step, the lane, the place of the PE in the
    #: rectangle, by which they are sorted, then by cycle
    runs: np.ndarray
    routes: np.ndarray  #: [n] ROUTE; by PE, slot, then by cycle: a router's ports for a color
    values: np.ndarray  #: [n] VALUE; by PE, lane, then in the order in which they enter its queue
    colors: tuple[int, ...]  #: of the lanes; behind them are the 8 output queues
    sampled: int  #: cycles from one state to the next
    words_until: int  #: cycle before which words are kept
    values_until: int  #: cycle before which their values are kept


VIEW = Recording(states=4_000_000, words=8_000_000, values=1_000_000)
"""What the view shows, and at most how much of it."""


class Trace(NamedTuple):
    """A recorded run: n tasks and operations, by their first cycle."""

    begin: np.ndarray  #: begin, end: [n] int64; cycles [begin, end)
    end: np.ndarray
    x: np.ndarray  #: x, y: [n] int64; the PE
    y: np.ndarray
    #: [n] int64; TASK for a task itself, 0 to 7 for an operation on that microthread, 8 for one in
    #: its task's own thread
    thread: np.ndarray
    #: [n] int64; index into names: of the task, or of the task that began the operation
    name: np.ndarray
    names: tuple[str, ...]  #: of tasks
    file: np.ndarray  #: [n] int64; index into files
    files: tuple[str, ...]  #: of source; of a ``Layout``, its operations
    line: np.ndarray  #: [n] int64; of the operation, or the task's first; 0 of a ``Layout``
    elements: np.ndarray  #: [n] int64; that an operation has done
    #: [windows, height, width, 5] uint32; words to the W, E, S, N and down the ramp
    links: np.ndarray
    every: int  #: cycles of a window
    cycles: tuple[int, int]  #: (first, last + 1) that were recorded
    rectangle: tuple[int, int, int, int]  #: (x, y, width, height) of the PEs
    full: int | None  #: cycle in which the limit of events was reached; None if it was not
    detail: Detail  #: rows of what ``Recording`` names with a limit above 0

    def __repr__(self) -> str:
        (first, end), (_, _, width, height) = self.cycles, self.rectangle
        pes = f"{width} x {height} PEs, cycles {first:,} to {end - 1:,}"
        return f"Trace of {pes}: {len(self.begin):,} tasks and operations"

    def _repr_html_(self) -> str:
        tasks, spent = self.thread == TASK, self.end - self.begin
        added = lambda rows, of: np.bincount(self.name[rows], of[rows], len(self.names)).tolist()
        runs = added(tasks, np.ones_like(spent))
        columns = runs, added(tasks, spent), added(~tasks, self.elements)
        rows = [(name, *map(int, row)) for name, *row in zip(self.names, *columns, strict=True)]
        return table(repr(self), ("task", "runs", "cycles", "elements of its operations"), rows)


def settings_of(recording: Recording, image: Image) -> np.ndarray:
    """[11] int64 as the machine reads them.

    Raises:
        CompileError: PEs that are not there, no cycles, or more than memory should be spent on.
    """
    height, width = image.tiles.shape
    most = _MOST_SIDE if recording.words else max(width, height)
    x, y, w, h = recording.rectangle or (0, 0, min(width, most), min(height, most))
    if min(x, y) < 0 or min(w, h) < 1 or x + w > width or y + h > height:
        raise CompileError(
            f"recording of {w} x {h} PEs from ({x}, {y}) on: the program has {width} x {height}"
        )
    begin, end = recording.begin, recording.end
    last = _LAST if end is None else end
    if not 0 <= begin < last <= _LAST:
        raise CompileError(f"recording from cycle {begin} to {end}: there is no cycle between them")
    size = recording.windows * w * h * len(PORTS) * 4
    size += w * h * (len(colors_of(image)) + 8) * 6 * 12 if recording.words else 0
    if recording.windows < 2 or not 0 <= recording.events <= _LAST or size > _MOST_BYTES:
        raise CompileError(
            f"recording {recording.windows} windows of {w} x {h} PEs takes {size >> 20} MiB, of"
            f" {_MOST_BYTES >> 20}; name a smaller rectangle of PEs, or 2 windows or more"
        )
    limits = recording.events, recording.windows, *recording[5:]
    return np.array([x, y, w, h, begin, last, *limits], np.int64)


def trace_of(
    image: Image,
    settings: np.ndarray,
    rows: dict[str, np.ndarray],
    *,
    every: int,
    cycle: int,
    full: int,
    kept: Sequence[int],
) -> Trace:
    """What was recorded, by columns.

    Args:
        image: that ran.
        settings: of ``settings_of``.
        rows: by the names of ``ROWS``, as the machine has kept them.
        every: cycles of a window.
        cycle: now.
        full: cycle of the last event, -1 if all were kept.
        kept: cycles between states, those before which words and values are kept.
    """
    x, y, width, height, first, last = settings[:6].tolist()
    last = max(first, min(last, cycle))
    events = rows["events"]
    events = events[np.lexsort([events[name] for name in ("lane", "cell", "begin")])]
    number = lambda name: events[name].astype(np.int64)
    columns = image.tiles.shape[1]
    names, name, files, place = _places(image, events)
    windows = -(-(last - first) // every)
    links = rows["links"].reshape(-1, height, width, len(PORTS))
    states, runs = rows["states"], rows["runs"]
    ordered = lambda kind, *by: rows[kind][np.lexsort([rows[kind][name] for name in by[::-1]])]
    detail = Detail(
        states=states[states["cycle"] < max(last, first + 1)],
        runs=runs[np.lexsort([runs["begin"], runs["key"] >> 5])],
        routes=ordered("routes", "cell", "slot"),
        values=ordered("values", "cell", "lane"),
        colors=tuple(colors_of(image)),
        sampled=kept[0],
        words_until=min(last, kept[1]),
        values_until=min(last, kept[2]),
    )
    return Trace(
        begin=number("begin"),
        end=number("end"),
        x=number("cell") % columns,
        y=number("cell") // columns,
        thread=number("lane"),
        name=name,
        names=names,
        file=place[:, 0],
        files=files,
        line=place[:, 1],
        elements=number("elements"),
        links=links[:windows],
        every=every,
        cycles=(first, last),
        rectangle=(x, y, width, height),
        full=None if full < 0 else full,
        detail=detail,
    )


def _places(
    image: Image, events: np.ndarray
) -> tuple[tuple[str, ...], np.ndarray, tuple[str, ...], np.ndarray]:
    """Names of tasks, [n] an index into them; files, [n, 2] an index into them and a line."""
    tiles = image.tiles.reshape(-1)[events["cell"]]
    keys = np.stack([tiles, events["task"], events["task_id"], events["pc"]], axis=1)
    kinds, which = np.unique(keys.astype(np.int64), axis=0, return_inverse=True)
    names, files = dict[str, int](), dict[str, int]()
    rows = np.zeros((len(kinds), 3), np.int64)
    for k, (tile, task, number, pc) in enumerate(kinds.tolist()):
        program = image.programs[tile]
        file, line = program.lines[pc].tolist()
        label = task_label(program, task, number)
        path = program.files[file]
        rows[k] = names.setdefault(label, len(names)), files.setdefault(path, len(files)), line
    places = rows[which.reshape(-1)]
    return tuple(names), places[:, 0], tuple(files), places[:, 1:]
