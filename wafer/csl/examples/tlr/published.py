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
