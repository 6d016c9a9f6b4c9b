"""Random CSL programs of several PEs, with what they must leave; see ``csl_random``.

All PEs go through the same phases in one order, and send and receive what belongs to a phase, so a
program cannot deadlock unless a route is missing.
"""

from typing import Any, NamedTuple

import numpy as np
from helpers.csl_random import ARRAYS, KINDS, LENGTH, Action, Expr, Memory, Operand, Pe, expression
from hypothesis import strategies as st

WIDTH, HEIGHT = 3, 2
_COLORS = range(1, 5)  # a color's queues have its number + 1
_SIDES = {"EAST": (1, 0), "WEST": (-1, 0), "NORTH": (0, -1), "SOUTH": (0, 1)}
_BACK = {"EAST": "WEST", "WEST": "EAST", "NORTH": "SOUTH", "SOUTH": "NORTH"}
_PES = [(x, y) for y in range(HEIGHT) for x in range(WIDTH)]
_At = tuple[int, int]


class HostStep(NamedTuple):
    """What the host does.

    Attributes:
        kind: 'launch', or a copy 'to' or 'from' PEs.
        name: of the function or the array.
        values: arguments; of a copy the first column and row, columns and rows.
        data: [rows, columns, LENGTH] of a copy; from PEs: what the model has there.
        column_major: whether the items of a copy are in that order.
    """

    kind: str
    name: str
    values: tuple[int | float, ...]
    data: np.ndarray | None = None
    column_major: bool = False


class RandomProgram(NamedTuple):
    """A program and what it leaves.

    Attributes:
        arch: 'wse2' or 'wse3'.
        files: name -> CSL.
        host: its steps.
        leaves: PE -> array -> values; empty if operations share memory or a NaN comes up, whose
            bits may differ.
        broken: whether a route is missing.
    """

    arch: str
    files: dict[str, str]
    host: list[HostStep]
    leaves: dict[_At, Memory]
    broken: bool

    def __repr__(self) -> str:
        steps = [f"// {step.kind} {step.name} {step.values}" for step in self.host]
        return "\n".join([self.arch, *steps, *(f"// {n}\n{t}" for n, t in self.files.items())])


class _Color:
    """A color: one sender, and routes from it that branch; two branches may take turns."""

    def __init__(self, draw: Any, number: int) -> None:
        self.number, self.letter = number, draw(st.sampled_from("shiuw"))
        self.sender = draw(st.sampled_from(_PES))
        self.from_side, self.to_sides = {self.sender: "RAMP"}, {self.sender: list[str]()}
        for _ in range(draw(st.integers(1, 4))):
            ends = [(at, side) for at in self.to_sides for side in _SIDES if self._free(at, side)]
            at, side = draw(st.sampled_from(ends))
            self.to_sides[at].append(side)
            self.from_side[to := _next(at, side)] = _BACK[side]
            self.to_sides[to] = []
        self.takers = [
            at
            for at, sides in self.to_sides.items()
            if at != self.sender and (not sides or draw(st.booleans()))
        ]
        self.switched = len(self.to_sides[self.sender]) == 2 and draw(st.booleans())
        self.position = 0
        rare = st.integers(0, 5).map(lambda number: number == 0)
        counts = st.tuples(st.integers(0, 2), st.integers(0, 3))
        self.filters = (
            {} if self.switched else {at: draw(counts) for at in self.takers if draw(rare)}
        )
        self.seen = dict.fromkeys(self.filters, 0)
        self.tasks = {at for at in self.takers if draw(rare) or draw(rare)}

    def _free(self, at: _At, side: str) -> bool:
        return (to := _next(at, side)) in _PES and to not in self.to_sides

    def reached(self) -> list[_At]:
        """PEs that take what is sent next."""
        if not self.switched:
            return self.takers
        branch, todo = list[_At](), [_next(self.sender, self.to_sides[self.sender][self.position])]
        while todo:
            branch.append(at := todo.pop())
            todo += [_next(at, side) for side in self.to_sides[at]]
        return [at for at in branch if at in self.takers]

    def kept(self, at: _At, count: int) -> list[int]:
        """Which of the next words a PE's filter lets through."""
        if at not in self.filters:
            return [*range(count)]
        most, limit = self.filters[at]
        numbers = [(self.seen[at] + k) % (max(most, limit) + 1) for k in range(count)]
        self.seen[at] += count
        return [k for k, number in enumerate(numbers) if number <= most]

    def routes(self) -> dict[_At, str]:
        """The statement of a layout for each router."""
        out = {}
        for at, sides in self.to_sides.items():
            more, leaving = "", list(sides)
            if at == self.sender and self.switched:
                leaving = sides[:1]
                more = f", .switches = .{{ .pos1 = .{{ .tx = {sides[1]} }}, .ring_mode = true }}"
            if at in self.takers:
                leaving.append("RAMP")
            if at in self.filters:
                most, limit = self.filters[at]
                more = (
                    ", .filter = .{ .kind = .{ .counter = true }, .count_data = true,"
                    f" .max_counter = {most}, .limit1 = {max(most, limit)} }}"
                )
            out[at] = (
                f"@set_color_config({at[0]}, {at[1]}, @get_color({self.number}), .{{ .routes ="
                f" .{{ .rx = .{{ {self.from_side[at]} }}, .tx = .{{ {', '.join(leaving)} }} }}"
                f"{more} }});"
            )
        return out


def _next(at: _At, side: str) -> _At:
    return at[0] + _SIDES[side][0], at[1] + _SIDES[side][1]


class _Transfer(NamedTuple):
    """Words of a color in a phase; the model sends and takes them in ``words``."""

    color: _Color
    count: int
    words: list[Any]


class _Part(NamedTuple):
    """What a PE does in a phase: it receives, sends, or passes on."""

    receives: _Transfer | None
    sends: _Transfer | None
    kept: list[int]  # of the words of ``receives``

    @property
    def by_task(self) -> bool:
        return self.receives is not None and self.at in self.receives.color.tasks

    at: _At = (0, 0)


class _Builder:
    """Writes a program and its model phase by phase."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.arch = draw, draw(st.sampled_from(["wse2", "wse3"]))
        self.racing = draw(st.integers(0, 5)) == 0
        self.pes = {at: Pe(draw, racing=self.racing) for at in _PES}
        count = draw(st.integers(1, len(_COLORS)))
        self.colors = [_Color(draw, number) for number in _COLORS[:count]]
        self.model, self.host = list[tuple[_At, Action]](), list[HostStep]()
        for k, color in enumerate(self.colors):  # a data task has the array of its letter alone
            same = [other.tasks for other in self.colors[:k] if other.letter == color.letter]
            color.tasks = color.tasks.difference(*same)
            self._queues(color)

    def _queues(self, color: _Color) -> None:
        number, wse3 = color.number, self.arch == "wse3"
        for at in color.takers:
            pe, queue = self.pes[at], f"@get_input_queue({number + 1})"
            if wse3 or at not in color.tasks:
                pe.setup.append(
                    f"@initialize_queue({queue}, .{{ .color = @get_color({number}) }});"
                )
            if at in color.tasks:
                self._data_task(at, color)
        if wse3:
            queue, of = f"@get_output_queue({number + 1})", f".{{ .color = @get_color({number}) }}"
            self.pes[color.sender].setup.append(f"@initialize_queue({queue}, {of});")

    def _data_task(self, at: _At, color: _Color) -> None:
        """Write a data task: it takes the words that are wanted, blocks itself, and goes on."""
        pe, number, letter = self.pes[at], color.number, color.letter
        task_id, array = self._data_id(number), f"{letter}3"
        here = Expr("v", lambda m: m["v"])
        there = Expr(f"{array}[n_{number}]", lambda m: m[array][m["n"]])
        value = expression(self.draw, letter, [here, there])
        pe.top += [f"var n_{number}: u16 = 0;", f"var want_{number}: u16 = 0;"]
        pe.functions.append(
            f"task take_{number}(v: {KINDS[letter][0]}) void {{\n"
            f"  {array}[n_{number}] = {value.text};\n  n_{number} += 1;\n"
            f"  if (n_{number} == want_{number}) {{\n    n_{number} = 0;\n"
            f"    @block({task_id});\n    finish_{number}();\n  }}\n}}"
        )
        pe.finishes[number], pe.taken[number] = [], value
        pe.setup += [f"@bind_data_task(take_{number}, {task_id});", f"@block({task_id});"]

    def _data_id(self, number: int) -> str:
        of = f"@get_color({number})" if self.arch == "wse2" else f"@get_input_queue({number + 1})"
        return f"@get_data_task_id({of})"

    def _fabric(self, pe: Pe, color: _Color, count: int, *, sends: bool, more: str = "") -> str:
        """The name of a descriptor of the fabric."""
        number, kind = color.number, "fabout_dsd" if sends else "fabin_dsd"
        queue = "output_queue" if sends else "input_queue"
        fields = f".extent = {count}, .{queue} = @get_{queue}({number + 1})"
        if self.arch == "wse2":
            fields += f", .fabric_color = @get_color({number})"
        return pe.declare("fabric", f"@get_dsd({kind}, .{{ {fields}{more} }})")

    # Phases

    def statements(self) -> None:
        for at in self.draw(st.lists(st.sampled_from(_PES), min_size=1, max_size=3)):
            self.model.append((at, self.pes[at].statement(self.draw(st.integers(0, 2)))))

    def exchange(self) -> None:
        """Words of one color, of two at once, or of one that a PE passes on into another."""
        draw, parts, transfers = self.draw, dict[_At, list[_Part]](), list[_Transfer]()
        for color in draw(st.permutations(self.colors))[: draw(st.integers(1, 2))]:
            transfers.append(self._transfer(color, parts))
        done = {}
        for at, of_pe in parts.items():
            for part, action in zip(of_pe, self._issue(at, of_pe), strict=True):
                done[at, id(part.receives), id(part.sends)] = part, action
        for transfer in transfers:  # a word is sent before it is taken
            first = [(part.at, do) for part, do in done.values() if part.sends is transfer]
            self.model += first
            self.model += [
                (part.at, do)
                for part, do in done.values()
                if part.receives is transfer and part.sends is None
            ]
        for transfer in transfers:
            if transfer.color.switched and draw(st.booleans()):
                self._advance(transfer.color)

    def _transfer(self, color: _Color, parts: dict[_At, list[_Part]]) -> _Transfer:
        """Add the parts that PEs have in a color's transfer."""
        own = parts.setdefault(color.sender, [])
        passing = [
            place
            for place, part in enumerate(own)
            if part.receives and not part.by_task and part.receives.color.letter == color.letter
        ]
        if passing and self.draw(st.booleans()):
            part = own[passing[0]]
            transfer = _Transfer(color, len(part.kept), [])
            own[passing[0]] = part._replace(sends=transfer)
        else:
            transfer = _Transfer(color, self.draw(st.integers(1, 8)), [])
            own.append(_Part(None, transfer, [], color.sender))
        for at in color.reached():
            if kept := color.kept(at, transfer.count):
                parts.setdefault(at, []).append(_Part(transfer, None, kept, at))
        return transfer

    def _issue(self, at: _At, parts: list[_Part]) -> list[Action]:
        """Write what a PE does in a phase, and go on in a task if some of it is asynchronous."""
        draw, pe = self.draw, self.pes[at]
        late = [part.by_task or len(parts) == 2 or draw(st.booleans()) for part in parts]
        if len(parts) == 2 and not parts[0].by_task and not parts[1].by_task:
            late[1] = draw(st.booleans())
        effects = draw(st.permutations(["activate", "unblock"])) if all(late[1:]) else ["activate"]
        effects = effects if sum(late) == 2 else ["activate"] * 2
        if any(late):
            pe.lines.append(f"stage = {pe.stage};")
        if sum(late) == 2:
            pe.lines.append(f"@block({pe.task});")
        actions = [
            self._part(part, f"{effect}" if is_late else "", place)
            for place, (part, is_late, effect) in enumerate(zip(parts, late, effects, strict=False))
        ]
        if any(late):
            receives = len(parts) == 2 and parts[1].receives is not None
            if not receives and draw(st.booleans()):
                self.model.append((at, pe.statement(2)))
            pe.wait()
        return actions

    def _part(self, part: _Part, effect: str, place: int) -> Action:
        """Write one part: a data task is unblocked, an operation is issued.

        Args:
            part: to write.
            effect: at its end, on the task that goes on; '' for none, and then the task waits.
            place: among the parts of the PE.
        """
        pe, received, sent = self.pes[part.at], part.receives, part.sends
        if received and part.by_task:
            number = received.color.number
            pe.finishes[number].append((pe.stage, f"@{effect}({pe.task});"))
            pe.lines.append(f"want_{number} = {len(part.kept)};")
            pe.lines.append(f"@unblock({self._data_id(number)});")
            return _taken(part, pe.taken[number])
        source = to = None
        if received:
            text = self._fabric(pe, received.color, len(part.kept), sends=False)
            words, kept = received.words, part.kept
            source = received.color.letter, Operand(text, lambda _, k: words[kept[k]])
        if sent:
            text = self._fabric(pe, sent.color, sent.count, sends=True)
            out = sent.words
            to = sent.color.letter, Operand(text, lambda *_: 0, lambda _, __, v: out.append(v))
        options = f".async = true, .{effect} = {pe.task}" if effect else ""
        count = len(part.kept) if received else sent.count if sent else 0
        return pe.operation(count, 1 + place, options, source=source, to=to)

    def _advance(self, color: _Color) -> None:
        """Let a switch go to its other position, by a control wavelet behind the words."""
        pe = self.pes[color.sender]
        color.position ^= 1
        out = self._fabric(pe, color, 1, sends=True, more=", .control = true")
        payload = "control.encode_single_payload(control.opcode.SWITCH_ADV, true, {}, 0)"
        pe.lines.append(f"@mov32({out}, {payload});")

    def copy(self) -> None:
        """The host writes or reads an array of a rectangle of PEs."""
        draw, name = self.draw, draw_array(self.draw)
        x, y = draw(st.integers(0, WIDTH - 1)), draw(st.integers(0, HEIGHT - 1))
        width, height = draw(st.integers(1, WIDTH - x)), draw(st.integers(1, HEIGHT - y))
        rng = np.random.default_rng(draw(st.integers(0, 999)))
        data, to = random_values(name, rng, (height, width, LENGTH)), draw(st.booleans())
        step = HostStep(
            "to" if to else "from", name, (x, y, width, height), data, draw(st.booleans())
        )
        self.host.append(step)
        for row, column in np.ndindex(height, width):
            here = data[row, column]

            def move(memory: Memory, here: np.ndarray = here) -> None:
                if to:
                    memory[name][:] = here
                else:
                    here[:] = memory[name]

            self.model.append(((x + column, y + row), move))

    def call(self, number: int) -> None:
        """A call of the host, on all PEs."""
        draw = self.draw
        arguments = draw(st.integers(0, 999)), draw(st.integers(-99, 99)) / 8
        self.host.append(HostStep("launch", f"call_{number}", arguments))
        for at, pe in self.pes.items():
            pe.begin(f"fn call_{number}(a: u16, b: f32) void")
            pe.lines += ["arg_u = a;", "arg_s = b;"]
            given = {"arg_u": np.uint16(arguments[0]), "arg_s": np.float32(arguments[1])}
            self.model.append((at, lambda memory, given=given: memory.update(given)))
        for _ in range(draw(st.integers(1, 5))):
            draw(st.sampled_from([self.statements, self.exchange, self.exchange]))()
        for pe in self.pes.values():
            pe.lines.append("sys_mod.unblock_cmd_stream();")
            pe.end()

    def files(self, calls: int, start: dict[_At, Memory], missing: _At | None) -> dict[str, str]:
        """The texts of the program.

        Args:
            calls: functions that the host calls.
            start: what arrays hold.
            missing: PE whose routes are left out; None: of no PE.
        """
        exports = [f"call_{number}" for number in range(calls)]
        routes = [
            line for color in self.colors for at, line in color.routes().items() if at != missing
        ]
        code = [
            f'@set_tile_code({x}, {y}, "pe_{x}_{y}.csl",'
            f" .{{ .memcpy_params = memcpy.get_params({x}) }});"
            for x, y in _PES
        ]
        names = [f'@export_name("{name}", fn(u16, f32)void);' for name in exports]
        copied = {step.name for step in self.host if step.data is not None}
        names += [
            f'@export_name("{name}", [*]{KINDS[name[0]][0]}, true);' for name in sorted(copied)
        ]
        sizes = f".{{ .width = {WIDTH}, .height = {HEIGHT} }}"
        body = "\n  ".join([f"@set_rectangle({WIDTH}, {HEIGHT});", *code, *routes, *names])
        out = {
            "layout.csl": f'const memcpy = @import_module("<memcpy/get_params>", {sizes});\n'
            f"layout {{\n  {body}\n}}\n"
        }
        for at, pe in self.pes.items():
            out[f"pe_{at[0]}_{at[1]}.csl"] = pe.text(start[at], exports, copied)
        return out


def _taken(part: _Part, value: Expr) -> Action:
    """What a data task does with the words of a transfer."""
    assert part.receives is not None
    words, array = part.receives.words, f"{part.receives.color.letter}3"

    def take(memory: Memory) -> None:
        for n, k in enumerate(part.kept):
            memory[array][n] = value.value(memory | {"v": words[k], "n": n})

    return take


def draw_array(draw: Any) -> str:
    return draw(st.sampled_from(ARRAYS))


def random_values(name: str, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values of an array: eighths, or integers of all sizes."""
    kind = KINDS[name[0]][1]
    if name[0] in "sh":
        return (rng.integers(-80, 80, shape) / 8).astype(kind)
    info = np.iinfo(kind)
    small = rng.integers(0, 20, shape)
    return np.where(rng.random(shape) < 0.5, small, rng.integers(info.min, info.max, shape)).astype(
        kind
    )


def _left(builder: _Builder, start: dict[_At, Memory]) -> dict[_At, Memory]:
    """What the model leaves; empty if a NaN comes up."""
    memories = {
        at: {name: values.copy() for name, values in own.items()} for at, own in start.items()
    }
    with np.errstate(all="ignore"):
        for at, action in builder.model:
            action(memories[at])
            if any(np.isnan(memories[at][name]).any() for name in ARRAYS if name[0] in "sh"):
                return {}
    return memories


@st.composite
def random_programs(draw: Any) -> RandomProgram:
    """A program of one to three calls."""
    builder, calls = _Builder(draw), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    start = {at: {name: random_values(name, rng, (LENGTH,)) for name in ARRAYS} for at in _PES}
    for number in range(calls):
        for _ in range(draw(st.integers(0, 2))):
            builder.copy()
        builder.call(number)
    missing = draw(st.sampled_from([None] * 11 + [_PES[0]]))
    leaves = {} if builder.racing or missing else _left(builder, start)
    files = builder.files(calls, start, missing)
    return RandomProgram(builder.arch, files, builder.host, leaves, missing is not None)
