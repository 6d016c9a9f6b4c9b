"""What can be known to be wrong with a program before it runs, named by PE and color."""

import itertools
from collections.abc import Iterator, Mapping
from numbers import Integral

import numpy as np

from wafer.fabric.errors import FabricError, RouteError
from wafer.fabric.program.ops import (
    TYPES,
    Const,
    FabIn,
    FabOut,
    Mem,
    Op,
    Operand,
    WaveletArg,
    builtin_of,
)
from wafer.fabric.program.tables import Port, Program, first_pe
from wafer.machine.arch import OPPOSITE, STEPS

_INPUT_QUEUES = 8
# Levels of microthreads (``.priority`` of an asynchronous operation), and of a task's own thread
# (``<tile_config>/main_thread_priority``), as an image has them.
THREAD_LEVELS = {"low": 0, "medium": 1, "high": 2}
MAIN_LEVELS = {"medium_low": 3, "medium": 4, "medium_high": 5, "high": 6}
Sides = tuple[np.ndarray, np.ndarray]  # [H, W] masks of Port: rx, tx
_Problem = tuple[np.ndarray, str]  # [H, W] where something is wrong, and what
_KINDS = ("work", "mov", "add", "sub", "mul", "mac", "max")
_ACTIONS = ("activate", "block", "unblock")
_WRITTEN, _READ = (Mem, FabOut), (Mem, FabIn, Const, WaveletArg)


def _neighbor(plane: np.ndarray, side: str) -> np.ndarray:
    """Each PE's view of its neighbor's value: out[y, x] = plane[y + dy, x + dx], or 0."""
    (dx, dy), (height, width) = STEPS[side], plane.shape
    return np.pad(plane, 1)[1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]


def _check_operation(op: Op, program: Program) -> None:
    """Raise if an operation names what there is not."""
    spec, tasks = program.spec, [task.name for task in program.tasks]
    if op.kind not in _KINDS or op.dtype not in TYPES or not isinstance(op.n, Integral) or op.n < 1:
        raise FabricError(f"operation {op.kind!r} on {op.dtype}, n={op.n}: unknown or empty")
    name = builtin_of(op)
    if op.thread is not None and not 0 <= op.thread < spec.microthreads:
        raise FabricError(f"{name}: microthread {op.thread}; a PE has {spec.microthreads}")
    if isinstance(op.dst, FabOut) and op.dst.control and op.dtype != "uint32":
        raise FabricError(f"{name} on {op.dtype}: control wavelets are uint32; use mov32")
    if op.priority not in THREAD_LEVELS or program.main not in MAIN_LEVELS:
        raise FabricError(
            f"{name}: priority {op.priority!r} of a microthread is one of {list(THREAD_LEVELS)},"
            f" {program.main!r} of the task one of {list(MAIN_LEVELS)}"
        )
    for action, task in op.on_done:
        if task not in tasks or action not in _ACTIONS:
            raise FabricError(f"{name}: {action} {task!r}: bound tasks are {tasks}")
    for operand in op.operands:
        if operand is not None:
            _check_operand(op, operand, program)
    if op.position is not None:
        _check_position(*op.position, program)


def _check_operand(op: Op, operand: Operand, program: Program) -> None:
    name = builtin_of(op)
    role, allowed = ("destination", _WRITTEN) if operand is op.dst else ("source", _READ)
    if not isinstance(operand, allowed):
        names = ", ".join(kind.__name__ for kind in allowed)
        raise FabricError(f"{name}: {role} {operand!r}; expected one of {names}")
    if isinstance(operand, FabIn | FabOut):
        _check_color(name, operand.color, program)
    elif isinstance(operand, Mem):
        arrays = {array.name: array.words for array in program.arrays}
        if operand.array not in arrays:
            raise FabricError(f"{name}: no array {operand.array!r}; declared: {list(arrays)}")
        i, inner = np.arange(op.n), operand.inner or op.n
        used = operand.offset + operand.stride * (i % inner) + operand.outer * (i // inner)
        words = arrays[operand.array]
        if used.min() < 0 or used.max() >= words:
            raise FabricError(
                f"{name}: words {used.min()} to {used.max()} of array {operand.array!r}, which has"
                f" {words}"
            )


def _check_position(color: int, position: int, program: Program) -> None:
    _check_color("exit_teardown", color, program)
    last = program.spec.switch_positions + len(program.colors[color].reroutes) - 1
    if not 0 <= position <= last:
        raise RouteError(
            f"exit_teardown: position {position} of color {color}; it has 0..{last}, those behind"
            f" {program.spec.switch_positions - 1} by Layout.route(..., reroutes=)"
        )


def _check_color(name: str, color: int, program: Program) -> None:
    if color not in program.colors:
        raise RouteError(f"{name}: color {color} is not declared")


def check_program(program: Program) -> None:
    """Raise for the first operation, route or descriptor that cannot work.

    Raises:
        RouteError: see :meth:`wafer.fabric.Layout.build`.
        FabricError: an operation that names what there is not, or such a control task.
    """
    for number, ops in enumerate(program.code):
        for op in ops:
            try:
                _check_operation(op, program)
            except FabricError as error:
                raise type(error)(f"{_place(number, program)}: {error}") from None
    sides = {number: color.sides for number, color in program.colors.items()}
    for bad, text in itertools.chain(_routes(program, sides), _descriptors(program, sides)):
        if bad.any():
            raise RouteError(first_pe(bad) + text)
    for task in program.tasks:
        if task.kind == "control" and not 0 <= task.key < 64:
            raise FabricError(
                f"{first_pe(task.entry >= 0)}, task {task.name!r}: control task id {task.key};"
                " ids are 0..63"
            )


def _place(number: int, program: Program) -> str:
    """Return the first PE that has a list of operations, and its task, for messages."""
    there = {task.name: task.entry == number for task in program.tasks}
    name = next((name for name, mask in there.items() if mask.any()), program.tasks[0].name)
    return f"{first_pe(there[name])}, task {name!r}"


def _routes(program: Program, sides: Mapping[int, Sides]) -> Iterator[_Problem]:
    """What can be wrong with each color's routes."""
    inside, spec = np.ones((program.height, program.width), int), program.spec
    for number, (rx, tx) in sides.items():
        swaps, partner = program.colors[number].swaps, program.colors.get(number ^ 1)
        prefix = f", color {number}: "
        yield swaps * (not spec.color_swap) != 0, f"{prefix}{spec.name} cannot swap colors"
        yield (
            swaps != (0 if partner is None else partner.swaps),
            f"{prefix}it swaps with color {number ^ 1}, which must be declared and swap along the"
            " same axes here",
        )
        for side, opposite in OPPOSITE.items():
            for name, mask in (("tx", tx), ("rx", rx)):
                yield (
                    (mask & Port[side] != 0) & (_neighbor(inside, side) == 0),
                    f"{prefix}{name} {side} points off the grid of {tx.shape[1]}x{tx.shape[0]} PEs",
                )
            swapped = swaps & (1 if side in "EW" else 2) != 0
            other = sides.get(number ^ 1, (rx, tx))[0]
            takes = np.where(swapped, _neighbor(other, side), _neighbor(rx, side)) & Port[opposite]
            yield (
                (tx & Port[side] != 0) & (takes == 0),
                f"{prefix}sent {side}, but the neighbour there never takes the color from its"
                f" {opposite}; add rx {opposite} to its route",
            )
        yield (rx == 0) & (tx != 0), f"{prefix}leaves the router but never enters"


def _descriptors(program: Program, sides: Mapping[int, Sides]) -> Iterator[_Problem]:
    """What operations and data tasks need of the routers, and CEs of their queues."""
    enters: dict[type, dict[int, np.ndarray]] = {
        FabIn: {n: tx & Port.RAMP != 0 for n, (_, tx) in sides.items()},
        FabOut: {n: rx & Port.RAMP != 0 for n, (rx, _) in sides.items()},
    }
    for number, ops in enumerate(program.code):
        mask = np.any([task.entry == number for task in program.tasks], axis=0)
        for op, operand in ((own, o) for own in ops for o in own.operands):
            if isinstance(operand, FabIn | FabOut):
                yield (
                    mask & ~enters[type(operand)][operand.color],
                    f", color {operand.color}: {builtin_of(op)} uses it, but the PE's router has no"
                    f" {'tx' if isinstance(operand, FabIn) else 'rx'} RAMP for it",
                )
    queues = sum(enters[FabIn].values(), np.zeros((program.height, program.width), int))
    yield (
        queues > _INPUT_QUEUES,
        f": {queues.max()} colors enter the CE; it has {_INPUT_QUEUES} input queues",
    )
    for task in program.tasks:
        if task.kind == "data":
            yield (
                (task.entry >= 0) & ~enters[FabIn][task.key],
                f", color {task.key}: data task {task.name!r} waits for a color that never reaches"
                " this CE; add tx RAMP",
            )
