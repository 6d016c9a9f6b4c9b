"""Cycles of a transform at the wafer's size, beside Orenes-Vera et al. 2022 (arXiv 2209.15040)."""


def cycles(n):
    """Cycles of n x n x n numbers on n x n PEs, n a power of two from 8 on.

    A PE has one line of each axis: three transforms of a line, and an exchange along rows and one
    along columns. Steps of a transform are counted, with what a step takes besides read off one PE.
    Of an exchange 0.84 (how far its two ways delay each other) and the constants are fitted to rows
    of 2 to 256 PEs. Checked: 16 x 16 x 16 is 1.3 % less than simulated, 512 x 512 on a row of 512
    PEs, which has one such exchange, 0.2 %.
    """
    steps, half = n.bit_length() - 1, n // 2
    line = (12 + 7 * (steps - 2) + 2) * half + 222 * (steps - 1) + 141
    exchange = 52 + sum(
        max(0.84 * 2 * passing - 0.45 * 2 + 24, 39) for passing in range(1, 2 * n, 2)
    )
    return 3 * line + 2 * round(exchange)


def rows():
    """Triples: the case, its figure by this formula, and the paper's."""
    theirs = 959e-6 * 0.85e9  # the abstract's time, at the paper's clock
    yield "512 x 512 x 512 numbers on 512 x 512 PEs, cycles", cycles(512), theirs


if __name__ == "__main__":
    for case, ours, theirs in rows():
        print(f"{case:<80} {ours:>10,.1f} {theirs:>10,.1f} {ours / theirs - 1:>+7.1%}")
