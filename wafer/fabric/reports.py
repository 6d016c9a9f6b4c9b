"""Why a run stopped, as ``wafer.machine.tools.reports`` words it: faults, what waits for what."""

import numpy as np

from wafer.fabric.engines.state import FabricState
from wafer.fabric.program.check import neighbour
from wafer.fabric.program.codes import TORN, Column, Fault, Field, Kind, Port
from wafer.fabric.program.tables import Program
from wafer.fabric.program.text import op_text, task_of_ops
from wafer.machine.arch import OPPOSITE, PORTS
from wafer.machine.tools import reports
from wafer.machine.tools.chains import RouteMasks, by_cause
from wafer.machine.tools.reports import Waiting

__all__ = ["fault_of", "waiting"]

_MOST = 1000  # of each kind that are looked at
_ITS_TURN = 0
_SOURCES = (Column.SRC0, Column.SRC1, Column.SCALAR)
_KINDS = {
    Fault.SAME_CYCLE_ARRIVAL: reports.Fault.SAME_CYCLE_ARRIVAL,
    Fault.UNBOUND_CONTROL_TASK: reports.Fault.UNBOUND_CONTROL,
}


def fault_of(program: Program, state: FabricState) -> str:
    """Return the fault that stopped a run, '' if there was none."""
    kind, index, y, x = (int(v) for v in np.asarray(state.fault))
    if not kind:
        return ""
    color, task = program.meta.colors[index], "that its payload names"
    text = reports.fault_text(_KINDS[Fault(kind)], detail=color, sides="", id=task)
    return f"cycle {int(state.cycle) - 1}, PE ({x}, {y}): {text}"


def waiting(program: Program, state: FabricState) -> list[Waiting]:
    """Return what a program has left to do and what it waits for, likely causes first."""
    meta, code = program.meta, np.asarray(program.code)
    pc, heads = np.asarray(state.pc), np.asarray(state.queue.flag)[:, 0]
    tasks, out, read = task_of_ops(program), list[Waiting](), np.zeros(heads.shape, bool)
    for thread, y, x in np.argwhere(pc >= 0)[:_MOST].tolist():
        row = int(pc[thread, y, x])
        name = f"task {meta.tasks[tasks[row]][0]!r}"
        who = f"microthread {thread - 1} of {name}" if thread else name
        for column in _SOURCES:
            if code[row, column] == Kind.FABRIC:
                read[code[row, column + Field.BASE], y, x] = True
        reason, detail, text = _lack(program, row, heads[:, y, x])
        out.append(Waiting(x, y, who, text, op_text(program, row), 0, reason, detail))
    for index, y, x in np.argwhere((heads != 0) & ~read)[:_MOST].tolist():
        color = meta.colors[index]
        text = reports.reason_text(reports.UNREAD, color)
        out.append(Waiting(x, y, "input queue", text, "", 0, reports.UNREAD, color))
    out += _routers(program, state)
    every = [np.bitwise_or.reduce(np.asarray(side)) for side in (program.rx, program.tx)]
    routes = [np.zeros((meta.height, meta.width, meta.spec.colors), np.int32) for _ in every]
    for side, plane in zip(routes, every, strict=True):
        side[..., list(meta.colors)] = np.moveaxis(plane, 0, -1)
    return [each for each in by_cause(RouteMasks(*routes), out) if isinstance(each, Waiting)]


def _lack(program: Program, row: int, heads: np.ndarray) -> tuple[int, int, str]:
    """(reason, color, text) of an operation that has not ended."""
    code, colors = np.asarray(program.code)[row], program.meta.colors
    for column in _SOURCES:
        index = code[column + Field.BASE]
        if code[column] == Kind.FABRIC and not heads[index]:
            color = colors[index]
            return reports.FOR_DATA, color, reports.reason_text(reports.FOR_DATA, color)
    if code[Column.DST] == Kind.FABRIC:
        color = colors[code[Column.DST + Field.BASE]]
        return reports.FOR_ROOM, color, f"room to send on color {color}"
    return _ITS_TURN, -1, reports.reason_text(_ITS_TURN, -1)


def _at(table: np.ndarray, position: np.ndarray) -> np.ndarray:
    """[C, H, W] a route table [K, C, H, W] at the switches' positions; none where torn."""
    known = np.minimum(position, len(table) - 1).astype(np.int64)
    return np.where(position == TORN, 0, np.take_along_axis(table, known[None], 0)[0])


def _routers(program: Program, state: FabricState) -> list[Waiting]:
    """Words that routers hold, and the sides that do not take them."""
    flag, colors = np.asarray(state.router.flag), program.meta.colors
    rx = _at(np.asarray(program.rx), np.asarray(state.pos_rx))
    tx = _at(np.asarray(program.tx), np.asarray(state.pos_tx))
    refused, full = np.zeros(tx.shape, np.int64), np.zeros(tx.shape, np.int64)
    for side in PORTS[:4]:
        takes = neighbour(rx, side) & Port[OPPOSITE[side]] != 0
        room = neighbour(flag[:, 1], side) == 0
        leaves = (flag[:, 0] != 0) & (tx & Port[side] != 0)
        refused |= np.where(leaves & ~takes, int(Port[side]), 0)
        full |= np.where(leaves & takes & ~room, int(Port[side]), 0)
    out = []
    for index, y, x in np.argwhere(flag[:, 0] != 0)[:_MOST].tolist():
        color, sides = colors[index], reports.side_names(int(refused[index, y, x]))
        ramp = tx[index, y, x] & Port.RAMP if not sides else 0
        busy = reports.side_names(int(full[index, y, x] | ramp))

        def taking(x: int, y: int, index: int = index) -> str:
            names = " and ".join(reports.side_names(int(rx[index, y, x])))
            return f"which takes it from {names or 'nowhere'}"

        text = reports.router_reason((x, y), color, sides, busy, taking)
        row = Waiting(x, y, "router", text, "", 0, reports.IN_ROUTER, color, sides, busy)
        out.append(row)
    return out
