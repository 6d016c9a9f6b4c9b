"""Plans made better: their trees annealed, then arguments and exact places chosen and checked.

Where the native library is built, trees are tempered in parallel, on two threads; without it they
are annealed in Python, with fewer moves.
"""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from wafer.placement import native
from wafer.placement.adapters import fill, settle
from wafer.placement.check import Score, check
from wafer.placement.contest import ContestGraph, Placed
from wafer.placement.refine import Wires
from wafer.placement.slicing import Piece, leaves
from wafer.placement.trees import Room, Tree, leaf, optimise, rejoin, tree_of

__all__ = ["Effort", "Plan", "Result", "best_of", "wires_of"]

RETRIES = (0.97, 0.99, 0.995, 1.01, 1.04)  # caps at which the best tree is tried again
THREADS = 2
QUICK, LONG = 25, 250  # native moves per ``Effort.moves``: for each plan, for the best at the end


@dataclasses.dataclass(frozen=True)
class Effort:
    """How hard to search; the result depends on these and the seed, never on the clock.

    Attributes:
        orders: changes of the kernels' order to try, for 16 kernels; fewer for more.
        moves: annealing moves per plan, for 16 kernels; fewer for more. The native library makes
            25 times as many, and 250 times as many with the best plans.
        plans: plans that are annealed.
        rows, stacked: of the snakes.
        columns: lengths of columns with which snakes of any number of stacked kernels are tried.
        window, pairs: most kernels that are rearranged freely, and the table's budget.
    """

    orders: int = 400
    moves: int = 60_000
    plans: int = 8
    window: int = 16
    pairs: int = 1_500_000
    rows: int = 5
    stacked: int = 6
    columns: tuple[int, ...] = (3, 5, 8, 12)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Rectangles of a graph's kernels in an order, each large enough for a cap on time."""

    value: float  # wdeltat * cap + wlength * wire, or how far from fitting if infinite
    cap: float
    order: tuple[int, ...]
    tree: Piece


class Result(NamedTuple):
    """A finished plan: the tree behind it, the checker's score and the places."""

    plan: Plan
    tree: Tree
    score: Score
    placed: dict[str, Placed]

    def __str__(self) -> str:
        return f"cap {self.plan.cap:.0f}, wire {self.score.wire:.0f}, score {self.score.total:.6g}"


class _Job(NamedTuple):
    """A tree to improve: that of ``tree``, or the plan's."""

    plan: Plan
    tree: Tree | None
    seed: int
    strict: bool = False  # in Python: stay on the wafer rather than leave it on the way
    much: int = QUICK


def wires_of(graph: ContestGraph, order: Sequence[int]) -> Wires:
    """Connections between positions of an order."""
    at = np.argsort(order)
    edges = np.array(graph.edges, np.int64).reshape(-1, 2)
    return Wires(at[edges[:, 0]], at[edges[:, 1]])


def _kernels(graph: ContestGraph, plan: Plan) -> list[Tree]:
    """Single kernels at the plan's cap; more room than the wafer has is measured, too."""
    limit = max(graph.width, graph.height)
    limit = limit * 21 // 20 if native.available() else limit * 6 // 5
    choices = [graph.kernels[k].choices(plan.cap, graph.memlimit, limit) for k in plan.order]
    return [leaf(at, one.curve(limit)) for at, one in enumerate(choices)]


def _rebuilt(tree: Tree, kernels: Sequence[Tree]) -> Tree:
    """The same cuts with other kernels' curves."""
    if not tree.parts:
        return kernels[tree.kernel]
    return rejoin(tree, [_rebuilt(part, kernels) for part in tree.parts])


def _improved(graph: ContestGraph, job: _Job, effort: Effort) -> Result | None:
    """A plan's tree improved and finished, None if no tree met fits."""
    plan, kernels = job.plan, _kernels(graph, job.plan)
    tree = tree_of(plan.tree, kernels) if job.tree is None else _rebuilt(job.tree, kernels)
    wires = wires_of(graph, plan.order)
    edges = list(zip(wires.sources.tolist(), wires.targets.tolist(), strict=True))
    room = Room(graph.width, graph.height, edges)
    moves = int(effort.moves * min(1.0, (16 / len(plan.order)) ** 0.5))
    if native.available() and native.suits(tree):
        side = np.sqrt(np.mean([_least_area(kernel) for kernel in kernels]))
        ladder = native.Ladder(1.5 * side, 0.1 * side, 6 * side)
        best, _ = native.temper(tree, room, job.seed, job.much * moves, ladder)
    else:
        mean = max(1.0, min(room.measure(tree)[0], 1e6) / max(1, len(edges)))
        heat, price = ((2 * mean, 3.0), 3 * mean)
        if job.strict:
            heat, price = ((0.4 * mean, 0.03 * mean), 50 * mean)
        best, _ = optimise(tree, room, job.seed, moves, heat=heat, price=price)
    if best is None:
        return None
    score, placed = _finish(graph, plan, room.plan(best))
    return Result(plan, best, score, placed)


def _least_area(kernel: Tree) -> int:
    widths = np.flatnonzero(kernel.heights < len(kernel.heights))
    return int((widths * kernel.heights[widths]).min())


def _finish(graph: ContestGraph, plan: Plan, tree: Piece) -> tuple[Score, dict[str, Placed]]:
    """Arguments and exact places of a plan, proved legal by the checker."""
    by_place = {leaf.i: leaf for leaf in leaves(tree)}
    boxes = [by_place[int(at)] for at in np.argsort(plan.order)]
    placed = settle(graph, fill(graph, plan.cap, boxes), boxes)
    named = {kernel.name: at for kernel, at in zip(graph.kernels, placed, strict=True)}
    return check(graph, named), named


def _all(graph: ContestGraph, jobs: Sequence[_Job], effort: Effort) -> list[Result]:
    """Results of the jobs for which a tree that fits was met."""
    with ThreadPoolExecutor(THREADS) as pool:
        results = pool.map(lambda job: _improved(graph, job, effort), jobs)
        return [result for result in results if result is not None]


def best_of(
    graph: ContestGraph,
    plans: Sequence[Plan],
    *,
    seed: int,
    effort: Effort,
    caps: tuple[float, float],
    say: Callable[[str], None],
) -> Result:
    """The best of some plans, improved at their caps and at caps near the best one's.

    Args:
        graph: the case.
        plans: where to begin; they fit.
        seed: of every random choice.
        effort: how hard to search.
        caps: least and greatest cap.
        say: receives lines of progress.
    """
    total, tempered = lambda result: result.score.total, native.available()
    jobs = [_Job(plan, None, seed + at, at % 2 == 0) for at, plan in enumerate(plans)]
    results = _all(graph, jobs, effort)
    best = min(results, key=total)
    say(f"best of {len(plans)} plans: {best}")
    jobs = []
    for at, factor in enumerate(RETRIES):
        cap = float(np.clip(np.floor(best.plan.cap * factor), *caps))
        jobs.append(_Job(dataclasses.replace(best.plan, cap=cap), best.tree, seed + at))
    results += _all(graph, jobs, effort)
    say(f"best of {len(RETRIES)} more caps: {min(results, key=total)}")
    if tempered:
        firsts = sorted(results, key=total)[:THREADS]
        jobs = [_Job(r.plan, r.tree, seed + 50 + at, much=LONG) for at, r in enumerate(firsts)]
        results += _all(graph, jobs, effort)
        say(f"after more moves: {min(results, key=total)}")
    return min(results, key=total)
