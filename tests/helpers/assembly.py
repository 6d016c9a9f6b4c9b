"""A small assembler for the CSL machine's tests: text to programs, and images with their routes.

A line is a label (``again:``), the start of a task (``local 8:``, ``data 3:``, ``control 5:``,
``teardown 2:``, ``empty 1:``, ``function go:``), a directive (``.name …``) or an instruction:
``op.type a b c`` with ``r3`` for a register, names of labels and of codes for numbers, ``f32:1.5``
and ``f16:1.5`` for bits. ``operate`` and ``load_dsr`` take their table's columns as ``name=value``.
"""

import shlex

import numpy as np

from wafer.machine import codes
from wafer.machine.codes import Action, DsdOp, Gate, Op, Operand, Type
from wafer.machine.image import COLUMNS, NO_COLOR, Image, Program, Symbol

_DEFAULTS = {
    "operations": {"thread": -1, "priority": -1, "index": -1},
    "fabrics": {"queue": -1, "color": -1, "indexed": -1, "priority": -1},
    "fifos": {"push_task": -1, "pop_task": -1},
    "shapes": {"n0": 1, "n1": 1, "n2": 1, "n3": 1},
    "dsr_loads": {"thread": -1},
    "filters": {"limit2": -1},
}
_TASKS = {"local": 31, "data": 24, "control": 64, "teardown": 24, "empty": 8}
_KINDS = {
    Op.BLOCK: Gate,
    Op.UNBLOCK: Gate,
    Op.DSD_SET: codes.DescriptorField,
    Op.DSD_GET: codes.DescriptorField,
    Op.INTRINSIC: codes.Intrinsic,
}
_FORMATS = {"f32": np.float32, "f16": np.float16, "i16": np.int16, "u16": np.uint16}
_FORMATS |= {"i32": np.int32, "u32": np.uint32, "u8": np.uint8}
_SIDES = "WESNR"


def bits(text):
    """The number that a word stands for: 7, 0x1f, f32:1.5, or a name of a code."""
    kind, _, value = text.partition(":")
    if value:
        width = {"f16": np.uint16, "f32": np.uint32}[kind]
        return int(_FORMATS[kind](float(value)).view(width))
    for names in (Type, Operand, Action, Gate):
        if text.upper() in names.__members__ and not text.lstrip("-").isdigit():
            return int(names[text.upper()])
    return int(text, 0)


def memory_descriptor(address, length, stride=1, indexed=0):
    """The 64 bits of a descriptor in memory."""
    return address | length << 16 | (stride & 0xFFFF) << 32 | indexed << 63


class _Assembler:
    def __init__(self, name):
        self.name, self.rows, self.lines, self.labels = name, [], [], {}
        self.tables = {table: [] for table in COLUMNS if table != "filters"}
        self.tasks = {kind: np.full(count, -1, np.int32) for kind, count in _TASKS.items()}
        self.functions, self.messages, self.memory, self.symbols = {}, [], bytearray(), {}
        self.active, self.blocked = 0, np.zeros(5, np.int32)
        self.queues = np.full((16, len(COLUMNS["queues"])), -1, np.int32)

    def row(self, table, settings):
        values = _DEFAULTS.get(table, {}) | dict(settings)
        unknown = set(values) - set(COLUMNS[table])
        assert not unknown, f"{table} has no {unknown}"
        self.tables[table].append([values.get(column, 0) for column in COLUMNS[table]])
        return len(self.tables[table]) - 1

    def number(self, word):
        if word.startswith("r") and word[1:].isdigit():
            return int(word[1:])
        if word in self.symbols:
            return self.symbols[word].address
        return word if word in self.wanted else bits(word)

    def settings(self, words):
        pairs = (word.partition("=") for word in words)
        return {name: self.number(value) if value else 1 for name, _, value in pairs}

    def label(self, line):
        kind, _, which = line.rstrip(":").partition(" ")
        if kind in self.tasks:
            self.tasks[kind][int(which)] = len(self.rows)
        elif kind == "function":
            self.functions[which] = len(self.rows)
        else:
            self.labels[kind] = len(self.rows)

    def directive(self, words):
        match words:
            case [".data", name, kind, *values]:
                array = np.array([float(v) if "." in v else int(v, 0) for v in values])
                array = array.astype(_FORMATS[kind])
                self.memory += bytes(-len(self.memory) % 4)
                self.symbols[name] = Symbol(len(self.memory), array.nbytes, kind)
                self.memory += array.tobytes()
            case [".space", name, count]:
                self.memory += bytes(-len(self.memory) % 4)
                self.symbols[name] = Symbol(len(self.memory), int(count), "[*]u8")
                self.memory += bytes(int(count))
            case [".active", *ids]:
                self.active |= sum(1 << int(k) for k in ids)
            case [".blocked", gate, *ids]:
                self.blocked[Gate[gate]] |= sum(1 << int(k) for k in ids)
            case [".queue", side, number, *rest]:
                values = {"color": -1, "priority": -1} | self.settings(rest)
                at = int(number) + 8 * (side == "out")
                self.queues[at, :2] = values["color"], values["priority"]
            case [".message", text]:
                self.messages.append(text)
            case [table, *rest]:
                self.row(table[1:] + "s", self.settings(rest))

    def constant(self, register, value):
        if isinstance(value, str):  # a label's place
            self.rows.append([Op.CONST, 0, register, value, 0])
            return
        low, high = value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF
        signed = lambda word: word - (word >> 31 << 32)
        self.rows.append([Op.CONST, 0, register, signed(low), signed(high)])

    def instruction(self, words):
        name, _, kind = words[0].partition(".")
        if name == "memory":  # register, address, length, stride, indexed
            a, *rest = (self.number(word) for word in words[1:])
            return self.constant(a, memory_descriptor(*rest))
        if name == "fabric":  # register, row, length
            a, row, length = (self.number(word) for word in words[1:])
            return self.constant(a, row | length << 16)
        op = Op[name.upper()]
        if op == Op.CONST:
            value = self.number(words[2])
            return self.constant(self.number(words[1]), value)
        if op == Op.OPERATE:
            values = self.settings(words[2:]) | {"op": DsdOp[words[1]]}
            at, into = values.pop("at"), values.pop("into", -1)
            operands = [0, self.row("operations", values), at, into]
        elif op == Op.LOAD_DSR:
            values = self.settings(words[1:])
            at = values.pop("at")
            operands = [0, self.row("dsr_loads", values), at, 0]
        else:
            number = _KINDS.get(op, Type)[kind.upper()] if kind and not kind.isdigit() else 0
            if kind.isdigit():
                number = int(kind)
            operands = [number, *(self.number(word) for word in words[1:])]
        self.rows.append([op, *operands, *[0] * (4 - len(operands))])
        return None

    def run(self, text):
        split = [line.split("#")[0].strip() for line in text.splitlines()]
        self.wanted = {line[:-1] for line in split if line.endswith(":") and " " not in line}
        for number, line in enumerate(split, 1):
            if not line:
                continue
            if line.endswith(":"):
                self.label(line)
            elif line.startswith("."):
                self.directive(shlex.split(line))
            else:
                self.instruction(line.split())
                self.lines += [[0, number]] * (len(self.rows) - len(self.lines))
        return [[self.labels.get(part, part) for part in row] for row in self.rows]


def assemble(text, name="test.csl", memory=0, frame=32):
    """Make a Program; ``memory``: bytes at least."""
    asm = _Assembler(name)
    code = np.array(asm.run(text), np.int32).reshape(-1, 5)
    data = np.zeros(max(memory, len(asm.memory)), np.uint8)
    data[: len(asm.memory)] = np.frombuffer(bytes(asm.memory), np.uint8)
    tables = {
        table: np.array(rows, np.int32).reshape(-1, len(COLUMNS[table]))
        for table, rows in asm.tables.items()
    }
    return Program(
        name=name,
        code=code,
        lines=np.array(asm.lines, np.int32).reshape(-1, 2),
        files=(name,),
        messages=tuple(asm.messages),
        memory=data,
        tables=tables | {"queues": asm.queues},
        local_tasks=asm.tasks["local"],
        data_tasks=asm.tasks["data"],
        control_tasks=asm.tasks["control"],
        teardown_handlers=asm.tasks["teardown"],
        empty_handlers=asm.tasks["empty"],
        start=-1,
        active=asm.active,
        blocked=asm.blocked,
        functions=asm.functions,
        symbols=asm.symbols,
        exports={},
        frame=frame,
    )


def color_register(rx, tx, pop=0, *, swap_x=False, swap_y=False, torn=False):
    """The color register of a route: sides as letters of 'WESNR'."""
    mask = lambda sides: sum(1 << _SIDES.index(side) for side in sides)
    return mask(tx) | mask(rx) << 5 | swap_x << 10 | swap_y << 11 | pop << 12 | torn << 14


def switch_register(*positions, current=0, ring=False):
    """The switch register; positions as 'rx=R' or 'tx=E', those not named are invalid."""
    out = current << 13 | ring << 12
    for k in range(3):
        code = 5
        if k < len(positions):
            side, _, port = positions[k].partition("=")
            code = _SIDES.index(port) | 8 * (side == "rx")
        out |= code << 4 * k
    return out


def build(
    programs, tiles=((0,),), arch="wse2", routes=(), switches=(), filters=(), streams=None, edges=0
):
    """Make an Image.

    Args:
        programs: of Program.
        tiles: rows of numbers of programs.
        arch: 'wse2' or 'wse3'.
        routes: (x, y, color) -> color register.
        switches: (x, y, color) -> switch register.
        filters: (x, y, color) -> columns of the filter.
        streams: color -> name.
        edges: sides on which the wafer ends, bits W E S N.
    """
    tiles = np.array(tiles, np.int32)
    shape = (*tiles.shape, 24)
    colors, routed = np.zeros(shape, np.int32), np.zeros(shape, bool)
    positions = np.full(shape, switch_register(), np.int32)
    rules = np.zeros((*shape, len(COLUMNS["filters"])), np.int32)
    for (x, y, c), value in dict(routes).items():
        colors[y, x, c], routed[y, x, c] = value, True
    for (x, y, c), value in dict(switches).items():
        positions[y, x, c] = value
    for (x, y, c), values in dict(filters).items():
        known = _DEFAULTS["filters"] | values
        rules[y, x, c] = [known.get(column, 0) for column in COLUMNS["filters"]]
    return Image(
        arch=arch,
        programs=tuple(programs),
        tiles=tiles,
        colors=colors,
        switches=positions,
        routed=routed,
        filters=rules,
        exports=(),
        streams=streams or {},
        params={},
        edges=edges,
    )


assert NO_COLOR == -1
