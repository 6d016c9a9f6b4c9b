"""A machine of plain Python for the host's tests: memory, streams, and functions that answer."""

import numpy as np

from wafer.energy import Counts
from wafer.machine.base import Status
from wafer.machine.image import COLUMNS, Export, Image, Program, Symbol

A, COUNT, POINTER = 16, 32, 40  # addresses: [8]u16 or so, a u16, a pointer to A
IN, OUT = 3, 4  # colors of streams


def image(height=2, width=3, tiles=None):
    """PEs with an array, exported as `a`, and functions `work(i16, f32)` and `never()`."""
    tables = {n: np.zeros((0, len(c)), np.int32) for n, c in COLUMNS.items() if n != "filters"}
    none = {"local_tasks": 31, "data_tasks": 24, "control_tasks": 64}
    none |= {"teardown_handlers": 24, "empty_handlers": 8}
    memory = np.zeros(64, np.uint8)
    memory[POINTER : POINTER + 2] = np.array([A], "<u2").view(np.uint8)
    program = Program(
        name="pe.csl",
        code=np.array([[30, 0, 0, 0, 0]], np.int32),
        lines=np.array([[0, 7]], np.int32),
        files=("pe.csl",),
        messages=("no more than 3",),
        memory=memory,
        tables=tables,
        **{name: np.full(size, -1, np.int32) for name, size in none.items()},
        start=-1,
        active=0,
        blocked=np.zeros(5, np.int32),
        functions={"work": 0, "never": 0},
        exports={"a": Symbol(POINTER, 2, "[*]u16")},
        symbols={"array": Symbol(A, 16, "[8]u16"), "count": Symbol(COUNT, 2, "u16")},
        frame=4,
    )
    return Image(
        arch="wse2",
        programs=(program,),
        tiles=np.zeros((height, width), np.int32) if tiles is None else np.array(tiles, np.int32),
        colors=np.zeros((height, width, 24), np.int32),
        switches=np.zeros((height, width, 24), np.int32),
        routed=np.zeros((height, width, 24), bool),
        filters=np.zeros((height, width, 24, len(COLUMNS["filters"])), np.int32),
        exports=(
            Export("a", "[*]u16", True),
            Export("work", "fn(i16, f32)void", False),
            Export("never", "fn()void", False),
        ),
        streams={IN: "MEMCPYH2D_1", OUT: "MEMCPYD2H_1"},
        params={"n": "4"},
    )


class FakeMachine:
    """Doubles what streams in; `work` takes 100 cycles and counts; `never` frees nothing.

    Nothing happens but in `run`, one thing after another.
    """

    scalar_share = 0.5
    profile = {("pe.csl", 7): 1, ("pe.csl", 9): 2}  # noqa: RUF012
    counts = Counts(adds32=3)

    def __init__(self, program, record=None, *, check_bounds=False):
        del record, check_bounds
        height, width = program.tiles.shape
        self.cycle, self.fault, self.prints = 0, "", []
        self.memory = {
            (x, y): program.programs[0].memory.copy() for y in range(height) for x in range(width)
        }
        self.streams_in, self.streams_out = {}, {}
        self.calls = {at: [] for at in self.memory}
        self.history = []
        self.spins = False

    def _step(self):
        """One PE's next call or word; whether there was any."""
        for at, queue in self.calls.items():
            if queue and queue[0][0] == "work":
                self.history.append((at, *queue.pop(0)))
                self.memory[at][COUNT] += 1
                self.cycle += 100
                return True
        for at, words in self.streams_in.items():
            if words:
                self.streams_out.setdefault(at, []).append(2 * words.pop(0) & 0xFFFFFFFF)
                self.cycle += 1
                return True
        return False

    def run(self, most_cycles):
        called, end = self.commands_waiting(None), self.cycle + most_cycles
        if self.fault:
            return Status.FAULT
        while self._step():
            if called and not self.commands_waiting(None):
                return Status.READY
        if self.spins:
            self.cycle = end
            return Status.LIMIT
        return Status.QUIET

    def launch(self, rectangle, function, words):
        for at in rectangle.pes():
            self.calls[at].append((function, tuple(words)))

    def commands_waiting(self, rectangle):
        return sum(bool(self.calls[at]) for at in (rectangle.pes() if rectangle else self.calls))

    def read(self, x, y, address, bytes):
        return self.memory[x, y][address : address + bytes].copy()

    def write(self, x, y, address, data):
        self.memory[x, y][address : address + data.nbytes] = data.view(np.uint8)

    def send(self, color, port, words):
        assert color == IN
        assert port[2] == "RAMP"
        waiting = self.streams_in.setdefault(port[:2], [])
        waiting.extend(words.tolist())
        return len(waiting)

    def hold_streams(self, words):
        """Without effect: it lets all out, as it takes all in."""

    def expect(self, stream, words):
        assert stream[0] == OUT

    def receivable(self, color, port):
        assert color == OUT
        assert port[2] == "RAMP"
        return len(self.streams_out.get(port[:2], []))

    def receive(self, color, port, most):
        there = self.streams_out[port[:2]]
        taken, self.streams_out[port[:2]] = there[:most], there[most:]
        return np.array(taken, np.uint32)

    def waiting(self):
        return [f"PE {at}: '{queue[0][0]}' waits" for at, queue in self.calls.items() if queue]
