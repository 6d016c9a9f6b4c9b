"""Loops over constant ranges: which of them a compiler unrolls, and what they cost no longer."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from wafer.machine.codes import CONDITIONAL, Op
from wafer.machine.costs import ANALYZED, MOST_UNROLLED, UNROLLED
from wafer.machine.values import NO_RESULT

_LOOP = 4  # instructions of a loop besides its body: test, step, two jumps


class CountedLoop(NamedTuple):
    """A loop over a constant range."""

    trips: int  #: its rounds
    counter: int  #: register of the counter
    start: int  #: its first instruction
    leave: int  #: the jump that ends it
    body: range  #: instructions of a round besides test, step and jump back
    end: int  #: the jump back
    of_while: bool  #: whether its text is a loop of while


class Cycles(NamedTuple):
    """What instructions cost; of an OPERATE what comes before its first step."""

    own: np.ndarray  #: [instructions] int32
    taken: np.ndarray  #: [instructions] int32; what a jump with a condition costs more if taken


class RoundParts(NamedTuple):
    """What a round computes, by what it depends on."""

    before: list[int]  #: on registers that no round writes
    counted: list[int]  #: on the counter alone
    mixed: list[int]  #: on both
    decided: list[int]  #: jumps that depend on the counter alone


def loop_at(
    code: list[list[int]], start: int, end: int, before: Mapping[int, int]
) -> CountedLoop | None:
    """Return a loop over a constant range; None for any other loop.

    A loop of while makes the end and the step of its counter anew in each round.

    Args:
        code: of the program.
        start: where the jump back leads.
        end: the jump back.
        before: constants by register where the loop is entered.
    """
    of_while = code[start][0] == Op.CONST
    test, leave = code[start + of_while], code[start + of_while + 1]
    step, known = code[end - 1 - of_while], dict(before)
    if of_while:
        made, copy = (code[start], code[end - 3]), code[end - 1]
        known |= {a: c << 32 | b & 0xFFFFFFFF for op, _, a, b, c in made if op == Op.CONST}
        if copy[:1] + copy[2:4] != [Op.COPY, test[3], step[2]]:
            return None
    counter, last = test[3:]
    counted = test[0] in (Op.LT, Op.GT) and step[:1] + step[3:4] == [Op.ADD, counter]
    counted = counted and (of_while or step[2] == counter)
    counted = counted and leave[:1] + leave[2:4] == [Op.JUMP_UNLESS, end + 1, test[2]]
    ends = [known.get(register) for register in (counter, last, step[4])]
    if not counted or None in ends or not ends[2]:
        return None
    body = range(start + of_while + 2, end - 1 - 2 * of_while)
    if of_while and any(_result(code[pc]) == counter for pc in body):
        return None
    trips = len(range(*(number or 0 for number in ends)))
    return CountedLoop(trips, counter, start, start + of_while + 1, body, end, of_while)


def unroll(code: list[list[int]], loop: CountedLoop, cycles: Cycles, sizes: np.ndarray) -> None:
    """Take away what a loop no longer costs, if its compiler unrolls it.

    Args:
        code: of the program.
        loop: one of its loops.
        cycles: of the instructions.
        sizes: [instructions] 1 for each one that the chip executes, too.
    """
    jumps = ((pc, code[pc][2]) for pc in loop.body if code[pc][0] == Op.JUMP)
    outer = any(loop.start < to <= pc for pc, to in jumps)
    parts = RoundParts([], [], [], []) if outer else _parts(code, loop)
    if loop.of_while:
        is_unrolled, free = _fits(loop, parts, sizes, outer=outer), parts.counted
        free += [pc for jump in parts.decided for pc in (jump, _over_else(code, jump))]
    else:
        free = parts.before + parts.counted + parts.mixed
        body, gone = cycles.own[loop.body].sum(), cycles.own[free].sum()
        shorter = 1 + (gone + _LOOP) / max(1, body - gone)
        most = UNROLLED * min(1 if outer else MOST_UNROLLED, shorter)
        is_unrolled = loop.trips * (body - gone) <= most
    if is_unrolled:
        around = [pc for pc in range(loop.start, loop.end + 1) if pc not in loop.body]
        cycles.own[[*around, *free]] = cycles.taken[[loop.leave, *free]] = 0


def _fits(loop: CountedLoop, parts: RoundParts, sizes: np.ndarray, *, outer: bool) -> bool:
    """Return whether LLVM unrolls a loop of while.

    Args:
        loop: of while.
        parts: of its body.
        sizes: [instructions] 1 for each one that the chip executes, too.
        outer: whether it is around another loop.
    """
    total = int(sizes[loop.body].sum() - sizes[parts.before].sum())
    if loop.trips * (total + 1) + 2 <= UNROLLED:
        return True
    gone = int(sizes[parts.counted + parts.mixed].sum()) + len(parts.decided)
    left = max(1, total - gone)
    shorter = min(MOST_UNROLLED, (total + _LOOP - 1) / left)
    return not outer and loop.trips <= ANALYZED and loop.trips * left <= UNROLLED * shorter


def _parts(code: list[list[int]], loop: CountedLoop) -> RoundParts:
    """Return what the rounds of a loop compute, by what it depends on.

    Args:
        code: of the program.
        loop: one of its loops.
    """
    out, counter = RoundParts([], [], [], []), loop.counter
    changed = {_result(row) for row in code[loop.start : loop.end]} - {counter, None}
    constant, follows = {counter}, {counter}  # registers: without others, by the counter
    for pc in loop.body:
        op, _, a, b, c = code[pc]
        two = Op.ADD <= op <= Op.SHR or Op.EQ <= op <= Op.GE or op == Op.ELEMENT
        sources = () if op == Op.CONST else (b, c) if two else (b,)
        if op in CONDITIONAL and b in constant & follows:
            out.decided.append(pc)
        elif (op <= Op.CAST or op == Op.ELEMENT) and changed.isdisjoint(sources):
            moves, alone = not follows.isdisjoint(sources), constant.issuperset(sources)
            (out.before if not moves else out.counted if alone else out.mixed).append(pc)
            changed.discard(a)
            (follows.add if moves else follows.discard)(a)
            (constant.add if alone else constant.discard)(a)
        elif (result := _result(code[pc])) is not None:
            changed.add(result)
            constant.discard(result)
            follows.discard(result)
    return out


def _over_else(code: list[list[int]], pc: int) -> int:
    """Return the jump over the else of an if that begins with a jump; that one without an else."""
    to = code[pc][2]
    over = code[to - 1]
    return to - 1 if over[0] == Op.JUMP and to - 1 > pc and over[2] >= to else pc


def _result(row: list[int]) -> int | None:
    """Return the register that an instruction writes."""
    if row[0] in NO_RESULT:
        return None
    return row[4 if row[0] == Op.OPERATE else 3 if row[0] in (Op.CALL, Op.CALL_AT) else 2]
