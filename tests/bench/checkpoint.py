"""What do checksums cost a save and a load?

    python tests/bench/checkpoint.py [--quick]

Float32 matrices of 16 MB, dense and with NaN at half of their positions, saved and loaded as
``wafer run`` does it, with checksums and with a constant in their place, in turn, page cache warm.

Rows, for ``dense`` and ``half``: ``save_cpu`` and ``load_cpu``, ``save_least`` and ``load_least``:
processor time (median) and time (fastest run) with checksums over those without, less 1;
``save_seconds``, ``load_seconds``: fastest run with checksums. What a save takes depends on the
disk more than on anything else: its processor time is the figure to trust.
"""

import contextlib
import pathlib
import shutil
import sys
import tempfile
from unittest import mock

import numpy as np

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(pathlib.Path(__file__).parent)]

import harness

from wafer.models.checkpoint import checksums, reader
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.checkpoint.writer import write_checkpoint


def weights(count, pruned):
    rng = np.random.default_rng(0)
    tree = {f"w{i}": rng.standard_normal((2048, 2048), np.float32) for i in range(count)}
    for value in tree.values():
        value[rng.random(value.shape, np.float32) < pruned] = np.nan
    return {"params": tree}


@contextlib.contextmanager
def without():
    """A constant instead of checksums."""
    constant = lambda value: "00000000"
    with (
        mock.patch.object(checksums, "checksum", constant),
        mock.patch.object(reader, "checksum", constant),
    ):
        yield


def programs(folder, tree):
    """Saves and loads by name; each kind loads what it saved."""

    def save(kind, patch):
        shutil.rmtree(folder / kind, ignore_errors=True)
        with patch():
            write_checkpoint(folder / kind, tree, {"step": 1})

    def load(kind, patch):
        with patch():
            load_checkpoint(folder / kind)

    kinds = {"without": without, "with": contextlib.nullcontext}
    return {
        f"{work.__name__} {kind}": lambda work=work, kind=kind, patch=patch: work(kind, patch)
        for work in (save, load)
        for kind, patch in kinds.items()
    }


def main():
    quick = harness.arguments(__doc__.splitlines()[0]).parse_args().quick
    print(harness.environment())
    rows = {}
    for name, pruned in (("dense", 0.0), ("half", 0.5)):
        tree = weights(8 if quick else 32, pruned)
        with tempfile.TemporaryDirectory() as folder:
            times = harness.interleave(programs(pathlib.Path(folder), tree), 5 if quick else 15)
        for work in ("save", "load"):
            own, bare = times[f"{work} with"], times[f"{work} without"]
            rows[f"{name}_{work}_cpu"] = own.cpu / bare.cpu - 1
            rows[f"{name}_{work}_least"] = own.least / bare.least - 1
            rows[f"{name}_{work}_seconds"] = own.least
    harness.report(rows)


if __name__ == "__main__":
    main()
