"""Gives each PE of a row a vector, adds them along the row, and compares with NumPy."""

import argparse
import json
from pathlib import Path

import numpy as np

ITEMS = 8  # of a PE's vector, as in pe.csl


def run(runner, vectors):
    """Sums up to each PE of the row, [width, ITEMS] float32, and the cycles of the call."""
    width, x = len(vectors), runner.get_id("x")
    runner.memcpy_h2d(x, vectors.ravel(), 0, 0, width, 1, ITEMS)
    start = runner.cycles
    runner.launch("add")
    cycles = runner.cycles - start
    sums = np.zeros(vectors.size, np.float32)
    runner.memcpy_d2h(sums, x, 0, 0, width, 1, ITEMS)
    return sums.reshape(vectors.shape), cycles


def reference(vectors):
    return vectors.cumsum(0)


def main():
    from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="out", help="folder of the compiled program")
    parser.add_argument("--cmaddr", help="IP:port of a system")
    args = parser.parse_args()
    params = json.loads(Path(args.name, "out.json").read_text())["params"]
    width = int(params.get("width", 4))
    vectors = np.arange(width * ITEMS, dtype=np.float32).reshape(width, ITEMS)
    runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
    runner.load()
    runner.run()
    sums, cycles = run(runner, vectors)
    runner.stop()
    np.testing.assert_array_equal(sums, reference(vectors))
    print(sums)
    print(f"{cycles} cycles")
    print("SUCCESS!")


if __name__ == "__main__":
    main()
