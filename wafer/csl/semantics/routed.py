"""Operations that a PE executes on colors that its layout leads nowhere.

Many programs have code for routes that carry nothing, so only an operation that every run of a
function or task executes, and whose end something waits for, is a mistake here; one that sends no
more words than queue, ramp and routers hold has an end.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from wafer.csl.syntax.source import CslError, Diagnostic, Position
from wafer.machine.arch import ARCHITECTURES, ROUTER_DEPTH, neighbor
from wafer.machine.codes import NO_SWITCH, Action, Gate, Op, Operand
from wafer.machine.image import COLUMNS, Image, Program
from wafer.machine.tools.reports import RAMP, SIDES, side_names, sides_of

_SWAPS = 0xC00
_MOST_CELLS = 4096  # PEs of a program that are looked at
_OPERANDS = ("dest", "src0", "src1", "scalar")


class _Use(NamedTuple):
    """An operation on a fabric descriptor that is known at compile time."""

    pc: int  #: its instruction
    color: int  #: of the descriptor or its queue
    sends: bool  #: whether it sends
    words: int  #: of its descriptor


def check_routed(image: Image) -> None:
    """Refuse operations on colors without a route, or with one that a neighbor does not take.

    Raises:
        CslError: an operation that can never end, at its line.
    """
    problems = dict[Position, Diagnostic]()
    for number, program in enumerate(image.programs):
        uses = [use for use in _uses(program, image.arch) if use.color not in image.streams]
        if not uses or Op.CONFIG_SET in program.code[:, 0]:
            continue
        cells = [(int(x), int(y)) for y, x in np.argwhere(image.tiles == number)[:_MOST_CELLS]]
        found = {use: (_problem(image, x, y, use) for x, y in cells) for use in uses}
        wrong = {use: text for use, its in found.items() if (text := next(filter(None, its), None))}
        for use in _executed(program, list(wrong)):
            file, line = program.lines[use.pc]
            at = Position(program.files[file], int(line), 1)
            problems.setdefault(at, Diagnostic(at, *wrong[use]))
    if problems:
        raise CslError(list(problems.values()))


def _uses(program: Program, arch: str) -> Iterator[_Use]:
    """Operations on constant fabric descriptors whose end is waited for."""
    operations, fabrics = program.tables["operations"], program.tables["fabrics"]
    queues = program.tables["queues"][:, 0]
    column = {name: k for k, name in enumerate(COLUMNS["operations"])}
    of_fabric = {name: k for k, name in enumerate(COLUMNS["fabrics"])}
    for pc in np.flatnonzero(program.code[:, 0] == Op.OPERATE):
        row = operations[program.code[pc, 2]]
        if row[column["asynchronous"]] and row[column["action"]] == Action.NONE:
            continue
        kinds = [row[column[name]] for name in _OPERANDS]
        places = np.cumsum([kind != Operand.NONE for kind in kinds]) - 1
        for kind, place in zip(kinds, places, strict=True):
            if kind != Operand.FABRIC:
                continue
            known = _constant(program, int(pc), int(program.code[pc, 3]) + int(place))
            if known is None or known[0] >= len(fabrics):
                continue
            index, words = known
            fabric = fabrics[index]
            sends, queue = bool(fabric[of_fabric["sends"]]), int(fabric[of_fabric["queue"]])
            color, bound = int(fabric[of_fabric["color"]]), -1
            if queue >= 0 and (not sends or arch == "wse3"):
                bound = int(queues[queue + 8 * sends])
            color = bound if bound >= 0 and (arch == "wse3" or color < 0) else color
            if color >= 0:
                yield _Use(int(pc), color, sends, words)


def _constant(program: Program, pc: int, register: int) -> tuple[int, int] | None:
    """Row and words of a descriptor that the instructions before one put into a register."""
    for op, _, a, b, _ in program.code[max(pc - 64, 0) : pc][::-1]:
        if op in (Op.JUMP, Op.RETURN, Op.FAULT):
            return None
        if a != register:
            continue
        if op == Op.COPY:
            register = int(b)
        else:
            return (int(b) & 0xFFFF, int(b) >> 16 & 0xFFFF) if op == Op.CONST else None
    return None


def _problem(image: Image, x: int, y: int, use: _Use) -> tuple[str, str] | None:
    """What is wrong with a color at a PE, and the likely fix."""
    color = use.color
    if int(image.colors[y, x, color]) & _SWAPS:
        return None  # it becomes another color
    if not sides_of(image, x, y, color, enter=use.sends) >> RAMP & 1:
        if use.sends and use.words <= _held(image):
            return None
        verb, field = ("sends on", "rx") if use.sends else ("receives from", "tx")
        route = (
            "has no route for it" if not image.routed[y, x, color] else f"has no RAMP in .{field}"
        )
        return (
            f"PE ({x}, {y}) {verb} color {color}, and its router {route}",
            f"add RAMP to .{field} of the color's .routes at this PE (@set_color_config)",
        )
    return _refusal(image, x, y, use) if use.sends else None


def _held(image: Image) -> int:
    """The most words that wait for a PE's router."""
    hardware = ARCHITECTURES[image.arch]
    return max(hardware.output_depths) + hardware.ramp_latency


def _refusal(image: Image, x: int, y: int, use: _Use) -> tuple[str, str] | None:
    """The first neighbor on a color's way that never takes it from the side by which it comes."""
    color = use.color
    height, width = image.tiles.shape
    seen, waiting = {(x, y)}, [(x, y)]
    while waiting:
        cell = waiting.pop()
        word, switch = (
            int(image.colors[cell[1], cell[0], color]),
            image.switches[cell[1], cell[0], color],
        )
        if word & _SWAPS or int(switch) & 0x777 != NO_SWITCH:
            continue  # where words go changes
        for bit, side in enumerate(SIDES[:RAMP]):
            other = neighbor(*cell, side)
            if not word >> bit & 1 or not (0 <= other[0] < width and 0 <= other[1] < height):
                continue
            program = image.tiles[other[1], other[0]]
            if program >= 0 and Op.CONFIG_SET in image.programs[program].code[:, 0]:
                continue
            taken = sides_of(image, *other, color, enter=True)
            if not taken >> (bit ^ 1) & 1:
                if use.words <= _held(image) + ROUTER_DEPTH * len(seen):
                    continue
                names = " and ".join(side_names(taken))
                takes = f"takes it from {names}" if names else "has no route for it"
                return (
                    f"PE ({x}, {y}) sends on color {color}, which PE {cell} routes to the {side},"
                    f" and PE {other} {takes}",
                    f"add {SIDES[bit ^ 1]} to .rx of color {color} at PE {other}",
                )
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return None


def _executed(program: Program, uses: list[_Use]) -> list[_Use]:
    """Those in every run of a function of the host, or of a task that is active at the start."""
    if not uses:
        return []
    own = {use.pc: 1 << k for k, use in enumerate(uses)}
    surely, found = _surely(program.code, own), 0
    runs = program.active & ~int(program.blocked[Gate.LOCAL])
    active = [int(pc) for task, pc in enumerate(program.local_tasks) if runs >> task & 1]
    for entry in (*program.functions.values(), *active, program.start):
        if entry >= 0:
            found |= surely[entry] & _reachable(program.code, entry, own)
    return [use for k, use in enumerate(uses) if found >> k & 1]


def _surely(code: np.ndarray, own: dict[int, int]) -> list[int]:
    """By instruction: the uses, as bits, that each way from it to a function's end executes."""
    every = sum(own.values())
    surely, changed = [every] * len(code) + [0], True
    while changed:
        changed = False
        for pc in range(len(code) - 1, -1, -1):
            op, target, after = int(code[pc, 0]), int(code[pc, 2]), surely[pc + 1]
            if op in (Op.JUMP_IF, Op.JUMP_UNLESS):
                after &= surely[target]
            elif op == Op.CALL:
                after |= surely[target]
            else:
                ends = {Op.RETURN: 0, Op.FAULT: every, Op.JUMP: surely[target % len(surely)]}
                after = ends.get(Op(op), after)
            after |= own.get(pc, 0)
            if after != surely[pc]:
                surely[pc], changed = after, True
    return surely


def _reachable(code: np.ndarray, entry: int, own: dict[int, int]) -> int:
    """The uses that a run from an instruction may come to."""
    seen, waiting, found = set[int](), [entry], 0
    while waiting:
        pc = waiting.pop()
        if pc in seen or pc >= len(code):
            continue
        seen.add(pc)
        found |= own.get(pc, 0)
        op, a = int(code[pc, 0]), int(code[pc, 2])
        if op in (Op.JUMP, Op.JUMP_IF, Op.JUMP_UNLESS, Op.CALL):
            waiting.append(a)
        if op not in (Op.JUMP, Op.RETURN, Op.FAULT):
            waiting.append(pc + 1)
    return found
