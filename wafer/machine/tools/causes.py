"""What a deadlock is likely due to: its kind, then PE, task and color, then file and line.

In a deadlock each of the waiting things waits for others that wait, in chains. What ends a chain is
likely the cause: a word that no router will ever take, then what waits for nothing that waits
itself; without an end it is a circle. What the programs do with a color is read from their code.
"""

import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

import numpy as np

from wafer.machine.arch import neighbor
from wafer.machine.codes import Action, Gate, Intrinsic, Op
from wafer.machine.image import Image, Program
from wafer.machine.tools.flow import (
    FabricUse,
    actions,
    fabric_uses,
    line_of,
    place_of,
    reachable,
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
Cause = tuple[str, str, str]  # its kind, as docs/guides/csl-deadlocks.md lists them; text; place
_KINDS = {
    Reason.THREAD_BLOCKED: "a blocked microthread",
    Reason.FIFO_EMPTY: "an empty FIFO",
    Reason.FIFO_FULL: "a full FIFO",
    Reason.FOR_THREAD: "a microthread that still runs",
}
_AT_REST = (Reason.FOR_COMMAND, Reason.WORD_UNREAD, Reason.TASK_BLOCKED)  # no operation


def by_cause(image: Image, reported: Sequence[object]) -> list[object]:
    """Return what waits, the likely causes first.

    Args:
        image: that ran.
        reported: of the machine, in the order of the PEs; the text of the JAX machine keeps it.
    """
    waits = _Waits(image, reported)
    return [each for _, each in waits.ranked()] or list(reported)


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
    waits = _Waits(image, reported)
    ranked = waits.ranked()
    found = [cause for rank, each in ranked if rank < 2 for cause in waits.causes(each, held)]
    if ranked and ranked[0][0] == 2:
        found = [waits.circle()]
    if not reported and read is not None:
        found = list(waits.unsent(read))
    groups = defaultdict[tuple[str, str], list[str]](list)
    for kind, text, place in found:
        groups[kind, place].append(text)
    lines, ordered = list[str](), sorted(groups.items(), key=lambda item: item[0][0] == COMMAND)
    for (kind, place), texts in ordered[:_MOST]:
        pes = {text.partition(":")[0] for text in texts}  # a text begins with its PE
        more = f", and {len(pes) - 1} more PE{'s' * (len(pes) > 2)}" if len(pes) > 1 else ""
        lines.append(f"{kind}: {texts[0]}" + (f" ({place})" if place else "") + more)
    return [each for _, each in ranked] or list(reported), lines


class _Waits:
    """Things that wait, and what the programs of their image do with colors."""

    def __init__(self, image: Image, reported: Sequence[object]) -> None:
        self.image = image
        self.waiting = [each for each in reported if isinstance(each, Waiting)]
        self.of_host = {*image.streams, *(port.color for port in image.ports.values())}
        self.uses, self.before = functools.cache(self._uses), functools.cache(self._before)
        self.at = defaultdict[Cell, list[Waiting]](list)
        for each in self.waiting:
            self.at[each.x, each.y].append(each)

    def _holds_up(self, other: Waiting, each: Waiting) -> bool:
        """Whether one thing waits for another, on a PE where it may."""
        here, same = (other.x, other.y) == (each.x, each.y), other.detail == each.detail
        routed, unread = other.code == Reason.IN_ROUTER, other.code == Reason.WORD_UNREAD
        if each.code == Reason.IN_ROUTER:
            return same and not here if routed else here and (same or not unread)
        if each.code == Reason.FOR_ROOM:
            colors = self._colors(each)
            return routed and (not colors or other.detail in colors)
        if each.code == Reason.FOR_DATA and each.detail >= 0:
            return same if routed else not here and not unread
        if other.code in _AT_REST:
            unstarted = each.code in (Reason.WORD_UNREAD, Reason.FOR_COMMAND)
            return unstarted and other.code == Reason.TASK_BLOCKED
        served = other.code == Reason.FOR_DATA and other.detail in self.of_host
        return not routed and not served

    def _next(self, each: Waiting) -> Waiting | None:
        """The nearest waiting thing that it waits for."""
        cells = iter([(each.x, each.y)])
        if each.code == Reason.IN_ROUTER:
            cells = (neighbor(each.x, each.y, side) for side in each.full)
        elif each.code == Reason.FOR_DATA and each.detail >= 0:
            cells = self._upstream(each)
        others = (other for cell in cells for other in self.at.get(cell, ()))
        return next((o for o in others if o != each and self._holds_up(o, each)), None)

    def ranked(self) -> list[tuple[int, Waiting]]:
        """0: a word that no router takes; 1: it waits for nothing that waits; 2: the rest."""
        refused = lambda each: each.refused or (each.outside and not self._may_enter(each))
        rank = lambda each: 0 if refused(each) else 1 + bool(self._next(each))
        return sorted(((rank(each), each) for each in self.waiting), key=lambda ranked: ranked[0])

    def _before(self, x: int, y: int, color: int) -> list[Cell]:
        """The neighbors that may route a color to a PE, as they are configured."""
        height, width = self.image.tiles.shape
        sides = side_names(sides_of(self.image, x, y, color, enter=True) & (1 << RAMP) - 1)
        cells = ((SIDES.index(side) ^ 1, *neighbor(x, y, side)) for side in sides)
        return [
            (left, top)
            for back, left, top in cells
            if 0 <= left < width and 0 <= top < height
            if sides_of(self.image, left, top, color, enter=False) >> back & 1
        ]

    def _upstream(self, each: Waiting) -> Iterator[Cell]:
        """The PEs by whose routers words of its color come, itself the first, then the nearest."""
        cells = [(each.x, each.y)]
        seen = {*cells}
        for cell in cells:  # the list grows
            yield cell
            if len(cells) < _LONGEST:
                new = [c for c in self.before(*cell, each.detail) if c not in seen]
                cells += new
                seen.update(new)

    def _uses(self, number: int) -> list[FabricUse | None]:
        """Operations of a program on the fabric; None: it is not known on which color."""
        image = self.image
        return list(fabric_uses(image.programs[number], image.arch)) if number >= 0 else []

    def _sent(self, *cells: Cell) -> list[tuple[Cell, FabricUse]]:
        """Operations of PEs that send, and where."""
        tiles = self.image.tiles
        uses = ((cell, use) for cell in cells for use in self.uses(int(tiles[cell[1], cell[0]])))
        return [(cell, use) for cell, use in uses if use and use.sends]

    def _colors(self, each: Waiting) -> set[int]:
        """The colors that an operation waits for."""
        if each.code == Reason.FOR_DATA:
            return {each.detail}
        sent = self._sent((each.x, each.y)) if each.code == Reason.FOR_ROOM else []
        return {use.color for _, use in sent if use.place == each.place}

    def _senders(self, each: Waiting) -> tuple[list[Cell], list[str]]:
        """The PEs, itself included, whose words of its color may come, and the lines that send."""
        image, color = self.image, each.detail
        on_the_way = self._upstream(each)
        cells = [c for c in on_the_way if sides_of(image, *c, color, enter=True) >> RAMP & 1]
        sent = [(cell, use.place) for cell, use in self._sent(*cells) if use.color == color]
        return cells, [f"PE {cell} sends at {place}" for cell, place in sent]

    def causes(self, each: Waiting, held: Set[int]) -> Iterator[Cause]:
        """Yield the causes behind something that waits for nothing that waits."""
        program = program_of(self.image, each.x, each.y)
        for kind, text, place in self._causes(each, held):
            yield kind, text + _called(program, place), place

    def _causes(self, each: Waiting, held: Set[int]) -> Iterator[Cause]:
        where, place, code = f"PE ({each.x}, {each.y})", each.place, each.code
        waits = f"{where}: {each.who} waits for {each.reason}"
        program = program_of(self.image, each.x, each.y)
        streamed = self._colors(each) & self.of_host
        if streamed:
            kinds = "words that the host does not read", "fewer words from the host than taken"
            kind = HELD if streamed & held else kinds[code == Reason.FOR_DATA]
            yield kind, waits, place
        elif each.refused or each.outside:
            kind = "no route from the PE" if each.outside else "a neighbor that takes no word"
            if self._may_enter(each) if each.outside else self._may_take(each):
                kind = "a switch that is not advanced"
            sent = self._sent((each.x, each.y))
            yield kind, waits, place or (sent[0][1].place if sent else "")
        elif code == Reason.FOR_DATA:
            yield self._missing(each, waits)
        elif program is None or code not in _AT_REST:
            yield _KINDS.get(Reason(code), "a wait without an end"), waits, place
        elif code == Reason.WORD_UNREAD:
            yield from self._unread(program, each, where)
        elif code == Reason.TASK_BLOCKED:
            waits += f"; {_unblocks(program, Gate.LOCAL, each.detail)}"
            place = line_of(program, int(program.local_tasks[each.detail]))
            yield "a blocked local task", waits, place
        else:
            yield _not_freed(program, each, where)

    def _may_enter(self, each: Waiting) -> bool:
        """Whether another switch position of a router lets in what waits on its ramp."""
        return bool(sides_of(self.image, each.x, each.y, each.detail, enter=True) >> RAMP & 1)

    def _may_take(self, each: Waiting) -> bool:
        """Whether another switch position of a neighbor takes the word that a router holds."""
        side = each.refused[0]
        cell, back = neighbor(each.x, each.y, side), SIDES.index(side) ^ 1
        return bool(sides_of(self.image, *cell, each.detail, enter=True) >> back & 1)

    def _losses(self, each: Waiting) -> str:
        """What a PE's router does to words of a color before its queue, in words."""
        image, where = self.image, (each.y, each.x, each.detail)
        filters, switched = image.filters[where][0], not int(image.colors[where]) >> RAMP & 1
        means = ["a filter"] * bool(filters) + ["a switch position without RAMP"] * switched
        place = place_of_route(image, each.x, each.y, each.detail)
        return f"; its router has {' and '.join(means)} ({place})" if means else ""

    def _missing(self, each: Waiting, waits: str) -> Cause:
        """Why no more data of a color come to an operation."""
        cells, senders = self._senders(each)
        if "no route" in each.reason:
            kind = "no RAMP in the route"
        elif not cells:
            kind, where = "no route to the PE", (self.image, each.x, each.y, each.detail)
            sides = " and ".join(side_names(sides_of(*where, enter=True))) or "nowhere"
            waits += f", which its router takes from {sides}, where no route leads it"
            waits += f" ({place_of_route(*where)})"
        elif senders or any(None in self.uses(int(self.image.tiles[y, x])) for x, y in cells):
            kind, others = "fewer words sent than taken", ", ".join(senders[:2])
            waits += ", of which no more come" + (others and f"; {others}")
            waits += self._losses(each)
        else:
            kind, colors = "a color that no PE sends", {use.color for _, use in self._sent(*cells)}
            others = ", ".join(map(str, sorted(colors)))
            waits += ", which no PE on its way sends" + (others and f"; they send {others}")
        return kind, waits, each.place

    def _unread(self, program: Program, each: Waiting, where: str) -> Iterator[Cause]:
        """Why words at the head of a queue are not taken."""
        image, color = self.image, each.detail
        _, senders = self._senders(each)
        sent = ", ".join(senders[:2]) or "the host sends them"
        queues = np.flatnonzero(program.tables["queues"][:8, 0] == color).tolist()
        for task in [color] if image.arch == "wse2" else queues:
            if (entry := int(program.data_tasks[task])) >= 0:
                name = next((name for name, pc in program.tasks.items() if pc == entry), "?")
                text = f"{where}: words of color {color} wait for data task '{name}'"
                blocked = (program.blocked >> task & 1).any() or Op.BLOCK in program.code[:, 0]
                kind = "a blocked data task" if blocked else "a control wavelet without a task"
                text += f"; {_unblocks(program, Gate.DATA, task) if blocked else sent}"
                yield kind, text, line_of(program, entry)
                return
        for cell in self._upstream(each) if len(senders) > 1 else ():
            sides = side_names(int(image.colors[cell[1], cell[0], color]) >> len(SIDES) & 31)
            if len(sides) > 1:
                text = f"PE {cell}: its router takes color {color} from {' and '.join(sides)}"
                place = place_of_route(image, *cell, color)
                yield "two senders into one router", f"{text}; {sent}", place
                break
        uses = [
            use for use in self.uses(int(image.tiles[each.y, each.x])) if not use or not use.sends
        ]
        taking = [use.place for use in uses if use and use.color == color]
        if taking:
            text = f"{where}: words of color {color} are left when its operations have ended"
            yield "more words sent than taken", f"{text}; {sent}", taking[0]
        elif None not in uses:
            text = f"{where}: no task or operation takes words of color {color}"
            yield "words that nothing takes", text, sent

    def unsent(self, color: int) -> Iterator[Cause]:
        """Yield operations that sent to the host, which reads more words of a stream than came."""
        sent = 0
        for number, program in enumerate(self.image.programs):
            for use in filter(None, self.uses(number)):
                sent += use.sends
                if use.sends and use.color == color:
                    text = f"{program.name} sends no more words of color {color}"
                    yield "fewer words sent than the host reads", text, use.place
        if not sent:
            text, name = f"the host reads color {color}", self.image.programs[-1].name
            yield "a stream that no PE sends", text, name

    def circle(self) -> Cause:
        """Return a circle of things that wait for each other; each waits for another."""
        path = self.waiting[:1]
        while (after := self._next(path[-1])) and after not in path:
            path.append(after)
        circle = path[path.index(after) :] if after else path
        shown = [each for each in circle if each.line and each.code != Reason.IN_ROUTER] or circle
        waits = [f"PE ({e.x}, {e.y}): {e.who} at {e.place} for {e.reason}" for e in shown]
        text = ", which waits for ".join([*waits, f"PE ({shown[0].x}, {shown[0].y})"])
        return "a circle of waits", text, shown[0].place


def _unblocks(program: Program, gate: int, number: int) -> str:
    """Where a program unblocks a task, in words."""
    for pc, action, target in actions(program):
        if action == Action.UNBLOCK + gate and target in (number, None):
            return f"{line_of(program, pc)} would unblock it"
    return "nothing in its program unblocks it"


def _not_freed(program: Program, each: Waiting, where: str) -> Cause:
    """Why a call does not free the command stream."""
    for task, pc in unbound_activations(program):
        text = f"{where}: local task {task} is activated, and no task is bound to it"
        return "a local task without code", text, line_of(program, pc) or program.name
    frees = (program.code[:, :2] == (Op.INTRINSIC, Intrinsic.NEXT_COMMAND)).all(axis=1)
    which = {*np.flatnonzero(frees)}
    callers = {name: pc for name, pc in program.tasks.items() if reachable(program, pc) & which}
    why = f"{' or '.join(callers)}, which may call it, has not" if callers else "nothing calls it"
    bound = [entry in callers.values() for entry in program.local_tasks.tolist()]
    starts = [(pc, task) for pc, action, task in actions(program) if action == Action.ACTIVATE]
    at = [pc for pc, task in starts if task is not None and bound[task]]
    why += _two("activated", program, at)
    if any(bound) and not at and all(task is not None for _, task in starts):
        why += "; nothing activates it"
    called = each.reason.partition(" after ")[2]
    return COMMAND, f"{where}: {called} has returned, and {why}", each.place


def _called(program: Program | None, place: str) -> str:
    """Where a program's own file calls functions of the folder of a place, a library's."""
    if program is None:
        return ""
    folder, calls = Path(place).parent, list[int]()
    for pc in np.flatnonzero(program.code[:, 0] == Op.CALL).tolist():
        here, there = place_of(program, pc)[0], place_of(program, int(program.code[pc, 2]))[0]
        if here.endswith(program.name) and Path(here).parent != folder == Path(there).parent:
            calls.append(pc)
    return _two("called", program, calls)


def _two(what: str, program: Program | None, instructions: Sequence[int]) -> str:
    """The first two places of instructions, and what is done there; '' if there are none."""
    places = list(dict.fromkeys(line_of(program, pc) for pc in instructions))[:2]
    return f"; {what} at {' and '.join(places)}" if places else ""
