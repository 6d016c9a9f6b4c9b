"""The parameters a sparsifier selects: a table before training, a line for the log, warnings."""

import dataclasses
import logging
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from jaxtyping import PyTree

from wafer.models.errors import did_you_mean
from wafer.models.factored.lora import is_adapter
from wafer.models.paths import dense_word
from wafer.models.shown.html import table
from wafer.sparsity.algorithms.base import Algorithm
from wafer.sparsity.algorithms.magnitude import ACDC
from wafer.sparsity.filters import ParamFilter, has_nan
from wafer.sparsity.schedules import EVERY_STEP, Cycling, Every, UpdateSteps
from wafer.sparsity.schema import listed
from wafer.sparsity.selection import kept_number
from wafer.sparsity.storage import Choice
from wafer.sparsity.views import CompetitionRows, WeightLayout, axes_of

_LOG = logging.getLogger(__name__)
_HEADS = ("name", "shape", "axes", "level", "storage", "why")
Group = tuple[ParamFilter, Algorithm]


@dataclasses.dataclass(frozen=True)
class Selected:
    """One parameter a sparsifier takes: its place and the group that takes it.

    Attributes:
        name: '/'-path.
        position: place in the list of all parameters.
        group: position of the group.
        shape: dense shape.
        algorithm: the group's algorithm.
        view: its competition rows.
    """

    name: str
    position: int
    group: int
    shape: tuple[int, ...]
    algorithm: Algorithm
    view: CompetitionRows


class SelectionRow(NamedTuple):
    """One parameter before training."""

    name: str  #: '/'-path
    shape: tuple[int, ...]  #: dense shape
    axes: str  #: a letter for each axis, as in ``weight_layout``; '' where dense
    level: float  #: share of pruned weights at the start
    last_level: float  #: the same at the end of the schedule
    storage: str  #: "dense", "masked" or "csr"
    why: str  #: what selects it, or why it stays dense; why auto stores a mask


class SelectionTable(tuple[SelectionRow, ...]):
    """Rows of all parameters, in tree order; printed as a table."""

    def __str__(self) -> str:
        """Return the table."""
        cells = [_HEADS, *self._cells]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return table("", _HEADS, self._cells)

    @property
    def _cells(self) -> list[tuple[str, ...]]:
        cells = list[tuple[str, ...]]()
        for r in self:
            levels = dict.fromkeys((f"{r.level:.1%}", f"{r.last_level:.1%}"))
            level = "" if r.storage == "dense" else " to ".join(levels)
            cells.append((r.name, "x".join(map(str, r.shape)), r.axes, level, r.storage, r.why))
        return cells


def sparse_row(chosen: Selected, rule: ParamFilter, choice: Choice) -> SelectionRow:
    """Return the row of a selected parameter.

    Args:
        chosen: the parameter.
        rule: the filter that takes it.
        choice: its storage.
    """
    algorithm = chosen.algorithm
    first = algorithm.sparsity.at(0) if algorithm.starts_sparse() else 0.0
    last = algorithm.sparsity.min_max_end()[2] if algorithm.dynamic else first
    why = "; ".join(filter(None, (f"{type(algorithm).__name__} on {rule}", choice.why)))
    first, last = (round(level, 6) for level in (first, last))
    axes = axes_of(chosen.view.layout, len(chosen.shape))
    return SelectionRow(chosen.name, chosen.shape, axes, first, last, choice.storage, why)


def dense_row(
    names: Sequence[str], leaf: PyTree, rules: Sequence[ParamFilter], requires_dense: ParamFilter
) -> SelectionRow:
    """Return the row of a parameter that no group takes.

    Args:
        names: of the parameter, its '/'-path first.
        leaf: the parameter or its shape.
        rules: of the groups.
        requires_dense: what stays dense whatever the rules say.
    """
    ndim = len(leaf.shape)
    words = (word for rule in rules if rule.kind == "default" for word in rule.patterns)
    match = next((word for word in words if any(word in name.lower() for name in names)), "")
    if requires_dense.matches(names, ndim):
        why = "requires_dense"
    elif all(rule.kind != "default" for rule in rules):
        why = "no param_filter matches it"
    elif ndim < 2:
        why = f"rank {ndim}"
    elif not has_nan(leaf.dtype):
        why = f"{leaf.dtype} has no NaN"
    else:
        why = f"{match or next(filter(None, map(dense_word, names)))!r} in its name"
    return SelectionRow(names[0], tuple(leaf.shape), "", 0.0, 0.0, "dense", why)


def counted(names: Iterable[str], shown: int = 8) -> str:
    """Name parameters; those that differ in numbers alone are counted.

    >>> counted(["layers_0/up", "layers_1/up", "head"])
    'layers_*/up (2), head'
    """
    alike = Counter(re.sub(r"\d+", "*", name) for name in names)
    lines = [f"{name} ({count})" if count > 1 else name for name, count in alike.items()]
    return listed(lines, shown)


def log_selected(groups: Sequence[Group], selected: Mapping[str, Selected]) -> None:
    """Log what becomes sparse: a line at INFO, what may surprise, each parameter at DEBUG."""
    rules = "; ".join(
        f"{type(algorithm).__name__} on {rule}"
        + (", updated at every step" if algorithm.update == EVERY_STEP else "")
        for rule, algorithm in groups
    )
    size = sum(math.prod(chosen.shape) for chosen in selected.values())
    _LOG.info(
        "Will apply sparsity to %d weights with %s: %s (%s values)",
        len(selected),
        rules,
        counted(selected),
        f"{size:,}",
    )
    for line in _surprises(groups, selected):
        _LOG.warning("sparsity: %s", line)
    for chosen in selected.values():
        _LOG.debug("sparse: %s %s group %d", chosen.name, chosen.shape, chosen.group)


def log_without_effect(
    groups: Sequence[Group],
    layout: WeightLayout | None,
    params: Mapping[str, tuple[Sequence[str], int]],
    selected: Collection[str],
) -> None:
    """Log which patterns of filters and of a layout take no parameter, a line each.

    Args:
        groups: of the sparsifier.
        layout: of the sparsifier.
        params: '/'-path -> (all names of the parameter, its rank).
        selected: names of those that become sparse.
    """
    if not selected:
        rules = "; ".join(str(rule) for rule, _ in groups)
        _LOG.warning("sparsity: no parameter matches %s; training stays dense", rules)
    globs = layout if isinstance(layout, Mapping) else ()
    for key, filters in (
        ("param_filter", [rule for rule, _ in groups if rule.kind != "default"]),
        ("weight_layout", [ParamFilter("glob", (glob,)) for glob in globs]),
    ):
        free = dict(params)
        for rule in filters:
            for pattern in rule.patterns:
                one = ParamFilter(rule.kind, (pattern,))
                matched = {name for name, param in params.items() if one.matches(*param)}
                if not matched:
                    hint = did_you_mean(pattern, params)
                    _LOG.warning("sparsity: %s %r matches no parameter%s", key, pattern, hint)
                elif not matched & free.keys():
                    _LOG.warning(
                        "sparsity: %s %r has no effect: those before it match %s, too",
                        key, pattern, listed(sorted(matched)),
                    )  # fmt: skip
            free = {name: param for name, param in free.items() if not rule.matches(*param)}


def _surprises(groups: Sequence[Group], selected: Mapping[str, Selected]) -> Iterator[str]:
    """Say what a section does that its author may not expect, a line each."""
    highest = {
        i: algorithm.sparsity.min_max_end()[1]
        for i, (_, algorithm) in enumerate(groups)
        if not algorithm.sparsity.traced
    }
    cells = {
        name: (chosen.group, chosen.view.row_length(chosen.shape))
        for name, chosen in selected.items()
    }
    emptied = lambda group, size: kept_number(highest.get(group, 0), size) == 0
    empty_cells = {key for key in set(cells.values()) if emptied(*key)}
    empty = [name for name, key in cells.items() if key in empty_cells]
    if empty:
        yield f"{listed(empty)}: pruned to 100 %, so nothing of the layer is left; lower its level"
    small = [name for name, chosen in selected.items() if len(chosen.shape) < 2]
    if small:
        yield (
            f"{listed(small)}: biases and norms become sparse, too; name kernels alone in "
            "param_filter"
        )
    adapters = [name for name in selected if is_adapter(name)]
    if adapters:
        yield f"{listed(adapters)}: LoRA adapters become sparse, too; see param_filter"
    for i, level in highest.items():
        if not level:
            yield f"the level on {groups[i][0]} is 0 at every step, so nothing is pruned"
    for rule, algorithm in groups:
        restart = _begins_again(algorithm)
        if restart is not None:
            yield (
                f"the list of levels on {rule} begins again at step {restart}, with "
                f"{algorithm.sparsity.at(0):g}; end it with update.stop"
            )


def _begins_again(algorithm: Algorithm) -> int | None:
    """Step at which a list of levels is through and its first one is taken again, or None."""
    levels, update = algorithm.sparsity, algorithm.update
    lists = isinstance(levels, Cycling) and levels.length > 1 and not levels.traced
    if not lists or isinstance(algorithm, ACDC):
        return None
    if isinstance(update, UpdateSteps):
        steps = sorted(update.steps)
        return steps[levels.length] if len(steps) > levels.length else None
    if isinstance(update, Every):
        step = update.start + levels.length * update.freq
        return step if update.stop is None or step < update.stop else None
    return None
