"""A KV cache that shifts, as WaferLLM's (arXiv:2502.04563): rows pass their oldest entries up."""

import argparse
import json
from pathlib import Path

import numpy as np


def run(runner, params, entries):
    """Push entries [count, width, words] one after another into an empty cache.

    Returns entries of each row, [height]; the entries from the topmost row down, the oldest first,
    [count, width, words]; and the cycles of the call.
    """
    height, slots = params["height"], params["slots"]
    count, width, words = entries.shape
    fresh = entries.astype(np.float32).swapaxes(0, 1).ravel()
    runner.memcpy_h2d(runner.get_id("fresh"), fresh, 0, height - 1, width, 1, count * words)
    start = runner.cycles
    runner.launch("push", np.uint16(count))
    cycles = runner.cycles - start
    where = np.zeros((height, width, 3), np.uint32)  # the oldest entry's slot, entries
    runner.memcpy_d2h(where, runner.get_id("where"), 0, 0, width, height, 3)
    cache = np.zeros((height, width, slots, words), np.float32)
    runner.memcpy_d2h(cache, runner.get_id("cache"), 0, 0, width, height, slots * words)
    rows = [
        row[:, (int(head) + np.arange(held)) % slots].swapaxes(0, 1)
        for row, (head, held, _) in zip(cache, where[:, 0], strict=True)
    ]
    return where[:, 0, 1], np.concatenate(rows), cycles


def reference(entries, height):
    """No row has two entries more than another."""
    return [len(entries) // height + (row < len(entries) % height) for row in range(height)]


def main():
    from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="out", help="folder of the compiled program")
    parser.add_argument("--cmaddr", help="IP:port of a system")
    args = parser.parse_args()
    params = json.loads(Path(args.name, "out.json").read_text())["params"]
    params = {name: int(value) for name, value in params.items()}
    shape = params["most"], params["width"], params["words"]
    entries = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
    runner.load()
    runner.run()
    counts, kept, cycles = run(runner, params, entries)
    runner.stop()
    np.testing.assert_array_equal(counts, reference(entries, params["height"]))
    np.testing.assert_array_equal(kept, entries)
    print(f"{cycles} cycles for {len(entries)} entries; entries of each row: {counts}")
    print("SUCCESS!")


if __name__ == "__main__":
    main()
