"""Instructions as they are written down: registers, labels, source lines."""

from typing import Any

import numpy as np

from wafer.csl.syntax.source import Position
from wafer.machine.codes import Op

_HALF = 1 << 32


class Label:
    """A place in the code that jumps name before or after it is known."""

    __slots__ = ("target",)

    def __init__(self) -> None:
        self.target: int | None = None


def _signed(word: int) -> int:
    word %= _HALF
    return word - _HALF if word >= _HALF // 2 else word


class Code:
    """The instructions of one program.

    Attributes:
        rows: of five numbers; a Label stands for where it is.
        places: of each instruction in the text.
        top: first free register of the function that is being written.
        most: registers that this function has needed.
        owner: the label of this function.
        at: the place in the text that new instructions belong to.
    """

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.places: list[Position] = []
        self.top = 0
        self.most = 0
        self.owner = Label()
        self.at = Position("", 0, 0)

    def new(self, count: int = 1) -> int:
        """The first of some free registers in a row."""
        first = self.top
        self.top += count
        self.most = max(self.most, self.top)
        return first

    def add(self, op: Op, kind: int = 0, a: Any = 0, b: Any = 0, c: Any = 0) -> None:
        """Write one instruction; ``Op`` lists what its operands a, b and c are."""
        self.rows.append([op, kind, a, b, c])
        self.places.append(self.at)

    def result(self, op: Op, kind: int = 0, b: Any = 0, c: Any = 0) -> int:
        """Write an instruction whose result is in a new register."""
        register = self.new()
        self.add(op, kind, register, b, c)
        return register

    def constant(self, number: int | Label, into: int | None = None) -> int:
        """A register with a number of up to 64 bits, or with the place of an instruction."""
        register = self.new() if into is None else into
        if isinstance(number, Label):
            self.add(Op.CONST, 0, register, number, 0)
        else:
            self.add(Op.CONST, 0, register, _signed(number), _signed(number >> 32))
        return register

    def here(self, label: Label) -> None:
        """Place a label before the next instruction."""
        label.target = len(self.rows)

    def table(self) -> np.ndarray:
        """[instructions, 5] int32, labels replaced."""
        rows = [
            [part.target if isinstance(part, Label) else int(part) for part in row]
            for row in self.rows
        ]
        return np.array(rows, np.int32).reshape(-1, 5)
