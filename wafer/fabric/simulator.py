"""Runs of programs on ``wafer.machine``: values in, and what they leave."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from wafer.fabric.errors import DeadlockError, FabricError, FaultError
from wafer.fabric.program.emit import emit
from wafer.fabric.program.tables import Program
from wafer.machine.base import Status, WaferMachine
from wafer.machine.engine import machine_for
from wafer.machine.tools.causes import by_cause
from wafer.machine.tools.recording import Recording

__all__ = ["FabricState", "check_finished", "cycles", "initial_arrays", "read", "run", "simulate"]

_SHOWN = 8  # of what waits


class FabricState(NamedTuple):
    """What a run has left."""

    status: Status  #: how it ended
    #: name -> [H, W, n] values; where a PE does not have the array, those given
    arrays: dict[str, np.ndarray]
    busy: np.ndarray  #: [H, W] cycles in which CEs worked
    end: np.ndarray  #: [H, W] the cycle behind the last of them
    links: np.ndarray  #: [5, H, W] words sent W, E, S, N and to the CE
    machine: WaferMachine  #: that ran it, with its ``cycle``, ``fault``, ``counts`` and ``trace``


def initial_arrays(
    program: Program, values: Mapping[str, ArrayLike] | None
) -> dict[str, np.ndarray]:
    """Return every array before a run, [H, W, n]; those without values are 0.

    Args:
        program: the program.
        values: array name -> [H, W, n], or [n] or a scalar for every PE.

    Raises:
        FabricError: an array that is not declared, of another shape, or with values that its
            uint32 does not hold.
    """
    values = dict(values or {})
    known = [array.name for array in program.arrays]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise FabricError(f"no array {unknown[0]!r}; the program declares {known}")
    arrays = {}
    for name, words, dtype, _ in program.arrays:
        shape = (program.height, program.width, words)
        arrays[name] = np.zeros(shape, dtype)
        if name not in values:
            continue
        value = np.asarray(values[name])
        if value.shape not in {shape, shape[2:], ()}:
            raise FabricError(
                f"array {name!r}: got shape {[*value.shape]}, expected {[*shape]}; [{words}] or a"
                " scalar gives every PE the same"
            )
        arrays[name][:] = value
        if dtype == "uint32" and (arrays[name] != value).any():
            raise FabricError(
                f"array {name!r}: got values of type {value.dtype} that uint32 does not hold"
            )
    return arrays


def _exchange(machine: WaferMachine, arrays: dict[str, np.ndarray], *, load: bool) -> None:
    """Copy [H, W, n] arrays to the PEs, or from them."""
    for number, program in enumerate(machine.image.programs):
        pes, memories = machine.image.tiles == number, machine.memories(number)
        size = len(program.memory)
        content = np.zeros((len(memories), size), np.uint8) if load else np.stack(memories)
        for name, symbol in program.symbols.items():
            values = content[:, symbol.address : symbol.address + symbol.bytes]
            values = values.view(arrays[name].dtype)
            if load:
                values[:] = arrays[name][pes]
            else:
                arrays[name][pes] = values
        for memory, row in zip(memories, content, strict=True) if load else ():
            memory[:] = row


def run(
    program: Program,
    values: Mapping[str, ArrayLike] | None = None,
    max_cycles: int = 1_000_000,
    implementation: str = "auto",
    record: Recording | None = None,
) -> FabricState:
    """Run a program, without a check of how it ends.

    Args:
        program: the program.
        values: array name -> initial values [H, W, n], for instance the ``arrays`` that its last
            run left, or [n] or a scalar for every PE; others are 0.
        max_cycles: limit.
        implementation: "native" (C++), "jax", or "auto": native where built.
        record: what the machine keeps in its ``trace``; the C++ one can.

    Raises:
        CompileError: another word, or a machine that is not there or does not record.
    """
    arrays = initial_arrays(program, values)
    machine = machine_for(emit(program), record, implementation=implementation)
    _exchange(machine, arrays, load=True)
    status = machine.run(max_cycles)
    _exchange(machine, arrays, load=False)
    return FabricState(
        status=status,
        arrays=arrays,
        busy=machine.worked[0],
        end=machine.worked[1],
        links=np.moveaxis(machine.links, -1, 0),
        machine=machine,
    )


def simulate(
    program: Program,
    values: Mapping[str, ArrayLike] | None = None,
    max_cycles: int = 1_000_000,
    implementation: str = "auto",
) -> FabricState:
    """Run a program to its end and check that it ended well.

    Args:
        program: the program.
        values: as of :func:`run`.
        max_cycles: limit.
        implementation: as of :func:`run`.
    """
    state = run(program, values, max_cycles, implementation)
    check_finished(state)
    return state


def cycles(state: FabricState) -> Any:
    """Cycles until the last CE did its last step, counted from 1."""
    return state.end.max()


def read(program: Program, state: FabricState, name: str) -> np.ndarray:
    """[H, W, n] an array's values in its own type."""
    if name not in state.arrays:
        raise FabricError(f"no array {name!r}; declared: {[a.name for a in program.arrays]}")
    return state.arrays[name]


def check_finished(state: FabricState) -> None:
    """Raise unless the run ended with every task done and every wavelet consumed.

    Raises:
        FaultError: naming PE, color and cycle.
        DeadlockError: naming what waits and for what, likely causes first.
    """
    machine = state.machine
    if state.status is Status.FAULT:
        raise FaultError(f"cycle {machine.cycle}, {machine.fault}")
    if waiting := by_cause(machine.image, machine.waiting()):
        running = state.status is Status.LIMIT
        verb = "still running" if running else "deadlock: nothing can move"
        lines = [f"cycle {machine.cycle}: {verb}", *map(str, waiting[:_SHOWN])]
        more = [f"and {len(waiting) - _SHOWN} more"] if len(waiting) > _SHOWN else []
        raise DeadlockError("\n  ".join(lines + more))
