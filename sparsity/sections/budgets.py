"""How the level of a group is shared among its layers: uniform, Erdős–Rényi, or a user's rule.

A budget gives every weight a ratio; its density is the ratio times one factor, at most 1, such
that the group as a whole has its level. ``spread`` turns a group with a budget into one group for
each level, so that nothing after it knows of budgets.

- ``erdos_renyi``: (inputs + outputs) / (inputs * outputs) (SET, Mocanu et al. 2018)
- ``erk``: the same over all dimensions of a kernel (RigL, Evci et al. 2020, §3)
- ``flops``: 1 / FLOPs of the dense layer, so that every layer that is not dense costs as much
- ``module:function``: {name: shape} -> {name: ratio}
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from wafer.models.errors import did_you_mean
from wafer.models.user.code import call, find
from wafer.models.user.trust import is_user_defined, require_trusted
from wafer.sparsity.algorithms.base import Algorithm
from wafer.sparsity.filters import ParamFilter
from wafer.sparsity.schedules import ConstantValue, ValueSchedule, is_constant
from wafer.sparsity.schema import SparsityError

Shapes = Mapping[str, tuple[int, ...]]
Group = tuple[ParamFilter, Algorithm]


BUDGETS: Mapping[str, Callable[[tuple[int, ...]], float]] = {
    "uniform": lambda shape: 1.0,
    "erdos_renyi": lambda shape: sum(shape[-2:]) / math.prod(shape),
    "erk": lambda shape: sum(shape) / math.prod(shape),
    "flops": lambda shape: 1 / math.prod(shape),  # of a matrix that each token passes once
}
Flops = Callable[[], Mapping[str, float]]


def check_budget(name: str) -> str:
    """Return the name of a budget.

    Raises:
        ValueError: it is neither known nor ``module:function``, or a file's that the user does not
            trust.
    """
    if is_user_defined(name):
        require_trusted(name, "sparsity")
        return name
    if name in BUDGETS:
        return name
    known = ", ".join(BUDGETS)
    hint = did_you_mean(name, BUDGETS)
    raise ValueError(f"unknown budget {name!r}; known: {known} or module:function{hint}")


@dataclasses.dataclass(frozen=True)
class Share(ValueSchedule):
    """One layer's level, given the level of its group."""

    whole: ValueSchedule  #: the group's schedule
    ratio: float  #: the layer's
    #: (ratio, weights) of every layer of the group, the highest ratio first
    table: tuple[tuple[float, int], ...]

    @property
    def length(self) -> int:
        """As the group's."""
        return self.whole.length

    def __call__(self, step: ArrayLike, index: ArrayLike = 0) -> Array:
        """Return 1 - density of the layer."""
        return 1 - jnp.minimum(self.ratio * self._factor(1 - self.whole(step, index)), 1.0)

    def _factor(self, density: Array) -> Array:
        """Solve sum(weights * min(1, factor * ratio)) = density * all weights."""
        ratios, sizes = np.asarray(self.table, np.float64).T
        filled = np.concatenate([[0.0], np.cumsum(sizes)[:-1]])  # of the layers before: dense ones
        rest = np.cumsum((ratios * sizes)[::-1])[::-1]
        factors = (density * sizes.sum() - filled) / rest
        fits = factors * ratios <= 1 + 1e-5
        return jnp.maximum(factors[jnp.argmax(fits)], 0).astype(jnp.float32)


def spread(
    groups: Sequence[Group],
    shapes: Shapes,
    slices: Shapes,
    group_of: Callable[[str, int], int | None],
    flops: Flops | None = None,
) -> tuple[Group, ...]:
    """Give every layer of a group with a budget its level.

    Args:
        groups: (filter, algorithm), first match wins.
        shapes: of all parameters, dense.
        slices: of selected ones, [kernel ..., in, out] of one layer or expert.
        group_of: (name, rank) -> the group that takes a parameter.
        flops: gives {name: FLOPs per token of the dense layer}, for ``flops``; None takes every
            parameter for a matrix that each token passes once.

    Returns:
        The groups; one with a budget, or with dense ends, has become one for each level.

    Raises:
        SparsityError: a budget with a pattern of a fixed level, a user's rule that fails, or
            ``flops`` for what is no product.
    """
    members: list[dict[str, tuple[int, ...]]] = [{} for _ in groups]
    for name, shape in shapes.items():
        number = group_of(name, len(shape))
        if number is not None:
            members[number][name] = shape
    every: list[Group] = []
    for group, layers in zip(groups, members, strict=True):
        rule, algorithm = group
        if algorithm.budget == "uniform" and not algorithm.dense_ends:
            every.append(group)
        else:
            inner = _inner(layers, algorithm.dense_ends)
            ratios = _ratios(algorithm.budget, inner, slices, flops)
            every += _by_level(rule, algorithm, inner, ratios)
    return tuple(every)


def _by_level(
    rule: ParamFilter, algorithm: Algorithm, shapes: Shapes, ratios: Mapping[str, float]
) -> list[Group]:
    table = tuple(sorted(((ratios[n], math.prod(s)) for n, s in shapes.items()), reverse=True))
    plain = dataclasses.replace(algorithm, budget="uniform", dense_ends=0)
    groups: list[Group] = []
    for ratio in sorted(set(ratios.values())):
        names = tuple(name for name, own in ratios.items() if own == ratio)
        share = Share(algorithm.sparsity, ratio, table)
        level = ConstantValue(float(share(0))) if is_constant(algorithm.sparsity) else share
        if algorithm.budget == "uniform":
            level = algorithm.sparsity
        elif algorithm.structure.level is not None:
            raise SparsityError(
                f"{algorithm.budget!r} gives layers other levels, and the "
                f"pattern on {rule} has one of its own; leave one of them out",
                ("sparsity", "budget"),
            )
        groups.append((ParamFilter("glob", names), dataclasses.replace(plain, sparsity=level)))
    return groups


def _ratios(budget: str, shapes: Shapes, slices: Shapes, flops: Flops | None) -> dict[str, float]:
    if budget == "flops" and flops is not None:
        counted = flops()
        idle = [name for name in shapes if not counted.get(name)]
        if idle:
            raise SparsityError(
                f"'flops', but {idle[0]!r} is part of no counted product; leave "
                "it out with param_filter",
                ("sparsity", "budget"),
            )
        stacks = {name: math.prod(shapes[name]) / math.prod(slices[name]) for name in shapes}
        return {name: stacks[name] / counted[name] for name in shapes}
    if budget in BUDGETS:
        return {name: BUDGETS[budget](slices[name]) for name in shapes}
    try:
        ratios = call(budget, find(budget, BUDGETS, "sparsity"), dict(shapes))
    except ValueError as error:
        raise SparsityError(str(error), ("sparsity", "budget")) from error
    bad = [name for name in shapes if not 0 < _number(ratios, name) < math.inf]
    if bad:
        raise SparsityError(
            f"{budget!r} gave no ratio above 0 for {bad[0]!r}; expected "
            "{name: ratio} for each of the names that it was given",
            ("sparsity", "budget"),
        )
    return {name: float(ratios[name]) for name in shapes}


def _number(ratios: object, name: str) -> float:
    try:
        return float(ratios[name])  # type: ignore[index]
    except (TypeError, KeyError, ValueError):
        return math.nan


def _inner(shapes: Shapes, ends: int) -> Shapes:
    """Leave out the first and last ``ends`` layers of every numbered stack."""
    if not ends:
        return shapes
    numbers: dict[str, list[int]] = {}
    for name in shapes:
        stack, number = _layer(name)
        numbers.setdefault(stack, []).append(number)
    inner = {
        stack: (min(positions) + ends, max(positions) - ends)
        for stack, positions in numbers.items()
        if stack
    }
    return {
        name: shape
        for name, shape in shapes.items()
        for stack, number in [_layer(name)]
        if not stack or inner[stack][0] <= number <= inner[stack][1]
    }


@functools.cache
def _layer(name: str) -> tuple[str, int]:
    """Stack and number in it of a parameter: 'layers_3/attn/key/kernel' -> ('layers', 3)."""
    match = re.match(r"(.*?)[_./]?(\d+)(?=/|$)", name)
    return (match[1], int(match[2])) if match else ("", 0)
