"""The timetable of layer-pipelined execution: which stage works on which micro-batch, and when.

All stages are resident, each in a region of its own; micro-batches stream through them. There is a
latency until every region has work, a steady state in which all of them work at every step, and a
drain. A region does one task per step: the forward pass of one micro-batch, the backward pass of
another, or its update. A mini-batch is closed: a stage updates once it has the gradients of all its
micro-batches, and the next mini-batch enters after that, so that every forward and backward pass
sees the weights that sequential execution gives it, and the updates are the same in the same order.

Forward and backward passes alternate as soon as they can ("one forward, one backward", Narayanan
et al. 2021, arXiv:2104.04473, section 2.2.1), which bounds what a stage holds. For S stages and M
micro-batches, steps counted from 0::

    forward(s, m)   at s + m                for m < S - s     (latency)
                    at s + 2 m              for later ones    (steady)
    backward(s, m)  at 2 S - 1 - s + 2 m
    update(s)       at 2 (S + M) - 2 - s,   or all at 2 (S + M) - 2 where they wait for each other

    steps                2 (S + M) - 1
    bubble               2 (S - 1) / (2 (S + M) - 1)       share of idle (stage, step) pairs
    in flight at s       min(M, S - s)                     micro-batches begun and not yet undone
    latency, steady, drain    2 S - 1,  2 (M - S) + 1,  2 S - 1   steps, for M >= S

Evaluation runs forward only: S + M - 1 steps, bubble (S - 1) / (S + M - 1).

R copies of the pipeline take the micro-batches in turn: copy c those with m mod R = c, by the
timetable above for M / R of them, all at the same steps. The first copy's stages update, for all::

    bubble               (R (2 S - 1) - 1) / (R (2 S - 1) + 2 M)
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

PHASES = ("forward", "backward", "update")


class StageTask(NamedTuple):
    """What a stage does at a step."""

    step: int  #: from 0
    stage: int  #: from 0, the input's end
    phase: str  #: 'forward', 'backward' or 'update'
    #: micro-batch, from 0; -1 for an update, which belongs to all of them and is done by the first
    #: copy
    micro: int = -1

    def copy(self, copies: int) -> int:
        """The copy of the pipeline that does it, of so many."""
        return max(self.micro, 0) % copies


def _check(stages: int, micro_batches: int, copies: int = 1) -> None:
    if min(stages, micro_batches, copies) < 1:
        raise ValueError(
            f"a pipeline of {stages} stage(s), {micro_batches} micro-batch(es) and {copies} "
            "copies: expected at least one of each"
        )
    if micro_batches % copies:
        raise ValueError(
            f"{micro_batches} micro-batch(es) cannot be shared by {copies} copies of a pipeline; "
            "choose copies that divide them"
        )


def schedule(
    stages: int, micro_batches: int, *, copies: int = 1, deferred: bool = False
) -> tuple[StageTask, ...]:
    """Lay out one mini-batch of training; see the module for the formulas.

    Args:
        stages: S.
        micro_batches: M, of one optimizer step.
        copies: R, of the pipeline; they divide M.
        deferred: updates wait for the gradients of all stages (clipping by global norm, dynamic
            loss scale, a new topology).

    Returns:
        All tasks, by step, then stage, then micro-batch: the order in which they may be dispatched.

    Raises:
        ValueError: no stage, micro-batch or copy, or copies that do not divide the micro-batches.

    Example:
        >>> print(table(schedule(3, 4), 3))
        step   0   1   2   3   4   5   6   7   8   9  10  11  12
        0     F0  F1  F2   .   .  B0  F3  B1   .  B2   .  B3   U
        1      .  F0  F1   .  B0  F2  B1  F3  B2   .  B3   U   .
        2      .   .  F0  B0  F1  B1  F2  B2  F3  B3   U   .   .
    """
    _check(stages, micro_batches, copies)
    end = 2 * (stages + micro_batches // copies) - 2

    def tasks() -> Iterator[StageTask]:
        for s in range(stages):
            for m in range(micro_batches):
                turn = m // copies
                step = s + turn if turn < stages - s else s + 2 * turn
                yield StageTask(step, s, "forward", m)
                yield StageTask(2 * stages - 1 - s + 2 * turn, s, "backward", m)
            yield StageTask(end if deferred else end - s, s, "update")

    return tuple(sorted(tasks()))


def forward_schedule(stages: int, micro_batches: int, copies: int = 1) -> tuple[StageTask, ...]:
    """Lay out the forward passes of one evaluation; some copies may have a micro-batch less.

    Raises:
        ValueError: no stage or no micro-batch.
    """
    _check(stages, micro_batches)
    return tuple(
        sorted(
            StageTask(s + m // copies, s, "forward", m)
            for s in range(stages)
            for m in range(micro_batches)
        )
    )


def needs(
    task: StageTask, stages: int, micro_batches: int, *, copies: int = 1, deferred: bool = False
) -> list[tuple[int, str, int]]:
    """List what must have ended before a task begins, as (stage, phase, micro-batch)."""
    s, m = task.stage, task.micro
    if task.phase == "forward":
        return [(s - 1, "forward", m)] if s else []
    if task.phase == "backward":
        own = [(s, "forward", m)]
        return own + ([(s + 1, "backward", m)] if s + 1 < stages else [])
    lasts, at = range(micro_batches - copies, micro_batches), range(stages) if deferred else (s,)
    return [(stage, "backward", last) for stage in at for last in lasts]


def bubble(stages: int, micro_batches: int, *, copies: int = 1, train: bool = True) -> Fraction:
    """Share of (stage, step) pairs in which a region has nothing to do, by formula."""
    _check(stages, micro_batches, copies if train else 1)
    if not train:
        pairs = copies * (stages + math.ceil(micro_batches / copies) - 1)
        return Fraction(pairs - micro_batches, pairs)
    edges = copies * (2 * stages - 1)
    return Fraction(edges - 1, edges + 2 * micro_batches)


def in_flight(stages: int, micro_batches: int, stage: int) -> int:
    """Most micro-batches whose activations a stage holds at once, by formula; M / R of a copy."""
    return min(micro_batches, stages - stage)


def spans(stages: int, micro_batches: int) -> tuple[int, int, int]:
    """Return steps of (latency, steady state, drain); no steady state for M < S."""
    total, edge = 2 * (stages + micro_batches) - 1, 2 * stages - 1
    if micro_batches < stages:
        return edge, 0, total - edge
    return edge, total - 2 * edge, edge


def table(tasks: Sequence[StageTask], stages: int, copies: int = 1) -> str:
    """Write a timetable as text: a row per stage of each copy, a column per step."""
    steps = 1 + max(task.step for task in tasks)
    cells = [["."] * steps for _ in range(stages * copies)]
    for task in tasks:
        number = "" if task.micro < 0 else str(task.micro)
        row = task.copy(copies) * stages + task.stage
        cells[row][task.step] = task.phase[0].upper() + number
    rows = ((row % stages, cell) for row, cell in enumerate(cells))
    lines = [("step", range(steps)), *rows]
    return "\n".join(f"{head!s:4}" + "".join(f"{cell!s:>4}" for cell in row) for head, row in lines)
