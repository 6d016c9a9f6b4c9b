"""Sums and maxima over a rectangle of PEs, by a tree of two levels along each axis."""

import argparse
import json
from pathlib import Path

import numpy as np


def run(runner, values):
    """What each PE has then, [height, width, 5], and the cycles of the call."""
    (height, width, _), symbol = values.shape, runner.get_id("values")
    runner.memcpy_h2d(symbol, values.astype(np.float32).ravel(), 0, 0, width, height, 5)
    start = runner.cycles
    runner.launch("reduce")
    cycles = runner.cycles - start
    after = np.zeros(values.shape, np.float32)
    runner.memcpy_d2h(after, symbol, 0, 0, width, height, 5)
    return after, cycles


def reference(values):
    """Sums of the first three numbers, the largest of the others: the same on all PEs."""
    sums, largest = values[..., :3].sum((0, 1)), values[..., 3:].max((0, 1))
    return np.broadcast_to(np.concatenate([sums, largest]), values.shape)


def main():
    from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="out", help="folder of the compiled program")
    parser.add_argument("--cmaddr", help="IP:port of a system")
    args = parser.parse_args()
    params = json.loads(Path(args.name, "out.json").read_text())["params"]
    shape = int(params["height"]), int(params["width"]), 5
    values = np.random.default_rng(0).integers(-9, 9, shape)
    runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
    runner.load()
    runner.run()
    after, cycles = run(runner, values)
    runner.stop()
    np.testing.assert_array_equal(after, reference(values))
    print(f"{cycles} cycles")
    print("SUCCESS!")


if __name__ == "__main__":
    main()
