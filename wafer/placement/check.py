"""An independent check of a contest placement: it shares only the data types with the placer.

Sizes, times and memories are computed again here, from the contest's statement and for one kernel
at a time, overlaps by painting the wafer.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from wafer.placement.blocks import ContestKernel
from wafer.placement.contest import ContestGraph, Placed

__all__ = ["Score", "check", "paint", "unmatched"]


class Score(NamedTuple):
    """The score's terms and their weighted sum.

    time: cycles per sample of the slowest kernel
    wire: sum over connections of the L1 distance of centres, in PEs
    adapters: unmatched protocol arguments over all connections
    total: wdeltat * time + wlength * wire + wadapter * adapters
    """

    time: float
    wire: float
    adapters: int
    total: float


def unmatched(source: ContestKernel, a: Placed, target: ContestKernel, b: Placed) -> int:
    """Protocol arguments that differ between a connection's ends, 0 to 3.

    The contest's stored text does not define the adapter cost; here it is how many of
    (h', w', the producer's output k' against the consumer's input c') differ.
    """
    last = 0 if source.kind == "conv" else 2
    pairs = (
        (a.arguments.h, b.arguments.h),
        (a.arguments.w, b.arguments.w),
        (a.arguments.k[last], b.arguments.c[0]),
    )
    return sum(x != y for x, y in pairs)


def _measure(kernel: ContestKernel, at: Placed, memlimit: int) -> tuple[float, int, int]:
    """(time, width, height) of one kernel after its arguments have been checked."""
    a, width, height, slowest = at.arguments, 0, 0, 0.0
    for p, c, k in zip(kernel.parts, a.c, a.k, strict=True):
        if min(a.h, a.w, c, k) < 1:
            raise ValueError(f"kernel {kernel.name}: execution arguments {a} must be at least 1")
        width += 3 * k
        height = max(height, a.h * a.w * (c + 1))
        rounds = -(-p.H // a.h) * -(-p.W // a.w) * -(-p.C // c) * -(-p.K // k)
        slowest = max(slowest, rounds * p.R * p.S / (p.T * p.T))
        weights = p.C / c * p.K / k * p.R * p.S
        words = weights + (p.W + p.S - 1) / a.w * (p.H + p.R - 1) / a.h * p.K / k
        if words > memlimit:
            raise ValueError(
                f"kernel {kernel.name}: {math.ceil(words)} words per PE, limit {memlimit}"
            )
    return (slowest, height, width) if at.rotated else (slowest, width, height)


def paint(owner: np.ndarray, number: int, box: tuple[int, int, int, int], names: list[str]) -> None:
    """Give a rectangle (x, y, width, height) to kernel ``number``.

    Raises:
        ValueError: it leaves the wafer or lies on another.
    """
    (x, y, width, height), (high, wide) = box, owner.shape
    name = names[number % len(names)]
    if not (x >= 0 <= y and x + width <= wide and y + height <= high):
        raise ValueError(
            f"kernel {name}: {width}x{height} at ({x}, {y}) leaves the {wide}x{high} wafer"
        )
    region = owner[y : y + height, x : x + width]
    if (region >= 0).any():
        other = names[int(region.max()) % len(names)]
        raise ValueError(f"kernels {other} and {name} overlap at ({x}, {y})")
    region[:] = number


def check(graph: ContestGraph, placed: Mapping[str, Placed]) -> Score:
    """Prove a placement legal and compute its score.

    Raises:
        ValueError: the kernel that is missing, too large for its memory, outside, or on another.
    """
    owner = np.full((graph.height, graph.width), -1)
    slowest, centres = 0.0, []
    names = [kernel.name for kernel in graph.kernels]
    for number, kernel in enumerate(graph.kernels):
        if kernel.name not in placed:
            raise ValueError(f"kernel {kernel.name} is not placed")
        at = placed[kernel.name]
        time, width, height = _measure(kernel, at, graph.memlimit)
        paint(owner, number, (at.x, at.y, width, height), names)
        slowest = max(slowest, time)
        centres.append((at.x + width / 2, at.y + height / 2))
    wire, adapters = 0.0, 0
    for i, j in graph.edges:
        wire += abs(centres[i][0] - centres[j][0]) + abs(centres[i][1] - centres[j][1])
        a, b = graph.kernels[i], graph.kernels[j]
        adapters += unmatched(a, placed[a.name], b, placed[b.name])
    total = graph.wdeltat * slowest + graph.wlength * wire + graph.wadapter * adapters
    return Score(slowest, wire, adapters, total)
