"""The code of a PE: tasks of operations as instructions of the machine.

An operation is an OPERATE on descriptors. A WAIT before it stands for what a compiler puts there,
as fitted (``Layout(overheads=True)``), and for a microthread that still runs.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from wafer.fabric.errors import FabricError
from wafer.fabric.program.codes import Column, Dtype, Field, Kind, Opcode, Port
from wafer.fabric.program.routers import color_register, switch_register
from wafer.fabric.program.tables import Program
from wafer.fabric.program.text import op_text
from wafer.machine import image as machine
from wafer.machine.arch import ARCHITECTURES
from wafer.machine.codes import CONFIG, Action, DsdOp, Gate, Op, Operand
from wafer.machine.image import COLUMNS, ENTRIES

__all__ = ["PeCode"]

_OPERANDS = (Column.DST, Column.SRC0, Column.SRC1, Column.SCALAR)
_WAVELET, _FRAME = 6, 8  # the register that keeps a task's wavelet; registers of a task
_HANDLERS = 29  # the id of teardown handlers among those of tasks
_ENDLESS = 0x7FFF  # a length that a descriptor of the fabric does not have
_MOST, _WORD = 0xFFFF, 0xFFFFFFFF
_OUTPUTS = (0, 1, 4, 5, 6, 7, 2, 3)  # output queues, the shortest first
_SUFFIXES = {Dtype.FLOAT32: "S", Dtype.FLOAT16: "H", Dtype.UINT32: "32"}
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
        self.code = np.asarray(program.code)
        at = lambda table: np.asarray(table)[..., y, x]
        self.entry, self.rx, self.tx = at(program.entry), at(program.rx), at(program.tx)
        self.flags = {name: at(getattr(program, name)) for name in ("active", "blocked")}
        self.places, self.size = self._memory(at(program.held))
        self.bound = sum(1 << t for t, *_ in self._bound())
        self.tables, self.ids = _Tables(), self._ids()
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
        return [
            (t, kind, key) for t, (_, kind, key, _) in enumerate(self.meta.tasks)
            if self.entry[t] >= 0
        ]  # fmt: skip

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
                self.ids.setdefault(t, number)
            self._task(int(self.entry[t]), keeps=kind in {"data", "control"})
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

    def _task(self, row: int, *, keeps: bool) -> None:
        """Instructions of a task; ``keeps``: that a wavelet begins."""
        end = row + 1 + int(np.argmax(self.code[row:, Column.LAST] != 0))
        text = ""
        for op in self.code[row:end].tolist():
            text = op_text(self.meta, op)
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

    def _operation(self, op: Sequence[int], text: str) -> None:
        thread, launch, count = op[Column.THREAD], op[Column.LAUNCH], op[Column.N]
        if thread >= 0 or launch:
            self._add(text, Op.WAIT, 0, thread, 0, launch)
        if op[Column.OPCODE] == Opcode.WORK:
            self._add(text, Op.WAIT, 1, -1, 0, count)
            self._write_routes(op, text)
            self._effects(op, text)
            return
        if count > _MOST:
            raise FabricError(f"{text}: {count} elements; a descriptor has at most {_MOST}")
        apart = thread >= 0 and any(op[column] == Kind.FABRIC for column in _OPERANDS)
        rank = op[Column.THREAD_RANK] // 2 if apart else op[Column.MAIN_RANK] + 2
        settings = {"asynchronous": apart, "thread": thread if apart else -1, "priority": rank}
        if apart:
            settings |= self._end(op, text)
        register, names = 0, ("dest", "src0", "src1", "scalar")
        for column, name in zip(_OPERANDS, names, strict=True):
            kind = self._operand(op, column, text, register)
            settings[name] = kind
            register += kind != Operand.NONE
        name = f"{Opcode(op[Column.OPCODE]).name}{_SUFFIXES[Dtype(op[Column.DTYPE])]}"
        number = DsdOp[name if op[Column.DTYPE] == Dtype.UINT32 else f"F{name}"]
        row = self.tables.row("operations", op=number, **settings)
        self._add(text, Op.OPERATE, 0, row, 0, -1)
        if apart:
            self._add(text, Op.WAIT, 1, -1, 0, 1)  # a step of the CE starts it
        else:
            self._effects(op, text)

    def _targets(self, op: Sequence[int], column: Column) -> Iterable[int]:
        bits = op[column] & self.bound
        return (t for t in range(bits.bit_length()) if bits >> t & 1)

    def _id(self, task: int) -> int:
        _, kind, key, _ = self.meta.tasks[task]
        if kind == "data":
            return self.inputs[key] if self.meta.spec.name == "wse3" else self.meta.colors[key]
        return self.ids[task]

    def _effects(self, op: Sequence[int], text: str) -> None:
        """What the end of an operation of the task's own thread does."""
        for column, code in ((Column.BLOCK, Op.BLOCK), (Column.UNBLOCK, Op.UNBLOCK)):
            for task in self._targets(op, column):
                self._constant(text, 0, self._id(task))
                self._add(text, code, self._gate(task), 0)
        for task in self._targets(op, Column.ACTIVATE):
            if task in self.ids:
                self._constant(text, 0, self.ids[task])
                self._add(text, Op.ACTIVATE, 0, 0)

    def _end(self, op: Sequence[int], text: str) -> dict[str, int]:
        """What the end of a microthread's operation does."""
        ends = [(Action.ACTIVATE, self._id(t)) for t in self._targets(op, Column.ACTIVATE)]
        ends += [
            (Action.UNBLOCK + self._gate(t), self._id(t)) for t in self._targets(op, Column.UNBLOCK)
        ]
        if len(ends) > 1 or op[Column.BLOCK]:
            raise FabricError(
                f"{text}: the end of a microthread's operation activates or unblocks one task; let"
                " that task do the rest"
            )
        return {"action": ends[0][0], "target": ends[0][1]} if ends else {}

    def _write_routes(self, op: Sequence[int], text: str) -> None:
        """Write a color's registers anew; it carries traffic again."""
        index, position = op[Column.POSITION_COLOR] - 1, op[Column.POSITION]
        if index < 0:
            return
        color = self.meta.colors[index]
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

    def _operand(self, op: Sequence[int], column: Column, text: str, register: int) -> Operand:
        """Put an operand into a register; its kind."""
        fields, count = op[column : column + len(Field)], op[Column.N]
        kind, base = fields[Field.KIND], fields[Field.BASE]
        if kind == Kind.MEM:
            return self._in_memory(op, fields, text, register)
        if kind == Kind.CONST:
            self._constant(text, register, base & _WORD)
            return Operand.SCALAR
        if kind == Kind.ARG:
            self._add(text, Op.COPY, 0, register, _WAVELET)
            return Operand.SCALAR
        if kind == Kind.NONE:
            return Operand.NONE
        sends, flags = column == Column.DST, fields[Field.FLAGS]
        if count >= _ENDLESS:
            raise FabricError(f"{text}: {count} wavelets; an operation has fewer than {_ENDLESS}")
        queue = self.inputs.get(base, -1)
        if sends:
            queue = self.outputs.setdefault(base, _OUTPUTS[len(self.outputs) % len(_OUTPUTS)])
        row = self.tables.row(
            "fabrics",
            sends=sends,
            queue=queue,
            color=self.meta.colors[base],
            control=flags & 1,
            advances=flags >> 1,
        )
        self._constant(text, register, row | count << 16)
        return Operand.FABRIC

    def _in_memory(
        self, op: Sequence[int], fields: Sequence[int], text: str, register: int
    ) -> Operand:
        count, (_, base, stride, inner, outer, _) = op[Column.N], fields
        name, first, _, dtype = self.meta.array_at(base)
        width, own = _bytes(dtype), _bytes(Dtype(op[Column.DTYPE]).name.lower())
        if width != own:
            raise FabricError(
                f"{text}: elements of {8 * own} bits in array {name!r} of {dtype}; declare it so"
            )
        address = self.places[name] + width * (base - first)
        if not 0 < inner < count:
            descriptor = address | count << 16 | (stride & _MOST) << 32
            self._constant(text, register, descriptor)
            return Operand.MEMORY
        if count % inner:
            raise FabricError(f"{text}: {count} elements in rows of {inner}; use whole rows")
        row = self.tables.row(
            "shapes", n0=1, n1=1, n2=count // inner, n3=inner, s2=outer, s3=stride
        )
        self._constant(text, register, address | row << 16)
        return Operand.SHAPED


def _bytes(dtype: str) -> int:
    return 2 if dtype == "float16" else 4
