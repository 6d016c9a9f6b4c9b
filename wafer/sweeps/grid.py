"""Multiples of an arm's own values that tuning tries, and the order in which it tries them.

A point is a tuple of whole numbers, one per key: at position i the multiple is first · factor^i.
"""

import copy
import fnmatch
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from wafer.models.errors import Problem, SectionError
from wafer.models.sections import Section
from wafer.models.user.yamlfile import YamlMapping

Point = tuple[int, ...]
_FURTHEST = 10  # positions beyond the grid: a value that hardly matters would move on by chance


class TuneSection(Section):
    """Tuning of each arm on a seed of its own."""

    seed: Annotated[int, Field(ge=0, lt=2**32)]  #: of the tuning runs; none of ``seeds``
    #: dotted key, `*` for any part of it -> multiples of the arm's own value; each number that
    #: matches is multiplied. A geometric series, which goes on while the best lies at its edge
    times: dict[str, tuple[Annotated[float, Field(gt=0)], ...]]
    mode: Literal["min", "max"] = "min"  #: whether the least or the largest metric is best


class TuneGrid(NamedTuple):
    """Geometric series of multiples, one per key."""

    keys: tuple[str, ...]  #: patterns of dotted keys
    first: tuple[float, ...]  #: multiple at position 0
    factor: tuple[float, ...]  #: between two positions
    counts: tuple[int, ...]  #: positions that are tried in any case

    def multiples(self, point: Point) -> tuple[float, ...]:
        """Return a multiple per key."""
        series = zip(self.first, self.factor, point, strict=True)
        return tuple(float(f"{first * factor**at:.12g}") for first, factor, at in series)

    def name(self, point: Point) -> str:
        """Return the multiples as a part of a run's name: ``4x0.5``."""
        return "x".join(f"{multiple:g}" for multiple in self.multiples(point))

    def apply(self, sections: YamlMapping, point: Point) -> YamlMapping:
        """Return a run file's sections with the numbers of each key multiplied.

        Raises:
            SectionError: a key at which there is no number.
        """
        changed = copy.deepcopy(sections)
        for key, multiple in zip(self.keys, self.multiples(point), strict=True):
            if not _multiply(changed, "", key, multiple):
                message = "no number of the run file matches; expected a dotted key, as "
                message += "optimizer.learning_rate. Give it a value in the base or in the arm"
                raise SectionError([Problem(("tune", key), message)])
        return changed


def read_grid(times: Mapping[str, Sequence[float]]) -> TuneGrid:
    """Check series of multiples.

    Args:
        times: pattern of dotted keys -> multiples.

    Raises:
        SectionError: a series that is not geometric.
    """
    firsts, factors = [], []
    for key, series in times.items():
        values = sorted(series)
        ratios = [b / a for a, b in itertools.pairwise(values)]
        if not ratios or min(ratios) <= 1 or max(ratios) > 1.001 * min(ratios):
            message = f"{list(series)}; expected two or more multiples with a common factor, as "
            raise SectionError([Problem(("tune", key), f"{message}[0.5, 1, 2]")])
        firsts.append(values[0])
        factors.append((values[-1] / values[0]) ** (1 / len(ratios)))
    counts = tuple(map(len, times.values()))
    return TuneGrid(tuple(times), tuple(firsts), tuple(factors), counts)


def points_to_try(counts: Sequence[int], tried: Mapping[Point, float]) -> list[Point]:
    """Return the points to run next; none once no neighbor of the best point can be better.

    The first key's series is tried with the others at their first multiples, then the next key's
    with the best of the first, and so on. Then both neighbors of the best point along each key
    are tried, until the best point has no untried neighbor.

    Args:
        counts: multiples of each key's series.
        tried: point -> value reached, less is better.
    """
    point: Point = (0,) * len(counts)
    for key, count in enumerate(counts):
        line = [_moved(point, key, at) for at in range(count)]
        left = [one for one in line if one not in tried]
        if left:
            return left
        point = min(line, key=tried.__getitem__)
    best = min(tried, key=tried.__getitem__, default=point)
    around = [_moved(best, key, best[key] + step) for key in range(len(counts)) for step in (-1, 1)]
    return [
        p
        for p in around
        if p not in tried
        and all(-_FURTHEST <= i < n + _FURTHEST for i, n in zip(p, counts, strict=True))
    ]


def search(
    counts: Sequence[int], value: Callable[[Point], float | None]
) -> tuple[dict[Point, float], list[Point]]:
    """Follow ``points_to_try`` as far as values are known.

    Args:
        counts: multiples of each key's series.
        value: reached at a point, less is better; None: not yet run.

    Returns:
        (Values of the points tried, points to run next).
    """
    tried: dict[Point, float] = {}
    while points := points_to_try(counts, tried):
        values = {point: value(point) for point in points}
        tried |= {point: one for point, one in values.items() if one is not None}
        if missing := [point for point, one in values.items() if one is None]:
            return tried, missing
    return tried, []


def _moved(point: Point, key: int, at: int) -> Point:
    return (*point[:key], at, *point[key + 1 :])


def _multiply(inside: Any, path: str, key: str, multiple: float) -> int:
    """Multiply, in place, the numbers below ``path`` that match; return how many."""
    if not isinstance(inside, dict | list):
        return 0
    count = 0
    for index, value in inside.items() if isinstance(inside, dict) else enumerate(inside):
        child_path = f"{path}.{index}" if path else str(index)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and fnmatch.fnmatchcase(child_path, key):
            inside[index] = float(f"{value * multiple:.12g}")
            count += 1
        count += _multiply(value, child_path, key, multiple)
    return count
