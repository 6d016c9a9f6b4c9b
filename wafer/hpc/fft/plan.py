"""How does an array lie on PEs, before a transform and behind it?"""

from typing import NamedTuple

import numpy as np

from wafer.errors import WaferError
from wafer.spec import WSE2

_MEMORY, _CODE = (
    WSE2.sram_bytes,
    6 * 1024,
)  # bytes of a PE, and of it for the program's instructions
_LONGEST = 2048  # of an axis: pe.csl has as many steps


class Plan(NamedTuple):
    """An array on PEs."""

    #: of three axes. One axis is cut in two: number j of it stands in row j // lengths[1] and
    #: column j % lengths[1]. The third length of an array with fewer axes is 1
    lengths: tuple[int, int, int]
    pes: tuple[int, int]  #: rows and columns of PEs
    #: numbers of a PE along the first axis, along the second in a row of PEs and in a column, and
    #: along the third
    shares: tuple[int, int, int, int]
    #: whether the array has one axis, so that numbers are turned behind its first part
    turned: bool

    @property
    def batches(self) -> tuple[int, int, int]:
        """Lines of a PE along each axis."""
        first, second, later, third = self.shares
        return second * third, first * third, first * later

    @property
    def blocks(self) -> tuple[int, int]:
        """Complex numbers that a PE has for each other one of its row, and of its column."""
        first, _, later, _ = self.shares
        return first * self.batches[0], later * self.batches[1]

    @property
    def numbers(self) -> int:
        """Most complex numbers of a PE, with those that only fill up shares."""
        (height, width), (row, column) = self.pes, self.blocks
        return max(row * width, column * height)

    @property
    def size(self) -> int:
        """Words of a PE's real parts, with two more and up to whole lines of its memory."""
        return -(-(self.numbers + 2) // 4) * 4


def plan(shape: tuple[int, ...], pes: tuple[int, int]) -> Plan:
    """Where an array of one, two or three axes lies.

    Raises:
        WaferError: lengths that are no powers of two, PEs that do not fit, or too little memory.
    """
    _check(shape, pes)
    if len(shape) == 1:
        bits = shape[0].bit_length() - 1
        lengths = (1 << bits // 2, 1 << (bits - bits // 2), 1)
    else:
        lengths = (shape[0], shape[1], shape[2] if len(shape) == 3 else 1)
    height, width = pes
    pairs = ((lengths[0], width), (lengths[1], width), (lengths[1], height), (lengths[2], height))
    first, second, later, third = (-(-length // count) for length, count in pairs)
    whole = Plan(lengths, pes, (first, second, later, third), len(shape) == 1)
    words = 6 * whole.size + max(lengths) + 2 * whole.numbers * whole.turned
    if 4 * words > _MEMORY - _CODE:
        raise WaferError(
            f"pes: {height} x {width}; each would need {4 * words:,} bytes for {shape}, and has"
            f" {_MEMORY - _CODE:,}: take more PEs"
        )
    return whole


def _check(shape: tuple[int, ...], pes: tuple[int, int]) -> None:
    if not 1 <= len(shape) <= 3:
        raise WaferError(f"values: shape {shape}; expected one, two or three axes")
    least, most = (4, _LONGEST**2) if len(shape) == 1 else (2, _LONGEST)
    if wrong := [n for n in shape if not least <= n <= most or n & (n - 1)]:
        raise WaferError(
            f"values: shape {shape}; expected powers of two from {least} to {most:,}, found"
            f" {wrong[0]}"
        )
    if min(pes) < 1 or (len(shape) < 3 and pes[0] != 1):
        rows = "at least 1 row" if len(shape) == 3 else "1 row (three axes take more)"
        raise WaferError(f"pes: {pes[0]} x {pes[1]}; expected {rows} and at least 1 column")


def scatter(values: np.ndarray, plan: Plan) -> np.ndarray:
    """[height, width, words] float32: whole lines along the first axis, a line's numbers apart."""
    (height, width), (_, second, _, third) = plan.pes, plan.shares
    n0, n1, n2 = plan.lengths
    grid = values.reshape(plan.lengths).astype(np.complex64)
    whole = np.pad(grid, ((0, 0), (0, second * width - n1), (0, third * height - n2)))
    parts = whole.reshape(n0, width, second, height, third).transpose(3, 1, 0, 2, 4)
    parts = parts.reshape(height, width, -1)
    data = np.zeros((height, width, 4 * plan.size), np.float32)
    data[..., : parts.shape[2]] = np.real(parts)
    data[..., plan.size : plan.size + parts.shape[2]] = np.imag(parts)
    return data


def gather(data: np.ndarray, plan: Plan) -> np.ndarray:
    """[lengths] complex64, or of the one axis, of what ``scatter``'s array has become."""
    (height, width), (first, _, later, _) = plan.pes, plan.shares
    n0, n1, n2 = plan.lengths
    rows = n1 if n2 == 1 else later  # without a third axis a PE has whole lines of the second
    steps = sum(length.bit_length() - 1 for length in plan.lengths)
    moves = steps + plan.turned + 1 + (n2 > 1)  # each to the other buffer
    at = 2 * plan.size * (moves % 2)
    pairs = np.ascontiguousarray(data[..., at : at + 2 * n2 * rows * first])
    parts = pairs.view(np.complex64).reshape(height, width, n2, rows, first)
    whole = parts.transpose(1, 4, 0, 3, 2).reshape(width * first, height * rows, n2)[:n0, :n1]
    return whole.transpose(1, 0, 2).ravel() if plan.turned else whole


def roots(plan: Plan, sign: int) -> np.ndarray:
    """[words] float32 of a PE's `roots`: of unity, with the sign of their exponents."""
    longest = max(plan.lengths)
    values = np.exp(sign * 2j * np.pi * np.arange(longest // 2) / longest)
    return np.concatenate([[0], np.real(values), np.imag(values)]).astype(np.float32)


def turns(plan: Plan, sign: int) -> np.ndarray:
    """[height, width, words] float32 of PEs' `turns`: those of Cooley and Tukey (1965)."""
    (height, width), second = plan.pes, plan.shares[1]
    n0, n1, _ = plan.lengths
    product = np.arange(n0)[:, None] * np.arange(second * width) % (n0 * n1)
    values = np.exp(sign * 2j * np.pi * product / (n0 * n1))
    parts = values.reshape(n0, width, second).swapaxes(0, 1).reshape(width, -1)
    out = np.zeros((height, width, 2, plan.numbers), np.float32)
    out[..., 0, : parts.shape[1]] = np.real(parts)
    out[..., 1, : parts.shape[1]] = np.imag(parts)
    return out.reshape(height, width, -1)
