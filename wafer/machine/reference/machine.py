"""The JAX machine behind the interface of the C++ one, for installs that have only this one."""

import contextlib
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from wafer.errors import CompileError
from wafer.machine.base import Status, WaferMachine
from wafer.machine.image import Image
from wafer.machine.reference.engine import run, start
from wafer.machine.reference.state import NEVER, Main, State, TaskKind
from wafer.vsl.native.library import how_to_build


@functools.cache
def _compiled() -> Callable[..., State]:
    """One XLA program serves all images of like size."""
    return jax.jit(run)


def _on_host(state: State) -> State:
    """Arrays of NumPy, which the host may write to."""
    return jax.tree.map(np.array, state)


class ReferenceMachine(WaferMachine):
    """A wafer that executes an image in JAX, thousands of times slower than in C++.

    Args:
        image: compiled.

    Raises:
        CompileError: code that cannot be run, or that only the C++ machine runs.
    """

    def __init__(self, image: Image) -> None:
        super().__init__(image)
        try:
            with self._context():
                self._tables, state = start(image)
                self._state = _on_host(state)
        except CompileError as error:
            raise CompileError(f"{error}. The C++ machine does: {how_to_build()}") from error

    @staticmethod
    def _context() -> contextlib.ExitStack:
        """Registers of 64 bits; loops of small steps are a matter for the CPU."""
        stack = contextlib.ExitStack()
        stack.enter_context(jax.enable_x64(True))
        stack.enter_context(jax.default_device(jax.local_devices(backend="cpu")[0]))
        return stack

    @property
    def cycle(self) -> int:
        return int(self._state.cycle)

    def run(self, most_cycles: int = 1_000_000_000) -> Status:
        called = self._state.unanswered.any()
        end = self.cycle + most_cycles
        with self._context():
            arrays = jax.tree.map(jnp.asarray, self._state)
            self._state = _on_host(_compiled()(self._tables, arrays, most_cycles))
        state = self._state
        if state.fault.kind.any():
            return Status.FAULT
        wakes = (state.wake >= state.cycle) & (state.wake < NEVER)
        if most_cycles > 0 and not bool(state.moved) and not wakes.any():
            return Status.QUIET
        if called and not state.unanswered.any():
            return Status.READY
        assert self.cycle >= end
        return Status.LIMIT

    def _fault(self) -> list[int]:
        cell = int(np.argmax(self._state.fault.kind != 0))
        kind, *rest = (int(part[cell]) for part in self._state.fault)
        return [kind, cell, *rest]

    def _call(self, cell: int, entry: int, arguments: np.ndarray) -> str:
        state, room = self._state, self._state.launches.shape
        first, count = state.launched[cell].tolist()
        if len(arguments) >= room[2] or count == room[1]:
            return (
                f"was given {len(arguments)} arguments, after {count} calls that it has not taken"
                f" up: the JAX machine has room for {room[2] - 1} and {room[1]}. The C++ machine"
                f" has no such limit: {how_to_build()}"
            )
        call = state.launches[cell, (first + count) % room[1]]
        call[0], call[1 : 1 + len(arguments)] = entry, arguments.astype(np.int64)
        state.launched[cell, 1] += 1
        state.unanswered[cell] += 2  # it returns, and it frees the command stream
        return ""

    def _has_command(self, cell: int) -> bool:
        state = self._state
        runs = state.main[cell] != Main.IDLE and state.task[cell, 0] == TaskKind.FUNCTION
        return bool(state.commanded[cell] or runs or state.launched[cell, 1] > 0)

    def _memory(self, cell: int, count: int) -> np.ndarray:
        return self._state.memory[cell, :count]

    def _counters(self) -> tuple[np.ndarray, np.ndarray]:
        shape, state = (self._height, self._width, -1), self._state
        worked = np.stack([state.worked, state.ended], axis=-1)
        return state.links.astype(np.uint32).reshape(shape), worked.reshape(shape)

    def waiting(self) -> list[str]:
        state, out = self._state, list[str]()
        for cell, tile in enumerate(self.image.tiles.reshape(-1)):
            if tile < 0:
                continue
            program, (y, x) = self.image.programs[tile], divmod(cell, self._width)
            threads = np.flatnonzero(state.operations.on[cell])
            waits = [
                (f"the operation of thread {k}", state.operations.pc[cell, k]) for k in threads
            ]
            if state.main[cell] in (Main.RECEIVING, Main.SENDING, Main.WAITING):
                waits.append(("the task", state.pc[cell]))
            for who, pc in waits:
                file, line = program.lines[pc]
                out.append(f"PE ({x}, {y}): {who} waits ({program.files[file]}:{line})")
            if state.launched[cell, 1]:
                out.append(f"PE ({x}, {y}): host waits for unblock_cmd_stream()")
        return out
