"""Conway's game of life with one cell per PE, beside the same rule in NumPy."""

import argparse
import json
from pathlib import Path

import numpy as np


def run(runner, cells, generations):
    """The cells then, [height, width] of 0 and 1, and the cycles of the call."""
    (height, width), cell = cells.shape, runner.get_id("cell")
    runner.memcpy_h2d(cell, cells.astype(np.uint32).ravel(), 0, 0, width, height, 1)
    start = runner.cycles
    runner.launch("live", np.uint16(generations))
    cycles = runner.cycles - start
    after = np.zeros(cells.size, np.uint32)
    runner.memcpy_d2h(after, cell, 0, 0, width, height, 1)
    return after.reshape(cells.shape), cycles


def reference(cells, generations):
    """The same, with neighbours counted by nine shifts of a padded grid."""
    height, width = cells.shape
    for _ in range(generations):
        wide = np.pad(cells, 1)
        block = sum(wide[y : y + height, x : x + width] for y in range(3) for x in range(3))
        cells = ((block == 3) | ((block == 4) & (cells == 1))).astype(int)
    return cells


def main():
    from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="out", help="folder of the compiled program")
    parser.add_argument("--cmaddr", help="IP:port of a system")
    parser.add_argument("--generations", type=int, default=12)
    args = parser.parse_args()
    params = json.loads(Path(args.name, "out.json").read_text())["params"]
    shape = int(params["height"]), int(params["width"])
    cells = np.random.default_rng(0).integers(0, 2, shape)
    glider = np.array([[0, 1, 0], [0, 0, 1], [1, 1, 1]])
    cells[:3, :3] = glider[: shape[0], : shape[1]]
    runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
    runner.load()
    runner.run()
    after, cycles = run(runner, cells, args.generations)
    runner.stop()
    np.testing.assert_array_equal(after, reference(cells, args.generations))
    print("\n".join("".join(".#"[cell] for cell in row) for row in after))
    print(f"{cycles} cycles for {args.generations} generations")
    print("SUCCESS!")


if __name__ == "__main__":
    main()
