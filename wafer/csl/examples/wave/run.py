"""Propagates a wave through columns of cells, one column per PE, by a star of 25 points."""

import argparse
import json
from pathlib import Path

import numpy as np

WEIGHTS = np.array([-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560])  # by distance, of order 8
REACH = 4  # cells on either side


def run(runner, field, speed, steps):
    """The field after some steps from rest, [height, width, cells], and the cycles of the call.

    ``field`` is 0 beyond the border; ``speed`` is of waves in cells per step, at most 0.45 (beyond
    that the field grows without bounds). Two cells before the speeds move them to another bank of
    the memory.
    """
    height, width, cells = field.shape
    for name, values, ends in (
        ("field", field, (REACH, REACH)),
        ("speed", np.square(speed, dtype=np.float32), (2, 0)),
    ):
        columns = np.pad(values.astype(np.float32), ((0, 0), (0, 0), ends))
        items = columns.shape[2]
        runner.memcpy_h2d(runner.get_id(name), columns.ravel(), 0, 0, width, height, items)
    start = runner.cycles
    runner.launch("march", np.uint16(steps))
    cycles = runner.cycles - start
    after = np.zeros((height, width, cells + 2 * REACH), np.float32)
    runner.memcpy_d2h(after, runner.get_id("field"), 0, 0, width, height, after.shape[2])
    return after[..., REACH:-REACH], cycles


def reference(field, speed, steps):
    """The same bits: single precision, and sums in the order of the program."""
    weights, change = WEIGHTS.astype(np.float32), np.zeros_like(field)
    height, width, cells = field.shape
    for _ in range(steps):
        wide = np.pad(field, ((0, 0), (0, 0), (REACH, REACH)))
        total = field * (3 * weights[0])
        for away in range(1, 5):
            for first in (REACH - away, REACH + away):
                total += wide[..., first : first + cells] * weights[away]
        for x in range(width):
            for other in _neighbours(x, width):
                total[:, x] += field[:, other] * weights[abs(other - x)]
        for y in range(height):
            for other in _neighbours(y, height):
                total[y] += field[other] * weights[abs(other - y)]
        change = change + total * (speed * speed)
        field = field + change
    return field


def _neighbours(at, size):
    """Places within four of one, in the order of their turns to send."""
    near = [k for k in range(size) if 0 < abs(k - at) <= REACH]
    return sorted(near, key=lambda k: k % 9)


def main():
    from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="out", help="folder of the compiled program")
    parser.add_argument("--cmaddr", help="IP:port of a system")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    params = json.loads(Path(args.name, "out.json").read_text())["params"]
    shape = tuple(int(params[k]) for k in ("height", "width", "cells"))
    rng = np.random.default_rng(0)
    field = rng.standard_normal(shape).astype(np.float32)
    speed = rng.uniform(0.1, 0.45, shape).astype(np.float32)
    runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
    runner.load()
    runner.run()
    after, cycles = run(runner, field, speed, args.steps)
    runner.stop()
    np.testing.assert_array_equal(after, reference(field, speed, args.steps))
    print(f"{cycles} cycles for {args.steps} steps of {field.size} cells")
    print("SUCCESS!")


if __name__ == "__main__":
    main()
