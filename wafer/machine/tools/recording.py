"""What a run did when: tasks and operations as intervals, words over links by windows of cycles."""

from typing import NamedTuple

import numpy as np

from wafer.errors import CompileError
from wafer.machine.arch import PORTS
from wafer.machine.image import Image
from wafer.machine.tools.reports import task_label
from wafer.models.shown.html import table

# The thread of a task itself; an operation has 0 to 7, or 8 in its task's own thread.
TASK, OWN_THREAD = 9, 8
_MOST_BYTES = 1 << 30  # of the counts of links
_LAST = (1 << 63) - 1  # cycle
EVENT = np.dtype(  # of a task or an operation, as the machine keeps it
    [
        *(("begin", "<i8"), ("end", "<i8"), ("cell", "<i4"), ("lane", "<i4"), ("pc", "<i4")),
        *(("task", "<i4"), ("task_id", "<i4"), ("elements", "<u4")),
    ]
)


class Recording(NamedTuple):
    """What is to be recorded of a run."""

    begin: int = 0  #: begin, end: cycles [begin, end); None: to the run's end
    end: int | None = None
    rectangle: tuple[int, int, int, int] | None = None  #: (x, y, width, height) of PEs; None: all
    #: tasks and operations that have ended; after so many no more are kept
    events: int = 2_000_000
    #: of cycles in which words over links are counted. They are one cycle long at first and double
    #: when a run takes more
    windows: int = 256


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
    """[8] int64 as the machine reads them.

    Raises:
        CompileError: PEs that are not there, no cycles, or more than memory should be spent on.
    """
    height, width = image.tiles.shape
    x, y, w, h = recording.rectangle or (0, 0, width, height)
    if min(x, y) < 0 or min(w, h) < 1 or x + w > width or y + h > height:
        raise CompileError(
            f"recording of {w} x {h} PEs from ({x}, {y}) on: the program has {width} x {height}"
        )
    begin, end = recording.begin, recording.end
    last = _LAST if end is None else end
    if not 0 <= begin < last <= _LAST:
        raise CompileError(f"recording from cycle {begin} to {end}: there is no cycle between them")
    size = recording.windows * w * h * len(PORTS) * 4
    if recording.windows < 2 or not 0 <= recording.events <= _LAST or size > _MOST_BYTES:
        raise CompileError(
            f"recording {recording.windows} windows of {w} x {h} PEs takes {size >> 20} MiB, of"
            f" {_MOST_BYTES >> 20}; name a smaller rectangle of PEs, or 2 windows or more"
        )
    return np.array([x, y, w, h, begin, last, recording.events, recording.windows], np.int64)


def trace_of(
    image: Image,
    settings: np.ndarray,
    events: np.ndarray,
    links: np.ndarray,
    *,
    every: int,
    cycle: int,
    full: int,
) -> Trace:
    """What was recorded, by columns.

    Args:
        image: that ran.
        settings: of ``settings_of``.
        events: as the machine has kept them.
        links: [windows, height, width, 5].
        every: cycles of a window.
        cycle: now.
        full: cycle of the last event, -1 if all were kept.
    """
    x, y, width, height, first, last = settings[:6].tolist()
    last = max(first, min(last, cycle))
    events = events[np.lexsort([events[name] for name in ("lane", "cell", "begin")])]
    number = lambda name: events[name].astype(np.int64)
    columns = image.tiles.shape[1]
    names, name, files, place = _places(image, events)
    windows = -(-(last - first) // every)
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
