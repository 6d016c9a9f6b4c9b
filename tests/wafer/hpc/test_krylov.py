"""Solvers on PEs: the same bits in NumPy, textbook methods in double precision, cycles."""

import numpy as np
import pytest

from wafer.errors import WaferError
from wafer.hpc import krylov

LARGE = [pytest.param(shape, marks=pytest.mark.slow) for shape in ((5, 6, 3), (8, 11, 20))]
CASES = [(1, 1, 5), (3, 1, 4), (2, 4, 3), *LARGE]
AROUND = {1: (-1, 0, 0), 2: (0, 1, 0), 3: (1, 0, 0), 4: (0, -1, 0), 5: (0, 0, -1), 6: (0, 0, 1)}


def system(method, shape):
    """Coefficients and a right-hand side; for CG symmetric and positive definite."""
    rng = np.random.default_rng(sum(shape))
    coefficients = np.zeros((7, *shape))
    if method == "cg":
        for axis, (low, high) in enumerate(((1, 3), (4, 2), (5, 6))):
            more = [size + (k == axis) for k, size in enumerate(shape)]
            between = -rng.uniform(0.5, 1, more)
            coefficients[low] = np.take(between, range(shape[axis]), axis)
            coefficients[high] = np.take(between, range(1, shape[axis] + 1), axis)
        coefficients[0] = 0.2 - coefficients[1:].sum(axis=0)
    else:
        coefficients[1:] = -rng.uniform(0.2, 1, (6, *shape))
        coefficients[0] = 6.5
    return coefficients.astype(np.float32), rng.standard_normal(shape).astype(np.float32)


def matrix(coefficients):
    """The operator as a dense matrix, float64."""
    shape = coefficients.shape[1:]
    dense = np.zeros((np.prod(shape),) * 2)
    for at in np.ndindex(shape):
        row = np.ravel_multi_index(at, shape)
        dense[row, row] = coefficients[0][at]
        for k, step in AROUND.items():
            to = np.add(at, step)
            if ((to >= 0) & (to < shape)).all():
                dense[row, np.ravel_multi_index(tuple(to), shape)] = coefficients[k][at]
    return dense


class Single:
    """Operator and products in single precision, in the program's order."""

    def __init__(self, coefficients):
        self.coefficients = coefficients

    def apply(self, x):
        c, total = self.coefficients, self.coefficients[0] * x
        ends = np.pad(x, ((0, 0), (0, 0), (1, 1)))
        total = total + c[5] * ends[..., :-2]
        total = total + c[6] * ends[..., 2:]
        total = self.exchange(c.swapaxes(1, 2), x.swapaxes(0, 1), total.swapaxes(0, 1), 4, 2)
        return self.exchange(c, x, total.swapaxes(0, 1), 1, 3)

    def exchange(self, c, x, total, before, behind):
        """Along the first axis of x: neighbours' columns in the order of their turns."""
        total = total.copy()
        for at in range(len(x)):
            near = [(at - 1, before), (at + 1, behind)]
            for other, k in sorted(near, key=lambda pair: pair[0] % 3):
                if 0 <= other < len(x):
                    total[at] += c[k][at] * x[other]
        return total

    def dot(self, a, b):
        """Cells of a column in order, then PEs from the outside in, before the ones behind."""
        own = np.add.accumulate(np.pad(a * b, ((0, 0), (0, 0), (1, 0))), axis=2)[..., -1]
        return gathered(np.array([gathered(row) for row in own]))


def gathered(values):
    middle = len(values) // 2
    total = values[middle]
    for value in [*values[:middle], *values[:middle:-1]]:
        total = total + value
    return total


class Double:
    """The same by the dense matrix, in double precision."""

    def __init__(self, coefficients):
        self.dense = matrix(coefficients)

    def apply(self, x):
        return (self.dense @ x.ravel()).reshape(x.shape)

    def dot(self, a, b):
        return (a * b).sum()


def cg(grid, b, steps):
    x, r, p = np.zeros_like(b), b, b
    squares = [grid.dot(r, r)]
    for _ in range(steps):
        q = grid.apply(p)
        step = squares[-1] / grid.dot(p, q)
        x, r = x + p * step, r + q * -step
        squares.append(grid.dot(r, r))
        p = r + p * (squares[-1] / squares[-2])
    return x, np.array(squares)


def bicgstab(grid, b, steps):
    x, r, p = np.zeros_like(b), b, b
    rho, squares = grid.dot(b, b), [grid.dot(b, b)]
    for _ in range(steps):
        v = grid.apply(p)
        alpha = rho / grid.dot(b, v)
        r = r + v * -alpha
        t = grid.apply(r)
        omega = grid.dot(r, t) / grid.dot(t, t)
        x = x + p * alpha + r * omega
        r = r + t * -omega
        new = grid.dot(b, r)
        squares.append(grid.dot(r, r))
        beta = (new / rho) * (alpha / omega)
        p = r + (p + v * -omega) * beta
        rho = new
    return x, np.array(squares)


METHODS = {"cg": cg, "bicgstab": bicgstab}


@pytest.mark.parametrize("shape", CASES)
@pytest.mark.parametrize("method", METHODS)
def test_bits_and_cycles(method, shape):
    coefficients, right = system(method, shape)
    solution = krylov.run(method, coefficients, right, 3)
    x, squares = METHODS[method](Single(coefficients), right, 3)
    np.testing.assert_array_equal(solution.squares, squares)
    np.testing.assert_array_equal(solution.x, x)
    error = 0 if max(shape[:2]) < 5 else 0.02
    assert krylov.cycles(method, *shape, 3) == pytest.approx(solution.cycles, rel=error)


@pytest.mark.parametrize("method", METHODS)
def test_history_in_double_precision_and_the_end_at_a_limit(method):
    coefficients, right = system(method, (3, 4, 5))
    solution = krylov.run(method, coefficients, right, 60, limit=1e-9)
    taken = len(solution.squares) - 1
    assert 5 < taken < 60
    assert solution.squares[-1] <= 1e-9 < solution.squares[-2]
    _, squares = METHODS[method](Double(coefficients), right.astype(np.float64), 4)
    np.testing.assert_allclose(solution.squares[:5], squares, rtol=2e-3)
    exact = np.linalg.solve(matrix(coefficients), right.ravel().astype(np.float64))
    np.testing.assert_allclose(solution.x.ravel(), exact, atol=1e-4)


def test_one_cell_by_hand():
    """4 x = 8: the first direction is the last one."""
    coefficients = np.zeros((7, 1, 1, 1), np.float32)
    coefficients[0] = 4
    for method in METHODS:
        solution = krylov.run(method, coefficients, np.full((1, 1, 1), 8, np.float32), 9)
        assert solution.x.item() == 2
        assert solution.squares.tolist() == [64, 0]


def test_errors():
    coefficients, right = system("cg", (2, 2, 3))
    cases = [
        (("gmres", coefficients, right, 1), r"method: 'gmres'; expected one of cg, bicgstab"),
        (("cg", coefficients, right[0], 1), r"right: shape \(2, 3\); expected \[height, width"),
        (("cg", coefficients[:6], right, 1), r"expected \(7, 2, 2, 3\): seven points"),
        (("cg", coefficients, right * np.inf, 1), r"right: holds values that are not finite"),
        (("cg", coefficients, right, 0), r"iterations: 0; expected 1 to 65,534"),
    ]
    for arguments, message in cases:
        with pytest.raises(WaferError, match=message):
            krylov.run(*arguments)
    with pytest.raises(WaferError, match=r"limit: nan; expected 0 or more"):
        krylov.run("cg", coefficients, right, 1, limit=float("nan"))
