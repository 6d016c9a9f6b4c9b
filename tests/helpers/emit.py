"""Programs of ``wafer.fabric`` as images: the same operations as the machine of CSL executes them.

An operation is an OPERATE on descriptors; a ``Layout``'s overhead before it (0 without overheads)
stands in place of what CSL's compiler makes of loading descriptors: an explicit wait. What is left
out is refused: 16-bit types, data and control tasks, filters, swaps, teardown, switches.
"""

from unittest import mock

import numpy as np
from helpers import assembly

from wafer.fabric.program.codes import Column, Dtype, Field, Kind, Opcode
from wafer.fabric.program.text import task_of_ops
from wafer.machine import setup
from wafer.machine.codes import Action, Gate
from wafer.machine.engine import Machine

_FIRST_TASK, _BASE = 8, 16  # id of a local task, address of the first word
_SUFFIX = {Dtype.FLOAT32: "S", Dtype.UINT32: "32"}
_NAMES = ("dest", "src0", "src1", "scalar")
_COLUMNS = (Column.DST, Column.SRC0, Column.SRC1, Column.SCALAR)
_ACTIONS = (Column.ACTIVATE, Column.BLOCK, Column.UNBLOCK)


class Emitted:
    """An image, and the cycles of its programs' instructions by their names.

    Args:
        program: of a ``Layout``.
        aside: arrays that lie a bank off the others: rows of both kinds do not meet.
    """

    def __init__(self, program, aside=()):
        meta = program.meta
        self.places, self.end = {}, _BASE
        for name, first, count, _ in meta.arrays:
            address = -(-self.end // 16) * 16 + 4 * (name in aside) if aside else self.end
            self.places[name] = first, count, address
            self.end = address + 4 * count
        assert not any([meta.filters, meta.swaps, meta.teardown, meta.switched, meta.controls])
        assert {kind for _, kind, *_ in meta.tasks} <= {"local"}
        self.program, self.cycles = program, {}
        self.code, self.tasks = np.asarray(program.code), task_of_ops(program)
        rx, tx = np.asarray(program.rx)[0], np.asarray(program.tx)[0]
        down = (tx & 16) != 0
        keys = np.concatenate([program.entry, program.active, program.blocked, down])
        keys = np.moveaxis(keys, 0, -1).reshape(-1, len(keys))
        kinds, tiles = np.unique(keys, axis=0, return_inverse=True)
        programs = [
            self._pe(number, *np.split(kind, self._parts())) for number, kind in enumerate(kinds)
        ]
        tiles = tiles.reshape(meta.height, meta.width)
        shape = (*tiles.shape, 24)
        colors, routed = np.zeros(shape, np.int32), np.zeros(shape, bool)
        register = np.moveaxis(tx.astype(np.int32) | rx.astype(np.int32) << 5, 0, -1)
        colors[..., list(meta.colors)] = register
        routed[..., list(meta.colors)] = register != 0
        image = assembly.build(programs, tiles, meta.spec.name)
        self.image = image._replace(colors=colors, routed=routed)

    def _parts(self):
        count = len(self.program.meta.tasks)
        return [count, 2 * count, 3 * count]

    def _pe(self, number, entry, active, blocked, down):
        """The program of a kind of PE."""
        meta, lines, waits = self.program.meta, [], []
        queues = self._queues(down)
        lines += [
            f".queue in {queue} color={meta.colors[index]}" for index, queue in queues.items()
        ]
        self.rows, self.joins = [], {}
        body = []
        for task, first in enumerate(entry.tolist()):
            if first < 0:
                continue
            body.append(f"local {_FIRST_TASK + task}:")
            rows = np.arange(first, first + 1 + np.argmax(self.code[first:, Column.LAST] != 0))
            splits, self.joins = self._splits(rows, 30 - len(self.joins))
            for row in rows.tolist():
                if row in splits:  # go on in another task, once the microthread has ended
                    number = splits[row]
                    body += [f"const r0 {number}", "activate r0", "return", f"local {number}:"]
                    waits += [0, 0, 0]
                    lines.append(f".blocked LOCAL {number}")
                body += self._op(row, queues, waits)
            body.append("return")
            waits.append(0)
        lines += [f".active {_FIRST_TASK + t}" for t in np.flatnonzero(active)]
        lines += [f".blocked LOCAL {_FIRST_TASK + t}" for t in np.flatnonzero(blocked)]
        name = f"pe{number}"
        made = assembly.assemble("\n".join(lines + self.rows + body), name, self.end)
        self.cycles[name] = np.array(waits, np.int32)
        assert len(waits) == len(made.code)
        return made

    def _splits(self, rows, number):
        """Operation before which a task waits for a microthread -> the task that goes on.

        And operation -> the task that its end unblocks. A ``Layout``'s task waits where it would
        start a microthread that still runs; in CSL that is a fault.
        """
        splits, joins, last = {}, {}, {}
        for row in rows.tolist():
            thread = int(self.code[row, Column.THREAD])
            if thread in last:
                splits[row] = joins[last.pop(thread)] = number
                number -= 1
            if thread >= 0 and self.code[row, Column.OPCODE] != Opcode.WORK:
                last[thread] = row
        return splits, joins

    def _queues(self, down):
        """Color index -> an input queue as deep as the layout's, or the next deeper one."""
        depths, free = self.program.meta.spec.input_queue_depths, list(range(8))
        out = {}
        for index in np.flatnonzero(down).tolist():
            wanted = int(self.program.depth[index])
            queue = min(free, key=lambda q, w=wanted: (depths[q] < w, depths[q], -q))
            free.remove(queue)
            out[index] = queue
        return out

    def _op(self, row, queues, waits):
        op = self.code[row]
        launch, kind = int(op[Column.LAUNCH]), Opcode(op[Column.OPCODE])
        lines, thread = [], int(op[Column.THREAD])
        if kind == Opcode.WORK:
            lines.append("const r0 0")
            waits.append(launch + int(op[Column.N]))
        else:
            suffix = _SUFFIX[Dtype(op[Column.DTYPE])]
            name = f"{'' if suffix == '32' else 'F'}{kind.name}{suffix}"
            settings = []
            for place, (column, operand) in enumerate(zip(_COLUMNS, _NAMES, strict=True)):
                text = self._operand(op[column:], int(op[Column.N]), queues, sends=place == 0)
                if text:
                    settings.append(f"{operand}={text[0]}")
                    lines.append(text[1].format(f"r{len(settings) - 1}"))
                    waits.append(0)
            if thread >= 0:
                settings += ["asynchronous=1", f"thread={thread}", "priority=0"]
            if row in self.joins:
                action = int(Action.UNBLOCK) + int(Gate.LOCAL)
                settings += [f"action={action}", f"target={self.joins[row]}"]
            tasks = np.flatnonzero(int(op[Column.ACTIVATE]) >> np.arange(31) & 1)
            if len(tasks):
                target = _FIRST_TASK + int(tasks[0])
                settings += [f"action={int(Action.ACTIVATE)}", f"target={target}"]
            lines.append(f"operate {name} at=r0 {' '.join(settings)}")
            waits.append(launch)
        if kind == Opcode.WORK and op[Column.ACTIVATE]:
            for task in np.flatnonzero(int(op[Column.ACTIVATE]) >> np.arange(31) & 1):
                lines += [f"const r0 {_FIRST_TASK + task}", "activate r0"]
                waits += [0, 0]
        assert not op[Column.BLOCK] | op[Column.UNBLOCK]
        return lines

    def _operand(self, fields, count, queues, *, sends):
        kind, base = fields[Field.KIND], int(fields[Field.BASE])
        if kind == Kind.MEM:
            spans = self.places.values()
            (at,) = [where + 4 * (base - a) for a, n, where in spans if a <= base < a + n]
            address, stride = at, int(fields[Field.STRIDE])
            inner, outer = int(fields[Field.INNER]), int(fields[Field.OUTER])
            if not inner:
                return "memory", f"memory {{}} {address} {count} {stride}"
            self.rows.append(f".shape n2={count // inner} n3={inner} s2={outer} s3={stride}")
            value = address | (len([r for r in self.rows if ".shape" in r]) - 1) << 16
            return "shaped", f"const {{}} {value}"
        if kind == Kind.FABRIC:
            color = self.program.meta.colors[base]
            fabrics = [r for r in self.rows if ".fabric" in r]
            queue = base % 6 if sends else queues[base]
            self.rows.append(f".fabric sends={int(sends)} queue={queue} color={color}")
            return "fabric", f"fabric {{}} {len(fabrics)} {count}"
        if kind == Kind.CONST:
            return "scalar", f"const {{}} {base & 0xFFFFFFFF}"
        return None

    def machine(self, **options):
        """A machine with the image."""
        known = lambda p, arch: self.cycles.get(p.name, None)
        with mock.patch.object(setup, "instruction_cycles", known):
            return Machine(self.image, **options)

    def write(self, machine, name, values):
        """Set an array of all PEs: [H, W, n] float32 or uint32."""
        for y, x in np.ndindex(values.shape[:2]):
            machine.write(x, y, self.places[name][2], values[y, x])

    def read(self, machine, name):
        """[H, W, n] float32."""
        _, count, address = self.places[name]
        height, width = self.image.tiles.shape
        rows = [
            [machine.read(x, y, address, 4 * count) for x in range(width)] for y in range(height)
        ]
        return np.array(rows).view(np.float32)


__all__ = ["Emitted"]
