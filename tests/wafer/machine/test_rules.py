"""The rules of the machine: one small assembled program each, with what it must leave, by hand.

Below what ``machine_rules`` reads, the lines of a head are done one after another:

``#! send 20: 7 8`` words at the ramp of PE (0, 0)
``#! launch x y width height: function arguments``
``#! run 70: LIMIT`` for so many cycles, and how it ends (``#! run: QUIET`` if none comes first)
``#! log x y: 12 20`` is what ``note`` and ``log`` wrote
``#! u16 x y at: 1 2`` is in the memory from a symbol or address on
``#! receive 21 f32: -1``, ``#! receivable 21: < 40``: words of a color at the ramp of PE (0, 0)
``#! waiting: 4`` calls, ``#! links x y: 0 1 0 0 0``, ``#! prints cycle x y: text``
``#! fault: text`` is in the message, ``#! waits: text`` in each line on what waits, in their order
"""

import numpy as np
import pytest
from helpers.assembly import assemble, build
from helpers.machine_rules import image_of, rules

from wafer.machine.base import Print, Rectangle, Status
from wafer.machine.engine import Machine

RAMP = (0, 0, "RAMP")
HEAD = {"rule", "arch", "tiles", "route", "switch", "stream", "memory", "edges", "like", "each"}


def numbers(kind, text):
    """The numbers of a text as a type like 'u16' or 'f32'."""
    parts = [float(word) if kind[0] == "f" else int(word, 0) for word in text.split()]
    return np.array(parts).astype(f"{kind[0]}{int(kind[1:]) // 8}")


class Run:
    """What has been done with a rule's machine, and what there is: a method for each key."""

    def __init__(self, rule):
        self.machine, self.ended, self.report = Machine(image_of(rule)), None, []

    def run(self, text, most=100_000):
        self.ended = self.machine.run(int(most))
        assert self.ended == Status[text], self.machine.fault
        self.report = [str(line) for line in self.machine.waiting()]

    def send(self, text, color):
        self.machine.send(int(color), RAMP, numbers("u32", text))

    def launch(self, text, *rectangle):
        function, *arguments = text.split()
        self.machine.launch(
            Rectangle(*map(int, rectangle)), function, [int(word) for word in arguments]
        )

    def log(self, text, x, y):
        count = self.machine.read(int(x), int(y), 0, 2).view("u2")[0]
        assert count == 2 * len(text.split())
        self.memory(text, "u16", x, y, "2")

    def memory(self, text, kind, x, y, at):
        image, wanted = self.machine.image, numbers(kind, text)
        symbols = image.programs[image.tiles[int(y), int(x)]].symbols
        address = symbols[at].address if at in symbols else int(at)
        found = self.machine.read(int(x), int(y), address, wanted.nbytes).view(wanted.dtype)
        np.testing.assert_array_equal(found, wanted)

    def receive(self, text, color, kind):
        wanted = numbers(kind, text)
        assert self.machine.receive(int(color), RAMP).view(wanted.dtype).tolist() == wanted.tolist()

    def receivable(self, text, color):
        assert eval(f"{self.machine.receivable(int(color), RAMP)} {text}")

    def waiting(self, text):
        height, width = self.machine.image.tiles.shape
        assert self.machine.commands_waiting(Rectangle(0, 0, width, height)) == int(text)

    def links(self, text, x, y):
        assert self.machine.links[int(y), int(x)].tolist() == [int(word) for word in text.split()]

    def prints(self, text, cycle, x, y):
        assert Print(int(cycle), int(x), int(y), text) in self.machine.prints

    def fault(self, text):
        assert text in self.machine.fault

    def waits(self, text):
        assert text in self.report.pop(0)


@pytest.mark.native
@pytest.mark.parametrize("rule", list(rules()), ids=lambda rule: f"{rule.path.stem}-{rule.arch}")
def test_rules(rule):
    assert rule.of("rule")
    run = Run(rule)
    for key, words, text in rule.lines:
        if key in HEAD:
            continue
        if key not in {"run", "send", "launch", "waiting"} and run.ended is None:
            run.run("QUIET")
        if key[1:].isdigit():
            run.memory(text, key, *words)
        else:
            getattr(run, key)(text, *words)
    assert run.ended is not None
    assert not (run.report and rule.of("waits")), "lines on what waits that the rule does not name"


def test_what_runs_before_the_first_task_is_no_call_of_the_host():
    program = assemble(
        "function start:\nreturn\nfunction go:\nintrinsic.next_command -1 -1\nreturn"
    )
    machine = Machine(build([program._replace(start=program.functions["start"])]))
    assert machine.run() == Status.QUIET
    machine.launch(Rectangle(0, 0, 1, 1), "go")
    assert machine.run() == Status.READY
