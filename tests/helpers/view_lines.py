"""The lines that a PE is at: what a view's block says, and what a small interpreter executes."""

import numpy as np

from wafer.machine.codes import BYTES, DEEPEST_CALL, Op, Type
from wafer.machine.costs import costs_for
from wafer.machine.timing import instruction_cycles

# Programs of one PE: loops, branches and calls, without operations.
TURNS = 600
LINES = {
    "loop": f"""
var total: i32 = 0;
var other: i32 = 1;
fn go() void {{
  for (@range(i32, {TURNS})) |k| {{
    total += k * 3;
    other += total;
    total -= other >> 2;
    other = other ^ 5;
  }}
  y[0] = total;
}}
""",
    # Nested loops of other lengths in each turn, branches, calls, and an effect that others see.
    "branches": """
const later = @get_local_task_id(8);
var total: i32 = 1;
fn help(k: i32) i32 {
  if (k & 4 == 0) {
    return k + 1;
  }
  return k - total;
}
fn go() void {
  var turns: i32 = 0;
  for (@range(i32, 40)) |k| {
    if (k % 3 == 0) {
      total += k * 3;
    } else {
      total = total ^ 5;
    }
    var i: i32 = 0;
    while (i < turns) : (i += 1) {
      total += i * k;
    }
    turns = (k * 5) & 7;
    if (k > 20) {
      total -= help(k);
    }
    if (k == 30) {
      @activate(later);
    }
  }
  y[0] = total;
}
task end() void {
  y[1] = 1;
}
comptime { @bind_local_task(end, later); }
""",
}
JUMP, BRANCH, CALL, RETURN, ENDS = range(1, 6)  # docs/concepts/view-format.md


def _along(columns, code, path):
    """(cycles behind the begin, line) of a path, where its line changes."""
    kinds, cycles, taken, jump, lines = (
        columns[f"code_{name}"].tolist() for name in ("kind", "cycles", "taken", "jump", "line")
    )
    bits, calls, at, out = list(f"{path:b}"[1:]), [], 0, [(0, lines[code])]
    while True:
        if cycles[code]:
            out.append((at, lines[code]))
        at += cycles[code]
        kind = kinds[code]
        if kind == ENDS or (kind in (JUMP, BRANCH) and not bits) or (kind == RETURN and not calls):
            return out
        jumps = kind == CALL or (kind in (JUMP, BRANCH) and bits.pop(0) == "1")
        at += taken[code] if kind == BRANCH and jumps else 0
        if kind == CALL:
            calls.append(code + 1)
        code = calls.pop() if kind == RETURN else code + (jump[code] if jumps else 1)


def lines_shown(header, columns, place=0):
    """[cycles] the line of a PE from the first cycle on, -1 for none."""
    first, end = header["cycles"]
    rows = np.flatnonzero(columns["state_pe"] == place)
    begins = columns["state_cycle"][rows].tolist()
    out = np.full(max(end, *begins, 0) + 1, -1)
    for row, begin, until in zip(rows.tolist(), begins, [*begins[1:], end], strict=True):
        code, path, turns, stride, line = (
            int(columns[f"state_{name}"][row])
            for name in ("code", "path", "turns", "stride", "line")
        )
        steps = [(0, line)] if code < 0 else _along(columns, code, path)
        for turn in range(turns):
            start = begin + turn * stride
            until_turn = until if turn == turns - 1 else start + stride
            for at, number in steps:
                out[start + at : until_turn] = number
    return out[first:end]


def _wrapped(kind, value):
    if kind == Type.BOOL:
        return value & 1
    bits = 8 * BYTES[kind]
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind <= Type.I64 and value >> (bits - 1) else value


_TWO = {
    Op.ADD: lambda x, y: x + y, Op.SUB: lambda x, y: x - y, Op.MUL: lambda x, y: x * y,
    Op.REM: lambda x, y: abs(x) % abs(y) * (1 if x >= 0 else -1),
    Op.AND: lambda x, y: x & y, Op.OR: lambda x, y: x | y, Op.XOR: lambda x, y: x ^ y,
    Op.SHL: lambda x, y: x << y, Op.SHR: lambda x, y: x >> y,
    Op.EQ: lambda x, y: x == y, Op.NE: lambda x, y: x != y, Op.LT: lambda x, y: x < y,
    Op.LE: lambda x, y: x <= y, Op.GT: lambda x, y: x > y, Op.GE: lambda x, y: x >= y,
}  # fmt: skip


def lines_executed(image, function="go"):
    """[cycles] the (file, line) of a PE in each cycle of a function's task; integers alone."""
    (program,) = image.programs
    own, taken = instruction_cycles(program, costs_for(image.arch, image.timing))
    registers, memory, frames = [0] * (program.frame * DEEPEST_CALL), bytearray(program.memory), []
    pc, base, at, out = program.functions[function], 0, 0, []

    def place(register, offset):
        return (registers[base + register] + offset) & 0xFFFF

    while True:
        op, kind, a, b, c = program.code[pc].tolist()
        file, line = program.lines[pc].tolist()
        if own[pc]:
            del out[at:]
            out += [(program.files[file], line)] * int(own[pc])
        at, after, jumps = at + int(own[pc]), pc + 1, False
        if op == Op.CONST:
            registers[base + a] = _wrapped(Type.I64, c << 32 | b & 0xFFFFFFFF)
        elif op == Op.COPY:
            registers[base + a] = registers[base + b]
        elif op in _TWO:
            result = _TWO[op](registers[base + b], registers[base + c])
            registers[base + a] = int(result) if op >= Op.EQ else _wrapped(kind, result)
        elif op == Op.NOT:
            registers[base + a] = int(registers[base + b] == 0)
        elif op == Op.CAST:
            registers[base + a] = _wrapped(kind, registers[base + b])
        elif op == Op.LOAD:
            value = memory[place(b, c) : place(b, c) + BYTES[kind]]
            registers[base + a] = int.from_bytes(value, "little", signed=kind <= Type.I64)
        elif op == Op.STORE:
            value = registers[base + b] & ((1 << 8 * BYTES[kind]) - 1)
            memory[place(a, c) : place(a, c) + BYTES[kind]] = value.to_bytes(BYTES[kind], "little")
        elif op in (Op.JUMP, Op.JUMP_IF, Op.JUMP_UNLESS):
            jumps = op == Op.JUMP or bool(registers[base + b]) == (op == Op.JUMP_IF)
            after = a if jumps else after
            at = max(0, at + int(taken[pc])) if jumps and op != Op.JUMP else at
            out += [out[-1]] * (at - len(out)) if out else []
        elif op == Op.CALL:
            frames.append((after, base))
            after, base = a, base + b
        elif op == Op.RETURN:
            if not frames:
                return out[:at]
            after, base = frames.pop()
        else:
            assert op == Op.ACTIVATE, Op(op)
        pc = after
