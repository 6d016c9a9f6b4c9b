"""In which order, and among which others, the positions of a weight compete.

Weights compete as PyTorch stores them, [out, in], flattened row by row, or in groups of output
or input rows that each keep the same number of weights. Flax stores kernels as [..., in, out].
``CompetitionRows`` turn a weight into [out, in, ...], cut it into rows by its
structure, and go back, so that groups, checkerboards and ties (lowest index first) come out the
same in both layouts.

A ``Structure`` cuts a weight, given as [out, in, ...], into R rows of n cells; every row keeps the
same number of cells. Nothing else of an algorithm knows of structure: a random mask, a magnitude
mask, GMP, SET and RigL choose cells row by row.
"""

import abc
import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Array, Shaped

from wafer.sparsity.filters import ParamFilter
from wafer.sparsity.schema import SparsityError

#: letter of an axis -> what it is
LETTERS = {
    "l": "layers",
    "e": "experts",
    "i": "inputs",
    "o": "outputs",
    "k": "kernel positions, which count as inputs",
}
_MEANINGS = ", ".join(f"{letter} {meaning}" for letter, meaning in LETTERS.items())
#: "io", "oi", or glob of names -> a letter for each axis
WeightLayout = Literal["io", "oi"] | Mapping[str, str]
ArrayT = TypeVar("ArrayT", Array, np.ndarray)
Axis = Literal["in", "out"]
Shape = tuple[int, ...]


def axes_of(layout: str, ndim: int) -> str:
    """Return a letter for each axis; "io" and "oi" are of matrices and convolutions.

    >>> axes_of("io", 4), axes_of("oi", 3), axes_of("io", 1), axes_of("lio", 3)
    ('kkio', 'oik', 'o', 'lio')
    """
    if layout not in ("io", "oi"):
        return layout
    kernel = "k" * (ndim - 2)
    axes = f"{kernel}io" if layout == "io" else f"oi{kernel}"
    return "o" * ndim if ndim < 2 else axes


class _Axes(NamedTuple):
    """How the axes of a weight become those that structures know."""

    order: tuple[int, ...]  #: permutation: layers and experts, outputs, inputs, kernel positions
    stacks: int  #: weights that are stacked on layers and experts, 0 where there is no such axis
    shape: Shape  #: of one of them, [out, in, ...]


def _axes(layout: str, shape: Shape) -> _Axes:
    axes = axes_of(layout, len(shape))
    by_class = [
        [i for i, axis in enumerate(axes) if axis in letters] for letters in ("le", "o", "i", "k")
    ]
    stacked, outputs, inputs, kernel = by_class
    merged = tuple(math.prod(shape[i] for i in each) for each in (outputs, inputs) if each)
    return _Axes(
        order=tuple(itertools.chain(*by_class)),
        stacks=math.prod(shape[i] for i in stacked) if stacked else 0,
        shape=(*merged, *(shape[i] for i in kernel)),
    )


def _each(fn: Callable[[Any], Any], stacked: Any) -> Any:
    """Map over the first axis."""
    if isinstance(stacked, np.ndarray):
        return np.stack([fn(stacked[i, ...]) for i in range(len(stacked))])
    return jax.vmap(fn)(stacked)


@dataclasses.dataclass(frozen=True)
class Structure(abc.ABC):
    """Base: a permutation of the axes, then equal rows; a cell is one position.

    Attributes:
        level: the level that the structure itself says; None where the user says it.
    """

    @property
    def level(self) -> float | None:
        """The level of sparsity that the structure fixes."""
        return None

    @property
    def cell(self) -> int:
        """Positions in a cell."""
        return 1

    def order(self, ndim: int) -> tuple[int, ...]:
        """Permutation of the axes before the weight is cut into rows."""
        return tuple(range(ndim))

    @abc.abstractmethod
    def count(self, shape: Shape) -> int:
        """Number of rows R of a weight of shape [out, in, ...]."""

    @abc.abstractmethod
    def problem(self, shape: Shape) -> str:
        """Why a weight cannot have this structure, or ''."""

    def rows(self, x: Shaped[ArrayT, "..."]) -> Shaped[ArrayT, "R n"]:
        """Cut a weight [out, in, ...] into its rows."""
        return x.transpose(self.order(x.ndim)).reshape(self.count(x.shape), -1)

    def unrows(self, rows: Shaped[ArrayT, "R n"], shape: Shape) -> Shaped[ArrayT, "..."]:
        """Undo ``rows``."""
        order = self.order(len(shape))
        return rows.reshape([shape[i] for i in order]).transpose(np.argsort(order))


@dataclasses.dataclass(frozen=True)
class RowGroups(Structure):
    """Equal numbers of whole outputs (or inputs); one group is the whole weight."""

    number: int = 1
    axis: Axis = "out"

    def order(self, ndim: int) -> tuple[int, ...]:
        """The grouped axis first."""
        turned = self.axis == "in" and ndim > 1
        return (1, 0, *range(2, ndim)) if turned else tuple(range(ndim))

    def count(self, shape: Shape) -> int:
        """As many rows as groups."""
        return self.number

    def problem(self, shape: Shape) -> str:
        """The groups must be equal."""
        size = math.prod(shape)
        if size % self.number == 0:
            return ""
        return f"{self.axis}_groups={self.number} does not divide its {size} weights"


@dataclasses.dataclass(frozen=True)
class FanIn(Structure):
    """Every output keeps the same number of inputs."""

    def count(self, shape: Shape) -> int:
        """A row for each output."""
        return shape[0]

    def problem(self, shape: Shape) -> str:
        """Only matrices and kernels have outputs."""
        return "" if len(shape) > 1 else "constant_fan_in is for weights with inputs and outputs"


@dataclasses.dataclass(frozen=True)
class NofM(Structure):
    """Of every m neighbours along an axis, n are kept (2:4 along "in" is the hardware's)."""

    n: int
    m: int
    axis: Axis = "in"

    @property
    def level(self) -> float:
        """1 - n / m, rounded to the side on which float32 arithmetic keeps n of m."""
        level = np.float32(1 - self.n / self.m)
        while int((np.float32(1) - level) * np.float32(self.m)) < self.n:
            level = np.nextafter(level, np.float32(0))
        return float(level)

    def order(self, ndim: int) -> tuple[int, ...]:
        """The axis of the neighbours last."""
        last = 1 if self.axis == "in" else 0
        return (*(i for i in range(ndim) if i != last), last)

    def count(self, shape: Shape) -> int:
        """A row for every m neighbours."""
        return math.prod(shape) // self.m

    def problem(self, shape: Shape) -> str:
        """M must divide the axis."""
        if len(shape) < 2:
            return "n:m is for weights with inputs and outputs"
        size = shape[1 if self.axis == "in" else 0]
        return f"m={self.m} does not divide its {size} {self.axis}puts" if size % self.m else ""


@dataclasses.dataclass(frozen=True)
class Blocks(Structure):
    """Blocks of ``inputs`` x ``outputs`` weights are kept or pruned whole; scores are summed."""

    inputs: int
    outputs: int

    @property
    def cell(self) -> int:
        """Positions in a block."""
        return self.inputs * self.outputs

    def count(self, shape: Shape) -> int:
        """All blocks of a weight compete."""
        return 1

    def problem(self, shape: Shape) -> str:
        """The blocks must tile a matrix."""
        if len(shape) != 2:
            return "blocks are for matrices"
        if shape[0] % self.outputs or shape[1] % self.inputs:
            return (
                f"blocks of {self.inputs} inputs x {self.outputs} outputs do not tile its "
                f"{shape[1]} inputs x {shape[0]} outputs"
            )
        return ""

    def rows(self, x: Shaped[ArrayT, "..."]) -> Shaped[ArrayT, "R n"]:
        """Sum the scores of each block."""
        tall, wide = x.shape[0] // self.outputs, x.shape[1] // self.inputs
        tiles: Any = x.reshape(tall, self.outputs, wide, self.inputs)
        return tiles.sum((1, 3)).reshape(1, -1)

    def unrows(self, rows: Shaped[ArrayT, "R n"], shape: Shape) -> Shaped[ArrayT, "..."]:
        """Give each position its block's value."""
        tiles = rows.reshape(shape[0] // self.outputs, shape[1] // self.inputs)
        return tiles.repeat(self.outputs, axis=0).repeat(self.inputs, axis=1)


UNSTRUCTURED = RowGroups()


@dataclasses.dataclass(frozen=True)
class CompetitionRows:
    """A two-way map between a weight and the rows its positions compete in.

    Each layer and expert of a stacked weight has rows of its own.
    """

    #: "oi" for weights stored [out, in, ...] (PyTorch's), "io" for Flax kernels stored [..., in,
    #: out], or a letter for each axis, see ``LETTERS``
    layout: str = "io"
    structure: Structure = UNSTRUCTURED  #: which positions compete

    @property
    def cell(self) -> int:
        """Positions that are kept or pruned together."""
        return self.structure.cell

    def output_groups(self, shape: Shape) -> int:
        """Number of rows R if each is a group of whole neighboring outputs; otherwise 0."""
        groups = self.groups(shape)
        by_output = isinstance(self.structure, FanIn) or (
            isinstance(self.structure, RowGroups) and self.structure.axis == "out"
        )
        return groups if by_output and self.oi_shape(shape)[0] % groups == 0 else 0

    def to_oi(self, x: ArrayT) -> ArrayT:
        """Reorder the axes to [out, in, ...]; layers and experts, if any, make one axis before."""
        axes = _axes(self.layout, x.shape)
        stacks = (axes.stacks,) if axes.stacks else ()
        return x.transpose(axes.order).reshape(*stacks, *axes.shape)

    def from_oi(self, x: ArrayT, shape: Shape) -> ArrayT:
        """Undo ``to_oi`` of a weight of the ``shape``."""
        order = _axes(self.layout, shape).order
        return x.reshape([shape[i] for i in order]).transpose(np.argsort(order))

    def rows(self, x: Shaped[ArrayT, "..."]) -> Shaped[ArrayT, "R n"]:
        """Turn a weight into its competing rows."""
        stored = self.to_oi(x)
        if not _axes(self.layout, x.shape).stacks:
            return self.structure.rows(stored)
        return _each(self.structure.rows, stored).reshape(self.groups(x.shape), -1)

    def unrows(self, rows: Shaped[ArrayT, "R n"], shape: Shape) -> Shaped[ArrayT, "..."]:
        """Turn rows back into an array of the weight's ``shape``."""
        axes = _axes(self.layout, shape)
        back = lambda one: self.structure.unrows(one, axes.shape)
        if not axes.stacks:
            return self.from_oi(back(rows), shape)
        return self.from_oi(_each(back, rows.reshape(axes.stacks, -1, rows.shape[-1])), shape)

    def slice_shape(self, shape: Shape) -> Shape:
        """Return the shape [kernel ..., in, out] of one layer or expert, heads joined."""
        stored = self.oi_shape(shape)
        return (*stored[2:], *stored[:2][::-1])

    def check(self, name: str, shape: Shape) -> None:
        """Raise ValueError when a weight cannot have the structure."""
        problem = self.structure.problem(self.oi_shape(shape))
        if problem:
            raise ValueError(
                f"sparsity of {name!r}: {problem} (shape {tuple(shape)}, axes "
                f"{axes_of(self.layout, len(shape))!r}); choose a divisor, or leave this parameter "
                "out with param_filter"
            )

    def groups(self, shape: Shape) -> int:
        """Number of rows R."""
        axes = _axes(self.layout, shape)
        return self.structure.count(axes.shape) * max(axes.stacks, 1)

    def row_length(self, shape: Shape) -> int:
        """Number of cells n in each row."""
        return math.prod(shape) // (self.groups(shape) * self.cell)

    def oi_shape(self, shape: Shape) -> Shape:
        """Return the shape [out, in, ...] of one layer or expert, heads joined."""
        return _axes(self.layout, shape).shape


def check_layout(layout: WeightLayout | None) -> None:
    """Refuse a layout that is not "io", "oi", or letters by glob, an output among them.

    Raises:
        SparsityError: names what was found and the letters.
    """
    given = list(layout.values()) if isinstance(layout, Mapping) else [layout or "io"]
    known = lambda axes: isinstance(axes, str) and not {*axes} - {*LETTERS} and "o" in axes
    wrong = [axes for axes in given if not known(axes)]
    if not isinstance(layout, Mapping) and layout not in (None, "io", "oi"):
        wrong = [layout]
    if wrong:
        raise SparsityError(
            f"weight_layout: unknown layout ({wrong[0]!r}); expected 'io', 'oi', or by glob of "
            f"names a letter for each axis, one of them o: {_MEANINGS}"
        )


def view_of(
    layout: WeightLayout | None, names: Sequence[str], ndim: int, structure: Structure
) -> CompetitionRows:
    """Return a parameter's competition rows.

    Args:
        layout: of the sparsifier.
        names: of the parameter, its '/'-path first.
        ndim: its rank.
        structure: which positions compete.

    Raises:
        SparsityError: a layout of another number of axes; a structure in three or more axes that
            no layout names.
    """
    by_glob = layout if isinstance(layout, Mapping) else {"*": layout}
    rules = ((ParamFilter("glob", (glob,)), axes) for glob, axes in by_glob.items())
    rule, axes = next(((r, a) for r, a in rules if r.matches(names, ndim)), ("", None))
    if axes is None and ndim > 2 and structure != UNSTRUCTURED:
        example = "ioo" if ndim == 3 else "k" * (ndim - 2) + "io"
        raise SparsityError(
            f"weight_layout: {names[0]!r} has a pattern and unknown axes (rank {ndim}); expected a "
            f"letter for each axis: {_MEANINGS}. Such as "
            f"configure(..., weight_layout={{{names[0]!r}: {example!r}}})"
        )
    axes = axes or "io"
    if len(axes_of(axes, ndim)) != ndim:
        raise SparsityError(
            f"weight_layout: {str(rule)!r} gives {names[0]!r} other axes than its {ndim} "
            f"({axes!r}); expected a letter for each. Put a narrower pattern before it"
        )
    return CompetitionRows(axes, structure)
