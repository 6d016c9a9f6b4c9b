"""What a host asks of a running program, one class per kind, each knowing when it can be done.

Copies and calls form the command stream: in order, each once the PEs concerned have returned from
the calls before it and freed the stream. Streams go their own way, in order on each color.
"""

import dataclasses

import numpy as np

from wafer.csl.host.errors import HostError, warn_host
from wafer.csl.host.words import low_bits
from wafer.machine.base import Rectangle, WaferMachine
from wafer.machine.image import Image

# A copy that no call holds back begins once nothing moves, or after so many cycles: it stands for
# thousands of cycles of a real host, in which programs get ready what is copied.
SETTLES = 20_000
READABLE_BEYOND = 64  # bytes behind the declared memory, which read as zero


@dataclasses.dataclass(eq=False)
class Task:
    """Anything asked for; the handle of a call with ``nonblock=True``.

    Attributes:
        done: whether it has happened.
    """

    what: str  #: in words, for messages
    finished: bool = dataclasses.field(default=False, kw_only=True)


@dataclasses.dataclass(eq=False)
class HostCall(Task):
    """A function called on some PEs; each takes it up after the calls before."""

    at: list[tuple[int, int]]  #: columns and rows of the PEs
    function: str  #: exported name
    words: list[int]  #: arguments as registers hold them

    def advance(self, machine: WaferMachine, *, quiet: bool) -> None:
        """Hand it to the machine, which keeps the order."""
        for x, y in self.at:
            machine.launch(Rectangle(x, y, 1, 1), self.function, self.words)
        self.finished = True


@dataclasses.dataclass(eq=False)
class Copy(Task):
    """Memory of PEs written from, or read into, the host's array."""

    image: Image  #: of the program
    rectangle: Rectangle  #: of PEs
    symbol: str  #: exported pointer; the memory begins where it points when the copy happens
    places: np.ndarray  #: [height, width, items]; of each item in the array
    stride: int  #: elements from one item to the next in memory
    bits: int  #: of an element, 16 or 32
    array: np.ndarray  #: [n] of 32-bit items
    to_host: bool  #: the direction
    free_since: int | None = None  #: cycle at which no call held it back

    def advance(self, machine: WaferMachine, *, quiet: bool) -> None:
        """Copy, if the PEs are free and the program has settled."""
        if machine.commands_waiting(self.rectangle):
            return
        if self.free_since is None:
            self.free_since = machine.cycle
        if not quiet and machine.cycle - self.free_since < SETTLES:
            return
        width = self.bits // 8
        for x, y in self.rectangle.pes():
            places = self.places[y - self.rectangle.y, x - self.rectangle.x]
            address = self._address(machine, x, y)
            self._check_room(x, y, address)
            if self.stride == 1:
                self._move(machine, x, y, address, places)
            else:
                for k, place in enumerate(places):
                    at = address + k * self.stride * width
                    self._move(machine, x, y, at, place[None])
        self.finished = True

    def _address(self, machine: WaferMachine, x: int, y: int) -> int:
        symbol = self.image.programs[self.image.tiles[y, x]].exports[self.symbol]
        if not symbol.type.startswith(("[*]", "*")):
            return symbol.address
        return int(machine.read(x, y, symbol.address, 2).view("<u2")[0])

    def _check_room(self, x: int, y: int, address: int) -> None:
        """Refuse to write beyond a variable, or to read beyond the memory.

        Programs read more words than a variable has, and get those of the next one.

        Raises:
            HostError: the items go further.
        """
        program, width = self.image.programs[self.image.tiles[y, x]], self.bits // 8
        items = self.places.shape[2]
        end = address + ((items - 1) * self.stride + 1) * width
        name, symbol = program.variable_at(address) or ("the memory", None)
        memory = len(program.memory) + READABLE_BEYOND * self.to_host
        last = memory if symbol is None else symbol.address + symbol.bytes
        if not items or end <= last:
            return
        room = max(0, (last - address) // width + self.stride - 1) // self.stride
        kind = f" of type {symbol.type}" if symbol else ""
        text = f"{self.what}: {items} items of {self.bits} bits for each PE; '{name}'{kind} on PE"
        text += f" ({x}, {y}) has room for {room}"
        if not self.to_host or end > memory:
            raise HostError(text)
        if (x, y) == self.rectangle[:2]:
            warn_host(f"{text}, and the rest is read from what lies behind it")

    def _move(
        self, machine: WaferMachine, x: int, y: int, address: int, places: np.ndarray
    ) -> None:
        if not self.to_host:
            machine.write(x, y, address, low_bits(self.array[places], self.bits))
            return
        data = machine.read(x, y, address, len(places) * self.bits // 8)
        self.array[places] = data.view(f"<u{self.bits // 8}")


@dataclasses.dataclass(eq=False)
class Receive(Task):
    """Words that PEs send to the host, on a stream or by a port of the rectangle."""

    stream: object  #: of several that receive from one, the first one goes first
    color: int  #: of the words
    ports: list[tuple[int, int, str]]  #: columns and rows of the PEs, and by which port they leave
    places: np.ndarray  #: [ports, items]; of each word in the array
    array: np.ndarray  #: [n] uint32

    def advance(self, machine: WaferMachine, *, quiet: bool) -> None:
        """Take the words once all are there."""
        if self.missing(machine):
            return
        for port, places in zip(self.ports, self.places, strict=True):
            self.array[places] = machine.receive(self.color, port, len(places))
        self.finished = True

    def missing(self, machine: WaferMachine) -> list[str]:
        """Which PEs have sent too few words, in words."""
        items = self.places.shape[1]
        there = [(port, machine.receivable(self.color, port)) for port in self.ports]
        return [f"PE ({x}, {y}) has sent {n} of {items}" for (x, y, _), n in there if n < items]
