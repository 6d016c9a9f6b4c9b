"""An array that is read when it is used."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class LazyArray:
    """An array that is read when numpy asks for it, each time anew; nothing is kept."""

    shape: tuple[int, ...]  #: of what ``read`` returns
    dtype: np.dtype[Any]  #: of what ``read`` returns
    read: Callable[[], np.ndarray]  #: returns the array
    name: str = ""  #: for ``repr``

    @property
    def ndim(self) -> int:
        """Rank."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = np.asarray(self.read(), dtype)
        return array.copy() if copy else array

    def __repr__(self) -> str:
        return f"LazyArray({self.name}: {self.dtype}{list(self.shape)})"
