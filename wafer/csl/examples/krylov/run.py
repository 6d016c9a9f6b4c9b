"""Solves a system of equations on a grid of cells by conjugate gradients or BiCGStab."""

import argparse
import json
from pathlib import Path

import numpy as np

METHODS = ("cg", "bicgstab")
BANKS = (0, 0, 0, 0, 0, 0, 1)  # of the memory, in which coefficients begin: as in column.csl


def run(runner, coefficients, right, iterations, limit=0.0):
    """Solve A x = b from x = 0; x, the residual's squares, and the cycles of the call.

    ``coefficients`` [7, height, width, cells] are a cell's own and those of the cells to the north,
    east, south and west, below (one earlier in the column) and above; cells beyond the border are
    0. ``right`` [height, width, cells] is b. No iteration begins once the square of the residual,
    as the method itself updates it, is at most ``limit``.
    """
    height, width, cells = right.shape
    blocks = np.zeros((height, width, 7, (cells + 3) // 4 * 4 + 4), np.float32)
    for k, bank in enumerate(BANKS):
        blocks[:, :, k, bank : bank + cells] = coefficients[k]
    columns = np.pad(right.astype(np.float32), ((0, 0), (0, 0), (3, 1)))
    for name, values in (("coefficients", blocks), ("right", columns)):
        items = values[0, 0].size
        runner.memcpy_h2d(runner.get_id(name), values.ravel(), 0, 0, width, height, items)
    start = runner.cycles
    runner.launch("solve", np.uint16(iterations), np.float32(limit))
    cycles = runner.cycles - start
    x = np.zeros(right.size, np.float32)
    runner.memcpy_d2h(x, runner.get_id("solution"), 0, 0, width, height, cells)
    count, squares = np.zeros(1, np.uint32), np.zeros(iterations + 1, np.float32)
    runner.memcpy_d2h(count, runner.get_id("count"), 0, 0, 1, 1, 1)  # all PEs have the same
    runner.memcpy_d2h(squares, runner.get_id("squares"), 0, 0, 1, 1, iterations + 1)
    return x.reshape(right.shape), squares[: count[0] + 1], cycles


def apply(c, x):
    """A x, with sums in the order of the program."""
    ends = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    total = c[0] * x + c[5] * ends[..., :-2] + c[6] * ends[..., 2:]
    _exchange(c.swapaxes(1, 2), x.swapaxes(0, 1), total.swapaxes(0, 1), 4, 2)
    _exchange(c, x, total, 1, 3)
    return total


def _exchange(c, x, total, before, behind):
    """Add neighbours along the first axis, in the order of their turns."""
    for at in range(len(x)):
        near = [(at - 1, before), (at + 1, behind)]
        for other, k in sorted(near, key=lambda pair: pair[0] % 3):
            if 0 <= other < len(x):
                total[at] += c[k][at] * x[other]


def dot(a, b):
    """Cells of a column in order; then PEs from the outside in, rows first."""
    column = np.add.accumulate(np.pad(a * b, ((0, 0), (0, 0), (1, 0))), axis=2)[..., -1]
    return _gather(np.array([_gather(row) for row in column]))


def _gather(values):
    middle = len(values) // 2
    total = values[middle]
    for value in [*values[:middle], *values[:middle:-1]]:
        total = total + value
    return total


def reference(method, coefficients, right, iterations):
    """x and the residual's squares: the same bits in single precision."""
    return {"cg": _cg, "bicgstab": _bicgstab}[method](coefficients, right, iterations)


def _cg(c, b, iterations):
    x, r, p, squares = np.zeros_like(b), b, b, [dot(b, b)]
    for _ in range(iterations):
        q = apply(c, p)
        step = squares[-1] / dot(p, q)
        x, r = x + p * step, r + q * -step
        squares.append(dot(r, r))
        p = r + p * (squares[-1] / squares[-2])
    return x, np.array(squares)


def _bicgstab(c, b, iterations):
    x, r, p, squares = np.zeros_like(b), b, b, [dot(b, b)]
    rho = squares[0]
    for _ in range(iterations):
        v = apply(c, p)
        alpha = rho / dot(b, v)
        r = r + v * -alpha
        t = apply(c, r)
        omega = dot(r, t) / dot(t, t)
        x = x + p * alpha + r * omega
        r = r + t * -omega
        new = dot(b, r)
        squares.append(dot(r, r))
        p = r + (p + v * -omega) * ((new / rho) * (alpha / omega))
        rho = new
    return x, np.array(squares)


def system(method, shape):
    """Coefficients and b; for conjugate gradients symmetric and positive definite."""
    rng, c = np.random.default_rng(0), np.zeros((7, *shape))
    for axis, (low, high) in enumerate(((1, 3), (4, 2), (5, 6))):
        between = -rng.uniform(0.5, 1, [size + (k == axis) for k, size in enumerate(shape)])
        c[low] = np.take(between, range(shape[axis]), axis)
        c[high] = np.take(between, range(1, shape[axis] + 1), axis)
    if method == "bicgstab":
        c[1:] *= rng.uniform(0.5, 1, c[1:].shape)
    c[0] = 0.2 - c[1:].sum(axis=0)
    return c.astype(np.float32), rng.standard_normal(shape).astype(np.float32)


def main():
    from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="out", help="folder of the compiled program")
    parser.add_argument("--cmaddr", help="IP:port of a system")
    parser.add_argument("--limit", type=float, default=1e-8, help="of the residual's square")
    args = parser.parse_args()
    params = json.loads(Path(args.name, "out.json").read_text())["params"]
    method = METHODS[int(params["method"])]
    coefficients, right = system(
        method, tuple(int(params[k]) for k in ("height", "width", "cells"))
    )
    runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
    runner.load()
    runner.run()
    x, squares, cycles = run(runner, coefficients, right, int(params["iterations"]), args.limit)
    runner.stop()
    taken = len(squares) - 1
    expected, history = reference(method, coefficients, right, taken)
    np.testing.assert_array_equal(squares, history)
    np.testing.assert_array_equal(x, expected)
    assert squares[-1] <= args.limit < squares[-2]
    residual = right - apply(coefficients.astype(float), x.astype(float))
    assert np.abs(residual).max() < 1e-4
    print(f"{method}: {taken} iterations, {cycles} cycles")
    print("SUCCESS!")


if __name__ == "__main__":
    main()
