"""In which order, and among which others, the positions of a weight compete.

The vendor stores weights as [out, in] and scores them flattened row by row, or in groups of
output or input rows that each keep the same number of weights. Flax stores kernels as
[..., in, out]. ``CompetitionRows`` turn a weight into the vendor's order, cut it into rows by its
structure, and go back, so that groups, checkerboards and ties (lowest index first) come out the
same in both layouts.

A ``Structure`` cuts a weight, given as [out, in, ...], into R rows of n cells; every row keeps the
same number of cells. Nothing else of an algorithm knows of structure: a random mask, a magnitude
mask, GMP, SET and RigL choose cells row by row.
"""

import abc
import dataclasses
import math
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Array, Shaped

__all__ = [
    "UNSTRUCTURED",
    "Blocks",
    "CompetitionRows",
    "FanIn",
    "NofM",
    "RowGroups",
    "Structure",
    "WeightLayout",
    "axes_of",
]

WeightLayout = Literal["io", "oi"]
ArrayT = TypeVar("ArrayT", Array, np.ndarray)
Axis = Literal["in", "out"]
Shape = tuple[int, ...]


def axes_of(layout: WeightLayout, ndim: int) -> str:
    """Return a letter for each axis: i inputs, o outputs, k kernel positions.

    >>> axes_of("io", 4), axes_of("oi", 3), axes_of("io", 1)
    ('kkio', 'oik', 'o')
    """
    if ndim < 2:
        return "o" * ndim
    kernel = "k" * (ndim - 2)
    return f"{kernel}io" if layout == "io" else f"oi{kernel}"


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
    """A two-way map between a weight and the rows its positions compete in."""

    #: "oi" for weights stored [out, in, ...] (the vendor's), "io" for Flax kernels stored [..., in,
    #: out]
    layout: WeightLayout = "io"
    structure: Structure = UNSTRUCTURED  #: which positions compete

    @property
    def cell(self) -> int:
        """Positions that are kept or pruned together."""
        return self.structure.cell

    def output_groups(self, shape: tuple[int, ...]) -> int:
        """Number of rows R if each is a group of whole neighboring outputs; otherwise 0."""
        groups = self.groups(shape)
        by_output = isinstance(self.structure, FanIn) or (
            isinstance(self.structure, RowGroups) and self.structure.axis == "out"
        )
        return groups if by_output and self._vendor(shape)[0] % groups == 0 else 0

    def to_vendor(self, x: ArrayT) -> ArrayT:
        """Reorder the axes to [out, in, ...]; vectors and scalars stay."""
        if self.layout == "oi" or x.ndim < 2:
            return x
        return x.transpose(x.ndim - 1, x.ndim - 2, *range(x.ndim - 2))

    def from_vendor(self, x: ArrayT) -> ArrayT:
        """Undo ``to_vendor``."""
        if self.layout == "oi" or x.ndim < 2:
            return x
        return x.transpose(*range(2, x.ndim), 1, 0)

    def rows(self, x: Shaped[ArrayT, "..."]) -> Shaped[ArrayT, "R n"]:
        """Turn a weight into its competing rows."""
        return self.structure.rows(self.to_vendor(x))

    def unrows(self, rows: Shaped[ArrayT, "R n"], shape: tuple[int, ...]) -> Shaped[ArrayT, "..."]:
        """Turn rows back into an array of the weight's ``shape``."""
        return self.from_vendor(self.structure.unrows(rows, self._vendor(shape)))

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError when a weight cannot have the structure."""
        problem = self.structure.problem(self._vendor(shape))
        if problem:
            raise ValueError(
                f"sparsity of {name!r}: {problem} (shape {tuple(shape)}); choose a divisor, or "
                "leave this parameter out with param_filter"
            )

    def groups(self, shape: tuple[int, ...]) -> int:
        """Number of rows R."""
        return self.structure.count(self._vendor(shape))

    def row_length(self, shape: tuple[int, ...]) -> int:
        """Number of cells n in each row."""
        return math.prod(shape) // (self.groups(shape) * self.cell)

    def _vendor(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if self.layout == "oi" or len(shape) < 2:
            return shape
        return (shape[-1], shape[-2], *shape[:-2])
