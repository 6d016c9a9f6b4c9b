"""Lays an image out as the C++ machine reads it: one stream of int32, and nothing unchecked in it.

``native/program.h`` and ``native/machine.cc`` read it in the same order.
"""

import numpy as np

from wafer.errors import CompileError
from wafer.machine.arch import ARCHITECTURES
from wafer.machine.checks import check_image, registers_beyond
from wafer.machine.codes import DsdOp
from wafer.machine.costs import ARCHS, Arch
from wafer.machine.image import COLORS, COLUMNS, ENTRIES, Image, Program
from wafer.machine.timing import instruction_cycles

__all__ = ["banks_of", "colors_of", "costs_of", "lay_out", "widths_of"]

_TABLES = tuple(name for name in COLUMNS if name not in {"queues", "filters"})


def _flat(values: object) -> np.ndarray:
    return np.asarray(values, np.int32).reshape(-1)


def _rows(table: np.ndarray) -> list[np.ndarray]:
    """A count and the rows."""
    return [_flat(len(table)), _flat(table)]


def _bytes(memory: np.ndarray) -> list[np.ndarray]:
    padded = np.zeros(-(-len(memory) // 4) * 4, np.uint8)
    padded[: len(memory)] = memory
    return [_flat(len(memory)), padded.view(np.int32)]


def _program(program: Program, arch: str) -> list[np.ndarray]:
    slack = registers_beyond(program)
    code = np.array(program.code)
    code[:, 0] |= instruction_cycles(program, ARCHS[arch]) << 8
    queues = np.full((16, len(COLUMNS["queues"])), -1, np.int32)
    queues[: len(program.tables["queues"])] = program.tables["queues"]
    entries = [np.full(size, -1, np.int32) for size in ENTRIES.values()]
    for values, name in zip(entries, ENTRIES, strict=True):
        values[: len(getattr(program, name))] = getattr(program, name)
    return [
        *_rows(code),
        *_bytes(program.memory),
        *(part for name in _TABLES for part in _rows(program.tables[name])),
        _flat(queues),
        *entries,
        _flat(program.blocked),
        _flat([program.start]),
        _flat(np.array([program.active, program.high], np.uint32).view(np.int32)),
        _flat([program.frame, slack]),
    ]


def colors_of(image: Image) -> list[int]:
    """Colors that anything names, ascending, with the partners of those that are swapped."""
    used = set(image.streams)
    used |= {int(c) for c in np.flatnonzero(np.asarray(image.routed).any(axis=(0, 1)))}
    for program in image.programs:
        used |= {int(c) for c in program.tables["queues"][:, 0] if c >= 0}
        used |= {int(c) for c in program.tables["fabrics"][:, 2] if c >= 0}
        used |= {int(c) for c in np.flatnonzero(np.asarray(program.teardown_handlers) >= 0)}
        if image.arch == "wse2":
            used |= {int(c) for c in np.flatnonzero(np.asarray(program.data_tasks) >= 0)}
    swapped = np.flatnonzero((np.asarray(image.colors) & 0xC00).any(axis=(0, 1)))
    used |= {int(c) ^ 1 for c in swapped}
    return sorted(used)


def widths_of(arch: str) -> np.ndarray:
    """[DsdOps] int32: most elements of each operation per step."""
    return np.array([ARCHITECTURES[arch].width(op.name.lower()) for op in DsdOp], np.int32)


def _waits(image: Image) -> bool:
    """Whether an image's waits are all that its code costs."""
    return any(program.waits for program in image.programs)


def costs_of(image: Image) -> Arch:
    """What an image's tasks and operations cost besides their instructions."""
    costs = ARCHS[image.arch]
    return costs._replace(switch_task=0, fabric_start=0) if _waits(image) else costs


def banks_of(image: Image) -> tuple[int, int]:
    """Banks of the memory that operands meet at, and the bytes of one."""
    arch = ARCHITECTURES[image.arch]
    return 0 if _waits(image) else arch.banks, arch.bank_bytes


def _costs(image: Image) -> list[np.ndarray]:
    arch, costs = ARCHITECTURES[image.arch], costs_of(image)
    streams = [0] * COLORS
    for color, name in image.streams.items():
        streams[color] = 1 if "H2D" in name.upper() else 2
    starts = costs.switch_task, costs.fabric_start, costs.output_wait
    fixed = [int(image.arch == "wse3"), *starts]
    depths = [*arch.input_depths, *arch.output_depths, arch.unbound_depth]
    memory = [*arch.stride_widths, *banks_of(image)]
    parts = (fixed, widths_of(image.arch), memory, depths, streams)
    return [_flat(part) for part in parts]


def lay_out(image: Image) -> np.ndarray:
    """The stream.

    Raises:
        CompileError: no such architecture, or code that cannot be run.
    """
    if image.arch not in ARCHS:
        raise CompileError(f"arch {image.arch!r}; there are {', '.join(ARCHS)}")
    check_image(image)
    height, width = image.tiles.shape
    colors = colors_of(image)
    filtered = np.argwhere(np.asarray(image.filters)[..., colors, 0] != 0)
    rows = np.array([image.filters[y, x, colors[slot]] for y, x, slot in filtered], np.int32)
    kinds, kind = np.unique(
        rows.reshape(-1, len(COLUMNS["filters"])), axis=0, return_inverse=True
    )  # many PEs share one
    at = [
        [y * width + x, slot, k] for (y, x, slot), k in zip(filtered, kind.reshape(-1), strict=True)
    ]
    words = lambda table: np.asarray(table)[..., colors].astype(np.uint32) & 0xFFFF
    registers = words(image.colors) | words(image.switches) << 16
    parts = [
        _flat([height, width, image.edges]),
        *_costs(image),
        *_rows(np.array(colors)),
        *_rows(kinds),
        _flat(len(image.programs)),
        *(part for program in image.programs for part in _program(program, image.arch)),
        *_rows(image.tiles.reshape(-1)),
        registers.view(np.int32).reshape(-1),
        *_rows(np.array(at, np.int32).reshape(-1, 3)),
    ]
    return np.ascontiguousarray(np.concatenate(parts))
