"""Runs of programs on ``wafer.machine``: values in, and what they leave."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from wafer.fabric.errors import DeadlockError, FabricError, FaultError
from wafer.fabric.program.arrays import AnyArray as Array
from wafer.fabric.program.emit import Emitted, emit
from wafer.fabric.program.tables import Program
from wafer.machine.base import Status, WaferMachine
from wafer.machine.engine import Machine, available, how_to_build
from wafer.machine.image import Image
from wafer.machine.tools.chains import by_cause
from wafer.machine.tools.recording import Recording

__all__ = [
    "FabricState",
    "check_finished",
    "cycles",
    "memory_words",
    "read",
    "run",
    "run_many",
    "simulate",
    "start",
]

_SHOWN = 8  # of what waits


class FabricState(NamedTuple):
    """What a run has left.

    Attributes:
        cycle: in which it ended.
        progress: whether it would go on.
        fault: what stopped it, '' if nothing did.
        waiting: what is left to do and what it waits for, likely causes first.
        mem: [M, H, W] uint32 memory, an element of any type in a word.
        busy: [H, W] cycles in which CEs worked.
        end: [H, W] the cycle behind the last of them.
        links: [5, H, W] words sent W, E, S, N and to the CE.
    """

    cycle: int
    progress: bool
    fault: str
    waiting: tuple[object, ...]
    mem: np.ndarray
    busy: np.ndarray
    end: np.ndarray
    links: np.ndarray


def _bits(dtype: str) -> np.dtype:
    """Type of a word's bits."""
    return np.dtype(f"u{np.dtype(dtype).itemsize}")


def memory_words(program: Program, values: Mapping[str, Array] | None) -> np.ndarray:
    """[M, H, W] uint32: initial memory; arrays without values are 0.

    Args:
        program: the program.
        values: array name -> [H, W, n] or [n].

    Raises:
        FabricError: an array that is not declared, or of another shape.
    """
    values = dict(values or {})
    known = [array.name for array in program.arrays]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise FabricError(f"no array {unknown[0]!r}; the program declares {known}")
    height, width = program.height, program.width
    words = np.zeros((program.words, height, width), np.uint32)
    for name, first, count, dtype, _ in program.arrays:
        value = np.asarray(values.get(name, 0))
        try:
            full = np.broadcast_to(value, (height, width, count))
        except ValueError:
            raise FabricError(
                f"array {name!r}: got shape {value.shape}, expected [{height}, {width}, {count}]"
            ) from None
        bits = full.astype(dtype).view(_bits(dtype))
        words[first : first + count] = np.moveaxis(bits, -1, 0)
    return words


def _machine(image: Image, implementation: str, record: Recording | None) -> WaferMachine:
    if implementation not in {"auto", "jax", "native"}:
        raise FabricError(f"implementation {implementation!r}; there are auto, jax and native")
    if implementation != "jax" and available():
        return Machine(image, record=record)
    if implementation == "native":
        raise FabricError(
            "the native machine is not built (_native.so is missing or does not load); ask for"
            f" implementation='jax', or build it: {how_to_build()}"
        )
    if record is not None:
        raise FabricError(f"the JAX machine records nothing; the C++ one does: {how_to_build()}")
    from wafer.machine.reference.machine import ReferenceMachine  # compiles the whole machine

    return ReferenceMachine(image)


def _exchange(
    program: Program, emitted: Emitted, machine: WaferMachine, mem: np.ndarray, *, load: bool
) -> None:
    """Copy [M, H, W] words to the PEs, or from them."""
    for number, group in enumerate(emitted.groups):
        if not group.size:
            continue
        content = None if load else machine.memories(number, group.size)
        if content is None:
            content = np.zeros((int(group.pes.sum()), group.size), np.uint8)
        for name, first, count, dtype, _ in program.arrays:
            if name not in group.places:
                continue
            kind = _bits(dtype)
            at = group.places[name]
            own = content[:, at : at + count * kind.itemsize].view(kind)
            words = slice(first, first + count)
            if load:
                own[:] = mem[words, group.pes].T
            else:
                mem[words, group.pes] = own.T
        if load:
            machine.memories(number, group.size, content)


def run(
    program: Program,
    memory: np.ndarray,
    max_cycles: int,
    implementation: str = "auto",
    record: Recording | None = None,
) -> tuple[FabricState, WaferMachine]:
    """Run a program, without a check of how it ends.

    Args:
        program: the program.
        memory: [M, H, W] uint32.
        max_cycles: limit.
        implementation: see :func:`start`.
        record: what the machine keeps, in its ``trace``; the C++ one can.

    Returns:
        What the run has left, and the machine.
    """
    emitted = emit(program)
    machine = _machine(emitted.image, implementation, record)
    _exchange(program, emitted, machine, memory, load=True)
    status = machine.run(max_cycles)
    mem = np.array(memory)
    _exchange(program, emitted, machine, mem, load=False)
    waiting: Sequence[object] = ()
    if status is not Status.FAULT:
        waiting = by_cause(emitted.image, machine.waiting())
    state = FabricState(
        cycle=machine.cycle,
        progress=status is Status.LIMIT,
        fault=f"cycle {machine.cycle}, {machine.fault}" if machine.fault else "",
        waiting=tuple(waiting),
        mem=mem,
        busy=machine.worked[0],
        end=machine.worked[1],
        links=np.moveaxis(machine.links, -1, 0),
    )
    return state, machine


def start(
    program: Program, memory: Array, max_cycles: int = 1_000_000, implementation: str = "auto"
) -> FabricState:
    """Run a program to its end on given memory, for instance what its last run left there.

    Args:
        program: the program.
        memory: [M, H, W] uint32.
        max_cycles: limit.
        implementation: "native" (C++), "jax", or "auto": native where built.
    """
    state, _ = run(program, memory, max_cycles, implementation)
    check_finished(program, state)
    return state


def simulate(
    program: Program,
    values: Mapping[str, Array] | None = None,
    max_cycles: int = 1_000_000,
    implementation: str = "auto",
) -> FabricState:
    """Run a program to its end and check that it ended well.

    Args:
        program: the program.
        values: array name -> [H, W, n] or [n] initial values; others are 0.
        max_cycles: limit.
        implementation: see :func:`start`.
    """
    return start(program, memory_words(program, values), max_cycles, implementation)


def run_many(
    programs: Sequence[Program],
    values: Sequence[Mapping[str, Array] | None],
    max_cycles: int = 10_000,
    implementation: str = "auto",
) -> list[FabricState]:
    """Run several programs one by one, without a check of how each ends.

    Args:
        programs: of any grids, colors, tasks and arrays.
        values: initial arrays of each program.
        max_cycles: limit for every one of them.
        implementation: see :func:`start`.
    """
    pairs = zip(programs, values, strict=True)
    return [run(p, memory_words(p, v), max_cycles, implementation)[0] for p, v in pairs]


def cycles(state: FabricState) -> Any:
    """Cycles until the last CE did its last step, counted from 1."""
    return state.end.max()


def read(program: Program, state: FabricState, name: str) -> np.ndarray:
    """[H, W, n] an array's values in its own type."""
    for array, first, count, dtype, _ in program.arrays:
        if array == name:
            words = np.moveaxis(state.mem[first : first + count], 0, -1)
            return np.ascontiguousarray(words.astype(_bits(dtype))).view(dtype)
    raise FabricError(f"no array {name!r}; declared: {[a.name for a in program.arrays]}")


def check_finished(program: Program, state: FabricState) -> None:
    """Raise unless the run ended with every task done and every wavelet consumed.

    Args:
        program: that ran.
        state: that it left.

    Raises:
        FaultError: naming PE, color and cycle.
        DeadlockError: naming what waits and for what, likely causes first.
    """
    del program
    if state.fault:
        raise FaultError(state.fault)
    if state.waiting:
        verb = "still running" if state.progress else "deadlock: nothing can move"
        lines = [f"cycle {state.cycle}: {verb}", *map(str, state.waiting[:_SHOWN])]
        more = [f"and {len(state.waiting) - _SHOWN} more"] if len(state.waiting) > _SHOWN else []
        raise DeadlockError("\n  ".join(lines + more))
