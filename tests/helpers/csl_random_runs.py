"""Runs of random CSL programs: on the C++ machine, on the JAX machine, beside the model."""

import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from helpers.csl_random import ARRAYS, KINDS, LENGTH
from helpers.csl_random_programs import RandomProgram

import wafer.csl
from wafer.csl.host.errors import DeadlockError, FaultError
from wafer.csl.host.order import MemcpyOrder
from wafer.csl.host.region import MemcpyDataType
from wafer.csl.host.runtime import Runtime
from wafer.machine.base import WaferMachine
from wafer.machine.image import Image
from wafer.machine.reference import engine, tables
from wafer.machine.reference.machine import ReferenceMachine
from wafer.machine.reference.tables import rounded_up


class Outcome(NamedTuple):
    """What a run leaves: alike on both machines."""

    error: str  # name of its class; '' if the program comes to its end
    cycles: list[int]  # after each step of the host
    copies: list[np.ndarray]  # that the host read
    arrays: dict[tuple[int, int], dict[str, np.ndarray]]  # of each PE at the end
    counted: tuple[np.ndarray, ...]  # words on links, cycles of work and their end


# Least sizes of the JAX machine's tables -> those here, so that one XLA program serves nearly all.
_SIZES = {256: 1024, 8: 64, 2: 4, 4: 8, 1024: 2048, 64: 256}


def reference_machine(image: Image) -> ReferenceMachine:
    """The JAX machine; its registers have 64 bits inside ``jax.enable_x64``."""
    size = lambda count, least: max(rounded_up(count, least), _SIZES[least])
    with (
        mock.patch.object(tables, "rounded_up", size),
        mock.patch.object(engine, "rounded_up", size),
    ):
        return ReferenceMachine(image)


def compiled(program: RandomProgram) -> Image:
    """The image of a program; a warning is an error unless a route is missing."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore" if program.broken else "error", wafer.csl.CslWarning)
        for name, text in program.files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        return wafer.csl.compile(Path(folder, "layout.csl"), arch=program.arch)


def _copy(runtime: Runtime, step: Any) -> np.ndarray:
    """A copy of the host; what it read, [rows, columns, LENGTH]."""
    (x, y, width, height), kind = step.values, KINDS[step.name[0]][1]
    order = MemcpyOrder.COL_MAJOR if step.column_major else MemcpyOrder.ROW_MAJOR
    small = np.dtype(kind).itemsize == 2
    data_type = MemcpyDataType.MEMCPY_16BIT if small else MemcpyDataType.MEMCPY_32BIT
    options = {"order": order, "data_type": data_type, "streaming": False, "nonblock": False}
    region = (x, y, width, height, LENGTH)
    turned = (2, 1, 0) if step.column_major else (0, 1, 2)  # items of all PEs, then the next ones
    if step.kind == "to":
        items = step.data.view(np.uint16).astype(np.uint32) if small else step.data
        flat = np.ascontiguousarray(items.transpose(turned)).ravel()
        runtime.memcpy_h2d(runtime.get_id(step.name), flat, *region, **options)
        return step.data
    flat = np.zeros(step.data.size, np.uint32)
    runtime.memcpy_d2h(flat, runtime.get_id(step.name), *region, **options)
    items = flat.astype(np.uint16).view(kind) if small else flat.view(kind)
    shape = [step.data.shape[axis] for axis in turned]
    return items.reshape(shape).transpose(turned)


def run(program: RandomProgram, machine: WaferMachine) -> Outcome:
    """Run a program's host on a machine."""
    runtime, error, cycles, copies = Runtime(machine.image, machine), "", [], []
    try:
        for step in program.host:
            if step.kind == "launch":
                runtime.launch(step.name, np.uint16(step.values[0]), np.float32(step.values[1]))
            else:
                copies.append(_copy(runtime, step))
            cycles.append(runtime.cycles)
        runtime.stop()
        cycles.append(runtime.cycles)
    except (DeadlockError, FaultError) as caught:
        error, cycles = type(caught).__name__, [*cycles, runtime.cycles]
    height, width = machine.image.tiles.shape
    arrays = {
        (x, y): {
            name: runtime.read_symbol(x, y, name).ravel()
            for name in machine.image.programs[machine.image.tiles[y, x]].symbols
            if name in ARRAYS
        }
        for y, x in np.ndindex(height, width)
    }
    return Outcome(error, cycles, copies, arrays, (machine.links, *machine.worked))


def check_program(program: RandomProgram, *, reference: bool = False) -> str:
    """Compare a program's run with its model; how it ended.

    Args:
        program: to run.
        reference: whether to compare the C++ machine with the JAX machine, too.

    Returns:
        '' at its end, else the name of the error; with a route missing the compiler may refuse it.
    """
    try:
        image = compiled(program)
    except wafer.csl.CslError:
        if not program.broken:
            raise
        return "CslError"
    ours = run(program, wafer.csl.Machine(image, 1))
    _compare_model(program, ours)
    if reference:
        _compare_machines(ours, run(program, reference_machine(image)))
    return ours.error


def _compare_machines(ours: Outcome, other: Outcome) -> None:
    assert (ours.error, ours.cycles) == (other.error, other.cycles)
    for one, two in zip(
        [*ours.copies, *ours.counted], [*other.copies, *other.counted], strict=True
    ):
        np.testing.assert_array_equal(one, two)
    for at, own in ours.arrays.items():
        for name in own:
            np.testing.assert_array_equal(own[name], other.arrays[at][name], f"{name} of PE {at}")


def _compare_model(program: RandomProgram, ours: Outcome) -> None:
    """A program without a missing route comes to its end, with the values of its model."""
    assert program.broken or not ours.error, ours.error
    if not program.leaves:
        return
    for step, read in zip(
        [s for s in program.host if s.data is not None], ours.copies, strict=True
    ):
        np.testing.assert_array_equal(read, step.data, f"{step.kind} {step.name}")
    for at, own in ours.arrays.items():
        for name in own:
            np.testing.assert_array_equal(own[name], program.leaves[at][name], f"{name} of PE {at}")
