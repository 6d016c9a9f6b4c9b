"""The placer: a graph of kernels in, arguments and rectangles of least score out.

For a time cap every kernel has a curve of smallest rectangles; the caps that matter lie between
the area bound and the point where shorter wires no longer pay. At each cap, snakes of rows over
the graph's order are solved exactly; the order itself is searched; where the wafer is too full for
that, kernels are rearranged freely within windows of the order, and where no cuts fit at all, they
lie in a wheel. ``improve`` tempers or anneals the trees of the best plans and chooses the arguments
inside the rectangles so that protocols match.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from wafer.placement.blocks import NEVER, area_bound
from wafer.placement.bounds import score_bound
from wafer.placement.check import Score
from wafer.placement.contest import ContestGraph, Placed
from wafer.placement.improve import Effort, Plan, best_of, wires_of
from wafer.placement.order import chain
from wafer.placement.refine import Wires, centres_of
from wafer.placement.rows import Snakes
from wafer.placement.slicing import Piece, Table
from wafer.placement.wheels import drawn, wheels
from wafer.placement.windows import Windows

__all__ = ["LIMITS", "Effort", "Placement", "attempts", "fastest", "place"]

LIMITS = (1.02, 1.03, 1.045)  # times over the area bound to ask for


@dataclasses.dataclass(frozen=True)
class Placement:
    """A placed graph: places by kernel name, the checker's score, the area bound on time."""

    placed: dict[str, Placed]
    score: Score
    bound: float


def _curves(graph: ContestGraph, order: Sequence[int], cap: float) -> np.ndarray:
    """Least height of each kernel for each width up to the wafer's longer side."""
    limit = max(graph.width, graph.height)
    curves = [graph.kernels[k].choices(cap, graph.memlimit, limit).curve(limit) for k in order]
    return np.stack(curves)


class _Drafts(NamedTuple):
    """Plans of one order at one cap, best first; by how many PEs rows of columns are too tall."""

    plans: list[Plan]
    over: int

    @property
    def value(self) -> float:
        """What the search lowers: that rows of columns fit, then the best plan's value."""
        return NEVER**2 * self.over if self.over else self.plans[0].value


def _plan(graph: ContestGraph, order: Sequence[int], cap: float, wires: Wires, tree: Piece) -> Plan:
    length = wires.length(centres_of(tree, np.empty((len(order), 2))))
    return Plan(graph.wdeltat * cap + graph.wlength * length, cap, tuple(order), tree)


def _snakes(graph: ContestGraph, order: Sequence[int], cap: float, effort: Effort) -> _Drafts:
    """Plans of one order at one cap: rows of columns, else random ones if any plan fits."""
    return _rows_of(graph, order, cap, effort, Table(_curves(graph, order, cap)))


def _rows_of(
    graph: ContestGraph, order: Sequence[int], cap: float, effort: Effort, table: Table
) -> _Drafts:
    """``_snakes`` of a given table."""
    wires, plans, least = wires_of(graph, order), [], NEVER
    for stacked, column in ((effort.stacked, 3), *((None, c) for c in effort.columns)):
        snakes = Snakes(table, graph.width, effort.rows, stacked, column)
        least = min(least, int(snakes.least[1:].min()))
        for row, at in np.argwhere(snakes.least[1:] <= graph.height):
            tree = snakes.plan(int(row) + 1, int(at), graph.height)
            plans.append(_plan(graph, order, cap, wires, tree))
    if not plans and table.fits(graph.width, graph.height):
        plans = [_drawn(graph, order, cap, table)]
    return _Drafts(sorted(plans, key=lambda p: p.value), max(0, least - graph.height))


def _drawn(
    graph: ContestGraph, order: Sequence[int], cap: float, table: Table, draws: int = 60
) -> Plan:
    """The best of some random plans: what is left where no rows fit but a finer cut does."""
    rng, wires = np.random.default_rng(table.n), wires_of(graph, order)
    box = Piece(0, table.n, 0, 0, graph.width, graph.height)
    trees = [table.sample(rng, box, (0.5, 1.0, 0.0, 0.9, 0.1)[i % 5]) for i in range(draws)]
    return min((_plan(graph, order, cap, wires, tree) for tree in trees), key=lambda p: p.value)


def _kinds(graph: ContestGraph, order: Sequence[int]) -> list[int]:
    """Equal numbers for equal kernels."""
    kinds: dict[tuple, int] = {}
    return [kinds.setdefault(graph.kernels[k].parts, len(kinds)) for k in order]


def _windows(graph: ContestGraph, order: Sequence[int], cap: float, effort: Effort) -> Windows:
    kinds = _kinds(graph, order)
    return Windows(_curves(graph, order, cap), kinds, effort.window, effort.pairs)


def _wheels(graph: ContestGraph, order: Sequence[int], cap: float, draws: int = 60) -> list[Plan]:
    """Plans with a wheel, for few kernels where nothing that is cut fits."""
    kinds, n = _kinds(graph, order), len(order)
    if n < 5 or np.prod(np.bincount(kinds) + 1.0) > 30_000:  # rows of the table
        return []
    table = Windows(_curves(graph, order, cap), kinds, n, 10_000_000)
    rng, wires = np.random.default_rng(n), wires_of(graph, order)
    box = Piece(0, n, 0, 0, graph.width, graph.height)
    turned = wheels(table, box.width, box.height) if table.window == n else ()
    trees = (drawn(table, wheel, box, rng) for wheel in turned for _ in range(draws))
    return [_plan(graph, order, cap, wires, tree) for tree in trees]


@functools.lru_cache(maxsize=4)
def _least_cap(graph: ContestGraph, effort: Effort, bound: float, steps: int = 7) -> float:
    """Nearly the least cap at which kernels rearranged in windows fit, at most 6 % over the bound.

    Infinite if they do not fit even there.
    """
    order = chain(len(graph.kernels), graph.edges)
    low, high, least = 1.0, 1.06, np.inf
    for _ in range(steps):
        middle = (low + high) / 2
        cap = float(np.floor(bound * middle))
        if _windows(graph, order, cap, effort).fits(graph.width, graph.height):
            high, least = middle, cap
        else:
            low = middle
    return least


def _changed(order: Sequence[int], rng: np.random.Generator) -> list[int]:
    """The order with a short stretch turned round or one kernel moved a few places."""
    order, n = list(order), len(order)
    i = int(rng.integers(n))
    if rng.random() < 0.5:
        j = min(n, i + 2 + int(rng.integers(4)))
        order[i:j] = order[i:j][::-1]
    else:
        kernel = order.pop(i)
        order.insert(int(np.clip(i + rng.integers(-6, 7), 0, n - 1)), kernel)
    return order


def _search(
    graph: ContestGraph,
    caps: tuple[float, float, float],
    order: Sequence[int],
    *,
    effort: Effort,
    rng: np.random.Generator,
    say: Callable[[str], None],
) -> list[Plan]:
    """Change order and cap together, accepting a little loss at first (threshold accepting).

    Args:
        graph: the case.
        caps: least, first and greatest cap.
        order: where to begin.
        effort: how hard to search.
        rng: source of randomness.
        say: receives lines of progress.
    """
    low, cap, high = caps
    now = _snakes(graph, order, cap, effort)
    kept = now.plans
    tries = int(effort.orders * min(1.0, (16 / len(order)) ** 1.9))
    for number in range(tries if len(order) > 2 else 0):
        changed = _changed(order, rng) if rng.random() < 0.8 else list(order)
        factor = (1.0, 1.0, 0.996, 0.99, 1.003)[int(rng.integers(5))]
        other = float(np.clip(np.floor(cap * factor), low, high))
        drafts = _snakes(graph, changed, other, effort)
        allowed = 1 + 0.004 * (1 - number / tries) ** 2
        kept = sorted([*kept, *drafts.plans], key=lambda p: p.value)[: 4 * effort.plans]
        if drafts.value <= allowed * now.value:
            order, cap, now = changed, other, drafts
        if number % 50 == 49:
            best = f"best {kept[0].value:.6g}" if kept else "nothing fits yet"
            say(f"{number + 1} of {tries} orders: {best}")
    return kept


def _caps(bound: float, longest: float | None) -> list[float]:
    """Caps to look at: close ones near the bound, then ever wider apart."""
    grid = [*np.arange(1.004, 1.1, 0.006), 1.12, 1.15, 1.2, 1.3, *np.geomspace(1.5, 40, 14)]
    top = grid[-1] if longest is None else longest
    return [float(np.floor(bound * f)) for f in [*grid, top] if f <= top]


def place(
    graph: ContestGraph,
    seed: int = 0,
    longest: float | None = None,
    effort: Effort | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Placement:
    """Place a graph.

    Args:
        graph: kernels, connections, wafer and weights of the score.
        seed: of every random choice; the same seed gives the same placement.
        longest: most time allowed, as a multiple of the area bound; None lets the score decide.
        effort: how hard to search.
        say: receives lines of progress.

    Raises:
        ValueError: nothing fits within ``longest``, or the graph has a circle.
    """
    effort = effort or Effort()
    rng = np.random.default_rng(seed)
    bound = area_bound(graph.kernels, graph.width, graph.height, graph.memlimit)
    order = chain(len(graph.kernels), graph.edges)
    plans: list[Plan] = []
    caps = _caps(bound, longest)
    for cap in caps:
        plans += _snakes(graph, order, cap, effort).plans
    say(f"bound {bound:.0f}: {len(plans)} plans of the first order at {len(caps)} caps")
    least = _least_cap(graph, effort, bound)
    for cap in sorted({least, max(caps)}):
        first = min((p.cap for p in plans), default=np.inf)  # of rows that keep the order
        if cap <= max(caps) and cap < first:
            table = _windows(graph, order, cap, effort)
            plans += _rows_of(graph, order, cap, effort, table).plans
    plans.sort(key=lambda p: p.value)
    if not plans and (turned := _wheels(graph, order, max(caps))):
        say(f"nothing that is cut fits, {len(turned)} plans with a wheel do")
        plans = turned
    else:
        window = min(caps), plans[0].cap if plans else max(caps), max(caps)
        plans += _search(graph, window, order, effort=effort, rng=rng, say=say)
    if not plans:
        raise ValueError(
            f"{graph.test}: no plan within {longest} times the area bound of {bound:.0f} cycles"
        )
    extent = bound, max(caps)
    plans = _diverse(plans, effort.plans)
    best = best_of(graph, plans, seed=seed, effort=effort, caps=extent, say=say)
    return Placement(best.placed, best.score, bound)


def fastest(
    graph: ContestGraph,
    enough: float,
    seed: int = 0,
    effort: Effort | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Placement:
    """The placement of least time found whose score without adapters is at most ``enough``.

    If none is, that of least score. Arguments and errors as for ``attempts``.
    """
    return min(attempts(graph, enough, seed, effort, say), key=lambda p: _paid(graph, p))


def _paid(graph: ContestGraph, placement: Placement) -> float:
    """Score without adapters."""
    return placement.score.total - graph.wadapter * placement.score.adapters


def attempts(
    graph: ContestGraph,
    enough: float,
    seed: int = 0,
    effort: Effort | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Placement]:
    """Placements within longer and longer times until one is good enough.

    Limits on the time are tried from short to long (``LIMITS``), then none; after the first, those
    are left out for which a lower bound shows that the score is impossible.

    Args:
        graph: as for ``place``, also the other arguments.
        enough: score (time and wires) that is good enough.
        seed: of every random choice.
        effort: how hard to search at each limit.
        say: receives lines of progress.

    Raises:
        ValueError: nothing fits at all.
    """
    placements: list[Placement] = []
    for limit in (*LIMITS, None):
        if limit and score_bound(graph, 2 * enough, limit) > enough:
            say(f"within {limit} times the area bound no score of {enough:.6g} exists")
            if limit > LIMITS[0]:
                continue
        try:
            placements.append(place(graph, seed, limit, effort, say))
        except ValueError as error:
            if limit is None:
                raise
            say(str(error))
            continue
        if _paid(graph, placements[-1]) <= enough:
            break
    return placements


def _diverse(plans: list[Plan], count: int) -> list[Plan]:
    """The best plans that differ in value, at most half of them at any one cap."""
    taken: list[Plan] = []
    for plan in sorted({round(p.value): p for p in plans}.values(), key=lambda p: p.value):
        if sum(p.cap == plan.cap for p in taken) < max(1, count // 2) and len(taken) < count:
            taken.append(plan)
    return taken
