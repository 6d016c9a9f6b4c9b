"""How one tensor of a foreign checkpoint holds one or several of ours.

Every layout is a bijection, so the same object converts both ways, bit for bit.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

Shape = tuple[int, ...]


class Codec(Protocol):
    """Converts between one foreign tensor and a tuple of ours."""

    def foreign_shape(self, shapes: Sequence[Shape]) -> Shape:
        """Return the foreign shape that holds tensors of our shapes."""
        ...

    def to_ours(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> tuple[np.ndarray, ...]:
        """Split a foreign tensor into ours."""
        ...

    def to_foreign(self, tensors: Sequence[np.ndarray]) -> np.ndarray:
        """Join ours into the foreign tensor."""
        ...


@dataclasses.dataclass(frozen=True)
class _Same:
    """The same array, up to axes of length 1 (a foreign [H, 1] is our [H])."""

    extra_axes: int = 0
    leading: bool = False

    def foreign_shape(self, shapes: Sequence[Shape]) -> Shape:
        ones = (1,) * self.extra_axes
        return (*ones, *shapes[0]) if self.leading else (*shapes[0], *ones)

    def to_ours(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> tuple[np.ndarray, ...]:
        return (tensor.reshape(shapes[0]),)

    def to_foreign(self, tensors: Sequence[np.ndarray]) -> np.ndarray:
        return tensors[0].reshape(self.foreign_shape([tensors[0].shape]))


@dataclasses.dataclass(frozen=True)
class _Transposed:
    """A torch Linear, [out, in]; ours is [in, out]."""

    def foreign_shape(self, shapes: Sequence[Shape]) -> Shape:
        return shapes[0][::-1]

    def to_ours(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> tuple[np.ndarray, ...]:
        del shapes
        return (tensor.T,)

    def to_foreign(self, tensors: Sequence[np.ndarray]) -> np.ndarray:
        return tensors[0].T


@dataclasses.dataclass(frozen=True)
class _Patches:
    """A convolution with stride = size, [D, C, P, P]; ours is the matrix [C * P * P, D]."""

    channels: int = 3

    def foreign_shape(self, shapes: Sequence[Shape]) -> Shape:
        rows, features = shapes[0]
        size = round((rows / self.channels) ** 0.5)
        return (features, self.channels, size, size)

    def to_ours(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> tuple[np.ndarray, ...]:
        return (tensor.reshape(tensor.shape[0], -1).T.reshape(shapes[0]),)

    def to_foreign(self, tensors: Sequence[np.ndarray]) -> np.ndarray:
        return tensors[0].T.reshape(self.foreign_shape([tensors[0].shape]))


SAME = _Same()
TRANSPOSED = _Transposed()
PATCHES = _Patches()


def trailing_one() -> Codec:
    """Hold our [H] as a foreign [H, 1]."""
    return _Same(extra_axes=1)


def leading_one() -> Codec:
    """Hold our [V] as a foreign [1, V]."""
    return _Same(extra_axes=1, leading=True)


def fused_order(kind: str, heads: int, kv_heads: int, size: int) -> np.ndarray:
    """Find where each feature of query|key|value lies along a fused projection's output axis.

    Args:
        kind: 'concat' [all q | all k | all v]; 'per_head' [q, k, v] of head 0, of head 1, ...
            (NeoX, BLOOM, bigcode without MQA); 'grouped' [the group's queries, k, v] per
            key/value head (Falcon 40b); 'codegen' four blocks of [q | v | k].
        heads: query heads N.
        kv_heads: key/value heads K.
        size: features per head H.

    Returns:
        [(N + 2K) * H] indices into the fused axis, in the order q, k, v.
    """
    total = (heads + 2 * kv_heads) * size
    place = np.arange(total)
    if kind == "concat":
        return place
    if kind == "per_head":
        q, k, v = place.reshape(heads, 3, size).transpose(1, 0, 2)
    elif kind == "grouped":
        grouped = place.reshape(kv_heads, heads // kv_heads + 2, size)
        q, k, v = grouped[:, :-2], grouped[:, -2], grouped[:, -1]
    elif kind == "codegen":
        blocks = place.reshape(4, 3, heads * size // 4)
        q, v, k = blocks[:, 0], blocks[:, 1], blocks[:, 2]
    else:
        raise ValueError(f"fused layout {kind!r} is unknown")
    return np.concatenate([q.ravel(), k.ravel(), v.ravel()])


@dataclasses.dataclass(frozen=True)
class Fused:
    """Query, key and value in one tensor; as a weight [out, in] when ``transposed``."""

    kind: str  #: see ``fused_order``
    heads: int  #: N
    kv_heads: int  #: K
    transposed: bool  #: the foreign weight is [out, in]; a bias is always [out]

    def foreign_shape(self, shapes: Sequence[Shape]) -> Shape:
        """Return [.., q + k + v] or its transpose."""
        shape = (*shapes[0][:-1], sum(s[-1] for s in shapes))
        return shape[::-1] if self.transposed else shape

    def _order(self, total: int) -> np.ndarray:
        size = total // (self.heads + 2 * self.kv_heads)
        return fused_order(self.kind, self.heads, self.kv_heads, size)

    def to_ours(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> tuple[np.ndarray, ...]:
        """Split into query, key, value."""
        tensor = tensor.T if self.transposed else tensor
        widths = np.cumsum([s[-1] for s in shapes])[:-1]
        parts = np.split(self._order(tensor.shape[-1]), widths)
        return tuple(tensor[..., part] for part in parts)

    def to_foreign(self, tensors: Sequence[np.ndarray]) -> np.ndarray:
        """Join query, key, value."""
        shapes = [x.shape for x in tensors]
        out = np.empty(self.foreign_shape(shapes), tensors[0].dtype)
        ours = out.T if self.transposed else out
        widths = np.cumsum([shape[-1] for shape in shapes])[:-1]
        for x, part in zip(tensors, np.split(self._order(ours.shape[-1]), widths), strict=True):
            ours[..., part] = x
        return out
