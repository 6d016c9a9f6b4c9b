"""Cycles of each instruction of a program: the rules of ``costs.py`` that need its neighbours."""

import bisect
import collections

import numpy as np

from wafer.machine.branches import JUMPS as _JUMPS, LEAVES as _ENDS, jump_cycles
from wafer.machine.codes import BYTES, Op, Operand, Type
from wafer.machine.costs import TEARDOWN, Arch, op_costs
from wafer.machine.image import COLUMNS, ENTRIES, Program
from wafer.machine.loops import Cycles, loop_at, unroll
from wafer.machine.values import ValueFlow

_FIRST = COLUMNS["operations"].index("dest")
_MEMORY = (Operand.MEMORY, Operand.SHAPED)
_BITS = {Type[f"{sign}{bits}"]: bits for sign in "IU" for bits in (8, 16, 32, 64)}
_ANYWHERE = range(1 << 16)
_ACCESSES = (Op.LOAD, Op.STORE, Op.MOVE, Op.OPERATE)


class _Constants(dict[int, int]):
    """Constants by register, in straight code."""

    def follow(self, op: int, a: int, b: int, c: int) -> None:
        """Go on behind an instruction."""
        value = c << 32 | b & 0xFFFFFFFF if op == Op.CONST else self.get(b)
        if op in _ENDS:
            self.clear()
        elif op in (Op.CONST, Op.COPY) and value is not None:
            self[a] = value
        else:
            self.pop(c if op == Op.OPERATE else a, None)


def instruction_cycles(program: Program, arch: Arch) -> Cycles:
    """Return the cycles of each instruction.

    Args:
        program: one that ``check_image`` accepts.
        arch: that runs it.
    """
    if not program.waits:
        return _compiled_cycles(program, arch)
    op, kind, _, _, c = program.code.T
    return Cycles(np.where(op == Op.WAIT, c * kind, 0), np.zeros_like(op))


def _compiled_cycles(program: Program, arch: Arch) -> Cycles:
    code, costs = program.code.tolist(), op_costs(arch)
    operands = program.tables["operations"][:, _FIRST : _FIRST + 4].tolist()
    targets = {row[2] for row in code if row[0] in _JUMPS}
    out = np.zeros(len(code), np.int32)
    constants, entries = _Constants(), dict[int, _Constants]()
    flow = ValueFlow(code, {row[2] for row in code if row[0] == Op.CALL} | _entries(program))
    addresses = dict[int, int | None]()
    for pc, row in enumerate(code):
        op, _, a, b, c = row
        if pc in targets:
            entries[pc], constants = constants, _Constants()
        out[pc] = _own(row, operands, constants, costs, arch)
        if op in _ACCESSES:
            addresses[pc] = constants.get(b if op in (Op.LOAD, Op.OPERATE) else a)
        if arch.optimizes:
            out[pc] += arch.index_wait * _is_index(code, pc)
            repeated, waits = flow.follow(pc, row, free=out[pc] == 0)
            out[pc] = 0 if repeated else out[pc] + waits * arch.float_wait
        constants.follow(op, a, b, c)
    moved = _hoisted(program, {pc: _bytes(code[pc], at, operands) for pc, at in addresses.items()})
    out[[*moved]] = 0
    for before, _ in set(moved.values()):
        out[before] += costs[Op.LOAD, 0]
    out[[*{int(pc) for pc in program.teardown_handlers if pc >= 0}]] += TEARDOWN
    kinds = np.minimum(program.code[:, 1], costs.shape[1] - 1)
    sizes = np.minimum(op_costs()[program.code[:, 0], kinds], 1)
    cycles = Cycles(out, jump_cycles(code, out, arch.branch))
    for end, (op, _, start, _, _) in enumerate(code):
        is_loop = op == Op.JUMP and start < end
        loop = loop_at(code, start, end, entries[start]) if is_loop else None
        if loop and (arch.optimizes or not loop.of_while):
            unroll(code, loop, cycles, sizes)
    return cycles


def _is_index(code: list[list[int]], pc: int) -> bool:
    """Return whether an instruction scales an index whose address the next access uses."""
    if code[pc][0] != Op.MUL:
        return False
    behind = (row for row in code[pc + 1 : pc + 9] if row[0] not in (Op.CONST, Op.COPY))
    base, access = next(behind, code[pc]), next(behind, code[pc])
    register = {Op.LOAD: 3, Op.STORE: 2}.get(Op(access[0]))
    is_sum = base[0] == Op.ADD and base[4] == code[pc][2]
    return is_sum and register is not None and access[register] == base[2]


def _own(
    row: list[int], operands: list[list[int]], constants: _Constants, costs: np.ndarray, arch: Arch
) -> int:
    """Return the cycles of an instruction by its operands and the constants before it."""
    op, kind, a, b, c = row
    if op == Op.OPERATE:
        return costs[op, 0] + _loads(operands[a], b, constants, arch)
    if op == Op.LOAD_DSR and b not in constants:
        return arch.computed_dsr
    if op in (Op.DIV, Op.REM) and kind in _BITS and constants.get(c):
        return _division(op, Type(kind), constants[c], costs)
    if arch.optimizes and op == Op.MUL and kind in _BITS and constants.get(c, 0) > 0:
        factor = constants[c]
        if factor & factor - 1 == 0:
            return costs[Op.SHL, kind] if factor > 1 else 0
    return costs[op, kind]


def _loads(kinds: list[int], register: int, constants: _Constants, arch: Arch) -> int:
    """Return the cycles in which an operation's operands are loaded."""
    out = 0
    for place, kind in enumerate(kinds):
        out += arch.operands.get(Operand(kind), 0) * (kind != Operand.FABRIC or place > 0)
        out += arch.computed * (kind in _MEMORY and register not in constants)
        register += kind != Operand.NONE
    return out


def _bytes(row: list[int], known: int | None, operands: list[list[int]]) -> range:
    """Return the bytes that a load reads, or that a store or an operation writes.

    Args:
        row: of the code.
        known: its address, or the operation's destination; None: not known.
        operands: kinds of them, by operation.
    """
    op, kind, a, _, c = row
    dest = operands[a][0] if op == Op.OPERATE else Operand.POINTER
    if dest not in (*_MEMORY, Operand.POINTER):
        return range(0)  # where a DSR leads is not looked for
    if known is None or dest == Operand.SHAPED:
        return _ANYWHERE
    if op != Op.OPERATE:
        offset, size = (0, c) if op == Op.MOVE else (c, BYTES[kind])
        return range(known + offset, known + offset + size)
    address, length, stride = (known >> 16 * k & 0xFFFF for k in range(3))
    if dest == Operand.POINTER:
        length = 1
    return _ANYWHERE if stride >> 15 else range(address, address + 4 * max(1, length * stride))


def _entries(program: Program) -> set[int]:
    """Return the first instructions of tasks and of functions that the host calls; -1 for none."""
    tables = [getattr(program, name) for name in ENTRIES]
    return {program.start, *program.functions.values(), *(int(pc) for t in tables for pc in t)}


def _within(jumps: list[tuple[int, int]], begin: int, stop: int) -> list[tuple[int, int]]:
    """Return those of some jumps, in ascending order, whose instruction is in [begin, stop)."""
    return jumps[bisect.bisect_left(jumps, (begin,)) : bisect.bisect_left(jumps, (stop,))]


def _every_round(skips: list[tuple[int, int]], begin: int, stop: int) -> set[int]:
    """Return the instructions of [begin, stop) that no jump forward inside of it passes over."""
    out = set[int]()
    for at, to in _within(skips, begin, stop):
        if to < stop:
            out.update(range(begin, at + 1))
            begin = max(begin, to)
    return out.union(range(begin, stop))


def _hoisted(program: Program, accesses: dict[int, range]) -> dict[int, tuple[int, range]]:
    """Find loads that a compiler moves out of a loop.

    Every round comes to them, and nothing in the loop writes to their variable.

    Returns:
        Load -> the instruction before the largest such loop, the bytes.
    """
    code = program.code.tolist()
    calls = {pc: row[2] for pc, row in enumerate(code) if row[0] == Op.CALL}
    entries = _entries(program)
    begins = [*sorted(entries | set(calls.values())), len(code)]
    next_function = lambda pc: bisect.bisect_right(begins, pc)
    indirect = {pc for pc, row in enumerate(code) if row[0] == Op.CALL_AT}
    callers, calling = collections.Counter(calls.values()), [*calls.items()]
    skips = [(pc, row[2]) for pc, row in enumerate(code) if row[0] in _JUMPS[:3] and row[2] > pc]
    out = dict[int, tuple[int, range]]()
    loops = [(row[2], pc) for pc, row in enumerate(code) if row[0] in _JUMPS[:3] and row[2] <= pc]
    for start, end in sorted(loops, key=lambda loop: loop[1] - loop[0]):
        region, each_round = set[int](), set[int]()
        parts = [(start, end + 1, True)]
        while parts:
            begin, stop, always = parts.pop()
            region.update(range(begin, stop))
            own = _every_round(skips, begin, stop) if always else set()
            each_round |= own
            for pc, to in _within(calling, begin, stop):
                if to not in (each_round if pc in own else region):
                    parts.append((to, begins[next_function(to)], pc in own))
        if indirect & region or code[start - 1][0] in _ENDS:
            continue
        inner = collections.Counter(calls[pc] for pc in region & calls.keys())
        written = np.zeros(len(program.memory), bool)
        for pc in (pc for pc in region & accesses.keys() if code[pc][0] != Op.LOAD):
            written[max(0, accesses[pc].start) : max(0, accesses[pc].stop)] = True
        for pc in (pc for pc in each_round & accesses.keys() if code[pc][0] == Op.LOAD):
            own, function = accesses[pc], begins[next_function(pc) - 1]
            shared = function in entries or callers[function] > inner[function]
            inside = (start <= pc <= end or not shared) and own.stop <= len(program.memory)
            if inside and not written[max(0, own.start) : max(0, own.stop)].any():
                out[pc] = start - 1, own
    return out


def _division(op: int, kind: Type, divisor: int, costs: np.ndarray) -> int:
    """Return the cycles of a quotient or a remainder by a constant other than 0.

    The quotient is the upper half of a product, shifted; with a sign, one more for a negative
    number. Powers of two are shifts.
    """
    cost = lambda op, of=kind: int(costs[op, of])
    signed = kind.name[0] == "I"
    size = abs(divisor) if signed else divisor % (1 << 64)
    if size == 1:
        return cost(Op.NEG) if divisor < 0 and op == Op.DIV else 0
    power = size & size - 1 == 0
    if power and not signed:
        return cost(Op.SHR if op == Op.DIV else Op.AND)
    if power:  # size - 1 more for a negative number
        quotient = 2 * cost(Op.SHR) + cost(Op.AND) + cost(Op.ADD)
    else:
        wide = Type[f"U{min(64, 2 * _BITS[kind])}"]
        quotient = cost(Op.ADD, wide) + cost(Op.SHR, wide)
        quotient += signed * (cost(Op.SHR) + cost(Op.SUB))
    if op == Op.DIV:
        return quotient + (cost(Op.NEG) if signed and divisor < 0 else 0)
    return quotient + cost(Op.SHL if power else Op.MUL) + cost(Op.SUB)
