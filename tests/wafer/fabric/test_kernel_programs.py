"""Kernels run as PE programs: values of the bulk functions, cycles of their formulas."""

import numpy as np
import pytest

from wafer import fabric
from wafer.fabric import library as kernels
from wafer.fabric.library import kernel_programs
from wafer.fabric.library.collectives import start_clock

pytestmark = pytest.mark.native

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def assert_first_column(program, state, want, clock):
    got = np.asarray(fabric.read(program, state, "y"))
    np.testing.assert_allclose(got[:, 0], want[:, 0], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(state.end[:, 0], clock[:, 0])


def test_gemv_runs_as_its_formula_says():
    a, x = normal(3, 4, 5, 6), np.broadcast_to(normal(1, 4, 6), (3, 4, 6))
    program = kernel_programs.gemv_program(3, 4, 5, 6)
    state = fabric.simulate(program, {"a": a.reshape(3, 4, 30), "x": x})
    result = kernels.gemv(a, x, start_clock(3, 4), algorithm="chain")
    assert_first_column(program, state, *result)


def test_sparse_matvec_runs_as_its_formula_says():
    h, w, m, n, most = 3, 2, 4, 5, 7
    counts = RNG.integers(0, most + 1, (h, w))
    rows, cols = RNG.integers(0, m, (h, w, most)), RNG.integers(0, n, (h, w, most))
    values, x = normal(h, w, most), np.broadcast_to(normal(1, w, n), (h, w, n))
    program = kernel_programs.sparse_matvec_program(rows, cols, counts, (m, n))
    state = fabric.simulate(program, {"v": values, "x": x})
    result = kernels.sparse_matvec((values, rows, cols, counts), x, m, start_clock(h, w))
    assert_first_column(program, state, *result)


def test_seven_points_run_as_their_formula_says():
    h, w, z = 4, 5, 6
    c, u = normal(7, h, w, z), normal(h, w, z)
    program = kernel_programs.seven_point_program(h, w, z)
    arrays = {f"c{i}": c[i] for i in range(7)}
    state = fabric.simulate(program, arrays | {"u": np.pad(u, ((0, 0), (0, 0), (1, 1)))})
    want, clock = kernels.seven_point(c, u, start_clock(h, w))
    np.testing.assert_allclose(fabric.read(program, state, "out"), want, rtol=1e-5, atol=1e-5)
    # the program waits for the last halo with an operation of its own
    assert int(fabric.cycles(state)) == int(clock.max()) + 1


def test_summa_of_the_csl_example_cycle_by_cycle():
    """4 x 4 PEs, tiles of 14: the PE program takes the cycles of the library's clock."""
    a, b = normal(4, 4, 14, 14), normal(4, 4, 14, 14)
    program = kernel_programs.summa_program(4, 14, 14, 14)
    arrays = {"a": a.swapaxes(2, 3).reshape(4, 4, -1), "b": b.reshape(4, 4, -1)}
    state = fabric.simulate(program, arrays)
    want, clock = kernels.summa(a, b, start_clock(4, 4))
    got = np.asarray(fabric.read(program, state, "c")).reshape(4, 4, 14, 14).swapaxes(2, 3)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert abs(int(fabric.cycles(state)) / int(clock.max()) - 1) < 0.005
    with pytest.raises(fabric.FabricError, match="5 x 5 PEs; a color per step allows 2 to 4"):
        kernel_programs.summa_program(5, 2, 2, 2)
