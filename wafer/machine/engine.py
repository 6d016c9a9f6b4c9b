"""Runs a compiled image cycle by cycle: a thin layer over the C++ machine."""

import ctypes
import enum
import os
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from wafer.energy import Counts
from wafer.errors import CompileError
from wafer.machine.arch import PORTS
from wafer.machine.codes import Op
from wafer.machine.counting import WORK, counts_of
from wafer.machine.image import Image
from wafer.machine.library import available, how_to_build, machine_library
from wafer.machine.recording import Recording, Trace, events_of, settings_of, trace_of
from wafer.machine.reports import Waiting, fault_message, waiting_for
from wafer.machine.setup import lay_out

__all__ = ["Machine", "Print", "Rectangle", "Status", "available", "how_to_build"]

_MOST_REPORTED = 10_000


class Status(enum.IntEnum):
    """How a run ended."""

    QUIET = 0  # nothing can change any more
    READY = 1  # all launched calls have returned and freed the command streams
    FAULT = 2  # see Machine.fault
    LIMIT = 3  # the cycles asked for have passed


class Rectangle(NamedTuple):
    """PEs [x, x + width) by [y, y + height)."""

    x: int
    y: int
    width: int
    height: int

    def has(self, x: int, y: int) -> bool:
        """Whether a PE is one of them."""
        return 0 <= x - self.x < self.width and 0 <= y - self.y < self.height

    def pes(self) -> Iterator[tuple[int, int]]:
        """Column and row of each PE, row by row."""
        for y in range(self.y, self.y + self.height):
            for x in range(self.x, self.x + self.width):
                yield x, y


class Print(NamedTuple):
    """A line that a PE wrote.

    Attributes:
        cycle: in which it ended.
        x, y: the PE.
        text: without the end of line.
    """

    cycle: int
    x: int
    y: int
    text: str


class Machine:
    """A wafer that executes an image.

    Args:
        image: compiled.
        threads: of the host; None: one per core. Results and cycles do not depend on it.
        record: what ``trace`` is to hold; None: nothing, which costs nothing.
        check_bounds: whether an operation that reads or writes beyond a variable is a fault; some
            programs rely on a variable's neighbors.

    Raises:
        CompileError: code that cannot be run, or a recording that cannot be made.
        RuntimeError: the C++ library is not built.
    """

    def __init__(
        self,
        image: Image,
        threads: int | None = None,
        record: Recording | None = None,
        *,
        check_bounds: bool = False,
    ) -> None:
        self.image, setup = image, lay_out(image)
        self._height, self._width = image.tiles.shape
        # A thread for few PEs waits more than it works.
        suits = max(1, min(self._height, self._height * self._width // 64))
        self._threads = threads or min(os.cpu_count() or 1, suits)
        self._library = machine_library()
        self._machine = self._library.csl_create(setup.ctypes.data, len(setup))
        if not self._machine:
            raise CompileError("the image does not fit into memory, or its tables do not fit it")
        self._end = weakref.finalize(self, self._library.csl_destroy, self._machine)
        self._calls: list[tuple[Rectangle, str]] = []
        self._recorded = None if record is None else settings_of(record, image)
        if self._recorded is not None:
            self._library.csl_record(self._machine, self._recorded.ctypes.data)
        for number, program in enumerate(image.programs if check_bounds else ()):
            spans = [(s.address, s.address + s.bytes) for s in program.symbols.values()]
            rows = np.array(spans, np.int32).reshape(-1, 2)
            self._library.csl_check_bounds(self._machine, number, rows.ctypes.data, len(rows))

    @property
    def cycle(self) -> int:
        """Cycles that have passed."""
        return self._library.csl_cycle(self._machine)

    def run(self, most_cycles: int = 1_000_000_000) -> Status:
        """Run until nothing can change, the host's calls are answered, a fault, or the limit."""
        return Status(self._library.csl_run(self._machine, most_cycles, self._threads))

    @property
    def fault(self) -> str:
        """What ended the last run with ``Status.FAULT``; '' if nothing did."""
        numbers = np.zeros(6, np.int64)
        self._library.csl_fault(self._machine, numbers.ctypes.data)
        return fault_message(self.image, numbers.tolist()) if numbers[0] else ""

    def _cell(self, x: int, y: int) -> int:
        if not (0 <= x < self._width and 0 <= y < self._height):
            raise CompileError(
                f"PE ({x}, {y}) is outside of the {self._width} x {self._height} rectangle"
            )
        return y * self._width + x

    def launch(self, rectangle: Rectangle, function: str, words: Sequence[int] = ()) -> None:
        """Call an exported function on every PE of a rectangle, after what was called before.

        Args:
            rectangle: of PEs.
            function: exported name.
            words: arguments as registers hold them.

        Raises:
            CompileError: a PE without that function.
        """
        arguments = np.array([word & (1 << 64) - 1 for word in words], np.uint64)
        for x, y in rectangle.pes():
            cell, index = self._cell(x, y), self.image.tiles[y, x]
            entries = self.image.programs[index].functions if index >= 0 else {}
            if function not in entries:
                there = ", ".join(entries) or "none"
                raise CompileError(f"PE ({x}, {y}) exports {there}, not a function {function!r}")
            if not self._library.csl_launch(
                self._machine, cell, entries[function], arguments.ctypes.data, len(arguments)
            ):
                raise CompileError(
                    f"{function!r} was given {len(arguments)} arguments, more than PE ({x}, {y})"
                    " has registers for"
                )
        self._calls.append((rectangle, function))

    def commands_waiting(self, rectangle: Rectangle) -> int:
        """PEs with a call that has not been taken up, not returned, or not freed the stream."""
        has = self._library.csl_has_command
        return sum(has(self._machine, self._cell(x, y)) for x, y in rectangle.pes())

    def enter(
        self, color: int, port: tuple[int, int, str], words: np.ndarray, controls: np.ndarray
    ) -> None:
        """Queue words that come from outside of the rectangle.

        Args:
            color: that they come on.
            port: column and row of the PE, and the side by which they come: W, E, S or N.
            words: uint32.
            controls: bool of each; whether it is a control wavelet.

        Raises:
            CompileError: nothing is outside there, or the program does not use the colour.
        """
        words = np.ascontiguousarray(words, np.uint32)
        flags = np.ascontiguousarray(controls, np.uint8)
        where = self._port(color, port)
        made = self._library.csl_enter(*where, words.ctypes.data, flags.ctypes.data, len(words))
        self._check_port(made, color, port)

    def open(self, color: int, port: tuple[int, int, str]) -> None:
        """Keep what leaves by a side of the rectangle from now on, for ``left``.

        Args:
            color: of the words.
            port: column and row of the PE, and the side: W, E, S or N.

        Raises:
            CompileError: nothing is outside there, or the program does not use the colour.
        """
        self._check_port(self._library.csl_open(*self._port(color, port)), color, port)

    def left(self, color: int, port: tuple[int, int, str]) -> np.ndarray:
        """Words that have left by a side since it was opened: uint32, without control wavelets."""
        where = self._port(color, port)
        out = np.zeros(self._library.csl_left(*where, None, 0), np.uint32)
        self._library.csl_left(*where, out.ctypes.data, len(out))
        return out

    def _port(self, color: int, port: tuple[int, int, str]) -> tuple[Any, int, int, int]:
        x, y, side = port
        return self._machine, self._cell(x, y), color, PORTS.index(side)

    def _check_port(self, made: int, color: int, port: tuple[int, int, str]) -> None:
        if not made:
            x, y, side = port
            raise CompileError(
                f"PE ({x}, {y}) has no port of colour {color} at its side {side}: that side is not"
                " the rectangle's, or the program does not use the colour"
            )

    def _copy(self, x: int, y: int, address: int, data: np.ndarray, *, write: bool) -> None:
        cell, size = self._cell(x, y), data.nbytes
        inside = 0 <= address < 1 << 32 and self._library.csl_copy(
            self._machine, cell, address, size, data.ctypes.data, int(write)
        )
        if not inside:
            raise CompileError(
                f"PE ({x}, {y}): bytes {address} to {address + size} are outside of what its"
                " program declares"
            )

    def read(self, x: int, y: int, address: int, bytes: int) -> np.ndarray:
        """[bytes] uint8 of a PE's memory.

        Raises:
            CompileError: outside of it; the 64 bytes behind it read as zero.
        """
        out = np.zeros(bytes, np.uint8)
        self._copy(x, y, address, out, write=False)
        return out

    def write(self, x: int, y: int, address: int, data: np.ndarray) -> None:
        """Write an array's bytes to a PE's memory.

        Raises:
            CompileError: outside of it.
        """
        self._copy(x, y, address, np.ascontiguousarray(data), write=True)

    def inject(self, color: int, x: int, y: int, words: np.ndarray) -> None:
        """Queue words that the host sends to a PE on a stream's colour.

        Raises:
            CompileError: a colour that is no stream from the host.
        """
        if "H2D" not in self.image.streams.get(color, "").upper():
            raise CompileError(f"colour {color} is no stream from the host: {self.image.streams}")
        words = np.ascontiguousarray(words, np.uint32).reshape(-1)
        self._library.csl_inject(
            self._machine, self._cell(x, y), color, words.ctypes.data, len(words)
        )

    def collected(self, color: int, x: int, y: int, most: int | None = None) -> np.ndarray:
        """Take what a PE has sent to the host on a stream's colour: uint32, in order.

        Args:
            color: of the stream.
            x: column of the PE.
            y: row of the PE.
            most: how many to take; None: all.
        """
        cell = self._cell(x, y)
        there = self._library.csl_collectable(self._machine, cell, color)
        out = np.zeros(there if most is None else min(there, most), np.uint32)
        self._library.csl_collect(self._machine, cell, color, out.ctypes.data, len(out))
        return out

    def collectable(self, color: int, x: int, y: int) -> int:
        """How many words ``collected`` could take."""
        return self._library.csl_collectable(self._machine, self._cell(x, y), color)

    def waiting(self) -> list[Waiting]:
        """What tasks, microthreads, queues and routers wait for: the report of a deadlock."""
        rows = np.zeros((_MOST_REPORTED, 8), np.int32)
        count = self._library.csl_waiting(self._machine, rows.ctypes.data, len(rows))
        return [waiting_for(self.image, row, self._called) for row in rows[:count].tolist()]

    def _called(self, x: int, y: int) -> list[str]:
        """What the host has called on a PE."""
        return [function for rectangle, function in self._calls if rectangle.has(x, y)]

    @property
    def prints(self) -> list[Print]:
        """Lines that PEs have written, by cycle."""
        out = []
        cycle, cell, length = ctypes.c_int64(), ctypes.c_int32(), ctypes.c_int64()
        refer = ctypes.byref
        for k in range(self._library.csl_prints(self._machine)):
            text = self._library.csl_print(
                self._machine, k, refer(cycle), refer(cell), refer(length)
            )
            line = ctypes.string_at(text, length.value).decode("latin-1")
            y, x = divmod(cell.value, self._width)
            out.append(Print(cycle.value, x, y, line))
        return out

    @property
    def scalar_share(self) -> float:
        """Cycles of scalar instructions as a share of all that PEs have worked; 0 before a run."""
        scalar = total = 0
        for code, cycles in self._cycles_by_instruction():
            total += int(cycles.sum())
            scalar += int(cycles[code[:, 0] != Op.OPERATE].sum())
        return scalar / total if total else 0.0

    def _cycles_by_instruction(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The code of each program, and the cycles of its instructions."""
        for k, program in enumerate(self.image.programs):
            cycles = np.zeros(len(program.code), np.int64)
            self._library.csl_profile(self._machine, k, cycles.ctypes.data)
            yield program.code, cycles

    @property
    def counts(self) -> Counts:
        """What all PEs have done so far, for ``wafer.energy``."""
        total = Counts(hops=int(self.links[..., :4].sum(dtype=np.int64)))
        counted = self._cycles_by_instruction()
        for k, (program, (_, cycles)) in enumerate(zip(self.image.programs, counted, strict=True)):
            work = np.zeros((len(program.code), len(WORK)), np.int64)
            self._library.csl_work(self._machine, k, work.ctypes.data)
            total = total.plus(counts_of(program, self.image.arch, cycles, work))
        return total

    @property
    def profile(self) -> dict[tuple[str, int], int]:
        """Cycles by file and line: the instructions' own, and one per step of an operation."""
        out: dict[tuple[str, int], int] = {}
        counted = self._cycles_by_instruction()
        for program, (_, cycles) in zip(self.image.programs, counted, strict=True):
            for pc in np.flatnonzero(cycles):
                file, line = program.lines[pc]
                place = program.files[file], int(line)
                out[place] = out.get(place, 0) + int(cycles[pc])
        return out

    @property
    def trace(self) -> Trace:
        """What was recorded so far.

        Raises:
            CompileError: the machine records nothing.
        """
        if self._recorded is None:
            raise CompileError(
                "nothing was recorded; make the machine, or the runtime, with record=Recording()"
            )
        numbers = np.zeros(3, np.int64)
        self._library.csl_recorded(self._machine, numbers.ctypes.data)
        count, every, full = numbers.tolist()
        width, height, windows = self._recorded[[2, 3, 7]].tolist()
        events, links = events_of(count), np.zeros((windows, height, width, 5), np.uint32)
        self._library.csl_recording(self._machine, events.ctypes.data, links.ctypes.data)
        now = {"every": every, "cycle": self.cycle, "full": full}
        return trace_of(self.image, self._recorded, events, links, **now)

    @property
    def links(self) -> np.ndarray:
        """[H, W, 5] uint32: wavelets that left each router to the W, E, S, N and down the ramp."""
        count = self._height * self._width * 5
        at = ctypes.cast(self._library.csl_links(self._machine), ctypes.POINTER(ctypes.c_uint32))
        return np.ctypeslib.as_array(at, (count,)).reshape(self._height, self._width, 5).copy()
