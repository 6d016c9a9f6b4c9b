"""Operations that a PE executes on colors that its layout leads nowhere.

Many programs have code for routes that carry nothing, so only an operation that every run of a
function or task executes, and whose end something waits for, is a mistake here; one that sends no
more words than queue, ramp and routers hold has an end.
"""

from collections.abc import Iterator

import numpy as np

from wafer.csl.syntax.source import Diagnostic, Position
from wafer.machine.arch import ARCHITECTURES, ROUTER_DEPTH, neighbor
from wafer.machine.codes import NO_SWITCH, Action, Gate, Op
from wafer.machine.image import Image, Program
from wafer.machine.tools.flow import (
    FabricUse,
    fabric_uses,
    place_of,
    reachable,
    row_of,
    unbound_activations,
)
from wafer.machine.tools.reports import RAMP, SIDES, side_names, sides_of

_SWAPS = 0xC00
_MOST_CELLS = 4096  # PEs of a program that are looked at


def misrouted(image: Image) -> Iterator[Diagnostic]:
    """Name operations on colors without a route, or with one that a neighbor does not take.

    Each can never end. The vendor's compiler takes them.
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
    yield from problems.values()


def unbound_tasks(image: Image) -> Iterator[Diagnostic]:
    """Name local tasks that programs activate and do not bind."""
    for program in image.programs:
        for task, pc in unbound_activations(program):
            file, line = place_of(program, pc)
            at = Position(file or program.name, line or 1, 1)
            message = f"local task {task} is activated here, and no task is bound to it"
            yield Diagnostic(at, message, f"@bind_local_task(…, @get_local_task_id({task}))")


def _uses(program: Program, arch: str) -> Iterator[FabricUse]:
    """Operations on constant fabric descriptors whose end is waited for."""
    for use in filter(None, fabric_uses(program, arch)):
        op, _, row = program.code[use.pc, :3].tolist()
        if op == Op.OPERATE:
            operation = row_of(program, "operations", row)
            if not operation["asynchronous"] or operation["action"] != Action.NONE:
                yield use


def _problem(image: Image, x: int, y: int, use: FabricUse) -> tuple[str, str] | None:
    """What is wrong with a color at a PE, and the likely fix."""
    color = use.color
    if color < 0:
        queue = f"{'output' if use.sends else 'input'} queue {-1 - color}"
        fix = "call @initialize_queue(queue, .{ .color = … }) in a comptime block"
        return f"no color is bound to {queue} of PE ({x}, {y})", fix
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


def _refusal(image: Image, x: int, y: int, use: FabricUse) -> tuple[str, str] | None:
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


def _executed(program: Program, uses: list[FabricUse]) -> list[FabricUse]:
    """Those in every run of a function of the host, or of a task that is active at the start."""
    if not uses:
        return []
    own = {use.pc: 1 << k for k, use in enumerate(uses)}
    surely, found = _surely(program.code, own), 0
    runs = program.active & ~int(program.blocked[Gate.LOCAL])
    active = [int(pc) for task, pc in enumerate(program.local_tasks) if runs >> task & 1]
    for entry in (*program.functions.values(), *active, program.start):
        if entry >= 0:
            found |= surely[entry] & sum(own.get(pc, 0) for pc in reachable(program, entry))
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
