"""The JAX machine behind the interface of the C++ one, for installs that have only this one."""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from wafer.energy import Counts
from wafer.errors import CompileError
from wafer.machine.engine import Print, Rectangle, Status, how_to_build
from wafer.machine.image import Image
from wafer.machine.reference.engine import run, start
from wafer.machine.reference.state import NEVER, Main, State, TaskKind
from wafer.machine.tools.recording import Trace
from wafer.machine.tools.reports import fault_message

__all__ = ["ReferenceMachine"]

_PAD = 64  # bytes behind the memory that read as zero


@functools.cache
def _compiled() -> Any:
    """One XLA program serves all images of like size."""
    return jax.jit(run)


def _on_host(state: State) -> State:
    """Arrays of NumPy, which the host may write to."""
    return jax.tree.map(np.array, state)


class ReferenceMachine:
    """A wafer that executes an image in JAX, thousands of times slower than in C++.

    Attributes:
        image: that it executes.

    Args:
        image: compiled.

    Raises:
        CompileError: code that cannot be run, or that only the C++ machine runs.
    """

    prints: Sequence[Print] = ()  # a program that prints is refused

    def __init__(self, image: Image) -> None:
        self.image = image
        self._height, self._width = image.tiles.shape
        try:
            with self._context():
                self._tables, state = start(image)
                self._state = _on_host(state)
        except CompileError as error:
            raise CompileError(f"{error}. The C++ machine does: {how_to_build()}") from error

    @staticmethod
    def _context() -> Any:
        """Registers of 64 bits; loops of small steps are a matter for the CPU."""
        stack = contextlib.ExitStack()
        stack.enter_context(jax.enable_x64(True))
        stack.enter_context(jax.default_device(jax.local_devices(backend="cpu")[0]))
        return stack

    @property
    def cycle(self) -> int:
        """Cycles that have passed."""
        return int(self._state.cycle)

    def run(self, most_cycles: int = 1_000_000_000) -> Status:
        """Run until nothing can change, the host's calls are answered, a fault, or the limit."""
        called = int(self._state.unanswered) > 0
        end = self.cycle + most_cycles
        with self._context():
            arrays = jax.tree.map(jnp.asarray, self._state)
            self._state = _on_host(_compiled()(self._tables, arrays, most_cycles))
        state = self._state
        if int(state.fault.kind):
            return Status.FAULT
        wakes = (state.wake >= state.cycle) & (state.wake < NEVER)
        if most_cycles > 0 and not bool(state.moved) and not wakes.any():
            return Status.QUIET
        if called and not int(state.unanswered):
            return Status.READY
        assert self.cycle >= end
        return Status.LIMIT

    @property
    def fault(self) -> str:
        """What ended the last run with ``Status.FAULT``; '' if nothing did."""
        kind, cell, pc, detail = (int(part) for part in self._state.fault)
        if not kind:
            return ""
        task, number = self._state.task[cell].tolist()
        return fault_message(self.image, (kind, cell, task, number, pc, detail))

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
            CompileError: a PE without that function; more arguments or calls than there is room.
        """
        state, room = self._state, self._state.launches.shape
        arguments = np.array([word & (1 << 64) - 1 for word in words], np.uint64).astype(np.int64)
        for x, y in rectangle.pes():
            cell, index = self._cell(x, y), self.image.tiles[y, x]
            entries = self.image.programs[index].functions if index >= 0 else {}
            if function not in entries:
                there = ", ".join(entries) or "none"
                raise CompileError(f"PE ({x}, {y}) exports {there}, not a function {function!r}")
            first, count = state.launched[cell].tolist()
            if len(words) >= room[2] or count == room[1]:
                raise CompileError(
                    f"{function!r} with {len(words)} arguments, after {count} calls that PE"
                    f" ({x}, {y}) has not taken up: the JAX machine has room for {room[2] - 1} and"
                    f" {room[1]}. The C++ machine has no such limit: {how_to_build()}"
                )
            call = state.launches[cell, (first + count) % room[1]]
            call[0], call[1 : 1 + len(words)] = entries[function], arguments
            state.launched[cell, 1] += 1
            state.unanswered[...] += 2  # it returns, and it frees the command stream

    def commands_waiting(self, rectangle: Rectangle) -> int:
        """PEs with a call that has not been taken up, not returned, or not freed the stream."""
        state = self._state
        runs = (state.main != Main.IDLE) & (state.task[:, 0] == TaskKind.FUNCTION)
        waits = state.commanded.astype(bool) | runs | (state.launched[:, 1] > 0)
        return sum(bool(waits[self._cell(x, y)]) for x, y in rectangle.pes())

    def _memory(self, x: int, y: int, address: int, count: int, pad: int) -> np.ndarray:
        cell, tile = self._cell(x, y), self.image.tiles[y, x]
        size = len(self.image.programs[tile].memory) + pad if tile >= 0 else 0
        if not 0 <= address <= address + count <= size:
            raise CompileError(
                f"PE ({x}, {y}): bytes {address} to {address + count} are outside of what its"
                " program declares"
            )
        return self._state.memory[cell, address : address + count]

    def read(self, x: int, y: int, address: int, bytes: int) -> np.ndarray:
        """[bytes] uint8 of a PE's memory.

        Raises:
            CompileError: outside of it; the 64 bytes behind it read as zero.
        """
        return self._memory(x, y, address, bytes, _PAD).copy()

    def write(self, x: int, y: int, address: int, data: np.ndarray) -> None:
        """Write an array's bytes to a PE's memory.

        Raises:
            CompileError: outside of it.
        """
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._memory(x, y, address, len(data), 0)[:] = data

    def inject(self, color: int, x: int, y: int, words: np.ndarray) -> NoReturn:
        """Refuse: a program with streams is not run here."""
        raise CompileError(f"colour {color} is no stream from the host: {self.image.streams}")

    def collectable(self, color: int, x: int, y: int) -> int:
        """Return 0: a program with streams is not run here."""
        return 0

    def collected(self, color: int, x: int, y: int, most: int | None = None) -> np.ndarray:
        """[0] uint32, likewise."""
        return np.zeros(0, np.uint32)

    def enter(
        self, color: int, port: tuple[int, int, str], words: np.ndarray, controls: np.ndarray
    ) -> NoReturn:
        """Refuse: a program with ports is not run here.

        Args:
            color: of the words.
            port: column, row and side.
            words: [n] uint32.
            controls: [n] bool.
        """
        raise CompileError(f"colour {color} has no port {port}")

    def open(self, color: int, port: tuple[int, int, str]) -> NoReturn:
        """Refuse, likewise."""
        raise CompileError(f"colour {color} has no port {port}")

    def left(self, color: int, port: tuple[int, int, str]) -> np.ndarray:
        """[0] uint32, likewise."""
        return np.zeros(0, np.uint32)

    def waiting(self) -> list[str]:
        """What has not ended: operations of threads, and calls, with file and line."""
        state, out = self._state, list[str]()
        for cell, tile in enumerate(self.image.tiles.reshape(-1)):
            if tile < 0:
                continue
            program, (y, x) = self.image.programs[tile], divmod(cell, self._width)
            for thread in np.flatnonzero(state.operations.on[cell]):
                file, line = program.lines[state.operations.pc[cell, thread]]
                place = f"{program.files[file]}:{line}"
                out.append(f"PE ({x}, {y}): the operation of thread {thread} waits ({place})")
            if state.launched[cell, 1]:
                out.append(f"PE ({x}, {y}): host waits for unblock_cmd_stream()")
        return out

    def _uncounted(self, what: str) -> NoReturn:
        raise CompileError(
            f"the JAX machine does not count {what}; the C++ machine does: {how_to_build()}"
        )

    @property
    def scalar_share(self) -> float:
        """Refuse: only the C++ machine counts."""
        self._uncounted("cycles by instruction")

    @property
    def counts(self) -> Counts:
        """Refuse, likewise."""
        self._uncounted("what PEs do")

    @property
    def profile(self) -> dict[tuple[str, int], int]:
        """Refuse, likewise."""
        self._uncounted("cycles by line")

    @property
    def trace(self) -> Trace:
        """Refuse, likewise."""
        self._uncounted("what happens when")
