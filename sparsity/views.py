"""In which order, and among which others, the positions of a weight compete.

The vendor stores weights as [out, in] and scores them flattened row by row, or in groups of
output or input rows that each keep the same number of weights. Flax stores kernels as
[..., in, out]. A ``View`` turns a weight into the vendor's rows ``[R, n]`` and back, so that
groups, checkerboards and ties (lowest index first) come out the same in both layouts.
"""

import dataclasses
import math
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Array, Shaped

__all__ = ["View", "WeightLayout"]

WeightLayout = Literal["io", "oi"]
ArrayT = TypeVar("ArrayT", Array, np.ndarray)


@dataclasses.dataclass(frozen=True)
class View:
    """A two-way map between a weight and the rows its positions compete in.

    Attributes:
        layout: "oi" for weights stored [out, in, ...] (the vendor's), "io" for Flax kernels
            stored [..., in, out].
        out_groups: contiguous groups of output rows that compete among themselves.
        in_groups: the same over inputs; at most one of the two is given.
    """

    layout: WeightLayout = "io"
    out_groups: int | None = None
    in_groups: int | None = None

    @property
    def groups(self) -> int:
        """Number of rows R."""
        return self.out_groups or self.in_groups or 1

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
        x = self.to_vendor(x)
        if self.in_groups and x.ndim > 1:
            x = x.swapaxes(0, 1)
        return x.reshape(self.groups, -1)

    def unrows(self, rows: Shaped[ArrayT, "R n"], shape: tuple[int, ...]) -> Shaped[ArrayT, "..."]:
        """Turn rows back into an array of the weight's ``shape``."""
        if len(shape) < 2:
            return rows.reshape(shape)
        vendor = shape if self.layout == "oi" else (shape[-1], shape[-2], *shape[:-2])
        if self.in_groups:
            x = rows.reshape(vendor[1], vendor[0], *vendor[2:]).swapaxes(0, 1)
        else:
            x = rows.reshape(vendor)
        return self.from_vendor(x)

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError when the groups cannot divide the weight evenly."""
        size = math.prod(shape)
        if size % self.groups:
            key = "out_groups" if self.out_groups else "in_groups"
            raise ValueError(
                f"sparsity of {name!r}: {key}={self.groups} does not divide its {size} weights"
                f" (shape {tuple(shape)}); choose a divisor, or leave this parameter out with"
                " param_filter"
            )

    def row_length(self, shape: tuple[int, ...]) -> int:
        """Number of positions n in each row."""
        return math.prod(shape) // self.groups
