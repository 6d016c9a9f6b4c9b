"""Faults and what PEs wait for, in words: PE, task, file, line, cause, likely fix."""

import enum
from collections.abc import Sequence
from typing import NamedTuple

from wafer.machine.arch import neighbor
from wafer.machine.codes import DEEPEST_CALL, ports_at_any_position
from wafer.machine.image import ENTRIES, Image, Program
from wafer.machine.tools.flow import place_of

SIDES = ("WEST", "EAST", "SOUTH", "NORTH", "RAMP")
RAMP = SIDES.index("RAMP")
_MAIN = 8  # the number of the task's own thread


# As ``FaultKind`` in native/state.h.
Fault = enum.IntEnum(
    "Fault",
    """
    NO_FAULT SAME_CYCLE_ARRIVAL OFF_WAFER OUTSIDE_MEMORY UNBOUND_CONTROL MESSAGE DIVISION TOO_DEEP
    NO_COLOR NO_CONFIG DSR_NOT_LOADED NO_THREAD BAD_CODE WRONG_OPERAND OVERRUN OVERREAD NO_ELEMENTS
    EXCEPTION
    """,
    start=0,
)
_FAULTS = {
    Fault.SAME_CYCLE_ARRIVAL: "two wavelets of color {detail} arrived in one cycle{sides}; let"
    " only one neighbour or the ramp send at a time (a switch or another color)",
    Fault.OFF_WAFER: "a wavelet of color {detail} was routed off the wafer's edge; end the route"
    " in RAMP there",
    Fault.OUTSIDE_MEMORY: "byte address {detail} is outside of the {memory} bytes that the program"
    " declares; check the descriptor's offset and length, or the index",
    Fault.UNBOUND_CONTROL: "a control wavelet of color {detail} asks for control task {id}, which"
    " the program does not bind; bind it, or set the wavelet's NOCE bit",
    Fault.MESSAGE: "{message}",
    Fault.DIVISION: "integer division by zero",
    Fault.TOO_DEEP: f"more than {DEEPEST_CALL} calls within each other; does the recursion end?",
    Fault.NO_COLOR: "no color is bound to {direction} queue {detail}; call @initialize_queue first",
    Fault.NO_CONFIG: "there is no configuration register at word address 0x{detail:x} for a color"
    " or queue that this program configures",
    Fault.DSR_NOT_LOADED: "DSR {dsr} was used before a descriptor was loaded into it",
    Fault.NO_THREAD: "an asynchronous operation has no queue and so no microthread; name a queue",
    Fault.BAD_CODE: "instruction {detail} cannot be executed here",
    Fault.OVERRUN: "an operation writes beyond {variable}; shorten its descriptor (check_bounds)",
    Fault.OVERREAD: "an operation reads beyond {variable}; shorten its descriptor (check_bounds)",
    Fault.WRONG_OPERAND: "an output descriptor is read, an input descriptor is written, or there is"
    " no such one",
    Fault.NO_ELEMENTS: "an operand has an extent of 0 beside operands that have elements; make each"
    " extent of its mem4d_dsd at least 1",
    Fault.EXCEPTION: "a result of floats raises an exception that the program has unmasked (bits"
    " 0x{detail:x} of <tile_config>.exceptions)",
}
_TASKS = ("local task", "data task", "control task", "teardown handler of color",
          "empty-queue handler of output queue", "function", "start")  # fmt: skip
_TABLES = tuple(ENTRIES)  # of a program, in the order of those
# Why something waits, as ``Reason`` in native/machine.h.
Reason = enum.IntEnum(
    "Reason",
    """
    NO_REASON FOR_DATA FOR_ROOM FIFO_EMPTY FIFO_FULL THREAD_BLOCKED TASK_BLOCKED WORD_UNREAD
    FOR_COMMAND IN_ROUTER FOR_THREAD
    """,
    start=0,
)
_REASONS = {
    Reason.NO_REASON: "its turn",
    Reason.FOR_DATA: "data of color {detail}",
    Reason.FOR_ROOM: "room in output queue {detail}",
    Reason.FIFO_EMPTY: "data in FIFO {detail}",
    Reason.FIFO_FULL: "room in FIFO {detail}",
    Reason.THREAD_BLOCKED: "being unblocked",
    Reason.TASK_BLOCKED: "being unblocked (it is activated)",
    Reason.WORD_UNREAD: "a task or operation that takes the wavelet of color {detail} at the head"
    " of its queue",
    Reason.FOR_COMMAND: "unblock_cmd_stream() after {task}",
    Reason.FOR_THREAD: "microthread {detail} to end its operation",
}  # of a router: see _held
_SUBJECTS = {
    Reason.WORD_UNREAD: "input queue",
    Reason.FOR_COMMAND: "host",
    Reason.IN_ROUTER: "router",
}  # of reasons that are nobody's task


class Waiting(NamedTuple):
    """What something on a PE waits for."""

    x: int  #: x, y: the PE
    y: int
    who: str  #: 'local task 8', 'microthread 2 of local task 8', 'router', …
    reason: str  #: what for
    #: file, line: of the instruction, or of a router's configuration; '' and 0 if there is none. Of
    #: a ``Layout``, its operation and 0
    file: str
    line: int
    code: int = 0  #: a ``Reason``; docs/guides/csl.md lists them by their words
    detail: int = -1  #: its color, queue, FIFO or task
    refused: tuple[str, ...] = ()  #: sides of a router whose neighbors never take the word
    full: tuple[str, ...] = ()  #: those whose neighbors, or RAMP whose PE, have no room for it
    outside: bool = False  #: whether the router lets nothing in from its PE

    @property
    def place(self) -> str:
        """File and line, or ''."""
        return f"{self.file}:{self.line}" if self.line else self.file

    def __str__(self) -> str:
        where = f" ({self.place})" if self.place else ""
        return f"PE ({self.x}, {self.y}): {self.who} waits for {self.reason}{where}"


def program_of(image: Image, x: int, y: int) -> Program | None:
    """Return the program of a PE; None if it has none.

    Args:
        image: compiled.
        x: column of the PE.
        y: row of the PE.
    """
    index = image.tiles[y, x]
    return None if index < 0 else image.programs[index]


def task_label(program: Program | None, task: int, number: int) -> str:
    """Return a task by the name that the source gives it, and what it is.

    Args:
        program: that runs; None: not known.
        task: kind of task.
        number: of the task in its kind.
    """
    if _TASKS[task] == "start":
        return "what runs before the first task"
    called, what = _TASKS[task] == "function", f"{_TASKS[task]} {number}"
    if program is None:
        return what
    entry = number if called else getattr(program, _TABLES[task])[number]
    named = program.functions if called else program.tasks
    name = next((name for name, pc in named.items() if pc == entry), "")
    if called:
        return f"function {name or '?'}"
    return f"{name} ({what})" if name else what


def fault_message(image: Image, numbers: Sequence[int]) -> str:
    """Say what has gone wrong.

    Args:
        image: that ran.
        numbers: kind, cell, task, its id, instruction, detail.
    """
    kind, cell, task, number, pc, detail = (int(n) for n in numbers)
    y, x = divmod(cell, image.tiles.shape[1])
    program = program_of(image, x, y)
    file, line = place_of(program, pc)
    messages = program.messages if program else ()
    arrives = kind == Fault.SAME_CYCLE_ARRIVAL
    sides = side_names(int(image.colors[y, x, detail]) >> len(SIDES)) if arrives else ()
    text = _FAULTS[Fault(kind)].format(
        sides=f", and its .rx names {' and '.join(sides)}" if len(sides) > 1 else "",
        detail=detail,
        direction="input" if pc >= 0 else "output",
        id=number,
        memory=0 if program is None else len(program.memory),
        dsr=f"{('dest', 'src0', 'src1', '?')[detail >> 8 & 3]} {detail & 255}",
        variable=_overrun(program, detail) if kind >= Fault.OVERRUN else "",
        message=messages[detail] if kind == Fault.MESSAGE and 0 <= detail < len(messages) else "",
    )
    who = f", {task_label(program, task, number)}" if pc >= 0 else ""
    source = f"{file}:{line}: " if line else f"{file}: " if file else ""  # a Layout has no lines
    return f"{source}PE ({x}, {y}){who}: {text}"


def _overrun(program: Program | None, detail: int) -> str:
    """The variable that an operand begins in, and the bytes up to its last one."""
    base, last = detail >> 32, (detail & 0xFFFFFFFF) - ((detail & 0x80000000) << 1)
    if program is None or (found := program.variable_at(base)) is None:
        return "its variable"
    name, symbol = found
    first, last = base - symbol.address, last - symbol.address
    return f"'{name}' of type {symbol.type}: bytes {first} to {last} of {symbol.bytes}"


def waiting_for(image: Image, row: Sequence[int]) -> Waiting:
    """A row of the machine's report in words.

    Args:
        image: that ran.
        row: column, row, thread, task, its id, reason, detail, instruction.
    """
    x, y, thread, task, number, code, detail, pc = (int(n) for n in row)
    reason = Reason(code)
    if reason == Reason.IN_ROUTER:
        return _held(image, row)
    program = program_of(image, x, y)
    label = task_label(program, task, number) if task >= 0 else ""
    if reason == Reason.FOR_COMMAND:
        pc = number
    who = _SUBJECTS.get(reason, label)
    if 0 <= thread < _MAIN:
        who = f"microthread {thread} of {who}"
    file, line = place_of(program, pc)
    text = _REASONS[reason].format(detail=detail, task=label)
    routed = reason != Reason.FOR_DATA or detail < 0 or detail in image.streams
    if not routed and not sides_of(image, x, y, detail, enter=False) >> RAMP & 1:
        text += ", which no route of this PE brings to RAMP"
    return Waiting(x, y, who, text, file, line, reason, detail)


def sides_of(image: Image, x: int, y: int, color: int, *, enter: bool) -> int:
    """Return the sides by which a color may enter or leave a router, at any switch position.

    Args:
        image: compiled.
        x: column of the PE.
        y: row of the PE.
        color: of the words.
        enter: whether they enter.

    Returns:
        Bits W E S N RAMP.
    """
    word, switch = (table[y, x, color] for table in (image.colors, image.switches))
    return int(ports_at_any_position(word, switch)[not enter])


def side_names(mask: int) -> tuple[str, ...]:
    """Return the sides in a mask of ports.

    Args:
        mask: bits in the order of ``arch.PORTS``.
    """
    return tuple(side for bit, side in enumerate(SIDES) if mask >> bit & 1)


def place_of_route(image: Image, x: int, y: int, color: int) -> str:
    """Return the file and line that configure a color at a PE; '' if none does, or is known.

    Args:
        image: compiled.
        x: column of the PE.
        y: row of the PE.
        color: of the route.
    """
    lines = image.route_lines
    return "" if lines is None else image.route_places[int(lines[y, x, color])]


def _taking(image: Image, x: int, y: int, color: int, sides: int) -> str:
    """From where a router takes a color, and the line that says so."""
    if not image.routed[y, x, color]:
        return f"which has no route for color {color}"
    place = place_of_route(image, x, y, color)
    names = " and ".join(side_names(sides)) or "nowhere"
    return f"which takes it from {names}{f' ({place})' if place else ''}"


def _held(image: Image, row: Sequence[int]) -> Waiting:
    """What a word in a router, or on the ramp to it, waits for: `held` in native/machine.cc."""
    x, y, refused, full, outside, _, color, rx = row
    sides, busy = side_names(refused), side_names(full)
    if outside:
        text = f"the router to let in color {color} from RAMP, {_taking(image, x, y, color, rx)}"
    elif sides:
        other, back = neighbor(x, y, sides[0]), SIDES[SIDES.index(sides[0]) ^ 1]
        text = (
            f"PE {other} to the {sides[0]} to take color {color} from its {back},"
            f" {_taking(image, *other, color, rx)}"
        )
    else:
        there = busy and busy[0] != "RAMP"
        whose = f"PE {neighbor(x, y, busy[0])} to the {busy[0]}" if there else "the PE's queue"
        text = f"{whose} to have room for color {color}"
    file, _, line = place_of_route(image, x, y, color).rpartition(":")
    where = text, file, int(line or 0), Reason.IN_ROUTER, color
    return Waiting(x, y, _SUBJECTS[Reason.IN_ROUTER], *where, sides, busy, bool(outside))
