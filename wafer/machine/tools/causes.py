"""What a deadlock is likely due to: its kind, then PE, task and color, then file and line.

In a deadlock each of the waiting things waits for others that wait, in chains. What ends a chain is
likely the cause: a word that no router will ever take, then what waits for nothing that waits
itself; without an end it is a circle. What the programs do with a color is read from their code.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from wafer.machine.arch import neighbor
from wafer.machine.codes import Gate, Intrinsic, Op
from wafer.machine.image import Image, Program
from wafer.machine.tools.flow import (
    FabricUse,
    fabric_uses,
    place_of,
    reachable,
    row_of,
    unbound_activations,
)
from wafer.machine.tools.reports import (
    RAMP,
    SIDES,
    Reason,
    Waiting,
    place_of_route,
    program_of,
    side_names,
    sides_of,
)

_MOST = 3  # causes that are shown
_LONGEST = 1000  # routers that are searched for the senders of a color
COMMAND = "no unblock_cmd_stream()"
HELD = "a stream that waits for an earlier command of the host"
Cell = tuple[int, int]
_Key = tuple[Any, ...]  # of what something waits for
_KINDS = {
    Reason.THREAD_BLOCKED: "a blocked microthread",
    Reason.FIFO_EMPTY: "an empty FIFO",
    Reason.FIFO_FULL: "a full FIFO",
    Reason.FOR_THREAD: "a microthread that still runs",
}
_AT_REST = (Reason.FOR_COMMAND, Reason.WORD_UNREAD, Reason.TASK_BLOCKED)  # no operation


class Cause(NamedTuple):
    """One likely cause of a deadlock."""

    kind: str  #: as docs/guides/csl.md lists them
    text: str  #: what is wrong on the PE
    place: str  #: file and line

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" + (f" ({self.place})" if self.place else "")


def by_cause(image: Image, reported: Sequence[object]) -> list[object]:
    """What waits, the likely causes first.

    Args:
        image: that ran.
        reported: of the machine, in the order of the PEs; the text of the JAX machine keeps it.
    """
    waiting = [each for each in reported if isinstance(each, Waiting)]
    if len(waiting) < len(reported):
        return list(reported)
    return [each for _, each in _ranked(image, waiting)]


def _ranked(image: Image, waiting: Sequence[Waiting]) -> list[tuple[int, Waiting]]:
    """0: a word that no router takes; 1: it waits for nothing that waits; 2: the rest."""
    ranks = [
        (0 if each.refused or each.outside else 1 + bool(others), each)
        for each, others in zip(waiting, _followed(image, waiting), strict=True)
    ]
    return sorted(ranks, key=lambda ranked: ranked[0])


def _followed(image: Image, waiting: Sequence[Waiting]) -> list[list[int]]:
    """Which others each waits for, by number."""
    holders = defaultdict[_Key, set[int]](set)
    for number, each in enumerate(waiting):
        for key in _keys(image, each):
            holders[key].add(number)
    return [
        sorted(set[int]().union(*(holders[key] for key in _targets(image, each))) - {number})
        for number, each in enumerate(waiting)
    ]


def explain(
    image: Image, reported: Sequence[object], read: int | None = None, held: Set[int] = frozenset()
) -> tuple[list[object], list[str]]:
    """Return what waits, as ``by_cause``, and the likely causes of the deadlock.

    Args:
        image: that ran.
        reported: what waits, of the machine.
        read: color of the stream that the host reads; None: it waits for something else.
        held: colors of streams of the host that wait for the command stream.

    Returns:
        Causes are the surest first, each once for a line of a program; none for the text of the
        JAX machine.
    """
    waiting = [each for each in reported if isinstance(each, Waiting)]
    ranked = _ranked(image, waiting)
    roots = [each for rank, each in ranked if rank < 2]
    found = [cause for each in roots for cause in _of_root(image, each, held)]
    if not roots and waiting:
        found = list(_circle(image, waiting))
    if not found and not reported and read is not None:
        found = list(_unsent(image, read))
    groups = dict[tuple[str, str], list[Cause]]()
    for cause in found:
        groups.setdefault((cause.kind, cause.place), []).append(cause)
    order = sorted(groups.values(), key=lambda group: group[0].kind == COMMAND)
    more = lambda group: f", and {len(group) - 1} more PEs" if len(group) > 1 else ""
    text = len(waiting) < len(reported)
    return (
        list(reported) if text else [each for _, each in ranked],
        [f"{group[0]}{more(group)}" for group in order[:_MOST]],
    )


def _keys(image: Image, each: Waiting) -> Iterator[_Key]:
    """What others may name it by."""
    x, y = each.x, each.y
    if each.code == Reason.IN_ROUTER:
        yield ("router", x, y, each.detail)
        yield ("routers", x, y)
    elif each.code == Reason.WORD_UNREAD:
        yield ("queue", x, y, each.detail)
    else:
        yield ("pe", x, y)
        served = each.code == Reason.FOR_DATA and each.detail in _of_host(image)
        if each.code not in _AT_REST and not served:
            yield ("runs", x, y)
        elif each.code == Reason.TASK_BLOCKED:
            yield ("blocked", x, y)


def _targets(image: Image, each: Waiting) -> Iterator[_Key]:
    """What it waits for."""
    x, y = each.x, each.y
    if each.code == Reason.IN_ROUTER:
        for side in each.full:
            kind = "queue" if side == "RAMP" else "router"
            yield (kind, *neighbor(x, y, side), each.detail)
        if "RAMP" in each.full:  # a queue that an operation reads is not listed as one
            yield ("pe", x, y)
    elif each.code == Reason.FOR_ROOM:
        colors = _colors(image, each)
        yield from [("router", x, y, color) for color in colors] or [("routers", x, y)]
    elif each.code == Reason.FOR_DATA and each.detail >= 0:
        yield ("router", x, y, each.detail)
        for cell in _upstream(image, x, y, each.detail):
            yield ("router", *cell, each.detail)
            yield ("pe", *cell)
    else:
        yield ("runs", x, y)
        if each.code in (Reason.WORD_UNREAD, Reason.FOR_COMMAND):
            yield ("blocked", x, y)


def _upstream(image: Image, x: int, y: int, color: int) -> list[tuple[int, int]]:
    """The routers by which words of a color come to a PE, as they are configured."""
    height, width = image.tiles.shape
    seen, waiting = {(x, y)}, [(x, y)]
    while waiting and len(seen) < _LONGEST:
        cell = waiting.pop()
        for side in side_names(sides_of(image, *cell, color, enter=True) & (1 << RAMP) - 1):
            other = neighbor(*cell, side)
            inside = 0 <= other[0] < width and 0 <= other[1] < height
            back = SIDES.index(side) ^ 1
            new = inside and other not in seen
            if new and sides_of(image, *other, color, enter=False) >> back & 1:
                seen.add(other)
                waiting.append(other)
    return sorted(seen - {(x, y)})


def _of_root(image: Image, each: Waiting, held: Set[int]) -> Iterator[Cause]:
    """The cause behind something that waits for nothing that waits."""
    where = f"PE ({each.x}, {each.y})"
    place = f"{each.file}:{each.line}" if each.line else each.file
    program = program_of(image, each.x, each.y)
    waits = f"{where}: {each.who} waits for {each.reason}"
    assert program is not None or each.code == Reason.IN_ROUTER
    colors = _colors(image, each) if each.code in (Reason.FOR_DATA, Reason.FOR_ROOM) else set()
    streamed = colors & _of_host(image)
    match each.code:
        case _ if streamed & held:
            yield Cause(HELD, waits, place)
        case Reason.IN_ROUTER if each.refused or each.outside:
            kind = "no route from the PE" if each.outside else "a neighbor that takes no word"
            sent = [_place(program, use.pc) for use in _sent(image, each.x, each.y)]
            yield Cause(kind, waits, place or (sent or [""])[0])
        case Reason.FOR_DATA if streamed:
            yield Cause("fewer words from the host than taken", waits, place)
        case Reason.FOR_DATA:
            yield _missing(image, each, waits, place)
        case Reason.WORD_UNREAD:
            yield from _unread(image, each, where)
        case Reason.TASK_BLOCKED:
            assert program is not None  # a task of a PE without one cannot wait
            place = _place(program, int(program.local_tasks[each.detail]))
            text = f"{waits}; {_unblocks(program, Gate.LOCAL, each.detail)}"
            yield Cause("a blocked local task", text, place)
        case Reason.FOR_COMMAND:
            yield _not_freed(program, where, each, place)
        case Reason.FOR_ROOM if streamed:
            yield Cause("words that the host does not read", waits, place)
        case _:
            yield Cause(_KINDS.get(Reason(each.code), "a wait without an end"), waits, place)


def _of_host(image: Image) -> set[int]:
    """Colors of words from the host, or to it."""
    return {*image.streams, *(port.color for port in image.ports.values())}


def _colors(image: Image, each: Waiting) -> set[int]:
    """The colors that an operation waits for."""
    if each.code == Reason.FOR_DATA:
        return {each.detail}
    program, place = program_of(image, each.x, each.y), (each.file, each.line)
    sent = _sent(image, each.x, each.y)
    return {use.color for use in sent if place_of(program, use.pc) == place}


def _place(program: Program | None, pc: int) -> str:
    file, line = place_of(program, pc)
    return f"{file}:{line}" if line else file


def _missing(image: Image, each: Waiting, waits: str, place: str) -> Cause:
    """Why no more data of a color come to an operation."""
    x, y, color = each.x, each.y, each.detail
    if "no route" in each.reason:
        return Cause("no RAMP in the route", waits, place)
    cells = _sources(image, x, y, color)
    if not cells:
        sides = " and ".join(side_names(sides_of(image, x, y, color, enter=True))) or "nowhere"
        route = place_of_route(image, x, y, color)
        text = f"{waits}, which its router takes from {sides}, where no route leads it ({route})"
        return Cause("no route to the PE", text, place)
    programs = [program_of(image, *cell) for cell in cells]
    unknown = any(None in fabric_uses(p, image.arch) for p in programs if p is not None)
    senders = _senders(image, cells, color)
    if senders or unknown:
        text = f"{waits}, of which no more come{'; ' if senders else ''}{', '.join(senders[:2])}"
        return Cause("fewer words sent than taken", text, place)
    others = sorted({use.color for cell in cells for use in _sent(image, *cell)})
    text = f"{waits}, which no PE on its way sends"
    text += f"; they send {', '.join(map(str, others))}" if others else ""
    return Cause("a color that no PE sends", text, place)


def _senders(image: Image, cells: Sequence[Cell], color: int) -> list[str]:
    """The PEs of some that send a color, each with the line."""
    return [
        f"PE {cell} sends at {_place(program_of(image, *cell), use.pc)}"
        for cell in cells
        for use in _sent(image, *cell)
        if use.color == color
    ]


def _sent(image: Image, x: int, y: int) -> list[FabricUse]:
    """Operations of a PE that send."""
    program = program_of(image, x, y)
    uses = fabric_uses(program, image.arch) if program is not None else ()
    return [use for use in uses if use and use.sends]


def _unread(image: Image, each: Waiting, where: str) -> Iterator[Cause]:
    """Why words at the head of a queue are not taken."""
    x, y, color = each.x, each.y, each.detail
    program = program_of(image, x, y)
    assert program is not None
    senders = _senders(image, _sources(image, x, y, color), color)
    sent = ", ".join(senders[:2]) or "the host sends them"
    queues = np.flatnonzero(program.tables["queues"][:8, 0] == color).tolist()
    tasks = [color] if image.arch == "wse2" else queues
    for task in (k for k in tasks if program.data_tasks[k] >= 0):
        entry = int(program.data_tasks[task])
        name = next((name for name, pc in program.tasks.items() if pc == entry), "?")
        text = f"{where}: words of color {color} wait for data task '{name}'"
        text += f"; {_unblocks(program, Gate.DATA, task)}"
        yield Cause("a blocked data task", text, _place(program, entry))
        return
    for left, top, sides in [*_merging(image, x, y, color)][: len(senders) > 1]:
        text = f"PE {left, top}: its router takes color {color} from {sides}; {sent}"
        yield Cause("two senders into one router", text, place_of_route(image, left, top, color))
    uses = [use for use in fabric_uses(program, image.arch) if not use or not use.sends]
    taking = [_place(program, use.pc) for use in uses if use and use.color == color]
    if taking:
        text = f"{where}: words of color {color} are left when its operations have ended; {sent}"
        yield Cause("more words sent than taken", text, taking[0])
    elif None not in uses:
        text = f"{where}: no task or operation takes words of color {color}"
        yield Cause("words that nothing takes", text, sent)


def _sources(image: Image, x: int, y: int, color: int) -> list[Cell]:
    """The PEs whose words of a color can come to a PE, itself included."""
    cells = [(x, y), *_upstream(image, x, y, color)]
    return [cell for cell in cells if sides_of(image, *cell, color, enter=True) >> RAMP & 1]


def _merging(image: Image, x: int, y: int, color: int) -> Iterator[tuple[int, int, str]]:
    """Routers on the way to a PE that take a color from several sides: column, row, sides."""
    for left, top in [(x, y), *_upstream(image, x, y, color)]:
        sides = side_names(int(image.colors[top, left, color]) >> len(SIDES) & 31)
        if len(sides) > 1:
            yield left, top, " and ".join(sides)


def _unblocks(program: Program | None, gate: int, number: int) -> str:
    """Where a program unblocks a task or microthread, in words."""
    assert program is not None
    for pc, row in enumerate(program.code.tolist()):
        done = row[0] == Op.UNBLOCK and row[1] == gate
        if row[0] in (Op.OPERATE, Op.LOAD_DSR):
            table = "operations" if row[0] == Op.OPERATE else "dsr_loads"
            columns = row_of(program, table, row[2])
            done = (columns["action"], columns["target"]) == (2 + gate, number)
        if done:
            return f"{_place(program, pc)} would unblock it"
    return "nothing in its program unblocks it"


def _not_freed(program: Program | None, where: str, each: Waiting, place: str) -> Cause:
    """Why a call does not free the command stream."""
    assert program is not None
    for task, pc in unbound_activations(program):
        text = f"{where}: local task {task} is activated, and no task is bound to it"
        return Cause("a local task without code", text, _place(program, pc) or program.name)
    called = each.reason.partition(" after ")[2]
    frees = np.flatnonzero(
        (program.code[:, :2] == (Op.INTRINSIC, Intrinsic.NEXT_COMMAND)).all(axis=1)
    )
    callers = [name for name, pc in program.tasks.items() if reachable(program, pc) & {*frees}]
    why = f"{' or '.join(callers)}, which calls it, does not run" if callers else "nothing calls it"
    return Cause(COMMAND, f"{where}: {called} has returned, and {why}", place)


def _unsent(image: Image, color: int) -> Iterator[Cause]:
    """Operations that have sent to the host, when it reads more words of a stream than came."""
    for number, program in enumerate(image.programs):
        uses = [use for use in fabric_uses(program, image.arch) if use and use.sends]
        at = next((_place(program, use.pc) for use in uses if use.color == color), "")
        if at:
            text = f"{program.name} sends no more words of color {color}"
            yield Cause("fewer words sent than the host reads", text, at)
        elif number == len(image.programs) - 1 and not uses:
            yield Cause("a stream that no PE sends", f"the host reads color {color}", program.name)


def _circle(image: Image, waiting: Sequence[Waiting]) -> Iterator[Cause]:
    """A circle of things that wait for each other."""
    follow = _followed(image, waiting)
    path, number = list[int](), 0
    while number not in path:
        path.append(number)
        if not follow[number]:
            return
        number = follow[number][0]
    circle = [waiting[k] for k in path[path.index(number) :]]
    shown = [each for each in circle if each.line and each.code != Reason.IN_ROUTER] or circle
    place = f"{shown[0].file}:{shown[0].line}" if shown[0].line else ""
    text = ", which waits for ".join(
        f"PE ({each.x}, {each.y}): {each.who} at {each.file}:{each.line} for {each.reason}"
        for each in shown
    )
    text += f", which waits for PE ({shown[0].x}, {shown[0].y})"
    yield Cause("a circle of waits", text, place)
