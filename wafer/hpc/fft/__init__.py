"""Fourier transforms of one, two and three axes across PEs, in single precision."""

import numpy as np

from wafer.errors import WaferError
from wafer.hpc import host
from wafer.hpc.fft.plan import gather, plan, roots, scatter, turns

__all__ = ["cycles", "run"]

# Cycles on WSE-2. Those of numbers and of words are counted. Constants of steps are read off runs
# of one PE; those of an exchange are fitted to rows of 2 to 256.
_STEP, _LAST_STEP, _TURN, _ALONE = 222, 141, 144, 80
_EXCHANGE, _HOP, _LEAST = (
    52,
    24,
    39,
)  # with other PEs: once, and per PE, which takes so long at least
# Of the words of the n-th PE's block, 2 n - 1 times which pass the ends of an axis, how many times
# they delay an exchange. It would be 1/2 if the middle PE, which passes on most, were never idle,
# and 1 if only one way were under way. Blocks of more words than queues hold wait for each other.
_OVERLAP, _KEPT, _HELD, _WAIT = 0.84, 0.45, 16, 5.5


def cycles(shape: tuple[int, ...], pes: tuple[int, int]) -> int:
    """The closed form of ``run``'s cycles, within 3 %, of three axes 6 %.

    Args:
        shape: of the array.
        pes: rows and columns of PEs.
    """
    on = plan(shape, pes)
    total = sum(_lines(n, batch) for n, batch in zip(on.lengths, on.batches, strict=True))
    if on.turned:
        total += _TURN + 5 * on.lengths[0] * on.batches[0]
    total += _exchange(pes[1], on.blocks[0])
    if on.lengths[2] > 1:
        total += _exchange(pes[0], on.blocks[1])
    return total


def _lines(length: int, batch: int) -> int:
    """Cycles to transform so many lines of a PE.

    A sum or a difference takes half a cycle, or one where halves of lines begin in the same bank; a
    product takes one. A step has four sums, and four products and two more sums but for the last.
    """
    half, steps, total = length // 2 * batch, length.bit_length() - 1, 0
    for k in range(steps):
        free, span = (half + 2 * (k > 0)) % 4 == 2, batch << k
        sums = (half + 1) // 2 if free else half
        if k == steps - 1:
            total += 4 * sums + _LAST_STEP
        else:
            rows = half // span * ((span + 1) // 2)
            total += _STEP + 4 * half + 2 * sums + 2 * rows * (2 - free) + 2 * rows
    return total


def _exchange(pes: int, block: int) -> int:
    if pes == 1:
        return _ALONE + block
    words, total = 2 * block, float(_EXCHANGE)
    each = _OVERLAP * words + _WAIT * (words > _HELD)
    for passing in range(1, 2 * pes, 2):
        total += max(each * passing - _KEPT * words + _HOP, _LEAST)
    return round(total)


def run(
    values: np.ndarray, pes: tuple[int, int], *, inverse: bool = False
) -> tuple[np.ndarray, int]:
    """Simulate the transform, as ``numpy.fft.fftn`` or ``ifftn`` has it.

    Args:
        values: of one, two or three axes, real or complex; lengths are powers of two, from 2 to
            2,048, or of one axis from 4 to 4,194,304.
        pes: rows and columns of PEs; 1 row for less than three axes.
        inverse: whether to go back. The host divides by the number of values.

    Returns:
        The transform, of the same shape, complex64, and the cycles of the call.

    Raises:
        WaferError: values that are not finite, other lengths, PEs that do not fit or lack memory.
    """
    on = plan(values.shape, pes)
    if not np.isfinite(values.astype(np.complex64)).all():
        raise WaferError("values: some are not finite in single precision")
    (height, width), sign = pes, 1 if inverse else -1
    lengths = dict(zip(("length0", "length1", "length2"), on.lengths, strict=True))
    wafer = host.runtime("fft", width=width, height=height, turned=int(on.turned), **lengths)
    host.write(wafer, "data", scatter(values, on))
    host.write(wafer, "roots", np.tile(roots(on, sign), (height, width, 1)))
    if on.turned:
        host.write(wafer, "turns", turns(on, sign))
    start = wafer.cycles
    wafer.launch("transform")
    spent = wafer.cycles - start
    whole = gather(host.read(wafer, "data", 4 * on.size, np.float32), on).reshape(values.shape)
    return (whole / np.float32(values.size) if inverse else whole), spent
