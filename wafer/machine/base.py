"""What a machine is to its host: methods that both machines have, in C++ and in JAX."""

import abc
import enum
from collections.abc import Iterator, Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from wafer.errors import CompileError
from wafer.machine.image import PAD, Image
from wafer.machine.tools.reports import fault_message
from wafer.vsl.native.library import how_to_build


class Status(enum.IntEnum):
    """How a run ended."""

    QUIET = 0  # nothing can change any more
    READY = 1  # all launched calls have returned and freed the command streams
    FAULT = 2  # see WaferMachine.fault
    LIMIT = 3  # the cycles asked for have passed


class Rectangle(NamedTuple):
    """PEs [x, x + width) by [y, y + height)."""

    x: int
    y: int
    width: int
    height: int

    def pes(self) -> Iterator[tuple[int, int]]:
        """Column and row of each PE, row by row."""
        for y in range(self.y, self.y + self.height):
            for x in range(self.x, self.x + self.width):
                yield x, y


class Print(NamedTuple):
    """A line that a PE wrote."""

    cycle: int  #: in which it ended
    x: int  #: x, y: the PE
    y: int
    text: str  #: without the end of line


def _uncounted(what: str, doc: str) -> property:
    """A property that the C++ machine alone has."""

    def refuse(_: object) -> NoReturn:
        raise CompileError(
            f"the JAX machine does not count {what}; the C++ machine does: {how_to_build()}"
        )

    return property(refuse, doc=doc)


class WaferMachine(abc.ABC):
    """A wafer that executes an image; columns and rows count in the program's rectangle.

    What a machine need not do has a default: it has no ports and streams, and counts nothing.

    Attributes:
        image: that it executes.
    """

    def __init__(self, image: Image) -> None:
        self.image = image
        self._height, self._width = image.tiles.shape

    def _cell(self, x: int, y: int) -> int:
        if not (0 <= x < self._width and 0 <= y < self._height):
            raise CompileError(
                f"PE ({x}, {y}) is outside of the {self._width} x {self._height} rectangle"
            )
        return y * self._width + x

    @property
    @abc.abstractmethod
    def cycle(self) -> int:
        """Cycles that have passed."""

    @property
    def fault(self) -> str:
        """What ended the last run with ``Status.FAULT``; '' if nothing did."""
        numbers = self._fault()
        return fault_message(self.image, numbers) if numbers[0] else ""

    @abc.abstractmethod
    def _fault(self) -> Sequence[int]:
        """Kind, 0 for none, cell, task, its id, instruction, detail."""

    @abc.abstractmethod
    def run(self, most_cycles: int = 1_000_000_000) -> Status:
        """Run until nothing can change, the host's calls are answered, a fault, or the limit."""

    def launch(self, rectangle: Rectangle, function: str, words: Sequence[int] = ()) -> None:
        """Call an exported function on every PE of a rectangle, after what was called before.

        Args:
            rectangle: of PEs.
            function: exported name.
            words: arguments as registers hold them.

        Raises:
            CompileError: a PE without that function; more arguments or calls than there is room.
        """
        arguments = np.array([word & (1 << 64) - 1 for word in words], np.uint64)
        for x, y in rectangle.pes():
            cell, index = self._cell(x, y), self.image.tiles[y, x]
            entries = self.image.programs[index].functions if index >= 0 else {}
            if function not in entries:
                there = ", ".join(entries) or "none"
                raise CompileError(f"PE ({x}, {y}) exports {there}, not a function {function!r}")
            if problem := self._call(cell, entries[function], arguments):
                raise CompileError(f"{function!r} on PE ({x}, {y}) {problem}")

    @abc.abstractmethod
    def _call(self, cell: int, entry: int, arguments: np.ndarray) -> str:
        """Call what begins at an instruction, with [n] uint64; what hinders it, or ''."""

    def commands_waiting(self, rectangle: Rectangle) -> int:
        """PEs with a call that has not been taken up, not returned, or not freed the stream."""
        return sum(self._has_command(self._cell(x, y)) for x, y in rectangle.pes())

    @abc.abstractmethod
    def _has_command(self, cell: int) -> bool: ...

    def read(self, x: int, y: int, address: int, bytes: int) -> np.ndarray:
        """[bytes] uint8 of a PE's memory.

        Raises:
            CompileError: outside of it; the 64 bytes behind it read as zero.
        """
        return self._part(x, y, address, bytes, PAD).copy()

    def write(self, x: int, y: int, address: int, data: np.ndarray) -> None:
        """Write an array's bytes to a PE's memory.

        Raises:
            CompileError: outside of it.
        """
        content = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._part(x, y, address, len(content))[:] = content

    def _part(self, x: int, y: int, address: int, count: int, behind: int = 0) -> np.ndarray:
        """A view of a PE's memory, and of some bytes behind it."""
        cell, tile = self._cell(x, y), self.image.tiles[y, x]
        size = len(self.image.programs[tile].memory) + behind if tile >= 0 else 0
        if not 0 <= address <= address + count <= size:
            raise CompileError(
                f"PE ({x}, {y}): bytes {address} to {address + count} are outside of what its"
                " program declares"
            )
        return self._memory(cell, address + count)[address:]

    @abc.abstractmethod
    def _memory(self, cell: int, count: int) -> np.ndarray:
        """A view of the first bytes of a PE with a program."""

    def memories(self, program: int) -> list[np.ndarray]:
        """Views of what all PEs with a program hold, row by row: [bytes] uint8 each.

        Args:
            program: its place in the image.
        """
        cells = np.flatnonzero(self.image.tiles == program).tolist()
        return [self._memory(cell, len(self.image.programs[program].memory)) for cell in cells]

    @property
    def links(self) -> np.ndarray:
        """[H, W, 5] uint32: wavelets that left each router to the W, E, S, N and down the ramp."""
        return self._counters()[0]

    @property
    def worked(self) -> tuple[np.ndarray, np.ndarray]:
        """[H, W] int64 cycles in which CEs have worked, and the cycle behind the last of them."""
        worked = self._counters()[1]
        return worked[..., 0], worked[..., 1]

    @abc.abstractmethod
    def _counters(self) -> tuple[np.ndarray, np.ndarray]:
        """[H, W, 5] ``links``; [H, W, 2] ``worked``."""

    def send(
        self,
        color: int,
        port: tuple[int, int, str],
        words: np.ndarray,
        controls: np.ndarray | None = None,
    ) -> int:
        """Queue words of the host: on a stream, or from outside of the rectangle.

        Args:
            color: that they come on.
            port: column and row of the PE, and its port by which they come: RAMP for a stream, or
                the side W, E, S or N.
            words: [n] uint32.
            controls: [n] bool, whether each is a control wavelet; None: none is.

        Returns:
            How many of all that were sent there have not come in yet.

        Raises:
            CompileError: no such stream, nothing outside there, or the program does not use the
                color.
        """
        self._refuse_port(color, port)

    def hold_streams(self, words: int) -> None:  # noqa: B027 - the JAX machine has no streams
        """Hold a PE's stream to the host once it is this many words ahead of ``expect``.

        Args:
            words: of each PE and stream.
        """

    def expect(self, stream: tuple[int, int, int], words: int) -> None:
        """Let a stream to the host, held by ``hold_streams``, go on.

        Args:
            stream: its color, column and row of the PE.
            words: that ``receive`` will take, beside those of earlier calls.

        Raises:
            CompileError: as of ``send``.
        """
        self._refuse_port(stream[0], (*stream[1:], "RAMP"))

    def receivable(self, color: int, port: tuple[int, int, str]) -> int:
        """How many words ``receive`` could take; by a side they are kept from the first call on.

        Raises:
            CompileError: as of ``send``.
        """
        self._refuse_port(color, port)

    def receive(
        self, color: int, port: tuple[int, int, str], most: int | None = None
    ) -> np.ndarray:
        """Take what a PE has sent to the host: [n] uint32, in order, without control wavelets.

        Args:
            color: that it left on.
            port: as of ``send``.
            most: how many to take; None: all.

        Raises:
            CompileError: as of ``send``.
        """
        self._refuse_port(color, port)

    def _refuse_port(self, color: int, port: tuple[int, int, str]) -> NoReturn:
        x, y, side = port
        raise CompileError(
            f"PE ({x}, {y}) exchanges no words of color {color} with the host by {side}; expected a"
            f" color of the program and a side of the rectangle, or RAMP and a stream of"
            f" {self.image.streams}"
        )

    @abc.abstractmethod
    def waiting(self) -> Sequence[object]:
        """What tasks, operations, queues and routers wait for; each says it as ``str``."""

    @property
    def prints(self) -> Sequence[Print]:
        """Lines that PEs have written, by cycle."""
        return ()

    scalar_share = _uncounted(
        "cycles by instruction",
        "Cycles of scalar instructions as a share of all that PEs have worked; 0 before a run.",
    )
    counts = _uncounted("what PEs do", "What all PEs have done so far, for ``wafer.energy``.")
    profile = _uncounted(
        "cycles by line",
        "Cycles by file and line: the instructions' own, and one per step of an operation.",
    )
    trace = _uncounted(
        "what happens when",
        "What was recorded so far.\n\nRaises:\n    CompileError: the machine records nothing.",
    )
