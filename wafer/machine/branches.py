"""What jumps cost where a branch has a price: loops, ifs, and ifs whose parts are predicated."""

import numpy as np

from wafer.machine.codes import CONDITIONAL, Op
from wafer.machine.costs import JumpCosts

JUMPS = (Op.JUMP, Op.JUMP_IF, Op.JUMP_UNLESS, Op.CALL)
LEAVES = (*JUMPS, Op.CALL_AT, Op.RETURN)  # ends of straight code
_NEVER_PREDICATED = frozenset([
    *(*LEAVES, Op.ACTIVATE, Op.BLOCK, Op.UNBLOCK),
    *(Op.OPERATE, Op.RECEIVE, Op.SEND, Op.INTRINSIC, Op.WAIT),
])  # fmt: skip


def jump_cycles(code: list[list[int]], own: np.ndarray, branch: JumpCosts | None) -> np.ndarray:
    """Set what jumps cost.

    Args:
        code: of a program.
        own: [instructions] cycles of each; of jumps they are set.
        branch: cycles of jumps; None: those of ``own`` stay.

    Returns:
        [instructions] int32: what jumps with a condition cost more if they are taken.
    """
    taken = np.zeros(len(code), np.int32)
    if branch is None:
        return taken
    more, tests = branch.taken - branch.missed, _loop_tests(code)
    jumps = [(pc, row[0], row[2]) for pc, row in enumerate(code) if row[0] in JUMPS[:3]]
    for pc, op, to in jumps:
        taken[pc] = more * (op != Op.JUMP)
        own[pc] = branch.taken - taken[pc]
        own[pc] += (to <= pc) * (branch.loop - 2 - branch.taken)
        own[pc] *= to != pc + 1  # an if without an else ends so; the chip has no such jump
    for pc, op, to in jumps:
        if pc in tests:
            own[pc], taken[pc] = 0, -more
            if any(row[0] == Op.ELEMENT and row[4] == code[pc - 1][3] for row in code[pc:to]):
                own[[pc - 1, to - 2]] = 0  # the counter of @map is a register of a descriptor
        elif op in CONDITIONAL and to > pc:
            _predicate(code, own, taken, pc, branch.predicated)
    return taken


def _loop_tests(code: list[list[int]]) -> set[int]:
    """Return the jumps by which loops end: the first ones of a round, to behind the jump back."""
    out = set[int]()
    for end, (op, _, start, _, _) in enumerate(code):
        if op == Op.JUMP and start <= end:
            first = next(pc for pc in range(start, end + 1) if code[pc][0] in LEAVES)
            if code[first][0] in CONDITIONAL and code[first][2] == end + 1:
                out.add(first)
    return out


def _predicate(
    code: list[list[int]], own: np.ndarray, taken: np.ndarray, pc: int, most: int
) -> None:
    """Let the parts of an if take their cycles whether they are executed or not, if both are small.

    Args:
        code: of the program.
        own: [instructions] cycles.
        taken: [instructions] what jumps cost more if they are taken.
        pc: of the jump over the first part.
        most: cycles of a small part.
    """
    to = code[pc][2]
    over, _, end, _, _ = code[to - 1]
    has_else = over == Op.JUMP and to - 1 > pc and end >= to
    parts = slice(pc + 1, to - has_else), slice(to, end if has_else else to)
    small = all(own[part].sum() <= most for part in parts)
    if small and all(row[0] not in _NEVER_PREDICATED for part in parts for row in code[part]):
        own[pc], taken[pc] = 0, own[parts[0]].sum()
        if has_else:
            own[to - 1] = own[parts[1]].sum()
