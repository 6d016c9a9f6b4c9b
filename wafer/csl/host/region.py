"""Which items a copy or a stream moves: PEs, how many each, in which order, of which width."""

import enum
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from wafer.csl.host.errors import HostError
from wafer.csl.host.order import MemcpyOrder
from wafer.machine.base import Rectangle


class MemcpyDataType(enum.IntEnum):
    """Width of the elements in the PEs' memory; the host's items have 32 bits all the same."""

    MEMCPY_16BIT = 0
    MEMCPY_32BIT = 1

    @property
    def bits(self) -> int:
        """Of an element."""
        return 16 if self == MemcpyDataType.MEMCPY_16BIT else 32


class Options(NamedTuple):
    """How to move items."""

    #: by a color, every item as a wavelet of 32 bits; otherwise memory is copied
    streaming: bool = False
    order: MemcpyOrder = MemcpyOrder.ROW_MAJOR  #: of the host's array
    data_type: MemcpyDataType = MemcpyDataType.MEMCPY_32BIT  #: of the elements in memory
    nonblock: bool = False  #: return before it has happened


class CopyRegion(NamedTuple):
    """What is moved."""

    rectangle: Rectangle  #: of PEs
    items: int  #: of each PE
    options: Options  #: how
    same_along: str = ""  #: as in ``places``
    stride: int = 1  #: elements from one item to the next in memory

    @classmethod
    def of(
        cls,
        region: Sequence[int],
        options: dict[str, Any],
        same_along: str = "",
        stride: int = 1,
    ) -> Self:
        """From the arguments of a call.

        Args:
            region: first column, first row, columns, rows, items of each PE; before SDK 0.8 between
                ``streaming`` and ``order, nonblock``.
            options: of ``Options``, by name.
            same_along: as in ``places``.
            stride: elements from one item to the next in memory.

        Raises:
            HostError: not five numbers, or other options.
        """
        if len(region) == 8 and not options:  # all by place, before SDK 0.8
            streaming, *region, order, nonblock = region
            options = {"streaming": bool(streaming), "nonblock": bool(nonblock)}
            options["order"] = MemcpyOrder(order)
        if unknown := options.keys() - set(Options._fields):
            raise HostError(f"no option {min(unknown)!r}; there are {Options._fields}")
        if len(region) != 5:
            raise HostError(
                f"the PEs are {tuple(region)}; expected first column, first row, columns, rows,"
                " items of each PE"
            )
        x, y, width, height, items = map(operator.index, region)
        return cls(Rectangle(x, y, width, height), items, Options(**options), same_along, stride)

    @property
    def text(self) -> str:
        """The PEs, for messages."""
        at = self.rectangle
        return f"({at.x}, {at.y}) to ({at.x + at.width - 1}, {at.y + at.height - 1})"


def flat_words(array: np.ndarray, *, result: bool = False) -> np.ndarray:
    """A one-dimensional uint32 view of the host's array.

    Args:
        array: of the host's script.
        result: whether it is written.

    Raises:
        HostError: items of another width, an array that no view makes one-dimensional, or a
            result that is read-only.
    """
    if not isinstance(array, np.ndarray) or array.dtype.itemsize != 4:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise HostError(
            f"the host's array is {kind}; memcpy takes a NumPy array of 32-bit items, also for"
            " 16-bit elements (sdk_utils.input_array_to_u32 makes one)"
        )
    flags = array.flags
    if not flags.c_contiguous or (result and not flags.writeable):
        wrong = "read-only" if flags.c_contiguous else "not contiguous"
        raise HostError(
            f"the host's array of shape {array.shape} is {wrong}; pass array.ravel(), or a copy for"
            " a result"
        )
    return array.reshape(-1).view(np.uint32)
