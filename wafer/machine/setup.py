"""Lays an image out as the C++ machine reads it: tables, and nothing unchecked in them.

``native/program.h`` and ``native/machine.cc`` read them in the same order.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from wafer.errors import CompileError
from wafer.machine.arch import ARCHITECTURES
from wafer.machine.checks import check_image, registers_beyond
from wafer.machine.codes import CONDITIONAL, HALVES, DsdOp
from wafer.machine.costs import ARCHS, Arch, costs_for
from wafer.machine.image import COLORS, COLUMNS, ENTRIES, Image, Program
from wafer.machine.timing import instruction_cycles

_TABLES = tuple(name for name in COLUMNS if name not in {"queues", "filters"})


def element_bytes() -> np.ndarray:
    """[DsdOps, 4] bytes of an element of dest, src0, src1, scalar."""
    out = np.full((len(DsdOp), 4), 2, np.int32)
    singles = "FADDS FSUBS FMULS FMAXS FMACS FMOVS MOV32 FNEGS FABSS FNORMS DFILT"
    singles += " ADD32 SUB32 MUL32 MAC32 MAX32"
    out[[DsdOp[name] for name in singles.split()]] = 4
    out[DsdOp.FADDHS], out[DsdOp.FMACHS] = (4, 2, 4, 2), (4, 4, 2, 2)
    out[[DsdOp.FS2H, DsdOp.FS2XP16]] = 2, 4, 4, 4
    out[[DsdOp.FH2S, DsdOp.XP162FS]] = 4, 2, 2, 2
    out[DsdOp.FSCALES] = 4, 4, 2, 2
    return out


def _joined(parts: Iterable[Any]) -> np.ndarray:
    """Numbers of 32 bits, one after another."""
    return np.concatenate([np.reshape(part, -1) for part in parts]).astype(np.int32)


def entries_of(program: Program) -> dict[str, np.ndarray]:
    """Return what a program has one of, by the names of ``Entries`` in native/program.h."""
    out = {"queues": np.full((16, len(COLUMNS["queues"])), -1)}
    out |= {name: np.full(size, -1) for name, size in ENTRIES.items()}
    for name, values in out.items():
        known = program.tables[name] if name == "queues" else getattr(program, name)
        values[: len(known)] = known
    for name in ("blocked", "start", "active", "high", "level", "frame"):
        out[name] = np.asarray(getattr(program, name), np.int64)
    ids = program.tables["dsr_loads"][:, COLUMNS["dsr_loads"].index("id")]
    data = sum(1 << k for k, pc in enumerate(program.data_tasks) if pc >= 0)
    controls = (np.asarray(program.control_tasks) >= 0).any()
    out["slack"] = np.array(registers_beyond(program))
    out["dsrs"] = np.array(ids.max(initial=-1) + 1)
    return out | {"channels": np.array((1 << COLORS) - 1 if controls else data)}


def _program(program: Program, arch: Arch, *, check_bounds: bool) -> list[np.ndarray]:
    code, cycles = np.array(program.code, np.int32), instruction_cycles(program, arch)
    code[:, 0] |= cycles.own << 8
    code[:, 1] = np.where(np.isin(program.code[:, 0], CONDITIONAL), cycles.taken, code[:, 1])
    variables = program.symbols.values() if check_bounds else ()
    spans = [(symbol.address, symbol.address + symbol.bytes) for symbol in variables]
    operations = program.tables["operations"]
    wide = np.hstack([operations, element_bytes()[operations[:, 0]]])
    tables = program.tables | {"operations": wide, "variables": np.array(spans)}
    rows = [tables[name].astype(np.int32) for name in ("variables", *_TABLES)]
    return [_joined(entries_of(program).values()), code, program.memory, *rows]


def colors_of(image: Image) -> list[int]:
    """Colors that anything names, ascending, with the partners of those that are swapped."""
    swapped = (np.asarray(image.colors) & 0xC00).any(axis=(0, 1))
    named = [[*image.streams], np.flatnonzero(np.asarray(image.routed).any(axis=(0, 1)))]
    for program in image.programs:
        named += [program.tables["queues"][:, 0], program.tables["fabrics"][:, 2]]
        named.append(np.flatnonzero(np.asarray(program.teardown_handlers) >= 0))
        if image.arch == "wse2":
            named.append(np.flatnonzero(np.asarray(program.data_tasks) >= 0))
    named.append(np.flatnonzero(swapped) ^ 1)
    return sorted({int(color) for colors in named for color in colors if color >= 0})


def costs_of(image: Image) -> dict[str, np.ndarray]:
    """Return what the architecture fixes and what things cost: `Costs` of native/program.h."""
    arch, costs = ARCHITECTURES[image.arch], costs_for(image.arch, image.timing)
    waits = any(program.waits for program in image.programs)  # are all that its code costs
    streams = [0] * COLORS
    for color, name in image.streams.items():
        streams[color] = 1 if "H2D" in name.upper() else 2
    values = {
        "wse3": image.arch == "wse3",
        "switch_task": 0 if waits else costs.switch_task,
        "fabric_start": 0 if waits else costs.fabric_start,
        "data_task": 0 if waits else costs.data_task,
        "hop": arch.link_latency,
        "output_wait": costs.output_wait,
        "widths": [arch.width(op.name.lower()) for op in DsdOp],
        "stride_widths": arch.stride_widths,
        "sums": [arch.sums.get(op.name.lower(), 1) for op in DsdOp],
        "pace": costs.pace,
        "banks": (0 if waits else arch.banks, arch.bank_bytes),
        "input_depths": arch.input_depths,
        "output_depths": arch.output_depths,
        "unbound_depth": arch.unbound_depth,
        "streams": streams,
        "half": [*HALVES].index(image.half),
    }
    return {name: np.asarray(value, np.int32) for name, value in values.items()}


def filters_of(image: Image, colors: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the filters that there are, and where; many PEs share one.

    Args:
        image: compiled.
        colors: in use.

    Returns:
        [F, columns] int32; [PEs, colors] the row of each, -1 for none.
    """
    on = image.filters[..., colors, 0].reshape(image.tiles.size, len(colors)) != 0
    cells, slots = np.nonzero(on)
    rows = image.filters.reshape(len(on), COLORS, -1)[cells, np.array(colors, int)[slots]]
    kinds, kind = np.unique(rows, axis=0, return_inverse=True)
    which = np.full(on.shape, -1)
    which[on] = kind.reshape(-1)
    return kinds, which


def lay_out(image: Image, *, check_bounds: bool = False) -> list[np.ndarray]:
    """Return the tables, of numbers of 32 bits and bytes.

    Args:
        image: compiled.
        check_bounds: whether operations may not leave their programs' variables.

    Raises:
        CompileError: no such architecture, or code that cannot be run.
    """
    if image.arch not in ARCHS:
        raise CompileError(f"arch {image.arch!r}; there are {', '.join(ARCHS)}")
    check_image(image)
    colors = colors_of(image)
    kinds, which = filters_of(image, colors)
    cells, slots = np.nonzero(which >= 0)
    words = lambda table: np.asarray(table)[..., colors].astype(np.uint32)
    registers = words(image.colors) & 0xFFFF | words(image.switches) << 16
    beside = words(image.switches) >> 16
    costs = costs_for(image.arch, image.timing)
    programs = [_program(p, costs, check_bounds=check_bounds) for p in image.programs]
    tables = [
        _joined([*image.tiles.shape, image.edges, len(programs)]),
        _joined(costs_of(image).values()),
        np.array(colors, np.int32),
        kinds.astype(np.int32),
        *itertools.chain(*programs),
        image.tiles.astype(np.int32),
        registers,
        beside if beside.any() else beside[:0],
        np.stack([cells, slots, which[cells, slots]], axis=1).astype(np.int32),
    ]
    return [np.ascontiguousarray(table) for table in tables]
