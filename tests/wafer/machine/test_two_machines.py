"""One program on two machines: a Layout's operations as CSL's machine executes them."""

import numpy as np
import pytest
from helpers.emit import Emitted

from wafer import fabric
from wafer.fabric import native
from wafer.fabric.library import kernel_programs, lowering
from wafer.machine.engine import available

pytestmark = pytest.mark.skipif(
    not (available() and native.available()), reason="the machines are not built"
)
_ENDS = 4  # cycles from the last step of a CE to the cycle in which the machine finds all quiet

# name -> program, arrays that are given, the array that is compared
PROGRAMS = {
    "chain": (lambda: lowering.chain_program(6, 2, 5), {"x": 5}, "x"),
    "chain with overheads": (
        lambda: lowering.chain_program(6, 2, 5, overheads=True), {"x": 5}, "x"),
    "broadcast": (lambda: lowering.broadcast_program(6, 2, 5), {"x": 5}, "x"),
    "two phases": (lambda: lowering.two_phase_program(6, 2, 5, 3), {"x": 5}, "x"),
    "tree": (lambda: lowering.tree_program(8, 2, 5), {"x": 5}, "x"),
    "all-reduce": (lambda: lowering.allreduce_program(4, 4, 3, 2), {"x": 3}, "x"),
}  # fmt: skip
# Operands in memory meet at banks there; a task that waits for a microthread goes on in another.
KERNELS = {
    "GEMV": (lambda: kernel_programs.gemv_program(3, 4, 4, 5), {"a": 20, "x": 5}, "y"),
    "SUMMA": (lambda: kernel_programs.summa_program(3, 3, 3, 3), {"a": 9, "b": 9}, "c"),
    "seven points": (
        lambda: kernel_programs.seven_point_program(3, 4, 5),
        {"u": 7} | {f"c{i}": 5 for i in range(7)}, "out"),
}  # fmt: skip


def both(case):
    """(cycles of the fabric's engine, cycles of CSL's machine) once their bits agree."""
    build, arrays, wanted = case
    program, rng = build(), np.random.default_rng(0)
    grid = program.meta.height, program.meta.width
    values = {name: rng.standard_normal((*grid, n)).astype("f4") for name, n in arrays.items()}
    state = fabric.simulate(program, values, implementation="native")
    emitted = Emitted(program)
    machine = emitted.machine()
    for name, value in values.items():
        emitted.write(machine, name, value)
    machine.run()
    assert not machine.fault
    np.testing.assert_array_equal(
        emitted.read(machine, wanted), np.asarray(fabric.read(program, state, wanted))
    )
    return int(fabric.cycles(state)), machine.cycle


@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_and_cycles_agree(name):
    fabric_cycles, machine_cycles = both(PROGRAMS[name])
    assert machine_cycles == fabric_cycles + _ENDS


@pytest.mark.parametrize("name", KERNELS)
def test_bits_of_kernels_agree(name):
    fabric_cycles, machine_cycles = both(KERNELS[name])
    assert 0 < machine_cycles - fabric_cycles - _ENDS <= 0.06 * fabric_cycles
