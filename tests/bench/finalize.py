"""What does finalizing a sentinel checkpoint cost, in copies of it?

    python tests/bench/finalize.py [--quick]

1 GB of float32 tensors with NaN at 90 % of their positions, as raw arrays (Orbax with
``use_compression=False``) and as ``wafer`` saves them (Orbax's zstd). ``wafer finalize`` against
``cp -r`` of the same checkpoint, in turn, page cache warm, the disk's queue emptied before each.

Rows: ``finalize_over_copy``: time of finalize over time of the copy, raw; ``zstd_over_copy``: the
same for the zstd checkpoint; ``zstd_over_raw_bytes``: its size over the raw one's;
``save_over_zstd``, ``load_over_zstd``: time to save and load the raw one over the zstd one;
``peak_mb``: peak memory of finalize above that of importing it; ``tensor_mb``: the largest tensor
(the peak should be a small multiple of it).
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
import orbax.checkpoint as ocp

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(pathlib.Path(__file__).parent)]

import harness

from wafer.models.checkpoint.reader import load_checkpoint
from wafer.sparsity.finalize import finalize

PROGRAMS = (  # the second's peak above the first's is what finalize itself needs
    "import wafer.sparsity.finalize",
    "from wafer.sparsity.finalize import finalize; finalize('{}', '{}')",
)


def peak_mb(code):
    """Peak memory of a fresh process that runs the code (Linux)."""
    code += "; print(next(x for x in open('/proc/self/status') if 'VmHWM' in x))"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return float(process.stdout.split()[-2]) / 1e3


def weights(count, rows):
    """Weights and two moments of ``count`` matrices, NaN where pruned."""
    rng = np.random.default_rng(0)
    tree = {}
    for name in (f"{kind}_{i}" for kind in "pmv" for i in range(count)):
        tree[name] = rng.standard_normal((rows, 4096), np.float32)
        tree[name][rng.random((rows, 4096), np.float32) < 0.9] = np.nan
    return tree


def save(folder, tree, compressed):
    handlers = {
        "state": ocp.PyTreeCheckpointHandler(use_compression=compressed),
        "meta": ocp.JsonCheckpointHandler(),
    }
    args = ocp.args.Composite(state=ocp.args.PyTreeSave(tree), meta=ocp.args.JsonSave({}))
    with ocp.CheckpointManager(folder, item_handlers=handlers) as manager:
        manager.save(1, args=args)
        manager.wait_until_finished()
    return folder / "1"


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def timed(fn, *args):
    """Seconds of a call; what earlier calls wrote is on disk before it starts."""
    os.sync()
    start = time.perf_counter()
    fn(*args)
    return time.perf_counter() - start


def copy(source, target):
    subprocess.run(["cp", "-r", source, target], check=True)


def measure(folder, tree, repeats):
    """Median seconds by name, in turn; and the two checkpoints."""
    out, times = folder / "out", {}
    kinds = {"raw": False, "zstd": True}
    sources = {kind: save(folder / kind, tree, zstd) for kind, zstd in kinds.items()}
    for _ in range(repeats):
        for kind, source in sources.items():
            for name, fn in (("finalize", finalize), ("copy", copy)):
                times.setdefault(f"{name} {kind}", []).append(timed(fn, source, out))
                shutil.rmtree(out)
            times.setdefault(f"load {kind}", []).append(timed(load_checkpoint, source))
        for kind, zstd in kinds.items():
            times.setdefault(f"save {kind}", []).append(timed(save, out, tree, zstd))
            shutil.rmtree(out)
    for name, seconds in times.items():
        print(f"{name:14}", *(f"{t:6.2f}" for t in seconds))
    return {name: sorted(seconds)[len(seconds) // 2] for name, seconds in times.items()}, sources


def main():
    quick = harness.arguments(__doc__.splitlines()[0]).parse_args().quick
    print(harness.environment())
    tree = weights(*((3, 1024) if quick else (10, 2048)))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        median, sources = measure(folder, tree, 3 if quick else 5)
        base, peak = (peak_mb(code.format(sources["raw"], folder / "m")) for code in PROGRAMS)
        harness.report(
            {
                "finalize_over_copy": median["finalize raw"] / median["copy raw"],
                "zstd_over_copy": median["finalize zstd"] / median["copy zstd"],
                "zstd_over_raw_bytes": size(sources["zstd"]) / size(sources["raw"]),
                "save_over_zstd": median["save raw"] / median["save zstd"],
                "load_over_zstd": median["load raw"] / median["load zstd"],
                "peak_mb": peak - base,
                "tensor_mb": next(iter(tree.values())).nbytes / 1e6,
            }
        )


if __name__ == "__main__":
    main()
