"""What a host asks of a running program, one class per kind, each knowing when it can be done.

Calls, copies and streams form the command stream: in order, each once the one before it is done
and the PEs concerned have returned from the calls before it and freed the stream. That is the
vendor's rule (Cerebras/csl-examples, SDK 1.4): "memcpy commands are serialized"
(gemv-09-streaming), so that a stream to PEs that do not take its words holds back what comes later,
and a stream to the host begins once the one to the PEs is in their queues (pipeline-01-basic).
Only the ports of a layout in Python go their own way, in order on each.
"""

import dataclasses

import numpy as np

from wafer.csl.host.errors import HostError, warn_host
from wafer.csl.host.words import low_bits
from wafer.machine.arch import ROUTER_DEPTH
from wafer.machine.base import Rectangle, WaferMachine
from wafer.machine.image import Image

# A copy that no call holds back begins once nothing moves, or after so many cycles: it stands for
# thousands of cycles of a real host, in which programs get ready what is copied.
SETTLES = 20_000
# Words of a stream that router and ramp of a PE hold: so many of one to the PE may be left when it
# counts as done, and so many of one to the host leave before they are asked for. pipeline-01 of
# SDK 1.0 "stalls when size exceeds 14": 6 and 2 are in its queues, and 3 each way.
IN_FLIGHT = ROUTER_DEPTH + 1
READABLE_BEYOND = 64  # bytes behind the declared memory, which read as zero


@dataclasses.dataclass(eq=False)
class Task:
    """Anything asked for; the handle of a call with ``nonblock=True``.

    Attributes:
        done: whether it has happened.
    """

    what: str  #: in words, for messages
    finished: bool = dataclasses.field(default=False, kw_only=True)
    #: whether words go between host and PEs
    begun: bool = dataclasses.field(default=False, kw_only=True)
    #: cycle from which on no call and no word held it back
    free_since: int | None = dataclasses.field(default=None, kw_only=True)

    def settled(self, machine: WaferMachine, *, quiet: bool) -> bool:
        """Whether nothing has moved since, or not for long."""
        if self.free_since is None:
            self.free_since = machine.cycle
        return quiet or machine.cycle - self.free_since >= SETTLES

    def missing(self, machine: WaferMachine) -> list[str]:
        """Which PEs have taken or sent too few words, in words."""
        return []


@dataclasses.dataclass(eq=False)
class HostCall(Task):
    """A function called on some PEs; each takes it up after the calls before."""

    at: list[tuple[int, int]]  #: columns and rows of the PEs
    function: str  #: exported name
    words: list[int]  #: arguments as registers hold them

    def advance(self, machine: WaferMachine, *, quiet: bool) -> bool:
        """Hand it to the machine, which keeps the order of calls."""
        for x, y in self.at:
            machine.launch(Rectangle(x, y, 1, 1), self.function, self.words)
        self.finished = True
        return True


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

    def advance(self, machine: WaferMachine, *, quiet: bool) -> bool:
        """Copy, if the PEs are free and the program has settled."""
        if machine.commands_waiting(self.rectangle) or not self.settled(machine, quiet=quiet):
            return False
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
        return True

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
class Send(Task):
    """Words for PEs, each of which takes its own from a stream."""

    color: int  #: of the words
    rectangle: Rectangle  #: of PEs
    words: np.ndarray  #: [PEs, items] uint32
    launches: bool = False  #: whether they start what runs until nothing moves (SDK 0.6)

    def advance(self, machine: WaferMachine, *, quiet: bool) -> bool:
        """Hand the words over once the PEs are free; done once they are in and used up."""
        if not self.begun:
            self.begun = not machine.commands_waiting(self.rectangle)
            if self.begun:
                self._send(machine, self.words)
            return self.begun
        if not self.missing(machine):
            self.finished = quiet if self.launches else self.settled(machine, quiet=quiet)
        return self.finished

    def missing(self, machine: WaferMachine) -> list[str]:
        """Which PEs have not taken their words."""
        items = self.words.shape[1]
        return [
            f"PE ({x}, {y}) has taken {max(0, items - left)} of {items}"
            for (x, y), left in self._send(machine, self.words[:, :0])
            if left > IN_FLIGHT
        ]

    def _send(self, machine: WaferMachine, words: np.ndarray) -> list[tuple[tuple[int, int], int]]:
        """Send [PEs, n] words; how many of those sent before are not in, of each PE."""
        each = zip(self.rectangle.pes(), words, strict=True)
        return [((x, y), machine.send(self.color, (x, y, "RAMP"), its)) for (x, y), its in each]


@dataclasses.dataclass(eq=False)
class Receive(Task):
    """Words that PEs send to the host, on a stream or by a port of the rectangle."""

    stream: object  #: of several that receive from one port, the first one goes first
    color: int  #: of the words
    ports: list[tuple[int, int, str]]  #: columns and rows of the PEs, and by which port they leave
    places: np.ndarray  #: [ports, items]; of each word in the array
    array: np.ndarray  #: [n] uint32

    def advance(self, machine: WaferMachine, *, quiet: bool) -> bool:
        """Ask a stream for the words once the PEs are free; take them once all are there."""
        if not self.begun:
            waiting = machine.commands_waiting
            self.begun = not any(waiting(Rectangle(x, y, 1, 1)) for x, y, _ in self.ports)
            for x, y, _ in self.ports * self.begun:
                machine.expect((self.color, x, y), self.places.shape[1])
            return self.begun
        if self.missing(machine):
            return False
        for port, places in zip(self.ports, self.places, strict=True):
            self.array[places] = machine.receive(self.color, port, len(places))
        self.finished = True
        return True

    def missing(self, machine: WaferMachine) -> list[str]:
        """Which PEs have sent too few words, in words."""
        items = self.places.shape[1]
        there = [(port, machine.receivable(self.color, port)) for port in self.ports]
        return [f"PE ({x}, {y}) has sent {n} of {items}" for (x, y, _), n in there if n < items]
