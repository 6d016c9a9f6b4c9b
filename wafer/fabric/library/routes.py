"""What programs are made of: chains, multicasts, words that march in step; tasks by class of PE."""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from wafer.fabric.program.layout import Layout
from wafer.fabric.program.ops import Op, Operand, fabin, fabout, fadds, fmovs
from wafer.machine.arch import OPPOSITE

__all__ = ["bind", "chain_op", "chain_routes", "line_routes", "march_routes"]


def bind(layout: Layout, ops: Callable[..., Sequence[Op]], *keys: np.ndarray) -> None:
    """Bind "main", active at the start, to all PEs; those with equal keys do the same.

    Args:
        layout: the layout.
        ops: function of a PE's keys to its operations; without any it has no task.
        keys: [H, W] int from 0 on, for instance ``layout.x``.
    """
    code = functools.reduce(lambda code, key: code * (int(key.max()) + 1) + key, keys)
    _, first, kind = np.unique(code, return_index=True, return_inverse=True)
    classes: dict[tuple[Op, ...], list[int]] = {}
    for number, place in enumerate(first):
        task_ops = tuple(ops(*(int(key.flat[place]) for key in keys)))
        classes.setdefault(task_ops, []).append(number)
    for task_ops, numbers in classes.items():
        if task_ops:
            layout.task("main", task_ops, np.isin(kind, numbers).reshape(code.shape), active=True)


def chain_routes(
    layout: Layout,
    colors: Sequence[int],
    rank: np.ndarray,
    last: np.ndarray | int,
    where: np.ndarray | bool = True,
    *,
    towards: str = "W",
    nodes: np.ndarray | bool = True,
) -> None:
    """Route chains over two alternating colors: rank r sends on ``colors[r % 2]``.

    Args:
        layout: the layout.
        colors: both.
        rank: [H, W] place of each PE in its chain, counted from the root; between nodes, that of
            the node before it.
        last: [H, W] rank of the last node of the PE's chain.
        where: [H, W] PEs that belong to a chain.
        towards: side on which the root lies.
        nodes: [H, W] which of them are nodes; the others pass on.
    """
    behind = OPPOSITE[towards]
    for parity, color in enumerate(colors):
        layout.route(color, "RAMP", towards, where & nodes & (rank > 0) & (rank % 2 == parity))
        more = where & (rank < last) & (rank % 2 != parity)
        layout.route(color, behind, "RAMP", nodes & more)
        layout.route(color, behind, towards, np.logical_not(nodes) & more)


def chain_op(colors: Sequence[int], rank: int, *, last: bool, operand: Operand, words: int) -> Op:
    """Pass a chain's sum on from a node, or keep it at the root.

    Args:
        colors: of :func:`chain_routes`.
        rank: place in the chain.
        last: whether nothing arrives here.
        operand: the node's words.
        words: how many.
    """
    dst = fabout(colors[rank % 2]) if rank else operand
    if last:
        return fmovs(dst, operand, words)
    return fadds(dst, operand, fabin(colors[1 - rank % 2]), words)


def line_routes(
    layout: Layout,
    color: int,
    along: np.ndarray,
    root: int,
    where: np.ndarray | bool = True,
    *,
    also: Sequence[str] = (),
) -> None:
    """Multicast a color both ways from position ``root`` of every row or column.

    Args:
        layout: the layout.
        color: the color.
        along: [H, W], ``layout.x`` for rows, ``layout.y`` for columns.
        root: where it starts.
        where: [H, W] which rows or columns.
        also: ports by which it leaves every PE besides.
    """
    sides, last = ("WE" if along is layout.x else "NS"), int(along.max())
    ends = dict(zip(sides, (0, last), strict=True))
    there = [side for side, end in ends.items() if root != end]
    layout.route(color, "RAMP", (*there, *also), where & (along == root))
    for side in there:
        source, end = OPPOSITE[side], ends[side]
        beyond = where & ((along < root) if end == 0 else (along > root))
        layout.route(color, source, ("RAMP", *also, side), beyond & (along != end))
        layout.route(color, source, ("RAMP", *also), beyond & (along == end))


def march_routes(
    layout: Layout,
    color: int,
    along: np.ndarray,
    first: int,
    last: int,
    *,
    where: np.ndarray | bool = True,
) -> None:
    """Send single words of a line, one from each PE, from position ``last`` on to ``first``.

    Args:
        layout: the layout.
        color: the color.
        along: [H, W], ``layout.x`` for rows, ``layout.y`` for columns.
        first: where they end.
        last: the farthest one.
        where: [H, W] which rows or columns.
    """
    if first == last:
        return
    low, high = ("W", "E") if along is layout.x else ("N", "S")
    away, towards = (high, low) if last > first else (low, high)
    between = (along > min(first, last)) & (along < max(first, last))
    layout.route(color, away, "RAMP", where & (along == first))
    layout.route(color, ("RAMP", away), towards, where & between)
    layout.route(color, "RAMP", towards, where & (along == last))
