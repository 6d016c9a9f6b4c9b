"""Random CSL programs with a NumPy model of each: layouts, routes, tasks, operations, host calls.

A program is a list of phases that all PEs go through in one order, so it cannot deadlock: code
without the fabric, and transfers on colors. Each part writes its CSL and appends a function to the
model, which computes the same on arrays. ``random_programs`` draws them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from helpers.csl_operations import RULES
from hypothesis import strategies as st

LENGTH = 12  # elements of an array
# First letter of an array's name -> its type in CSL and in NumPy.
KINDS = {
    "s": ("f32", np.float32),
    "h": ("f16", np.float16),
    "i": ("i16", np.int16),
    "u": ("u16", np.uint16),
    "w": ("u32", np.uint32),
    "j": ("i32", np.int32),
}
ARRAYS = [kind + str(group) for kind in KINDS for group in range(4)]
_LETTER = {kind: letter for letter, (_, kind) in KINDS.items()}
_HEAD = """param memcpy_params;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
const control = @import_module("<control>");
var arg_u: u16 = 0;
var arg_s: f32 = 0.0;
var stage: u16 = 0;"""
_OWN_TASKS, _SHARED = range(8, 18), 18  # ids of local tasks
Memory = dict[str, Any]  # of a PE: arrays, and numbers by the names of variables
Action = Callable[[Memory], None]
_OPERATIONS = {op: [_LETTER[kind] for kind in types] for op, (types, _) in RULES.items()}
_RARELY = st.integers(0, 3).map(lambda number: number == 0)


class Expr(NamedTuple):
    """An expression of CSL, and its value."""

    text: str
    value: Callable[[Memory], Any]  # names of a PE -> a number of NumPy


def _cast(kind: Any, value: Any) -> Any:
    """As CSL's casts: integers keep low bits, floats go to the nearest number, toward zero."""
    if np.issubdtype(kind, np.integer):
        info = np.iinfo(kind)
        if np.issubdtype(type(value), np.floating):
            number = 0.0 if np.isnan(value) else float(value)
            return kind(int(np.clip(np.trunc(number), info.min, info.max)))
        return np.array([int(value) & (1 << info.bits) - 1], np.uint64).astype(kind)[0]
    return kind(value)


def _integer(op: str, a: Any, b: Any) -> int:
    """Of unbounded integers, division toward zero."""
    a, b = int(a), int(b)
    quotient, shift = abs(a) // abs(b or 1) * (1 if (a < 0) == (b < 0) else -1), min(abs(b), 64)
    return {
        "+": a + b, "-": a - b, "*": a * b, "&": a & b, "|": a | b, "^": a ^ b,
        "/": quotient, "%": a - b * quotient, "<<": a << shift, ">>": a >> shift,
    }[op]  # fmt: skip


def _binary(kind: Any, op: str, a: Any, b: Any) -> Any:
    if np.issubdtype(kind, np.integer):
        return _cast(kind, _integer(op, a, b))
    return kind({"+": a + b, "-": a - b, "*": a * b}[op])


def _number(draw: Any, letter: str) -> Expr:
    if letter in "sh":
        number = draw(st.integers(-40, 40)) / 8
        return Expr(f"@as({KINDS[letter][0]}, {number})", lambda _: KINDS[letter][1](number))
    number = draw(st.integers(0 if letter in "uw" else -99, 99))
    return Expr(f"@as({KINDS[letter][0]}, {number})", lambda _: KINDS[letter][1](number))


def expression(draw: Any, letter: str, leaves: list[Expr], depth: int = 2) -> Expr:
    """A random expression.

    Args:
        draw: of Hypothesis.
        letter: of its type.
        leaves: others of that type that it may use.
        depth: of operators.
    """
    text, kind = KINDS[letter]
    form = draw(st.integers(0, 9)) if depth else 0
    if form < 3:
        return draw(st.sampled_from(leaves)) if leaves else _number(draw, letter)
    inner = lambda of=letter: expression(draw, of, leaves if of == letter else [], depth - 1)
    if form == 3:
        other = draw(st.sampled_from([each for each in KINDS if each != letter]))
        cast_of = _number(draw, other) if not leaves else inner()
        back = KINDS[other]
        return Expr(
            f"@as({text}, @as({back[0]}, {cast_of.text}))",
            lambda names: _cast(kind, _cast(back[1], cast_of.value(names))),
        )
    if form == 4:
        a, b, c = inner(), inner(), inner()
        test = draw(st.sampled_from(["<", "<=", "==", "!="]))
        compare = {"<": np.less, "<=": np.less_equal, "==": np.equal, "!=": np.not_equal}[test]
        return Expr(
            f"(if ({a.text} {test} {b.text}) {a.text} else {c.text})",
            lambda names: (
                a.value(names) if compare(a.value(names), b.value(names)) else c.value(names)
            ),
        )
    a = inner()
    if letter not in "sh" and form == 5:
        op, limit = draw(st.sampled_from([("<<", 15), (">>", 15), ("/", 9), ("%", 9)]))
        by = draw(st.integers(1, limit))
        return Expr(f"({a.text} {op} {by})", lambda names: _binary(kind, op, a.value(names), by))
    op, b = draw(st.sampled_from("+-*" if letter in "sh" else "+-*&|^")), inner()
    return Expr(
        f"({a.text} {op} {b.text})",
        lambda names: _binary(kind, op, a.value(names), b.value(names)),
    )


class Operand(NamedTuple):
    """An operand of an operation, and how its element k is read or written."""

    text: str
    read: Callable[[Memory, int], Any]
    write: Callable[[Memory, int, Any], None] = lambda *_: None
    once: bool = False  # whether it is read before the first element


class _Operation(NamedTuple):
    """What an operation does to a PE's memory, element by element."""

    op: str
    count: int
    target: Operand
    sources: list[Operand]

    def __call__(self, memory: Memory) -> None:
        (kind, *_), rule = RULES[self.op]
        before = [each.read(memory, 0) if each.once else None for each in self.sources]
        for k in range(self.count):
            values = [
                known if each.once else each.read(memory, k)
                for known, each in zip(before, self.sources, strict=True)
            ]
            self.target.write(memory, k, np.array([rule(*values)]).astype(kind)[0])


class Pe:
    """The file of a PE while it is written.

    Attributes:
        lines: of the function that is being written.
        top: declarations of the file.
        setup: statements of its comptime block.
    """

    def __init__(self, draw: Any, *, racing: bool) -> None:
        self.draw, self.racing = draw, racing
        self.top, self.setup, self.lines = list[str](), list[str](), list[str]()
        self.functions, self.head, self.names = list[str](), "", 0
        self.stage, self.own_tasks = 0, draw(st.booleans())
        self.finishes = dict[
            int, list[tuple[int, str]]
        ]()  # color of a data task -> stages, effects
        self.taken = dict[int, Expr]()  # -> what it does with a word

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}_{self.names}"

    def declare(self, prefix: str, value: str, word: str = "const") -> str:
        name = self.name(prefix)
        self.top.append(f"{word} {name} = {value};")
        return name

    def begin(self, head: str) -> None:
        self.head, self.lines = head, []

    def end(self) -> None:
        self.functions.append("\n  ".join([self.head + " {", *self.lines]) + "\n}")

    @property
    def task(self) -> str:
        """The id of the task that goes on with the next stage."""
        own = self.own_tasks and self.stage < len(_OWN_TASKS)
        return f"@get_local_task_id({_OWN_TASKS[self.stage] if own else _SHARED})"

    def wait(self) -> None:
        """End a function; the next stage is begun by the effects of its operations."""
        self.end()
        if self.own_tasks and self.stage < len(_OWN_TASKS):
            self.functions.append(f"task own_{self.stage}() void {{ stage_{self.stage}(); }}")
            self.setup.append(f"@bind_local_task(own_{self.stage}, {self.task});")
        self.begin(f"fn stage_{self.stage}() void")
        self.stage += 1

    def group(self, wanted: int) -> int:
        """Arrays of a group; any if operations may share memory."""
        return self.draw(st.integers(0, 2)) if self.racing else wanted

    def window(
        self, letter: str, count: int, group: int, *, writes: bool = False, flat: bool = False
    ) -> Operand:
        """Elements of an array: a descriptor of one or two dimensions, or one that is moved.

        Args:
            letter: of the array.
            count: elements.
            group: of the array.
            writes: whether it is written.
            flat: whether it has one dimension.
        """
        draw, name = self.draw, f"{letter}{self.group(group)}"
        shapes = [(1, count)] + [(2, count // 2)] * (count % 2 == 0 and not flat)
        rows, columns = draw(st.sampled_from(shapes))
        step = draw(st.sampled_from([1, 1, 2, 3, -1, -2] + [0] * (not writes)))
        while abs(step) * (columns - 1) >= LENGTH - rows:
            step = 1
        jump = draw(st.integers(1, max(1, (LENGTH - 1 - abs(step) * (columns - 1)) // 2)))
        places = [r * jump + c * step for r in range(rows) for c in range(columns)]
        low, high = min(places), max(places)
        start = draw(st.integers(-low, LENGTH - 1 - high))
        affine = f"{start} + {step} * b" if step >= 0 else f"{start} - {-step} * b"
        access = ".{{ .tensor_access = |{}|{{{}}} -> {}[{}] }}".format
        if rows == 2:
            place = access("a, b", f"2, {columns}", name, f"{affine} + {jump} * a")
            dsd = self.declare("rows", f"@get_dsd(mem4d_dsd, {place})")
        elif draw(st.integers(0, 3)) == 0 and step >= 0:
            place, dsd = access("b", LENGTH, name, f"{step} * b"), self.name("moved")
            base = self.declare("base", f"@get_dsd(mem1d_dsd, {place})")
            moved = f"@increment_dsd_offset({base}, {start}, {KINDS[letter][0]})"
            self.lines.append(f"const {dsd} = @set_dsd_length({moved}, {count});")
        else:
            place = access("b", count, name, affine)
            dsd = self.declare("row", f"@get_dsd(mem1d_dsd, {place})")
        index = [start + place for place in places]

        def write(memory: Memory, k: int, value: Any) -> None:
            memory[name][index[k]] = value

        return Operand(dsd, lambda memory, k: memory[name][index[k]], write)

    def scalar(self, letter: str) -> Operand:
        """A number, or an element that is read when the operation is issued."""
        if self.draw(st.booleans()):
            number = _number(self.draw, letter)
            return Operand(number.text, lambda *_: number.value({}), once=True)
        name, at = f"{letter}{self.group(0)}", self.draw(st.integers(0, LENGTH - 1))
        return Operand(f"{name}[{at}]", lambda memory, _: memory[name][at], once=True)

    def accumulator(self, letter: str, group: int) -> Operand:
        """A pointer to an element."""
        name, at = f"{letter}{self.group(group)}", self.draw(st.integers(0, LENGTH - 1))

        def write(memory: Memory, _: int, value: Any) -> None:
            memory[name][at] = value

        return Operand(f"&{name}[{at}]", lambda memory, _: memory[name][at], write)

    def operation(
        self,
        count: int,
        group: int,
        options: str = "",
        *,
        source: tuple[str, Operand] | None = None,
        to: tuple[str, Operand] | None = None,
    ) -> Action:
        """Write an operation; what it does.

        Args:
            count: elements.
            group: of the arrays that it writes.
            options: of its last argument.
            source: the letter and the operand of one source, for an operation that receives.
            to: those of the destination, for one that sends.
        """
        draw = self.draw
        op = draw(st.sampled_from([
            op
            for op, (dest, *sources) in _OPERATIONS.items()
            if (not to or to[0] == dest) and (not source or source[0] in sources[:2])
        ]))  # fmt: skip
        dest, *sources = _OPERATIONS[op]
        target, operands = to[1] if to else None, dict[int, Operand]()
        if source:
            takes = [k for k, kind in enumerate(sources[:2]) if kind == source[0]]
            operands[draw(st.sampled_from(takes))] = source[1]
        if len(sources) == 3:
            operands[2] = self.scalar(sources[2])
        elif not to and sources == [dest, dest] and 0 not in operands and draw(_RARELY):
            target = self.accumulator(dest, group)
            operands[0] = target._replace(text=target.text[1:])
        elif (len(sources) == 2 or not (to or source)) and draw(_RARELY):
            at = draw(st.integers(0, len(sources) - 1))
            operands.setdefault(at, self.scalar(sources[at]))
        for k, kind in enumerate(sources):
            operands.setdefault(k, self.window(kind, count, 0))
        target = target or self.window(dest, count, group, writes=True)
        ordered = [operands[k] for k in range(len(sources))]
        said = ", ".join(each.text for each in (target, *ordered))
        self.lines.append(f"@{op.lower()}({said}{options and f', .{{ {options} }}'});")
        return _Operation(op, count, target, ordered)

    def statement(self, group: int) -> Action:
        """Write a statement without the fabric; what it does."""
        draw = self.draw
        form = draw(st.integers(0, 5))
        if form < 2:
            return self.operation(draw(st.integers(1, 8)), group)
        letter = draw(st.sampled_from([*KINDS]))
        name, text = f"{letter}{self.group(group)}", KINDS[letter][0]
        arguments = {"u": "arg_u", "s": "arg_s"}.get(letter)
        leaves = [Expr(arguments, lambda names: names[arguments])] if arguments else []
        for _ in range(2):
            leaf, at = f"{letter}{self.group(group)}", draw(st.integers(0, LENGTH - 1))
            leaves.append(Expr(f"{leaf}[{at}]", lambda names, leaf=leaf, at=at: names[leaf][at]))
        if form == 2:
            at, value = draw(st.integers(0, LENGTH - 1)), expression(draw, letter, leaves)
            self.lines.append(f"{name}[{at}] = {value.text};")

            def assign(names: Memory) -> None:
                names[name][at] = value.value(names)

            return assign
        if form == 3:
            return self._loop(letter, name, leaves)
        count, function = draw(st.integers(1, 6)), self.name("f")
        value = expression(draw, letter, [Expr("a", lambda names: names["a"]), *leaves[:1]])
        self.functions.append(f"fn {function}(a: {text}) {text} {{ return {value.text}; }}")
        if form == 4:
            source = self.window(letter, count, group, flat=True)
            target = self.window(letter, count, group, writes=True, flat=True)
            self.lines.append(f"@map({function}, {source.text}, {target.text});")
            read = source.read
        else:
            target = self.window(letter, 1, group, writes=True)
            at, count = draw(st.integers(0, LENGTH - 1)), 1
            self.lines.append(f"const v{function} = {function}({name}[{at}]);")
            move = {"s": "fmovs", "h": "fmovh", "w": "mov32", "j": "mov32"}.get(letter, "mov16")
            self.lines.append(f"@{move}({target.text}, v{function});")
            read = lambda names, _: names[name][at]

        def call(names: Memory) -> None:
            for k in range(count):
                target.write(names, k, value.value(names | {"a": read(names, k)}))

        return call

    def _loop(self, letter: str, name: str, leaves: list[Expr]) -> Action:
        """Write a loop over elements of an array."""
        draw, k = self.draw, self.name("k")
        count, step = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        index = Expr(f"@as({KINDS[letter][0]}, {k})", lambda m: _cast(KINDS[letter][1], m["k"]))
        moving = Expr(f"{name}[{k}]", lambda m: m[name][m["k"]])
        value = expression(draw, letter, [*leaves, index, moving])
        if draw(st.booleans()):
            head = f"for (@range(i16, {count})) |{k}|"
        else:
            head = f"var {k}: i16 = 0; while ({k} < {count}) : ({k} += 1)"
        self.lines.append(f"{head} {{ {name}[{step} * {k}] = {value.text}; }}")

        def repeat(memory: Memory) -> None:
            for number in range(count):
                memory[name][step * number] = value.value(memory | {"k": number})

        return repeat

    def text(self, start: Memory, exports: list[str], copied: set[str]) -> str:
        """The file, once all is written.

        Args:
            start: what arrays hold.
            exports: functions that the host calls.
            copied: arrays that the host copies.
        """
        branches = {"task next": [(k, f"stage_{k}();") for k in range(self.stage)]}
        branches |= {f"fn finish_{color}": ends for color, ends in self.finishes.items()}
        chosen = lambda some: " else ".join(f"if (stage == {k}) {{ {do} }}" for k, do in some)
        ends = [f"{name}() void {{\n  {chosen(some)}\n}}" for name, some in branches.items()]
        setup = [*self.setup, f"@bind_local_task(next, @get_local_task_id({_SHARED}));"]
        setup += [f'@export_symbol({name}_ptr, "{name}");' for name in sorted(copied)]
        setup += [f"@export_symbol({name});" for name in exports]
        comptime = "comptime {\n  " + "\n  ".join(setup) + "\n}"
        code = "\n".join([*self.top, *self.functions, *ends, comptime])
        arrays = [
            f"var {name} = [{LENGTH}]{KINDS[name[0]][0]}{{ {', '.join(map(str, start[name]))} }};"
            for name in ARRAYS
            if name in copied or f"{name}[" in code
        ]
        arrays += [f"var {name}_ptr: [*]{KINDS[name[0]][0]} = &{name};" for name in sorted(copied)]
        return "\n".join([_HEAD, *arrays, code]) + "\n"
