"""Transforms arrays of one, two or three axes across PEs, as numpy.fft does."""

import argparse
import json
from pathlib import Path

import numpy as np


def lengths(shape):
    """Lengths of three axes: one axis is cut in two, and the third of two axes is 1."""
    if len(shape) == 1:
        bits = shape[0].bit_length() - 1
        return 1 << bits // 2, 1 << (bits - bits // 2), 1
    return (*shape, 1)[:3]


def run(runner, values, inverse=False):
    """The transform, complex64, and the cycles of the call; back by ``inverse``.

    Lengths are powers of two from 2 to 2,048, or of one axis from 4 to 4,194,304. PEs need not
    divide them: shares are rounded up, and what fills them up is dropped.
    """
    height, width = runner.whole.height, runner.whole.width
    n0, n1, n2 = lengths(values.shape)
    sign, turned = 1 if inverse else -1, values.ndim == 1
    # What a PE has of the first axis, of the second in a row of PEs and in a column, of the third.
    axes = (n0, width), (n1, width), (n1, height), (n2, height)
    first, second, later, third = (-(-length // pes) for length, pes in axes)
    numbers = first * third * max(second * width, later * height)
    size = -(-(numbers + 2) // 4) * 4  # words of its real parts

    # Whole lines along the first axis, a line's numbers apart; an array of one axis has number j in
    # row j // n1 and column j % n1.
    grid = values.reshape(n0, n1, n2).astype(np.complex64)
    grid = np.pad(grid, ((0, 0), (0, second * width - n1), (0, third * height - n2)))
    parts = grid.reshape(n0, width, second, height, third).transpose(3, 1, 0, 2, 4)
    parts = parts.reshape(height, width, -1)
    data = np.zeros((height, width, 4 * size), np.float32)
    data[..., : parts.shape[2]] = parts.real
    data[..., size : size + parts.shape[2]] = parts.imag
    _write(runner, "data", data)
    longest = max(n0, n1, n2)
    roots = np.exp(sign * 2j * np.pi * np.arange(longest // 2) / longest)
    roots = np.concatenate([[0], roots.real, roots.imag])
    _write(runner, "roots", np.tile(roots, (height, width, 1)))
    if turned:  # between its two parts, by the roots of Cooley and Tukey (1965)
        product = np.arange(n0)[:, None] * np.arange(second * width) % (n0 * n1)
        parts = np.exp(sign * 2j * np.pi * product / (n0 * n1)).reshape(n0, width, second)
        parts = parts.swapaxes(0, 1).reshape(1, width, -1)
        turns = np.zeros((height, width, 2, numbers))
        turns[..., 0, : parts.shape[2]], turns[..., 1, : parts.shape[2]] = parts.real, parts.imag
        _write(runner, "turns", turns.reshape(height, width, -1))

    start = runner.cycles
    runner.launch("transform")
    cycles = runner.cycles - start
    runner.memcpy_d2h(data, runner.get_id("data"), 0, 0, width, height, 4 * size)

    rows = n1 if n2 == 1 else later  # without a third axis a PE has whole lines of the second
    steps = sum(length.bit_length() - 1 for length in (n0, n1, n2))
    at = 2 * size * ((steps + turned + 1 + (n2 > 1)) % 2)  # each goes to the other buffer
    pairs = np.ascontiguousarray(data[..., at : at + 2 * n2 * rows * first])
    parts = pairs.view(np.complex64).reshape(height, width, n2, rows, first)
    whole = parts.transpose(1, 4, 0, 3, 2).reshape(width * first, height * rows, n2)[:n0, :n1]
    whole = (whole.transpose(1, 0, 2) if turned else whole).reshape(values.shape)
    return (whole / np.float32(values.size) if inverse else whole), cycles


def _write(runner, name, values):
    height, width, items = values.shape
    flat = values.astype(np.float32).ravel()
    runner.memcpy_h2d(runner.get_id(name), flat, 0, 0, width, height, items)


def reference(values, inverse=False):
    return np.fft.ifftn(values) if inverse else np.fft.fftn(values)


def main():
    from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="out", help="folder of the compiled program")
    parser.add_argument("--cmaddr", help="IP:port of a system")
    args = parser.parse_args()
    params = json.loads(Path(args.name, "out.json").read_text())["params"]
    n0, n1, n2, turned = (int(params[k]) for k in ("length0", "length1", "length2", "turned"))
    shape = (n0 * n1,) if turned else (n0, n1, n2)[: 2 + (n2 > 1)]
    rng = np.random.default_rng(0)
    values = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
    runner.load()
    runner.run()
    there, cycles = run(runner, values)
    back, _ = run(runner, there, inverse=True)
    runner.stop()
    expected = reference(values)
    assert np.abs(there - expected).max() < 1e-6 * np.abs(expected).max()
    np.testing.assert_allclose(back, values, atol=2e-6)
    print(f"{' x '.join(map(str, shape))} numbers: {cycles} cycles")
    print("SUCCESS!")


if __name__ == "__main__":
    main()
