"""Cycles of ``wafer.hpc.fft``, simulated and by closed form: docs/results/hpc-fft.md.

python tests/bench/hpc_fft.py
"""

import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from wafer.hpc import fft

CASES = (
    ((64,), (1, 3)),
    ((2048,), (1, 5)),
    ((4096,), (1, 16)),
    ((8, 8), (1, 1)),
    ((8, 8), (1, 3)),
    ((64, 64), (1, 64)),
    ((16, 16, 16), (5, 3)),
    ((16, 16, 16), (16, 16)),
    ((256, 256), (1, 256)),
    ((512, 512), (1, 512)),
)
PUBLISHED = ((512, 512, 512), (512, 512))


def rows():
    """Pairs: the case, and its simulated cycles, those of the form, the largest relative error."""
    for shape, pes in CASES:
        rng = np.random.default_rng(0)
        values = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        got, spent = fft.run(values, pes)
        want = np.fft.fftn(values)
        error = float(abs(got - want).max() / abs(want).max())
        name = f"{' x '.join(map(str, shape))} on {pes[0]} x {pes[1]} PEs"
        yield name, (spent, fft.cycles(shape, pes), error)


if __name__ == "__main__":
    counted = {}
    for name, (spent, closed, error) in rows():
        counted[name] = (spent, closed, error)
        print(
            f"{name:<32} {spent:>8,} {closed:>8,} {closed / spent - 1:+.1%} {error:.1e}", flush=True
        )
    counted["512 x 512 x 512 on 512 x 512 PEs, by the form"] = fft.cycles(*PUBLISHED)
    print(json.dumps(counted))
