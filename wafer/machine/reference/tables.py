"""What does not change while a program runs, as arrays; what is not run here is refused."""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from wafer.errors import CompileError
from wafer.machine.arch import ARCHITECTURES, PORTS, STEPS
from wafer.machine.codes import DsdOp, Intrinsic, Op
from wafer.machine.costs import ARCHS
from wafer.machine.image import COLUMNS, ENTRIES, Image, Program
from wafer.machine.setup import colors_of, costs_of, element_bytes, filters_of
from wafer.machine.timing import instruction_cycles

__all__ = ["Tables", "rounded_up", "tables_of"]

Array = Any  # of NumPy, or traced by JAX
_LEFT_OUT = {
    Op.RECEIVE: "reads a wavelet as a value",
    Op.SEND: "sends a value as a wavelet",
    Op.CONFIG_GET: "reads a configuration register",
    Op.CONFIG_SET: "writes a configuration register",
}
_INDICES = (("fabrics", "indexed"), ("operations", "index"))
_PURE = (Intrinsic.SQRT, Intrinsic.FLOOR, Intrinsic.CEIL)
_INTRINSICS = {
    *_PURE,
    *(Intrinsic.RANDOM16, Intrinsic.SEED, Intrinsic.TIMER, Intrinsic.TIMESTAMP),
    *(Intrinsic.COORDINATE, Intrinsic.NEXT_COMMAND),
}
_OPERATIONS = {DsdOp.DFILT: "filters", DsdOp.FNORMS: "normalizes", DsdOp.FNORMH: "normalizes"}
_OPERATIONS |= {DsdOp.FSCALES: "scales", DsdOp.FSCALEH: "scales"}


class Tables(NamedTuple):
    """A program's constants: [P] programs, padded to the longest one."""

    program: Array  #: [C] of each PE; -1 for none
    code: Array  #: [P, N, 5]
    costs: Array  #: [P, N] cycles of each instruction
    size: Array  #: [P] bytes of memory
    frame: Array  #: [P] registers
    operations: Array  #: operations, fabrics, shapes, dsr_loads: [P, rows, columns]
    fabrics: Array
    shapes: Array
    dsr_loads: Array
    queues: Array  #: [P, 16, 2]
    local_tasks: Array  #: local_tasks, data_tasks, control_tasks: [P, ids]
    data_tasks: Array
    control_tasks: Array
    channels: Array  #: [P] bits of colors or queues whose words can start a task
    high: Array  #: [P] bits of tasks' ids that begin before others
    filters: Array  #: [F, columns]; filter: [C, S] row of each color, -1
    filter: Array
    colors: Array  #: [S] of the slots
    slot: Array  #: [24] of each color; -1
    partner: Array  #: [S] slot of the color that a swap gives; -1
    place: Array  #: [C, 2] column and row
    neighbour: Array  #: [C, 4] to the W, E, S, N; -1
    edges: Array  #: bits of the sides on which the wafer ends
    #: switch_task to output_depths: of `costs_of`; bytes: [DsdOps, 4]; widths: [DsdOps]
    switch_task: Array
    fabric_start: Array
    output_wait: Array
    unbound_depth: Array
    wse3: Array  #: scalar bool
    bytes: Array
    widths: Array
    stride_widths: Array
    banks: Array  #: [2], how many and bytes of one
    input_depths: Array
    output_depths: Array


def _refuse(image: Image) -> None:
    for program in image.programs:
        for (op, kind, *_), (file, line) in zip(program.code, program.lines, strict=True):
            what = _LEFT_OUT.get(op, "")
            if op == Op.INTRINSIC and kind not in _INTRINSICS:
                what = f"calls {Intrinsic(kind).name.lower()}"
            if what:
                place = f"{program.files[file]}:{line}" if program.files else program.name
                raise CompileError(
                    f"{place}: {what}, which the JAX reference does not; use Machine"
                )
        for row in program.tables["operations"]:
            if what := _OPERATIONS.get(DsdOp(int(row[0])), ""):
                raise CompileError(f"{program.name} {what}, which the JAX reference does not")
        indices = [program.tables[t][:, COLUMNS[t].index(name)] for t, name in _INDICES]
        problems = {
            "FIFOs": len(program.tables["fifos"]),
            "wavelets with an index": (indices[0] >= 0).any(),
            "operations with an index": (indices[1] >= 0).any(),
            "teardown handlers": (np.asarray(program.teardown_handlers) >= 0).any(),
            "empty-queue handlers": (np.asarray(program.empty_handlers) >= 0).any(),
        }
        for what, there in problems.items():
            if there:
                raise CompileError(f"{program.name} has {what}; the JAX reference runs none")
    if image.streams or image.ports:
        raise CompileError("the program has streams to the host; the JAX reference runs none")


def rounded_up(count: int, least: int) -> int:
    """A power of two: programs of like size share what is compiled."""
    return max(least, 1 << max(count - 1, 0).bit_length())


def _padded(arrays: list[Any], least: int = 8) -> np.ndarray:
    """One array of several, the first axis rounded up."""
    most = rounded_up(max(map(len, arrays)), least)
    out = np.zeros((rounded_up(len(arrays), 4), most, *np.shape(arrays[0])[1:]), np.int64)
    for k, array in enumerate(arrays):
        out[k, : len(array)] = array
    return out


def _channels(program: Program) -> int:
    if (np.asarray(program.control_tasks) >= 0).any():
        return (1 << 24) - 1
    return sum(1 << k for k, pc in enumerate(program.data_tasks) if pc >= 0)


def tables_of(image: Image) -> Tables:
    """The constants of an image.

    Raises:
        CompileError: code that cannot be run, or what the reference leaves out: FIFOs,
            indices of wavelets, teardown, registers set at run time, streams, printing.
    """
    _refuse(image)
    programs, arch = image.programs, ARCHITECTURES[image.arch]
    costs = {k: v.astype(np.int64) for k, v in costs_of(image).items() if k in Tables._fields}
    colors = colors_of(image)
    unused = [color for color in range(arch.colors) if color not in colors]
    colors = sorted(colors + unused[: rounded_up(len(colors), 2) - len(colors)])
    height, width = image.tiles.shape
    y, x = np.divmod(np.arange(height * width), width)
    neighbour = []
    for dx, dy in (STEPS[side] for side in PORTS[:4]):
        inside = (x + dx >= 0) & (x + dx < width) & (y + dy >= 0) & (y + dy < height)
        neighbour.append(np.where(inside, (y + dy) * width + x + dx, -1))
    slot = np.full(arch.colors, -1)
    slot[colors] = np.arange(len(colors))
    kinds, which = filters_of(image, colors)

    def each(of: Callable[[Program], Any], shape: tuple[int, ...] = (), none: int = 0) -> Array:
        """[programs, …] values, filled up."""
        out = np.full((rounded_up(len(programs), 4), *shape), none, np.int64)
        for k, value in enumerate(map(of, programs)):
            out[(k, slice(len(value))) if shape else k] = value
        return out

    return Tables(
        program=image.tiles.reshape(-1).astype(np.int64),
        code=_padded([p.code for p in programs], 256),
        costs=_padded([instruction_cycles(p, ARCHS[image.arch]) for p in programs], 256),
        size=each(lambda p: len(p.memory)),
        frame=each(lambda p: p.frame),
        **{
            name: _padded([p.tables[name] for p in programs])
            for name in ("operations", "fabrics", "shapes", "dsr_loads")
        },
        queues=each(lambda p: p.tables["queues"], (16, 2), -1),
        **{
            name: each(operator.attrgetter(name), (ENTRIES[name],), -1)
            for name in ("local_tasks", "data_tasks", "control_tasks")
        },
        channels=each(_channels),
        high=each(lambda p: p.high),
        filters=np.pad(kinds, ((0, rounded_up(len(kinds), 4) - len(kinds)), (0, 0))),
        filter=which,
        colors=np.array(colors),
        slot=slot,
        partner=slot[np.array(colors) ^ 1],
        place=np.stack([x, y], axis=1),
        neighbour=np.stack(neighbour, axis=1),
        edges=np.int64(image.edges),
        bytes=element_bytes().astype(np.int64),
        **costs | {"wse3": np.bool_(image.arch == "wse3")},
    )
