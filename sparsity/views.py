"""In which order, and among which others, the positions of a weight compete.

The vendor stores weights as [out, in] and scores them flattened row by row, or in groups of
output or input rows that each keep the same number of weights. Flax stores kernels as
[..., in, out]. A ``View`` turns a weight into the vendor's order, cuts it into rows by its
structure, and goes back, so that groups, checkerboards and ties (lowest index first) come out
the same in both layouts.
"""

import dataclasses
import math
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Array, Shaped

from sparsity.structure import WHOLE, Structure

__all__ = ["View", "WeightLayout"]

WeightLayout = Literal["io", "oi"]
ArrayT = TypeVar("ArrayT", Array, np.ndarray)


@dataclasses.dataclass(frozen=True)
class View:
    """A two-way map between a weight and the rows its positions compete in.

    Attributes:
        layout: "oi" for weights stored [out, in, ...] (the vendor's), "io" for Flax kernels
            stored [..., in, out].
        structure: which positions compete.
    """

    layout: WeightLayout = "io"
    structure: Structure = WHOLE

    @property
    def whole(self) -> bool:
        """Whether all positions of a weight compete, each for itself."""
        return self.structure == WHOLE

    @property
    def cell(self) -> int:
        """Positions that are kept or pruned together."""
        return self.structure.cell

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
