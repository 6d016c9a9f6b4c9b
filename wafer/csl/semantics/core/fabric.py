"""Where a program's rectangle lies on the wafer's fabric."""

from typing import NamedTuple

from wafer.machine.arch import ARCHITECTURES

_BEFORE, _AFTER = (4, 1), (3, 1)  # columns and rows around a program that memcpy needs


class Fabric(NamedTuple):
    """The whole fabric, as the compiler's options give it."""

    dims: tuple[int, int] | None = None  #: columns and rows; None: as many as the program needs
    offsets: tuple[int, int] = _BEFORE  #: columns and rows before the program
    #: columns between memcpy and the program, to the west and to the east
    buffers: tuple[int, int] = (0, 0)
    memcpy: bool = True  #: whether the program needs columns and rows around it for that

    def around(self, rectangle: tuple[int, int]) -> tuple[int, int]:
        """Columns and rows of the smallest fabric that holds a rectangle at the offsets."""
        (left, top), (width, height) = self.offsets, rectangle
        after = _AFTER if self.memcpy else (0, 0)
        return left + width + self.buffers[1] + after[0], top + height + after[1]

    def edges(self, rectangle: tuple[int, int]) -> int:
        """The sides on which the wafer ends with a rectangle, bits W E S N from 0 on."""
        dims = self.dims or self.around(rectangle)
        (left, top), (width, height) = self.offsets, rectangle
        ends = (not left, left + width == dims[0], top + height == dims[1], not top)
        return sum(end << side for side, end in enumerate(ends))

    def misfit(self, rectangle: tuple[int, int], arch: str) -> tuple[str, str] | None:
        """What is wrong with a rectangle here and how to mend it; None if nothing is."""
        (left, top), west = self.offsets, self.buffers[0]
        if self.memcpy and (left < _BEFORE[0] + west or top < _BEFORE[1]):
            return (
                f"the program is at column {left}, row {top}; memcpy needs {_BEFORE[0]} columns"
                f" and {_BEFORE[1]} row before it, and its buffers {west} columns",
                f"give --fabric-offsets={_BEFORE[0] + west},{_BEFORE[1]}",
            )
        needed = self.around(rectangle)
        dims, most = self.dims or needed, ARCHITECTURES[arch].fabric
        if dims[0] > most[0] or dims[1] > most[1]:
            return (
                f"a fabric of {dims[0]} x {dims[1]} PEs; that of {arch} has {most[0]} x {most[1]}",
                "give --fabric-dims=W,H of at most these",
            )
        if dims[0] < needed[0] or dims[1] < needed[1]:
            size, fabric_size = (f"{pair[0]} x {pair[1]}" for pair in (rectangle, dims))
            return (
                f"a rectangle of {size} PEs does not fit on a fabric of {fabric_size}",
                f"with {left},{top} before it, and memcpy and its buffers after it, it takes"
                f" --fabric-dims={needed[0]},{needed[1]} or more",
            )
        return None
