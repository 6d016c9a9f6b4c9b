"""See a program run: a recording of the reference engine, drawn by ``wafer.machine.tools.trace``.

Programs in CSL have the same: timeline, filmstrip or GIF of the wavelets, heat map, Chrome
trace, profile by operation.
"""

import functools

import jax
import numpy as np

from wafer.energy import Counts
from wafer.fabric.engines.cycle import step
from wafer.fabric.engines.state import FabricState
from wafer.fabric.program.arrays import AnyArray as Array
from wafer.fabric.program.codes import Column
from wafer.fabric.program.tables import Program
from wafer.fabric.program.text import op_text, task_of_ops
from wafer.machine.tools import trace as drawing
from wafer.machine.tools.recording import OWN_THREAD, TASK, Trace
from wafer.machine.tools.trace import chrome_trace, filmstrip, gif, profile, profile_text, timeline

__all__ = [
    "Trace",
    "chrome_trace",
    "counts",
    "filmstrip",
    "gif",
    "heat_map",
    "profile",
    "profile_text",
    "record",
    "timeline",
    "utilisation",
]

_LINKS = ("west", "east", "south", "north", "ramp")
# Small grids run for milliseconds whatever the code; without the optimiser XLA compiles them in a
# third of the time.
QUICK_COMPILE = {"xla_backend_optimization_level": 0}


@functools.partial(jax.jit, static_argnames="cycles", compiler_options=QUICK_COMPILE)
def _watch(program: Program, state: FabricState, cycles: int) -> tuple[FabricState, tuple]:
    """[T, ..] of each cycle: operations, elements to go and waits at its beginning, words sent."""

    def one(state: FabricState, _: None) -> tuple[FabricState, tuple[Array, ...]]:
        after = step(program, state)
        words = (after.links - state.links).astype(np.uint8)
        return after, (state.pc, state.left, state.wait, words)

    return jax.lax.scan(one, state, None, length=cycles)


def record(program: Program, state: FabricState, cycles: int) -> tuple[FabricState, Trace]:
    """Run ``cycles`` cycles of the reference engine and keep what every PE and link did.

    An operation lasts from its first element to its last; one of a single element that begins
    anew in the cycle after is one interval with that before. A line is an operation's place in
    the program.

    Args:
        program: as built.
        state: of ``init``, or of an earlier run.
        cycles: to run.

    Returns:
        The state then, and the recording.
    """
    begin = int(state.cycle)
    after, seen = _watch(program, state, cycles)
    pc, left, wait, words = (np.asarray(part) for part in seen)  # [T, 1 + U, H, W] but words
    code, tasks = np.asarray(program.code), task_of_ops(program)
    starts = code[:, Column.THREAD] >= 0  # in the task's own thread it only starts another
    shape = (*pc.shape[:2], -1)
    pc, left, wait = pc.reshape(shape), left.reshape(shape), wait.reshape(shape)
    rows, entry = np.maximum(pc, 0), np.asarray(program.entry)
    again = np.zeros(pc.shape, bool)  # whether an operation begins anew
    again[1:] = (pc[1:] != pc[:-1]) | (left[1:] > left[:-1]) | (wait[1:] > wait[:-1])
    active = (pc >= 0) & (wait == 0)
    active[:, 0] &= ~starts[rows[:, 0]]
    lanes = [OWN_THREAD, *range(program.meta.threads)]
    found = [
        (np.where(active[:, k], pc[:, k], -1), again[:, k] & active[:, k], lane)
        for k, lane in enumerate(lanes)
    ]
    first = np.isin(pc[:, 0], entry[entry >= 0]) & again[:, 0]  # operation of a task
    found.append((np.where(pc[:, 0] >= 0, tasks[rows[:, 0]], -1), first, TASK))
    parts = [np.stack([*_intervals(value, fresh, lane)]) for value, fresh, lane in found]
    first_cycle, end, cell, value, lane = np.concatenate(parts, axis=1)
    of_task = lane == TASK
    row = np.where(of_task, rows[first_cycle, 0, cell], value)
    place = np.where(of_task | (lane == OWN_THREAD), 0, lane + 1)
    done = left[first_cycle, place, cell] - np.where(
        end < cycles, 0, np.asarray(after.left).reshape(pc.shape[1:])[place, cell]
    )
    order = np.lexsort((lane, cell, first_cycle))
    width, height = program.meta.width, program.meta.height
    trace = Trace(
        begin=begin + first_cycle,
        end=begin + end,
        x=cell % width,
        y=cell // width,
        thread=lane,
        name=tasks[row].astype(np.int64),
        names=tuple(name for name, *_ in program.meta.tasks),
        file=np.zeros_like(row),
        files=("operation",),
        line=row,
        elements=np.where(of_task, 0, done),
        links=np.moveaxis(words, 1, -1).astype(np.uint32),
        every=1,
        cycles=(begin, begin + cycles),
        rectangle=(0, 0, width, height),
        full=None,
        texts={(0, int(k)): op_text(program, int(k)) for k in np.unique(row)},
    )
    per_row = ("begin", "end", "x", "y", "thread", "name", "file", "line", "elements")
    return after, trace._replace(**{name: getattr(trace, name)[order] for name in per_row})


def _intervals(values: np.ndarray, fresh: np.ndarray, lane: int) -> tuple[np.ndarray, ...]:
    """Runs of equal values: first cycles, ends, PEs, values and their lane.

    Args:
        values: [T, PEs]; -1 is nothing.
        fresh: [T, PEs] bool, whether a run begins even if the value is the one before.
        lane: of all of them.
    """
    cycles, pes = values.shape
    padded = np.full((cycles + 2, pes), -1, values.dtype)
    padded[1:-1] = values
    cut = padded[1:] != padded[:-1]
    cut[:-1] |= fresh
    begin = np.argwhere((cut[:-1] & (values >= 0)).T)
    end = np.argwhere((cut[1:] & (values >= 0)).T)
    which = values[begin[:, 1], begin[:, 0]].astype(np.int64)
    return begin[:, 1], end[:, 1] + 1, begin[:, 0], which, np.full(len(begin), lane)


def utilisation(state: FabricState) -> dict[str, np.ndarray]:
    """[H, W] fractions of the run's cycles in which the CE and each link were busy."""
    total = max(1, int(state.end.max()))
    links = {name: np.asarray(state.links[i]) / total for i, name in enumerate(_LINKS)}
    return {"ce": np.asarray(state.busy) / total} | links


def counts(state: FabricState) -> Counts:
    """What a run's state has counted, for ``wafer.energy``: hops, and nothing else.

    A state knows in how many cycles the CEs did a step, not of which operation.
    """
    return Counts(hops=int(np.asarray(state.links[:4]).sum(dtype=np.int64)))


def heat_map(seen: Trace | FabricState, what: str = "ce", path: str | None = None):  # noqa: ANN201
    """Draw what was busy for which fraction of a run's cycles.

    Args:
        seen: a final state, with a plane 'ce' and one of each link, or a recording, with 'task'.
        what: name of the plane.
        path: file to write too.

    Returns:
        The matplotlib figure.
    """
    planes = seen if isinstance(seen, Trace) else utilisation(seen)
    return drawing.heat_map(planes, what, path)
