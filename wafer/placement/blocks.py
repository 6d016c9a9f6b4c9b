"""What a kernel costs: time, memory and rectangle as functions of its execution arguments.

The model of the ISPD 2020 contest "Wafer-Scale Deep Learning Accelerator Placement" (James et al.,
ISPD 2020). A kernel is one convolution or a residual block of several that share their split over
the image; forward, backward and update lie side by side. Formal arguments come with the graph,
execution arguments are chosen: ``h`` and ``w`` split the image, ``c`` and ``k`` the channels.
"""

import dataclasses
import functools

import numpy as np

__all__ = ["Arguments", "ContestKernel", "Conv", "area_bound", "cblock", "dblock", "steps"]

NEVER = 10_000  # a height or width that fits nowhere


@dataclasses.dataclass(frozen=True)
class Conv:
    """Formal arguments of one convolution: image H x W, filter R x S, channels C to K, stride T."""

    H: int
    W: int
    R: int
    S: int
    C: int
    K: int
    T: int = 1


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Execution arguments: the image's splits and, per convolution, the channels' splits."""

    h: int
    w: int
    c: tuple[int, ...]
    k: tuple[int, ...]


def steps(n: int) -> np.ndarray:
    """The splits of ``n`` worth trying: the least s for each value of ceil(n / s), ascending."""
    parts = np.arange(1, n + 1)
    return np.unique(-(-n // -(-n // parts)))


@dataclasses.dataclass(frozen=True)
class ContestKernel:
    """A kernel of the graph.

    Attributes:
        name: as in the file, 'k3'.
        kind: 'conv', 'dblock' or 'cblock'.
        parts: its convolutions, in the order of the contest's statement.
        last: index of the part that produces the output (a cblock's shortcut is its fourth).
    """

    name: str
    kind: str
    parts: tuple[Conv, ...]

    @property
    def last(self) -> int:
        """Index of the part whose ``k`` the output protocol carries."""
        return min(2, len(self.parts) - 1)

    def size(self, a: Arguments) -> tuple[int, int]:
        """(width, height) in PEs, not rotated."""
        return 3 * sum(a.k), max(a.h * a.w * (c + 1) for c in a.c)

    def choices(self, cap: float, memlimit: int, limit: int) -> "ContestChoices":
        """All useful execution arguments of time at most ``cap`` on at most ``limit`` rows."""
        return _choices(self.parts, float(cap), memlimit, limit)


@dataclasses.dataclass(frozen=True)
class ContestChoices:
    """Arguments in columns, one entry per way to run a kernel in time.

    h, w: [N] splits of the image; c, k: [N, parts]; width, height: [N] PEs, not rotated.
    """

    h: np.ndarray
    w: np.ndarray
    c: np.ndarray
    k: np.ndarray
    width: np.ndarray
    height: np.ndarray

    def __getitem__(self, index: int) -> Arguments:
        """The arguments in row ``index``."""
        c, k = self.c[index].tolist(), self.k[index].tolist()
        return Arguments(int(self.h[index]), int(self.w[index]), tuple(c), tuple(k))

    def curve(self, limit: int) -> np.ndarray:
        """Least height for each width 0..limit in either rotation, ``NEVER`` where none fits."""
        best = np.full(limit + 1, NEVER, np.int32)
        for width, height in ((self.width, self.height), (self.height, self.width)):
            fits = (width <= limit) & (height <= limit)
            np.minimum.at(best, width[fits], height[fits].astype(np.int32))
        return np.minimum.accumulate(best)


@functools.lru_cache(maxsize=256)
def _choices(parts: tuple[Conv, ...], cap: float, memlimit: int, limit: int) -> ContestChoices:
    """For each image split and height: the fewest columns that meet time and memory."""
    h, w, c = _rows(parts[0].H, parts[0].W, max(p.C for p in parts), limit)
    fresh = np.concatenate([[True], c[1:] <= c[:-1]])  # where another image split begins
    taken_c, taken_k = [], []
    for p in parts:
        rounds = -(-p.H // h) * -(-p.W // w) * -(-p.C // c)
        share = np.floor(cap * p.T**2 / (p.R * p.S * rounds) + 1e-9).astype(np.int64)
        words = p.C / c * p.R * p.S + (p.W + p.S - 1) / w * ((p.H + p.R - 1) / h)
        k = np.where(share >= 1, -(-p.K // np.maximum(share, 1)), NEVER)
        k = np.maximum(k, np.ceil(p.K * words / memlimit - 1e-9).astype(np.int64))
        first = fresh | np.concatenate([[True], k[1:] != k[:-1]])  # the least c for this many k
        taken_c.append(c[np.maximum.accumulate(np.where(first, np.arange(len(c)), 0))])
        taken_k.append(k)
    c_all, k_all = np.stack(taken_c, -1), np.stack(taken_k, -1)
    width, height = 3 * k_all.sum(-1), h * w * (c_all.max(-1) + 1)
    row = np.flatnonzero((width <= limit) & (height <= limit))
    return ContestChoices(*(x[row].astype(np.int32) for x in (h, w, c_all, k_all, width, height)))


@functools.lru_cache(maxsize=64)
def _rows(H: int, W: int, C: int, limit: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All (h, w, c) of at most ``limit`` rows, c ascending for each split of the image."""
    h, w = (x.ravel() for x in np.meshgrid(np.arange(1, H + 1), np.arange(1, W + 1), indexing="ij"))
    most = np.minimum(limit // (h * w) - 1, C)
    h, w, most = (x[most >= 1] for x in (h, w, most))
    c = np.arange(most.sum()) - np.repeat(np.cumsum(most) - most, most) + 1
    return np.repeat(h, most), np.repeat(w, most), c


def dblock(name: str, H: int, W: int, F: int) -> ContestKernel:
    """A residual block that keeps its size."""
    q = F // 4
    parts = (Conv(H, W, 1, 1, F, q), Conv(H, W, 3, 3, q, q), Conv(H, W, 1, 1, q, F))
    return ContestKernel(name, "dblock", parts)


def cblock(name: str, H: int, W: int, F: int) -> ContestKernel:
    """A residual block that halves the image and doubles the channels, shortcut included."""
    q = F // 4
    parts = (
        Conv(H, W, 1, 1, F // 2, q),
        Conv(H, W, 3, 3, q, q, 2),
        Conv(H // 2, W // 2, 1, 1, q, F),
        Conv(H, W, 1, 1, F // 2, F, 2),
    )
    return ContestKernel(name, "cblock", parts)


def area_bound(kernels: tuple[ContestKernel, ...], width: int, height: int, memlimit: int) -> float:
    """Least time that any placement can reach: the kernels' smallest areas just fill the wafer."""
    limit = max(width, height)

    def fits(cap: float) -> bool:
        total = 0
        for kernel in kernels:
            choices = kernel.choices(cap, memlimit, limit)
            if not len(choices.width):
                return False
            total += int((choices.width * choices.height).min())
        return total <= width * height

    low, high = 0, 1
    while not fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return float(high)
