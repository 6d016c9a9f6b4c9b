"""Finalize a sentinel checkpoint against copying it; peak memory.

Usage: python tests/bench/finalize.py [--quick]

Prints, as its last line, one JSON object:
  copy_ratio        time of finalize / time of copying the checkpoint's files
  copy_dense_ratio  time of finalize / time of copying the same tensors uncompressed (.npy)
  peak_mb           peak memory of finalize above that of importing it
  tensor_mb         size of the largest tensor (memory should be a small multiple of it)
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import orbax.checkpoint as ocp

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from sparsity.finalize import finalize  # noqa: E402


def timed(fn):
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


PROGRAMS = (  # the second's peak above the first's is what finalize itself needs
    "import sparsity.finalize",
    "from sparsity.finalize import finalize; finalize('{}', '{}')",
)


def peak_mb(code):
    """Peak memory of a fresh process that runs the code (Linux)."""
    code += "; print(next(x for x in open('/proc/self/status') if 'VmHWM' in x))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return float(done.stdout.split()[-2]) / 1e3


def make(folder, count, rows):
    rng = np.random.default_rng(0)

    def weight():
        x = rng.standard_normal((rows, 4096), np.float32)
        x[rng.random(x.shape) < 0.8] = np.nan
        return x

    tree = {f"{kind}/{i}".replace("/", "_"): weight() for kind in "pmv" for i in range(count)}
    for name, x in tree.items():
        np.save(folder / f"dense_{name}.npy", x)
    with ocp.CheckpointManager(folder / "run", item_names=("state",)) as manager:
        manager.save(1, args=ocp.args.Composite(state=ocp.args.StandardSave(tree)))
        manager.wait_until_finished()
    return folder / "run" / "1", rows * 4096 * 4 / 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        source, tensor_mb = make(folder, *((3, 1024) if quick else (10, 2048)))
        out, dense = folder / "out", folder / "dense"

        def copy_dense():
            dense.mkdir()
            for path in folder.glob("dense_*.npy"):
                shutil.copyfile(path, dense / path.name)

        base, peak = (peak_mb(code.format(source, folder / "m")) for code in PROGRAMS)
        shutil.rmtree(folder / "m")
        times = {"finalize": [], "copy": [], "copy_dense": []}
        for _ in range(3):
            times["finalize"].append(timed(lambda: finalize(source, out)))
            shutil.rmtree(out)
            times["copy"].append(timed(lambda: shutil.copytree(source, out)))
            shutil.rmtree(out)
            times["copy_dense"].append(timed(copy_dense))
            shutil.rmtree(dense)
    median = {key: statistics.median(value) for key, value in times.items()}
    print({key: [round(t, 2) for t in value] for key, value in times.items()})
    row = {
        "copy_ratio": median["finalize"] / median["copy"],
        "copy_dense_ratio": median["finalize"] / median["copy_dense"],
        "peak_mb": peak - base,
        "tensor_mb": tensor_mb,
    }
    print(json.dumps({key: round(value, 2) for key, value in row.items()}))


if __name__ == "__main__":
    main()
