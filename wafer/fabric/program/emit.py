"""A program as the image that PEs hold, which ``wafer.machine`` runs as it runs those of CSL.

PEs with the same tasks, arrays and queues share a program, whose symbols are its arrays. Tasks
become instructions: an operation is an OPERATE on descriptors. A WAIT before it stands for what a
compiler puts there, as fitted (``Layout(overheads=True)``), and for a microthread that still runs.
"""

import functools
from collections.abc import Sequence

import numpy as np

from wafer.fabric.errors import FabricError
from wafer.fabric.program.check import MAIN_LEVELS, THREAD_LEVELS
from wafer.fabric.program.ops import (
    Const,
    FabIn,
    FabOut,
    Mem,
    Op as Operation,
    Operand as Source,
    builtin_of,
    op_text,
)
from wafer.fabric.program.tables import BoundTask, Port, Program
from wafer.machine import image as machine
from wafer.machine.arch import ARCHITECTURES
from wafer.machine.codes import (
    CONFIG,
    NEVER_ENDS,
    NO_SWITCH,
    TORN,
    Action,
    DsdOp,
    Gate,
    Op,
    Operand,
)
from wafer.machine.image import COLORS, COLUMNS, ENTRIES, Image, TableRows

_NAMES = ("dest", "src0", "src1", "scalar")
_WAVELET, _FRAME = 6, 8  # the register that keeps a task's wavelet; registers of a task
_HANDLERS = 29  # the id of teardown handlers among those of tasks
_MOST, _WORD = 0xFFFF, 0xFFFFFFFF
_OUTPUTS = (0, 1, 4, 5, 6, 7, 2, 3)  # output queues, the shortest first
_GATES = {"local": Gate.LOCAL, "data": Gate.DATA}
_DEFAULTS: dict[str, int] = dict.fromkeys(
    ("thread", "priority", "index", "queue", "color", "indexed"), -1
)


@functools.lru_cache(maxsize=8)
def emit(program: Program) -> Image:
    """Make the image of a program.

    Args:
        program: of ``Layout.build``.

    Raises:
        FabricError: an operation, a task or a machine that the image has no room for.
    """
    spec, height, width = program.spec, program.height, program.width
    if spec.ramp_latency != ARCHITECTURES[spec.name].ramp_latency:
        raise FabricError(
            f"ramp_latency {spec.ramp_latency}: the machine's is"
            f" {ARCHITECTURES[spec.name].ramp_latency}; count_cycles times other ones"
        )
    shape = (height, width, COLORS)
    color, switch = np.zeros(shape, np.int32), np.full(shape, NO_SWITCH, np.int32)
    filters = np.zeros((*shape, len(COLUMNS["filters"])), np.int32)
    for number, declared in program.colors.items():
        color[..., number], switch[..., number] = declared.color, declared.switch
        filters[:, :, number] = np.array(declared.rules, np.int32)[declared.filters]
    enters = {n: declared.sides[1] & Port.RAMP != 0 for n, declared in program.colors.items()}
    keys = _keys(program, enters)
    _, first, tiles = np.unique(
        keys.reshape(len(keys), -1), axis=1, return_index=True, return_inverse=True
    )
    places = [divmod(int(place), width) for place in first]
    entering = [[n for n, there in enters.items() if there[pe]] for pe in places]
    return Image(
        arch=spec.name,
        programs=tuple(map(functools.partial(_pe_program, program), entering, places)),
        tiles=tiles.reshape(height, width).astype(np.int32),
        colors=color,
        switches=switch,
        routed=color != 0,
        filters=filters,
    )


def _keys(program: Program, enters: dict[int, np.ndarray]) -> np.ndarray:
    """[n, H, W] what decides of a PE's code, memory and queues."""
    tasks, colors = program.tasks, program.colors.values()
    keys = [getattr(task, name) for name in ("entry", "active", "blocked") for task in tasks]
    keys += [*(array.held for array in program.arrays), *enters.values()]
    if any(op.position for ops in program.code for op in ops):  # the code writes registers
        keys += [word for own in colors for word in (own.color, own.switch, *own.reroutes)]
    return np.array(keys, np.int64).reshape(-1, program.height, program.width)


def _pe_program(program: Program, colors: Sequence[int], pe: tuple[int, int]) -> machine.Program:
    try:
        return _PeCode(program, colors, pe).program()
    except FabricError as error:
        raise FabricError(f"PE ({pe[1]}, {pe[0]}): {error}") from None


class _PeCode:
    """What a kind of PE holds, made from one of its PEs.

    Args:
        program: the program.
        colors: those that enter the PE's CE.
        pe: its row and column.
    """

    def __init__(self, program: Program, colors: Sequence[int], pe: tuple[int, int]) -> None:
        self.source, self.pe = program, pe
        self.tasks = {task.name: task for task in program.tasks if task.entry[pe] >= 0}
        self.symbols, self.size = self._memory()
        self.tables, self.ids = TableRows(0, _DEFAULTS), self._ids()
        self.queues = np.full((16, len(COLUMNS["queues"])), -1, np.int32)
        self.inputs = self._queues(colors)
        self.outputs: dict[int, int] = {}
        self.text, self.texts = "", dict[str, int]()  # of the operation at hand, and of all
        self.rows = list[tuple[int, ...]]()  # the operation's number, and an instruction

    def _memory(self) -> tuple[dict[str, machine.Symbol], int]:
        """Arrays that the PE declares or uses, in whole words, and the bytes of all."""
        operands = (
            o for task in self.tasks.values() for op in self._code(task) for o in op.operands
        )
        used = {o.array for o in operands if isinstance(o, Mem)}
        symbols, end = {}, 0
        for name, words, dtype, held in self.source.arrays:
            if held[self.pe] or name in used:
                kind = np.dtype(dtype)
                text = f"[{words}]{kind.kind}{8 * kind.itemsize}"
                symbols[name] = machine.Symbol(end, words * kind.itemsize, text)
                end += -(-words * kind.itemsize // 4) * 4
        return symbols, end

    def _code(self, task: BoundTask) -> tuple[Operation, ...]:
        return self.source.code[task.entry[self.pe]]

    def _ids(self) -> dict[str, int]:
        """Ids of the local tasks here."""
        data = {task.key for task in self.tasks.values() if task.kind == "data"}
        free = sorted({*range(31)} - {_HANDLERS}, key=lambda k: (k in data, k))
        local = [name for name, task in self.tasks.items() if task.kind == "local"]
        if len(local) > len(free):
            raise FabricError(f"{len(local)} local tasks; a PE has {len(free)} ids for them")
        return dict(zip(local, free, strict=False))

    def _queues(self, colors: Sequence[int]) -> dict[int, int]:
        """Color -> an input queue as deep as the layout's, or the next deeper one."""
        depths, free = ARCHITECTURES[self.source.spec.name].input_depths, list(range(8))
        out = {}
        for number in colors:
            wanted = self.source.colors[number].depth
            queue = min(free, key=lambda q, w=wanted: (depths[q] < w, depths[q], -q))
            free.remove(queue)
            out[number] = queue
            self.queues[queue, 0] = number
        return out

    def program(self) -> machine.Program:
        """Emit the tasks of the PE."""
        entries = {table: np.full(count, -1, np.int32) for table, count in ENTRIES.items()}
        tasks, active, high, blocked = {}, 0, 0, np.zeros(len(Gate), np.int32)
        for task in self.tasks.values():
            first, number = len(self.rows), self._id(task)
            tasks[task.name] = first
            table = "teardown_handlers" if task.kind == "teardown" else f"{task.kind}_tasks"
            entries[table][number] = first
            high |= task.high << number if task.kind in _GATES else 0
            active |= int(task.active[self.pe]) << number if task.kind == "local" else 0
            if task.blocked[self.pe]:
                blocked[_gate(task)] |= 1 << number
            self._task(self._code(task), keeps=task.kind in {"data", "control"})
        rows = np.array(self.rows, np.int32).reshape(-1, 6)
        return machine.Program(
            name=f"PE ({self.pe[1]}, {self.pe[0]})",
            code=rows[:, 1:],
            lines=np.pad(rows[:, :1], ((0, 0), (0, 1))),
            files=tuple(self.texts),
            messages=(),
            memory=np.zeros(self.size, np.uint8),
            tables=self.tables.arrays() | {"queues": self.queues},
            footprint=None,
            **entries,
            start=-1,
            active=active,
            blocked=blocked,
            functions={},
            symbols=self.symbols,
            exports={},
            frame=_FRAME,
            tasks=tasks,
            high=high,
            level=MAIN_LEVELS[self.source.main],
            waits=True,
        )

    def _task(self, operations: tuple[Operation, ...], *, keeps: bool) -> None:
        """Instructions of a task; ``keeps``: that a wavelet begins."""
        for op in operations:
            self.text = op_text(op)
            if keeps:
                self._add(Op.COPY, 0, _WAVELET)
            self._operation(op)
            keeps = False
        self._add(Op.RETURN)

    def _add(self, op: Op, kind: int = 0, a: int = 0, b: int = 0, c: int = 0) -> None:
        number = self.texts.setdefault(self.text, len(self.texts))
        self.rows.append((number, op, kind, a, b, c))

    def _constant(self, register: int, value: int) -> None:
        low, high = ((word ^ 1 << 31) - (1 << 31) for word in (value & _WORD, value >> 32 & _WORD))
        self._add(Op.CONST, 0, register, low, high)

    def _operation(self, op: Operation) -> None:
        thread, launch = -1 if op.thread is None else op.thread, op.launch or 0
        if thread >= 0 or launch:
            self._add(Op.WAIT, 0, thread, 0, launch)
        if op.kind == "work":
            self._add(Op.WAIT, 1, -1, 0, op.n)
            if op.position is not None:
                self._write_routes(*op.position)
            self._effects(op)
            return
        if op.n > _MOST:
            raise FabricError(f"{self.text}: {op.n} elements; a descriptor has at most {_MOST}")
        settings = {}
        apart = thread >= 0 and any(isinstance(o, FabIn | FabOut) for o in op.operands)
        if apart:
            settings = {"priority": THREAD_LEVELS[op.priority], "asynchronous": 1, "thread": thread}
            settings |= self._end(op)
        register = 0
        for operand, name in zip(op.operands, _NAMES, strict=True):
            if operand is not None:
                settings[name] = self._operand(op, operand, register)
                register += 1
        row = self.tables.row("operations", op=DsdOp[builtin_of(op).upper()], **settings)
        self._add(Op.OPERATE, 0, row, 0, -1)
        if apart:
            self._add(Op.WAIT, 1, -1, 0, 1)  # a step of the CE starts it
        else:
            self._effects(op)

    def _id(self, task: BoundTask) -> int:
        if task.kind == "data" and self.source.spec.name == "wse3":
            return self.inputs[task.key]
        return self.ids.get(task.name, task.key)

    def _done(self, op: Operation) -> list[tuple[str, BoundTask]]:
        """Actions at the end of an operation, with the tasks here that they have an effect on."""
        effects = [(action, self.tasks[name]) for action, name in op.on_done if name in self.tasks]
        return [(action, t) for action, t in effects if action != "activate" or t.kind == "local"]

    def _effects(self, op: Operation) -> None:
        """What the end of an operation of the task's own thread does."""
        for action, task in self._done(op):
            gate = 0 if action == "activate" else _gate(task)
            self._constant(0, self._id(task))
            self._add(Op[action.upper()], gate, 0)

    def _end(self, op: Operation) -> dict[str, int]:
        """What the end of a microthread's operation does."""
        actions = self._done(op)
        if len(actions) > 1 or "block" in dict(actions):
            raise FabricError(
                f"{self.text}: the end of a microthread's operation activates or unblocks one task;"
                " let that task do the rest"
            )
        for action, task in actions:
            code = Action.ACTIVATE if action == "activate" else Action.UNBLOCK + _gate(task)
            return {"action": code, "target": self._id(task)}
        return {}

    def _write_routes(self, number: int, position: int) -> None:
        """Write a color's registers anew; it carries traffic again."""
        declared, later = self.source.colors[number], position - self.source.spec.switch_positions
        color, switch = int(declared.color[self.pe]) & ~TORN, int(declared.switch[self.pe])
        if later < 0:
            switch = switch & ~(3 << 13) | position << 13
        else:
            color = color & ~0x3FF | int(declared.reroutes[later][self.pe])
            switch = NO_SWITCH
        for name, word in (("color", color), ("switch", switch & 0xFFFF)):
            self._constant(0, CONFIG[name] + number)
            self._constant(1, word)
            self._add(Op.CONFIG_SET, 0, 0, 1)

    def _operand(self, op: Operation, operand: Source, register: int) -> Operand:
        """Put an operand into a register; its kind."""
        match operand:
            case Mem():
                return self._in_memory(op, operand, register)
            case Const(value):
                bits = np.array(value).astype(op.dtype)
                self._constant(register, int(bits.view(f"u{bits.itemsize}")))
                return Operand.SCALAR
            case FabIn() | FabOut():
                return self._on_fabric(op, operand, register)
            case _:
                self._add(Op.COPY, 0, register, _WAVELET)
                return Operand.SCALAR

    def _on_fabric(self, op: Operation, operand: FabIn | FabOut, register: int) -> Operand:
        if op.n >= NEVER_ENDS:
            raise FabricError(
                f"{self.text}: {op.n} wavelets; an operation has fewer than {NEVER_ENDS}"
            )
        color = operand.color
        queue, sends = self.inputs.get(color, -1), {}
        if isinstance(operand, FabOut):
            queue = self.outputs.setdefault(color, _OUTPUTS[len(self.outputs) % len(_OUTPUTS)])
            sends = {"sends": 1, "control": operand.control, "advances": operand.advance_switch}
        row = self.tables.row("fabrics", queue=queue, color=color, **sends)
        self._constant(register, row | op.n << 16)
        return Operand.FABRIC

    def _in_memory(self, op: Operation, operand: Mem, register: int) -> Operand:
        symbol, width = self.symbols[operand.array], np.dtype(op.dtype).itemsize
        if not symbol.type.endswith(str(8 * width)):
            raise FabricError(
                f"{self.text}: elements of {8 * width} bits in array {operand.array!r} of"
                f" {symbol.type}; declare it so"
            )
        address, inner = symbol.address + width * operand.offset, operand.inner
        if not 0 < inner < op.n:
            descriptor = address | op.n << 16 | (operand.stride & _MOST) << 32
            self._constant(register, descriptor)
            return Operand.MEMORY
        if op.n % inner:
            raise FabricError(f"{self.text}: {op.n} elements in rows of {inner}; use whole rows")
        extents = {"n0": 1, "n1": 1, "n2": op.n // inner, "n3": inner}
        row = self.tables.row("shapes", s2=operand.outer, s3=operand.stride, **extents)
        self._constant(register, address | row << 16)
        return Operand.SHAPED


def _gate(task: BoundTask) -> Gate:
    if task.kind not in _GATES:
        raise FabricError(
            f"task {task.name!r}: a {task.kind} task cannot be blocked; block its color's"
        )
    return _GATES[task.kind]
