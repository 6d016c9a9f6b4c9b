"""Which values straight code has computed before: a compiler computes each once."""

from collections.abc import Iterable

from wafer.machine.codes import Op, Type

_FLOATS = (Type.F16, Type.F32)
_PURE = frozenset((*range(Op.ADD, Op.CAST + 1), Op.DSD_GET, Op.ELEMENT))
_ONE_SOURCE = (Op.NEG, Op.INVERT, Op.NOT)
_PASSED = (Op.ADD, Op.SUB, Op.MUL)  # whose result of floats comes a cycle later
# Instructions behind which nothing is known of the memory.
_WRITES = frozenset((Op.STORE, Op.MOVE, Op.OPERATE, Op.CALL, Op.CALL_AT, Op.RECEIVE, Op.SEND))
_SILENT = """
STORE MOVE JUMP JUMP_IF JUMP_UNLESS ACTIVATE BLOCK UNBLOCK LOAD_DSR DSR_BASE SEND CONFIG_SET WAIT
FAULT
"""
NO_RESULT = frozenset(Op[name] for name in _SILENT.split())
_Expression = tuple[int | None, ...]


class Values:
    """Numbers of the values that registers hold; equal numbers are equal values."""

    def __init__(self) -> None:
        self._registers = dict[int, int]()
        self._known = dict[_Expression, int]()
        self._last = -1  # the value of floats that the instruction before computes
        self._addresses = set[int]()  # values that are constants; shared by copies
        self._count = [0]  # shared by copies

    def copy(self) -> "Values":
        """Return the state for another place that is reached from here."""
        out = Values()
        out._registers, out._known = self._registers.copy(), self._known.copy()
        out._count, out._addresses = self._count, self._addresses
        return out

    def meet(self, others: Iterable["Values"]) -> None:
        """Keep what is known on every way to a place."""
        for other in others:
            self._registers = dict(self._registers.items() & other._registers.items())
            self._known = dict(self._known.items() & other._known.items())
        self._last = -1

    def _number(self, register: int) -> int:
        if register not in self._registers:
            self._count[0] += 1
            self._registers[register] = self._count[0]
        return self._registers[register]

    def _expression(self, row: list[int]) -> _Expression | None:
        op, kind, _, b, c = row
        if op == Op.CONST:
            return op, b, c
        if op in (Op.LOAD, Op.DSD_GET) or op in _ONE_SOURCE or op == Op.CAST:
            return op, kind, self._number(b), None if op == Op.DSD_GET else c
        return (op, kind, self._number(b), self._number(c)) if op in _PURE else None

    def _forget_loads(self, store: list[int] | None) -> None:
        """Forget what an instruction may write; known addresses that differ are other variables."""
        place = self._number(store[2]) if store else None
        other = lambda key: store and key[2] != place and {place, key[2]} <= self._addresses
        self._known = {k: v for k, v in self._known.items() if k[0] != Op.LOAD or other(k)}
        if store:
            self._known[Op.LOAD, store[1], place, store[4]] = self._number(store[3])

    def follow(self, row: list[int], *, free: bool) -> tuple[bool, bool]:
        """Go on behind an instruction.

        Args:
            row: of the code.
            free: whether it costs nothing: it does not come between two others.

        Returns:
            Whether its value is known already; whether it waits for the float before it.
        """
        op, kind, a, b, c = row
        expression = self._expression(row)
        number = self._registers.get(b) if op == Op.COPY else self._known.get(expression or ())
        repeated = expression is not None and number is not None
        floats = kind in _FLOATS and Op.ADD <= op <= Op.GE
        waits = floats and self._last in (self._number(b), self._number(c)) and not repeated
        if op in _WRITES:
            self._forget_loads(row if op == Op.STORE else None)
        if op in (Op.CALL, Op.CALL_AT):
            self._registers = {r: v for r, v in self._registers.items() if r < b}
        elif op not in NO_RESULT:
            self._registers.pop(c if op == Op.OPERATE else a, None)
            value = self._number(c if op == Op.OPERATE else a) if number is None else number
            self._registers[c if op == Op.OPERATE else a] = value
            if expression is not None:
                self._known[expression] = value
            if op == Op.CONST:
                self._addresses.add(value)
        if not (free or repeated):
            self._last = self._number(a) if floats and op in _PASSED else -1
        return repeated, waits


class ValueFlow:
    """The values at each place of a program, followed through jumps forward.

    A place that is jumped back to, and one that is called, begins with nothing known.
    """

    def __init__(self, code: list[list[int]], entries: set[int]) -> None:
        self._entries, self._values = entries, Values()
        jumps = (Op.JUMP, Op.JUMP_IF, Op.JUMP_UNLESS)
        self._again = {row[2] for pc, row in enumerate(code) if row[0] in jumps and row[2] <= pc}
        self._reached = dict[int, list[Values]]()
        self._falls = True

    def follow(self, pc: int, row: list[int], *, free: bool) -> tuple[bool, bool]:
        """As ``Values.follow``.

        Args:
            pc: of the instruction.
            row: of the code.
            free: whether it costs nothing.
        """
        ways = self._reached.pop(pc, [])
        if pc in self._entries or pc in self._again or not (self._falls or ways):
            self._values = Values()
        elif ways:
            self._values = self._values if self._falls else ways.pop()
            self._values.meet(ways)
        op, to = row[0], row[2]
        out = self._values.follow(row, free=free)
        if op in (Op.JUMP, Op.JUMP_IF, Op.JUMP_UNLESS) and to > pc:
            self._reached.setdefault(to, []).append(self._values.copy())
        self._falls = op not in (Op.JUMP, Op.RETURN, Op.FAULT)
        return out
