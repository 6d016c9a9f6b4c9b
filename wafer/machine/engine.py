"""Runs a compiled image cycle by cycle: a thin layer over the C++ machine, or the JAX one."""

import ctypes
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from wafer.energy import Counts
from wafer.errors import CompileError
from wafer.machine.arch import PORTS
from wafer.machine.base import Print, Status, WaferMachine
from wafer.machine.codes import Op
from wafer.machine.image import Image, Program
from wafer.machine.setup import lay_out
from wafer.machine.tools.counting import WORK, counts_of
from wafer.machine.tools.recording import EVENT, Recording, Trace, settings_of, trace_of
from wafer.machine.tools.reports import Waiting, waiting_for
from wafer.vsl.native.library import Library, how_to_build

_LIBRARY = Library(package="wafer.machine.native", instead="the machine in JAX")
available = _LIBRARY.available
_MOST_REPORTED = 10_000


def free_cores(loadavg: Path = Path("/proc/loadavg")) -> int:
    """Return how many cores no other thread of this computer runs on; all where that is unknown.

    The machine's threads meet in every cycle, so one that shares its core holds all of them up.

    Args:
        loadavg: Linux's file, whose fourth field begins with the number of running threads.
    """
    cores = os.cpu_count() or 1
    if not loadavg.is_file():
        return cores
    running = int(loadavg.read_text(encoding="ascii").split()[3].partition("/")[0])
    return max(1, min(cores, cores + 1 - running))  # this thread is one of them


def _call(name: str, *arguments: Any) -> int:
    """Call a function of ``native/machine.cc``: all is numbers of 64 bits, arrays their addresses.

    Raises:
        RuntimeError: the library is not built.
    """
    function = getattr(_LIBRARY.loaded(), f"csl_{name}")
    function.restype = ctypes.c_int64
    numbers = (one.ctypes.data if isinstance(one, np.ndarray) else int(one) for one in arguments)
    return function(*map(ctypes.c_int64, numbers))


class Machine(WaferMachine):
    """The machine in C++.

    Args:
        image: compiled.
        threads: of the host; None: one per free core. Results and cycles do not depend on it.
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
        tables = lay_out(image, check_bounds=check_bounds)  # checks the image
        super().__init__(image)
        # A thread for few PEs waits more than it works.
        suits = max(1, min(self._height, self._height * self._width // 64))
        self._threads = threads or min(free_cores(), suits)
        self._recorded = np.zeros(0, np.int64) if record is None else settings_of(record, image)
        tables.append(self._recorded)
        places = np.array([(table.ctypes.data, table.nbytes) for table in tables], np.int64)
        self._machine = _call("create", places)
        if not self._machine:
            raise CompileError("the image does not fit into memory")
        self._end = weakref.finalize(self, _call, "destroy", self._machine)
        self._memories = np.zeros(image.tiles.size, np.int64)
        self._c("memories", self._memories)

    def _c(self, name: str, *arguments: object) -> int:
        return _call(name, self._machine, *arguments)

    def _numbers(self) -> list[int]:
        """As ``csl_numbers`` lists them."""
        out = np.zeros(10, np.int64)
        self._c("numbers", out)
        return out.tolist()

    @property
    def cycle(self) -> int:
        return self._numbers()[0]

    def run(self, most_cycles: int = 1_000_000_000) -> Status:
        return Status(self._c("run", most_cycles, self._threads))

    def _fault(self) -> list[int]:
        return self._numbers()[4:]

    def _call(self, cell: int, entry: int, arguments: Any) -> str:
        if self._c("launch", cell, entry, arguments, len(arguments)):
            return ""
        return f"was given {len(arguments)} arguments, more than it has registers for"

    def _has_command(self, cell: int) -> bool:
        return bool(self._c("has_command", cell))

    def _memory(self, cell: int, count: int) -> np.ndarray:
        content = (ctypes.c_uint8 * count).from_address(int(self._memories[cell]))
        return np.ctypeslib.as_array(content)

    def send(
        self,
        color: int,
        port: tuple[int, int, str],
        words: np.ndarray,
        controls: np.ndarray | None = None,
    ) -> int:
        words = np.ascontiguousarray(words, np.uint32).reshape(-1)
        flags = np.zeros(len(words), np.uint8)
        flags[:] = False if controls is None else controls
        left = self._c("send", *self._port(color, port), words, flags, len(words))
        if left < 0:
            self._refuse_port(color, port)
        return left

    def hold_streams(self, words: int) -> None:
        self._c("hold", words)

    def expect(self, stream: tuple[int, int, int], words: int) -> None:
        color, x, y = stream
        if not self._c("expect", self._cell(x, y), color, words):
            super().expect(stream, words)

    def receivable(self, color: int, port: tuple[int, int, str]) -> int:
        there = self._c("receive", *self._port(color, port), 0, 0)
        if there < 0:
            self._refuse_port(color, port)
        return there

    def receive(
        self, color: int, port: tuple[int, int, str], most: int | None = None
    ) -> np.ndarray:
        there = self.receivable(color, port)
        out = np.zeros(there if most is None else min(there, most), np.uint32)
        self._c("receive", *self._port(color, port), out, len(out))
        return out

    def _port(self, color: int, port: tuple[int, int, str]) -> tuple[int, int, int]:
        x, y, side = port
        return self._cell(x, y), color, PORTS.index(side)

    def _counters(self) -> tuple[np.ndarray, np.ndarray]:
        shape = self._height, self._width
        links, worked = np.zeros((*shape, 5), np.uint32), np.zeros((*shape, 2), np.int64)
        self._c("counters", links, worked)
        return links, worked

    def waiting(self) -> list[Waiting]:
        rows = np.zeros((_MOST_REPORTED, 8), np.int32)
        count = self._c("waiting", rows, len(rows))
        return [waiting_for(self.image, row) for row in rows[:count].tolist()]

    @property
    def prints(self) -> list[Print]:
        out, numbers = list[Print](), np.zeros(3, np.int64)
        for k in range(self._numbers()[1]):
            text = self._c("print", k, numbers)
            cycle, cell, length = numbers.tolist()
            y, x = divmod(cell, self._width)
            out.append(Print(cycle, x, y, ctypes.string_at(text, length).decode("latin-1")))
        return out

    def _work(self) -> Iterator[tuple[Program, np.ndarray]]:
        """Each program, and [instructions, columns of WORK] of it."""
        for k, program in enumerate(self.image.programs):
            work = np.zeros((len(program.code), len(WORK)), np.int64)
            self._c("work", k, work)
            yield program, work

    @property
    def scalar_share(self) -> float:
        scalar = total = 0
        for program, work in self._work():
            total += int(work[:, 0].sum())
            scalar += int(work[program.code[:, 0] != Op.OPERATE, 0].sum())
        return scalar / total if total else 0.0

    @property
    def counts(self) -> Counts:
        total = Counts(hops=int(self.links[..., :4].sum(dtype=np.int64)))
        for program, work in self._work():
            total = total.plus(counts_of(program, self.image.arch, work))
        return total

    @property
    def profile(self) -> dict[tuple[str, int], int]:
        out: dict[tuple[str, int], int] = {}
        for program, work in self._work():
            for pc in np.flatnonzero(work[:, 0]):
                file, line = program.lines[pc]
                place = program.files[file], int(line)
                out[place] = out.get(place, 0) + int(work[pc, 0])
        return out

    @property
    def trace(self) -> Trace:
        if not len(self._recorded):
            raise CompileError(
                "nothing was recorded; make the machine, or the runtime, with record=Recording()"
            )
        cycle, _, every, full = self._numbers()[:4]
        width, height, windows = self._recorded[[2, 3, 7]].tolist()
        links = np.zeros((windows, height, width, len(PORTS)), np.uint32)
        events = np.zeros(self._c("recording", links, 0, 0), EVENT)
        self._c("recording", links, events, len(events))
        now = {"every": every, "cycle": cycle, "full": full}
        return trace_of(self.image, self._recorded, events, links, **now)


def machine_for(
    image: Image,
    record: Recording | None = None,
    *,
    check_bounds: bool = False,
    implementation: str = "auto",
) -> WaferMachine:
    """Load an image into a machine.

    Args:
        image: compiled.
        record: what ``trace`` is to hold; None: nothing.
        check_bounds: whether an operation that reads or writes beyond a variable is a fault.
        implementation: "native" (C++), "jax", or "auto": native where built.

    Raises:
        CompileError: code that cannot be run, a machine that is not there, or what the JAX machine
            does not run or record.
    """
    if implementation not in {"auto", "jax", "native"}:
        raise CompileError(f"implementation {implementation!r}; there are auto, jax and native")
    if implementation == "native" and not available():
        raise CompileError(f"the native machine is not built; to build it: {how_to_build()}")
    if implementation != "jax" and available():
        return Machine(image, record=record, check_bounds=check_bounds)
    if record is not None or check_bounds:
        raise CompileError(
            "the JAX machine records nothing and checks no bounds; the C++ machine does:"
            f" {how_to_build()}"
        )
    from wafer.machine.reference.machine import ReferenceMachine  # takes JAX along

    return ReferenceMachine(image)
