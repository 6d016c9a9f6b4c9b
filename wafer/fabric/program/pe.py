"""The code of a PE: tasks of operations as instructions of the machine.

An operation is an OPERATE on descriptors. A WAIT before it stands for what a compiler puts there,
as fitted (``Layout(overheads=True)``), and for a microthread that still runs.
"""

from collections.abc import Mapping

import numpy as np

from wafer.fabric.errors import FabricError
from wafer.fabric.program.check import MAIN_LEVELS, THREAD_LEVELS
from wafer.fabric.program.codes import Port
from wafer.fabric.program.ops import (
    Const,
    FabIn,
    FabOut,
    Mem,
    Op as Operation,
    Operand as Source,
    builtin_of,
)
from wafer.fabric.program.routers import color_register, switch_register
from wafer.fabric.program.tables import Program
from wafer.fabric.program.text import op_text
from wafer.machine import image as machine
from wafer.machine.arch import ARCHITECTURES
from wafer.machine.codes import CONFIG, Action, DsdOp, Gate, Op, Operand
from wafer.machine.image import COLUMNS, ENTRIES

__all__ = ["PeCode"]

_NAMES = ("dest", "src0", "src1", "scalar")
_WAVELET, _FRAME = 6, 8  # the register that keeps a task's wavelet; registers of a task
_HANDLERS = 29  # the id of teardown handlers among those of tasks
_ENDLESS = 0x7FFF  # a length that a descriptor of the fabric does not have
_MOST, _WORD = 0xFFFF, 0xFFFFFFFF
_OUTPUTS = (0, 1, 4, 5, 6, 7, 2, 3)  # output queues, the shortest first
_BITS = {"float32": np.uint32, "uint32": np.uint32, "float16": np.uint16}
_GATES = {"local": Gate.LOCAL, "data": Gate.DATA}
_REGISTERS = ("color", "switch")
_DEFAULTS = dict.fromkeys(("thread", "priority", "index", "queue", "color", "indexed"), -1)


class _Tables:
    """Rows of a program's tables, each once, by their columns' names."""

    def __init__(self) -> None:
        names = [name for name in COLUMNS if name not in {"filters", "queues"}]
        self.rows: dict[str, dict[tuple[int, ...], int]] = {name: {} for name in names}
        self.queues = np.full((16, 2), -1, np.int32)

    def row(self, table: str, **values: int) -> int:
        row = tuple(values.get(c, _DEFAULTS.get(c, 0)) for c in COLUMNS[table])
        return self.rows[table].setdefault(row, len(self.rows[table]))

    def arrays(self) -> dict[str, np.ndarray]:
        out = {"queues": self.queues}
        for name, rows in self.rows.items():
            out[name] = np.array([*rows], np.int32).reshape(-1, len(COLUMNS[name]))
        return out


class PeCode:
    """What a kind of PE holds, made from one of its PEs."""

    def __init__(
        self, program: Program, x: int, y: int, registers: Mapping[str, np.ndarray]
    ) -> None:
        self.source, self.meta, self.registers = program, program.meta, registers
        self.arrays = {name: dtype for name, _, _, dtype in program.meta.arrays}
        at = lambda table: np.asarray(table)[..., y, x]
        self.entry, self.rx, self.tx = at(program.entry), at(program.rx), at(program.tx)
        self.flags = {name: at(getattr(program, name)) for name in ("active", "blocked")}
        self.places, self.size = self._memory(at(program.held))
        self.tables, self.ids = _Tables(), self._ids()
        self.bound = {self.meta.tasks[t][0]: t for t, *_ in self._bound()}
        self.inputs = self._queues()
        self.outputs: dict[int, int] = {}
        self.lines, self.files = list[int](), dict[str, int]()
        self.out = list[tuple[int, ...]]()

    def _memory(self, held: np.ndarray) -> tuple[dict[str, int], int]:
        places, end = {}, 0
        for (name, _, words, dtype), there in zip(self.meta.arrays, held, strict=True):
            if there:
                places[name] = end
                end += -(-words * _bytes(dtype) // 4) * 4
        return places, end

    def _bound(self) -> list[tuple[int, str, int]]:
        """(place, kind, key) of the tasks that are bound here."""
        tasks = enumerate(self.meta.tasks)
        return [(t, kind, key) for t, (_, kind, key, _) in tasks if self.entry[t] >= 0]

    def _ids(self) -> dict[int, int]:
        """Ids of the tasks here, by their place."""
        bound = self._bound()
        data = {self.meta.colors[key] for _, kind, key in bound if kind == "data"}
        free = [k for k in range(31) if k != _HANDLERS]
        free.sort(key=lambda k: k in data)
        local = [t for t, kind, _ in bound if kind == "local"]
        if len(local) > len(free):
            raise FabricError(f"{len(local)} local tasks; a PE has {len(free)} ids for them")
        return dict(zip(local, free, strict=False))

    def _queues(self) -> dict[int, int]:
        """Color index -> an input queue as deep as the layout's, or the next deeper one."""
        depths, free = ARCHITECTURES[self.meta.spec.name].input_depths, list(range(8))
        out = {}
        for index in np.flatnonzero(np.bitwise_or.reduce(self.tx) & Port.RAMP).tolist():
            wanted = int(self.source.depth[index])
            queue = min(free, key=lambda q, w=wanted: (depths[q] < w, depths[q], -q))
            free.remove(queue)
            out[index] = queue
            self.tables.queues[queue, 0] = self.meta.colors[index]
        return out

    def program(self, name: str) -> machine.Program:
        """Emit the tasks of a PE."""
        entries = {table: np.full(count, -1, np.int32) for table, count in ENTRIES.items()}
        tasks, active, high, blocked = {}, 0, 0, np.zeros(len(Gate), np.int32)
        wse3 = self.meta.spec.name == "wse3"
        for t, kind, key in self._bound():
            first = tasks[self.meta.tasks[t][0]] = len(self.out)
            number = self.ids.get(t, key)
            if kind in {"data", "teardown"}:
                by_queue = wse3 and kind == "data"
                number = self.inputs[key] if by_queue else self.meta.colors[key]
            table = "teardown_handlers" if kind == "teardown" else f"{kind}_tasks"
            entries[table][number] = first
            high |= self.meta.tasks[t][3] << number if kind in _GATES else 0
            active |= int(self.flags["active"][t]) << number if kind == "local" else 0
            if self.flags["blocked"][t]:
                blocked[self._gate(t)] |= 1 << number
            self._task(self.source.code[self.entry[t]], keeps=kind in {"data", "control"})
        return machine.Program(
            name=name,
            code=np.array(self.out, np.int32).reshape(-1, 5),
            lines=np.array([(line, 0) for line in self.lines], np.int32).reshape(-1, 2),
            files=tuple(self.files),
            messages=(),
            memory=np.zeros(self.size, np.uint8),
            tables=self.tables.arrays(),
            **entries,
            start=-1,
            active=active,
            blocked=blocked,
            functions={},
            symbols={},
            exports={},
            frame=_FRAME,
            tasks=tasks,
            high=high,
            waits=True,
        )

    def _gate(self, task: int) -> Gate:
        name, kind, *_ = self.meta.tasks[task]
        if kind not in _GATES:
            raise FabricError(f"task {name!r}: a {kind} task cannot be blocked; block its color's")
        return _GATES[kind]

    def _task(self, operations: tuple[Operation, ...], *, keeps: bool) -> None:
        """Instructions of a task; ``keeps``: that a wavelet begins."""
        text = ""
        for op in operations:
            text = op_text(op)
            if keeps:
                self._add(text, Op.COPY, 0, _WAVELET, 0)
            self._operation(op, text)
            keeps = False
        self._add(text, Op.RETURN)

    def _add(self, text: str, op: Op, kind: int = 0, *columns: int) -> None:
        self.lines.append(self.files.setdefault(text, len(self.files)))
        self.out.append((op, kind, *columns, *[0] * (3 - len(columns))))

    def _constant(self, text: str, register: int, value: int) -> None:
        low, high = ((word ^ 1 << 31) - (1 << 31) for word in (value & _WORD, value >> 32 & _WORD))
        self._add(text, Op.CONST, 0, register, low, high)

    def _operation(self, op: Operation, text: str) -> None:
        thread, launch = -1 if op.thread is None else op.thread, op.launch or 0
        if thread >= 0 or launch:
            self._add(text, Op.WAIT, 0, thread, 0, launch)
        if op.kind == "work":
            self._add(text, Op.WAIT, 1, -1, 0, op.n)
            self._write_routes(op, text)
            self._effects(op, text)
            return
        if op.n > _MOST:
            raise FabricError(f"{text}: {op.n} elements; a descriptor has at most {_MOST}")
        settings = {"priority": MAIN_LEVELS[self.meta.main]}
        apart = thread >= 0 and any(isinstance(o, FabIn | FabOut) for o in op.operands)
        if apart:
            settings = {"priority": THREAD_LEVELS[op.priority], "asynchronous": 1, "thread": thread}
            settings |= self._end(op, text)
        register = 0
        for operand, name in zip(op.operands, _NAMES, strict=True):
            if operand is not None:
                settings[name] = self._operand(op, operand, text, register)
                register += 1
        row = self.tables.row("operations", op=DsdOp[builtin_of(op).upper()], **settings)
        self._add(text, Op.OPERATE, 0, row, 0, -1)
        if apart:
            self._add(text, Op.WAIT, 1, -1, 0, 1)  # a step of the CE starts it
        else:
            self._effects(op, text)

    def _id(self, task: int) -> int:
        _, kind, key, _ = self.meta.tasks[task]
        if kind == "data":
            return self.inputs[key] if self.meta.spec.name == "wse3" else self.meta.colors[key]
        return self.ids[task]

    def _done(self, op: Operation) -> list[tuple[str, int]]:
        """Actions at the end of an operation, with the tasks here that they have an effect on."""
        done = [(action, self.bound[name]) for action, name in op.on_done if name in self.bound]
        return [(action, t) for action, t in done if action != "activate" or t in self.ids]

    def _effects(self, op: Operation, text: str) -> None:
        """What the end of an operation of the task's own thread does."""
        for action, task in self._done(op):
            gate = 0 if action == "activate" else self._gate(task)
            self._constant(text, 0, self._id(task))
            self._add(text, Op[action.upper()], gate, 0)

    def _end(self, op: Operation, text: str) -> dict[str, int]:
        """What the end of a microthread's operation does."""
        done = self._done(op)
        if len(done) > 1 or "block" in dict(done):
            raise FabricError(
                f"{text}: the end of a microthread's operation activates or unblocks one task; let"
                " that task do the rest"
            )
        for action, task in done:
            code = Action.ACTIVATE if action == "activate" else Action.UNBLOCK + self._gate(task)
            return {"action": code, "target": self._id(task)}
        return {}

    def _write_routes(self, op: Operation, text: str) -> None:
        """Write a color's registers anew; it carries traffic again."""
        if op.position is None:
            return
        color, position = op.position
        index = self.meta.colors.index(color)
        words = {name: int(self.registers[name][color]) for name in _REGISTERS}
        words["color"] &= ~(1 << 14)
        words["switch"] = words["switch"] & ~(3 << 13) | position << 13
        if position >= self.meta.spec.switch_positions:
            kept = words["color"] & ~0x3FF
            rx, tx = self.rx[position, index], self.tx[position, index]
            words["color"] = kept | int(color_register(rx, tx))
            words["switch"] = switch_register([], 0)
        for name in _REGISTERS:
            self._constant(text, 0, CONFIG[name] + color)
            self._constant(text, 1, words[name])
            self._add(text, Op.CONFIG_SET, 0, 0, 1)

    def _operand(self, op: Operation, operand: Source, text: str, register: int) -> Operand:
        """Put an operand into a register; its kind."""
        match operand:
            case Mem():
                return self._in_memory(op, operand, text, register)
            case Const(value):
                bits = np.array(value).astype(op.dtype).view(_BITS[op.dtype])
                self._constant(text, register, int(bits))
                return Operand.SCALAR
            case FabIn() | FabOut():
                return self._on_fabric(op, operand, text, register)
            case _:
                self._add(text, Op.COPY, 0, register, _WAVELET)
                return Operand.SCALAR

    def _on_fabric(
        self, op: Operation, operand: FabIn | FabOut, text: str, register: int
    ) -> Operand:
        if op.n >= _ENDLESS:
            raise FabricError(f"{text}: {op.n} wavelets; an operation has fewer than {_ENDLESS}")
        color = operand.color
        queue, sends = self.inputs.get(self.meta.colors.index(color), -1), {}
        if isinstance(operand, FabOut):
            queue = self.outputs.setdefault(color, _OUTPUTS[len(self.outputs) % len(_OUTPUTS)])
            sends = {"sends": 1, "control": operand.control, "advances": operand.advance_switch}
        row = self.tables.row("fabrics", queue=queue, color=color, **sends)
        self._constant(text, register, row | op.n << 16)
        return Operand.FABRIC

    def _in_memory(self, op: Operation, operand: Mem, text: str, register: int) -> Operand:
        dtype = self.arrays[operand.array]
        width, own = _bytes(dtype), _bytes(op.dtype)
        if width != own:
            raise FabricError(
                f"{text}: elements of {8 * own} bits in array {operand.array!r} of {dtype}; declare"
                " it so"
            )
        address, inner = self.places[operand.array] + width * operand.offset, operand.inner
        if not 0 < inner < op.n:
            descriptor = address | op.n << 16 | (operand.stride & _MOST) << 32
            self._constant(text, register, descriptor)
            return Operand.MEMORY
        if op.n % inner:
            raise FabricError(f"{text}: {op.n} elements in rows of {inner}; use whole rows")
        extents = {"n0": 1, "n1": 1, "n2": op.n // inner, "n3": inner}
        row = self.tables.row("shapes", s2=operand.outer, s3=operand.stride, **extents)
        self._constant(text, register, address | row << 16)
        return Operand.SHAPED


def _bytes(dtype: str) -> int:
    return 2 if dtype == "float16" else 4
