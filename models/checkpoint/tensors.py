"""What every reader of a checkpoint file is: named arrays."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np


class Tensors(Protocol):
    """Names, shapes without reading, arrays, of a file in any format."""

    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __getitem__(self, name: str, /) -> np.ndarray: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it."""
        ...
