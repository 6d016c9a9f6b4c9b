"""Cycles of sums along a line of PEs, to all of them: a tree of two levels, or a chain."""

from wafer.hpc.mesh import blocks

# Cycles on WSE-2. A PE that adds and passes on takes _HOP from a word's arrival at its router to
# that at the next one. The others are of operations until their first word: one that sends words,
# one that adds words up and passes them on, one that adds them up at a root, and the main root's
# last one with what all do after it. A PE with several inputs takes _SWITCH more for each of the
# last three, as its queue changes colors. Read off lines of 2 to 13 PEs.
_HOP, _PASS, _NEXT, _ADD, _BACK, _SWITCH = 6, 9, 11, 15, 14, 5


def cycles(size: int, words: int, *, group: int = 0, chain: bool = False) -> int:
    """Of one sum, of vectors of so many words, within 5 %.

    Inputs of a root come one after another, each as many cycles as it has words. So the way to the
    total is: the chain in a group, the roots on the longer side, and all inputs of the main root.

    Args:
        size: PEs of the line.
        words: numbers of a vector, of 32 or 16 bits.
        group: PEs of a group; 0 takes the best.
        chain: one chain of all instead.
    """
    if size == 1:
        return 0
    span = size if chain else group or best_group(size, words)
    groups = blocks.ceil(size, span)
    roots = [size - 1] if chain else [_root(k, span, size) for k in range(groups)]
    main = 0 if chain else groups // 2
    order = [range(main), range(groups - 1, main, -1)]
    near = []
    for k, root in enumerate(roots):
        beyond = sum(len(side) > 0 and (k == main or k in side[1:]) for side in order)
        lengths = root - k * span, min((k + 1) * span, size) - 1 - root
        near.append(_near([n for n in lengths if n], beyond, k == main, words))
    _, time, switch = near[main]
    for side in order:
        if side:
            arrival = _along([(near[k], roots[k]) for k in side], roots[main])
            time = max(time + _ADD + switch, arrival) + words
    back = max(roots[main], size - 1 - roots[main])
    return time + _BACK + switch + words + back


def _root(k: int, span: int, size: int) -> int:
    return (k * span + min((k + 1) * span, size)) // 2


def _near(chains: list[int], beyond: int, main: bool, words: int) -> tuple[int, int, int]:
    """When a root begins its last input from its group, and ends it; and its switches' cycles.

    Args:
        chains: lengths of those that end there.
        beyond: inputs from other roots, behind those from the chains.
        main: it passes nothing on.
        words: of a vector.
    """
    switch = _SWITCH if len(chains) + beyond > 1 else 0
    begin, time = _PASS, 0
    for k, length in enumerate(chains):
        passes = not main and k + 1 == len(chains) + beyond
        begin = max(time + switch + (_NEXT if passes else _ADD), _PASS + _HOP * length)
        time = begin + words
    return begin, time, switch


def _along(roots: list[tuple[tuple[int, int, int], int]], main: int) -> int:
    """When the first word of one side's roots comes to the main root, the outermost one first."""
    arrival = 0
    for k, ((begin, end, switch), root) in enumerate(roots):
        leaves = max(end + switch + _NEXT, arrival) if k else begin
        following = roots[k + 1][1] if k + 1 < len(roots) else main
        arrival = leaves + _HOP + abs(following - root) - 1
    return arrival


def best_group(size: int, words: int) -> int:
    """The number of PEs of a group for which a sum takes the fewest cycles."""
    return min(range(1, size + 1), key=lambda group: (cycles(size, words, group=group), -group))
