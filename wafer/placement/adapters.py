"""Execution arguments inside given rectangles, chosen so that neighbours speak one protocol."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from wafer.placement.blocks import Arguments, ContestChoices
from wafer.placement.contest import ContestGraph, Placed
from wafer.placement.slicing import Piece

__all__ = ["fill", "settle"]


def _inside(choices: ContestChoices, box: Piece) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ``choices`` that fit the box, and whether each must be rotated to fit."""
    upright = (choices.width <= box.width) & (choices.height <= box.height)
    turned = (choices.width <= box.height) & (choices.height <= box.width)
    rows = np.flatnonzero(upright | turned)
    return rows, ~upright[rows]


def _best(
    choices: ContestChoices,
    rows: np.ndarray,
    wishes: Sequence[tuple[int, int, int, bool]],
    last: int,
) -> int:
    """Index into ``rows`` of the choice with fewest differences from its neighbours.

    wishes: (h, w, channels, whether they are this kernel's output) of each connection.
    """
    cost = np.zeros(len(rows))
    for h, w, channels, out in wishes:
        own = choices.k[rows, last] if out else choices.c[rows, 0]
        cost += (choices.h[rows] != h).astype(int) + (choices.w[rows] != w) + (own != channels)
    area = choices.width[rows] * choices.height[rows]
    return int(np.lexsort((area, cost))[0])


def fill(graph: ContestGraph, cap: float, boxes: Sequence[Piece], rounds: int = 4) -> list[Placed]:
    """Choose arguments for each kernel in its box, at most ``cap`` cycles, and centre it there.

    Args:
        graph: the case.
        cap: cycles per sample that no kernel may exceed.
        boxes: a rectangle per kernel of the graph, each large enough.
        rounds: passes over the kernels; 1 takes the smallest area alone.
    """
    limit = max(graph.width, graph.height)
    options, chosen = [], []
    for kernel, box in zip(graph.kernels, boxes, strict=True):
        choices = kernel.choices(cap, graph.memlimit, limit)
        rows, turned = _inside(choices, box)
        options.append((choices, rows, turned))
        chosen.append(_best(choices, rows, (), kernel.last))
    for _ in range(rounds if graph.wadapter else 0):
        for at, kernel in enumerate(graph.kernels):
            choices, rows, _ = options[at]
            wishes = []
            for i, j in graph.edges:
                if at in (i, j):
                    other = j if at == i else i
                    a = _arguments(options[other], chosen[other])
                    port = a.c[0] if at == i else a.k[graph.kernels[other].last]
                    wishes.append((a.h, a.w, port, at == i))
            chosen[at] = _best(choices, rows, wishes, kernel.last)
    result = []
    for kernel, box, option, pick in zip(graph.kernels, boxes, options, chosen, strict=True):
        a, turned = _arguments(option, pick), bool(option[2][pick])
        width, height = Placed(a, 0, 0, turned).size(kernel)
        x, y = box.x + (box.width - width) // 2, box.y + (box.height - height) // 2
        result.append(Placed(a, x, y, turned))
    return result


def _arguments(option: tuple[ContestChoices, np.ndarray, np.ndarray], pick: int) -> Arguments:
    return option[0][int(option[1][pick])]


def settle(
    graph: ContestGraph, placed: Sequence[Placed], boxes: Sequence[Piece], rounds: int = 20
) -> list[Placed]:
    """Move each kernel inside its box towards the median of its neighbours' centres."""
    result = list(placed)
    sizes = [at.size(kernel) for at, kernel in zip(placed, graph.kernels, strict=True)]
    near: list[list[int]] = [[] for _ in graph.kernels]
    for i, j in graph.edges:
        near[i].append(j)
        near[j].append(i)
    for _ in range(rounds):
        for at, box in enumerate(boxes):
            if not near[at]:
                continue
            (width, height), now = sizes[at], result[at]
            x = np.median([result[o].x + sizes[o][0] / 2 for o in near[at]]) - width / 2
            y = np.median([result[o].y + sizes[o][1] / 2 for o in near[at]]) - height / 2
            x = int(np.clip(round(x), box.x, box.x + box.width - width))
            y = int(np.clip(round(y), box.y, box.y + box.height - height))
            result[at] = dataclasses.replace(now, x=x, y=y)
    return result
