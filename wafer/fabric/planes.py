"""The timing plane: cycles of a program whose timing does not depend on values.

What decides its timing is, per PE, which slot of its operation list it is in, how many cycles that
slot still has, and which colors the slot reads and writes; per color, which ports it leaves by.
Each is a plane of bits, and in C++ a cycle is a few bit operations on words of 512 PEs. Cycle for
cycle equal to the machine. Rows that exchange nothing run apart, those that hold the same once.
"""

import concurrent.futures
import ctypes
import os
from collections.abc import Iterable, Iterator

import numpy as np

from wafer.fabric.errors import DeadlockError, FabricError, FaultError
from wafer.fabric.program.ops import FabIn, FabOut, Op, steps_of
from wafer.fabric.program.tables import Port, Program
from wafer.fabric.simulator import cycles, simulate
from wafer.machine.arch import PORTS
from wafer.machine.codes import NO_SWITCH, TORN
from wafer.vsl.native.library import Library

_LIBRARY = Library(package="wafer.fabric.native", instead="the machine")
available = _LIBRARY.available
_BLOCK = 512  # PEs in a vector
_FAULT, _STUCK = -1, -2  # in place of cycles


def _refuse(program: Program) -> None:
    colors, tasks = program.colors.values(), program.tasks
    ops = [op for ops in program.code for op in ops]
    begins = sum((task.active & (task.entry >= 0) for task in tasks), np.int32(0))
    torn = any((color.color & TORN).any() for color in colors)
    reasons = {
        "switch positions": any((color.switch & 0xFFF != NO_SWITCH).any() for color in colors),
        "teardown": torn or any(op.position for op in ops),
        "color swap": any(color.swaps.any() for color in colors),
        "filters": any(color.filters.any() for color in colors),
        "control wavelets": any(isinstance(op.dst, FabOut) and op.dst.control for op in ops),
        "microthreads": any(op.thread is not None for op in ops),
        "data or control tasks": any(task.kind != "local" for task in tasks),
        "task activation": any(op.on_done for op in ops),
        "blocked tasks": any(task.blocked.any() for task in tasks),
        "several active tasks on one PE": np.max(begins) > 1,
    }
    unsupported = [what for what, there in reasons.items() if there]
    if unsupported:
        raise FabricError(
            f"the timing plane models static routes and straight code; the program has"
            f" {', '.join(unsupported)}: use fabric.simulate"
        )


def _slots(program: Program) -> Iterator[tuple[int, np.ndarray, Op | None, int]]:
    """(position, PEs, operation or None for a launch wait, cycles) of every slot."""
    entries = [np.where(task.active, task.entry, -1) for task in program.tasks]
    entry = np.max(entries, axis=0, initial=-1)
    for first in np.unique(entry[entry >= 0]):
        position = 0
        for op in program.code[first]:
            for part, count in ((None, op.launch), (op, steps_of(op, program.spec))):
                if count:
                    yield position, entry == first, part, count
                    position += 1


def _pairs(planes: np.ndarray) -> np.ndarray:
    """[n, 2] int: first two indices of the planes of [a, b, H, W] bool that are not empty."""
    return np.argwhere(planes.any(axis=(2, 3)))


def plane_parts(program: Program) -> tuple[np.ndarray, list[np.ndarray]]:
    """Reduce a program to its timing, as the C++ side reads it.

    Args:
        program: static routes, one straight-line task per PE (what ``lowering`` writes, except
            scatter, gather and shift).

    Returns:
        [n] int32 header; and parts that exchange nothing: [H, blocks, masks, 8] uint64 words of
        512 PEs along x, or [blocks, masks, 8] of each row.

    Raises:
        FabricError: the program has switches, filters, microthreads or activated tasks.
    """
    _refuse(program)
    slots, colors = [*_slots(program)], program.colors
    grid, places = (program.height, program.width), {number: i for i, number in enumerate(colors)}
    depth = 1 + max((position for position, *_ in slots), default=0)
    bits = max(1, max((count - 1 for *_, count in slots), default=0).bit_length())
    reads = np.zeros((depth, len(colors), *grid), bool)
    writes, exists = reads.copy(), np.zeros((depth, *grid), bool)
    counts = np.zeros((depth, bits, *grid), bool)
    for position, mask, op, count in slots:
        exists[position] |= mask
        counts[position][:, mask] = (count - 1 >> np.arange(bits) & 1)[:, None]
        for operand in op.operands if op else ():
            if isinstance(operand, FabIn | FabOut):
                table = writes if isinstance(operand, FabOut) else reads
                table[position, places[operand.color]] |= mask
    words = np.array([color.color for color in colors.values()], np.int32).reshape(-1, *grid)
    ports = np.stack([words & bit != 0 for bit in Port], axis=1)
    tables = [(ports, _pairs(ports)[:, ::-1]), *((t, _pairs(t)) for t in (reads, writes))]
    used = [table[tuple(_pairs(table).T)] for table, _ in tables]
    inject = words >> 5 & Port.RAMP != 0
    planes = np.concatenate([used[0], inject, *used[1:], exists, counts.reshape(-1, *grid)])
    blocks = -(-program.width // _BLOCK)
    padded = np.zeros((*planes.shape[:2], blocks * _BLOCK), bool)
    padded[..., : program.width] = planes
    words = np.packbits(padded, axis=-1, bitorder="little").view("<u8")
    words = words.reshape(len(planes), program.height, blocks, 8).transpose(1, 2, 0, 3)
    flat = not ports[:, [PORTS.index("S"), PORTS.index("N")]].any()
    tiles = [*np.ascontiguousarray(words)] if flat else [np.ascontiguousarray(words)]
    pairs = [pairs for _, pairs in tables]
    sizes = [1 if flat else program.height, blocks, len(colors), program.spec.ramp_latency]
    sizes += [bits, depth, *map(len, pairs)]
    header = [*sizes, *(color.depth for color in colors.values()), *np.concatenate(pairs).ravel()]
    return np.array(header, np.int32), tiles


def run_parts(header: np.ndarray, tiles: Iterable[np.ndarray]) -> int:
    """Cycles until the last part of a timing program is done.

    Args:
        header: [n], of :func:`plane_parts`.
        tiles: [.., 8] each, likewise.

    Raises:
        FaultError: a same-cycle arrival.
        DeadlockError: operations that can never run.
    """
    run = getattr(_LIBRARY.loaded(), f"wafer_tile_{_LIBRARY.target()}")
    run.argtypes, run.restype = [ctypes.c_void_p] * 2, ctypes.c_int64
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        ends = [*pool.map(lambda part: run(header.ctypes.data, part.ctypes.data), tiles)]
    if _FAULT in ends:
        raise FaultError("a same-cycle arrival; fabric.simulate names the PE and the color")
    if _STUCK in ends:
        raise DeadlockError("operations are left that can never run; fabric.simulate names them")
    return max(ends)


def count_cycles(program: Program) -> int:
    """Cycles of a data-oblivious program, without its values.

    Without the C++ library the machine runs the program.

    Args:
        program: see :func:`plane_parts`.

    Returns:
        Cycles, equal to ``cycles(simulate(program))``.

    Raises:
        FabricError: the program has switches, filters, microthreads or activated tasks.
        FaultError: a same-cycle arrival.
        DeadlockError: operations that can never run.
    """
    header, tiles = plane_parts(program)
    if not available():
        return int(cycles(simulate(program)))
    return run_parts(header, {part.tobytes(): part for part in tiles}.values())
