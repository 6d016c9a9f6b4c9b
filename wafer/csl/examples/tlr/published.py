"""Bandwidth of the memory, beside Ltaief et al. 2023 (doi 10.1145/3581784.3627042)."""

import numpy as np


def bandwidth(plan, tile, cycles):
    """Bytes of memory per cycle and PE that has a chunk (of ``chunks``), by two counts.

    A product of an m x n matrix counts m n + m + n words in the first one, as of a machine that
    keeps vectors at hand, and three words per element in the second: a column's and a sum's, and
    the sum's again as it is written. A phase is four such products, as numbers are complex. The
    paper has a relative and an absolute bandwidth in this sense; its text was not at hand, so the
    definitions are ours.
    """
    count = np.array([last - first for _, first, last, _, _ in plan])
    rows = np.array([len(rows) for _, _, _, rows, _ in plan])
    once = (2 * tile * count + 2 * count + tile + tile * rows).sum()
    moved = (3 * 2 * tile * count).sum()
    return tuple(float(words * 4 * 4 / (len(plan) * cycles)) for words in (once, moved))


def rows():
    """Triples: the case, its figure by a simulated call of 14,284 cycles, and the paper's."""
    ours, _ = bandwidth([(0, 0, 32, [0], [32])], 50, 14_284)
    theirs = 92.58e15 / 35_784_000 / 0.85e9  # the abstract's bytes per second; PEs; their clock
    yield "one full PE, a tile of 50 x 50 and rank 32, bytes per cycle", ours, theirs


if __name__ == "__main__":
    for case, ours, theirs in rows():
        print(f"{case:<80} {ours:>10,.2f} {theirs:>10,.2f} {ours / theirs - 1:>+7.1%}")
