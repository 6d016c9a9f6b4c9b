"""Draws the Mandelbrot set: each PE has a block of the picture, and no PE needs another."""

import argparse
import json
from pathlib import Path

import numpy as np


def run(runner, block, corner, pixel, limit):
    """Steps that stay within radius 2, of each pixel, and the cycles of the call.

    ``block`` are rows and columns of pixels of a PE, ``corner`` is the complex number of the first
    pixel, ``pixel`` the distance of two, ``limit`` the most steps.
    """
    (rows, columns), height, width = block, runner.whole.height, runner.whole.width
    start = runner.cycles
    point = np.array([corner.real, corner.imag, pixel], np.float32)
    runner.launch("draw", *point, np.uint16(limit))
    cycles = runner.cycles - start
    counts = np.zeros(height * width * rows * columns, np.uint32)
    runner.memcpy_d2h(counts, runner.get_id("counts"), 0, 0, width, height, rows * columns)
    blocks = counts.reshape(height, width, rows, columns).swapaxes(1, 2)
    return blocks.reshape(height * rows, width * columns), cycles


def reference(shape, corner, pixel, limit):
    """The same for all pixels at once, in single precision and in the program's order."""
    left, top, pixel = np.array([corner.real, corner.imag, pixel], np.float32)
    real = left + np.arange(shape[1], dtype=np.float32) * pixel
    imag = (top + np.arange(shape[0], dtype=np.float32) * pixel)[:, None]
    x, y = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    steps, within = np.zeros(shape, int), np.ones(shape, bool)
    for _ in range(limit):
        within &= x * x + y * y <= 4
        steps += within
        moved = x * x - y * y + real, (x + x) * y + imag
        x, y = (np.where(within, new, old) for new, old in zip(moved, (x, y), strict=True))
    return steps


def main():
    from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="out", help="folder of the compiled program")
    parser.add_argument("--cmaddr", help="IP:port of a system")
    parser.add_argument("--limit", type=int, default=40, help="most steps of a pixel")
    args = parser.parse_args()
    params = json.loads(Path(args.name, "out.json").read_text())["params"]
    block = int(params["rows"]), int(params["columns"])
    pixel = 2.5 / (int(params["height"]) * block[0])
    picture = {"corner": -2 - 1.25j, "pixel": pixel, "limit": args.limit}
    runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
    runner.load()
    runner.run()
    steps, cycles = run(runner, block, **picture)
    runner.stop()
    np.testing.assert_array_equal(steps, reference(steps.shape, **picture))
    print(f"{cycles} cycles for {steps.size} pixels, {steps.sum()} steps")
    print("SUCCESS!")


if __name__ == "__main__":
    main()
