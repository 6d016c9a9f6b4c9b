"""What does not change while a program runs, as arrays; what is not run here is refused."""

from typing import Any, NamedTuple

import numpy as np

from wafer.errors import CompileError
from wafer.machine.arch import ARCHITECTURES, PORTS, STEPS
from wafer.machine.codes import MESSAGES, Intrinsic, Op
from wafer.machine.costs import costs_for
from wafer.machine.image import COLUMNS, Image
from wafer.machine.setup import colors_of, costs_of, element_bytes, entries_of, filters_of
from wafer.machine.timing import instruction_cycles

Array = Any  # of NumPy, or traced by JAX
# Of functions only those that round alike everywhere.
_INTRINSICS = [*range(Intrinsic.EXP, Intrinsic.FLOOR), Intrinsic.PRINT]


class Tables(NamedTuple):
    """A program's constants: [P] programs, their tables padded to the longest one."""

    program: Array  #: [C] of each PE; -1 for none
    code: Array  #: [P, N, 5]
    costs: Array  #: [P, N] cycles of each instruction
    taken: Array  #: [P, N] those that a jump with a condition costs more if it is taken
    size: Array  #: [P] bytes of memory
    frame: Array  #: [P] registers; slack, dsrs: see Entries in native/program.h
    slack: Array
    dsrs: Array
    operations: Array  #: operations, fabrics, fifos, shapes, dsr_loads: [P, rows, columns]
    fabrics: Array
    fifos: Array
    shapes: Array
    dsr_loads: Array
    rows: Array  #: [P, 3] of shapes, fabrics, fifos
    queues: Array  #: [P, 16, columns]
    local_tasks: Array  #: local_tasks to empty_handlers: [P, ids]
    data_tasks: Array
    control_tasks: Array
    teardown_handlers: Array
    empty_handlers: Array
    channels: Array  #: [P] bits of colors or queues whose words can start a task
    high: Array  #: [P] bits of tasks' ids that begin before others
    level: Array  #: [P] of the task's thread
    filters: Array  #: [F, columns]
    colors: Array  #: [S] of the slots
    slot: Array  #: [32] of each color; -1
    partner: Array  #: [S] slot of the color that a swap gives; -1
    messages: Array  #: [5] slots of codes.MESSAGES; [0] if they are not all in use
    place: Array  #: [C, 2] column and row
    neighbour: Array  #: [C, 4] to the W, E, S, N; -1
    edges: Array  #: bits of the sides on which the wafer ends
    #: switch_task to output_depths: of `costs_of`; bytes: [DsdOps, 4]; widths: [DsdOps]
    switch_task: Array
    data_task: Array
    fabric_start: Array
    hop: Array
    output_wait: Array
    unbound_depth: Array
    wse3: Array  #: scalar bool
    bytes: Array
    widths: Array
    stride_widths: Array
    sums: Array  #: [DsdOps]
    pace: Array  #: [3], of steps on the fabric, of wide ones with one source and with two
    banks: Array  #: [2], how many and bytes of one
    input_depths: Array
    output_depths: Array
    half: Array  #: scalar, format of 16-bit floats


def _refuse(image: Image) -> None:
    for program in image.programs:
        for (op, kind, *_), (file, line) in zip(program.code, program.lines, strict=True):
            if op == Op.INTRINSIC and kind in _INTRINSICS:
                place = f"{program.files[file]}:{line}" if program.files else program.name
                raise CompileError(
                    f"{place}: calls {Intrinsic(kind).name.lower()}, which the JAX reference does"
                    " not; use Machine"
                )
    if image.streams or image.ports:
        raise CompileError("the program has streams to the host; the JAX reference runs none")


def rounded_up(count: int, least: int) -> int:
    """A power of two: programs of like size share what is compiled."""
    return max(least, 1 << max(count - 1, 0).bit_length())


def _padded(arrays: list[np.ndarray], least: int = 8) -> np.ndarray:
    """One array of several, their first axis rounded up."""
    most = rounded_up(max(map(len, arrays)), least)
    out = np.zeros((len(arrays), most, *np.shape(arrays[0])[1:]), np.int64)
    for k, array in enumerate(arrays):
        out[k, : len(array)] = array
    return out


def tables_of(image: Image) -> Tables:
    """The constants of an image.

    Raises:
        CompileError: code that cannot be run, or what the reference leaves out: streams, printing,
            functions that are not exact.
    """
    _refuse(image)
    programs, arch = list(image.programs), ARCHITECTURES[image.arch]
    programs += programs[:1] * (rounded_up(len(programs), 4) - len(programs))
    cycles = [instruction_cycles(program, costs_for(image.arch)) for program in programs]
    costs = {k: v.astype(np.int64) for k, v in costs_of(image).items() if k in Tables._fields}
    named = colors_of(image)
    unused = [color for color in range(arch.colors) if color not in named]
    colors = np.array(sorted(named + unused[: rounded_up(len(named), 2) - len(named)]))
    height, width = image.tiles.shape
    y, x = np.divmod(np.arange(height * width), width)
    neighbour = []
    for dx, dy in (STEPS[side] for side in PORTS[:4]):
        inside = (x + dx >= 0) & (x + dx < width) & (y + dy >= 0) & (y + dy < height)
        neighbour.append(np.where(inside, (y + dy) * width + x + dx, -1))
    slot = np.full(32, -1)
    slot[colors] = np.arange(len(colors))
    kinds, _ = filters_of(image, colors.tolist())
    entries = [entries_of(program) for program in programs]
    of_entries = entries[0].keys() & {*Tables._fields}
    of_rows = COLUMNS.keys() & {*Tables._fields} - {"queues", "filters"}
    counted = [[len(p.tables[name]) for name in ("shapes", "fabrics", "fifos")] for p in programs]
    return Tables(
        program=image.tiles.reshape(-1).astype(np.int64),
        code=_padded([p.code for p in programs], 256),
        costs=_padded([each.own for each in cycles], 256),
        taken=_padded([each.taken for each in cycles], 256),
        size=np.array([len(p.memory) for p in programs]),
        rows=np.array(counted),
        **{name: _padded([p.tables[name] for p in programs]) for name in of_rows},
        **{name: np.stack([e[name] for e in entries]) for name in of_entries},
        filters=np.pad(kinds, ((0, rounded_up(len(kinds), 4) - len(kinds)), (0, 0))),
        colors=colors,
        slot=slot,
        partner=np.where(np.isin(colors ^ 1, named), slot[colors ^ 1], -1),
        messages=slot[list(MESSAGES)] if {*MESSAGES} <= {*named} else slot[:0],
        place=np.stack([x, y], axis=1),
        neighbour=np.stack(neighbour, axis=1),
        edges=np.int64(image.edges),
        bytes=element_bytes().astype(np.int64),
        **costs | {"wse3": np.bool_(image.arch == "wse3")},
    )
