"""Cycles of ``wafer.hpc.fft``, simulated and by closed form: docs/results/hpc.md.

python tests/bench/hpc_fft.py [--quick]
"""

import pathlib
import sys

import harness
import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).parents[2]), str(pathlib.Path(__file__).parent)]

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


def rows(cases):
    """Pairs: the case, and its simulated cycles and those of the form.

    Raises:
        SystemExit: a value is further from NumPy's than single precision explains.
    """
    for shape, pes in cases:
        rng = np.random.default_rng(0)
        values = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        got, spent = fft.run(values, pes)
        want = np.fft.fftn(values)
        if abs(got - want).max() > 1e-6 * abs(want).max():
            sys.exit(f"{shape} on {pes} PEs: values differ from numpy.fft")
        name = f"{' x '.join(map(str, shape))} on {pes[0]} x {pes[1]} PEs"
        yield name, {"simulated": spent, "closed form": fft.cycles(shape, pes)}


if __name__ == "__main__":
    few = 6 if harness.arguments(__doc__.splitlines()[0]).parse_args().quick else len(CASES)
    harness.cycles(dict(rows(CASES[:few])))
