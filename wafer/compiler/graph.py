"""What the compiler works on: kernels of a model, their work and size, and what flows between.

Dims: T vectors per sample, K numbers into a product, N out of it.
"""

import dataclasses

__all__ = ["Graph", "Kernel", "Product"]


@dataclasses.dataclass(frozen=True)
class Product:
    """``groups`` products [T, K] x [K, N] per sample."""

    groups: int
    T: int
    K: int
    N: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates per sample."""
        return self.groups * self.T * self.K * self.N


@dataclasses.dataclass(frozen=True)
class Kernel:
    """What one rectangle of PEs computes per sample.

    Attributes:
        name: parameter path or scope.
        kind: 'matmul', 'attention', 'norm', 'embedding', 'elementwise', 'convolution', 'loss'.
        layer: first part of the name.
        products: in order; of an embedding ``groups=1, T`` look-ups, ``K`` rows, ``N`` features.
        lanes: elementwise and reduction operations per sample, forward, in 32 bit.
        half_lanes: the same in 16 bit.
        elements: largest array those work on.
        weights: parameters it holds.
        names: of those parameters.
        inputs, outputs: numbers that enter and leave per sample.
        stashed: bytes kept per sample from forward to backward.
        needs_dx: a gradient flows to its input. needs_dw: its weights are trained.
        bits: 16 or 32, of its products' operands.
        density: kept share of its weights.
        source: where its first operation was written.
    """

    name: str
    kind: str
    layer: str
    products: tuple[Product, ...]
    lanes: int
    half_lanes: int
    elements: int
    weights: int
    names: tuple[str, ...]
    inputs: int
    outputs: int
    stashed: int
    needs_dx: bool
    needs_dw: bool
    bits: int
    density: float = 1.0
    source: str = ""

    @property
    def macs(self) -> int:
        """Multiply-accumulates per sample, forward, zeros included."""
        return 0 if self.kind == "embedding" else sum(p.macs for p in self.products)

    @property
    def flops(self) -> tuple[int, int, int]:
        """(forward, backward, update) operations per sample; zeros included."""
        between = 2 if self.kind == "attention" else 1  # both operands get a gradient
        twice = 2 * self.macs
        trained = self.needs_dx or self.needs_dw
        lanes = self.lanes + self.half_lanes
        backward = twice * between * self.needs_dx + 2 * lanes * trained
        update = 0 if self.kind == "attention" else twice * self.needs_dw
        return twice + lanes, backward, update


@dataclasses.dataclass(frozen=True)
class Graph:
    """Kernels in the order of the data, and what flows between them.

    Attributes:
        kernels: all of them.
        edges: (source, target, numbers per sample), indices into ``kernels``.
        sample_bytes: of the inputs, per sample.
    """

    kernels: tuple[Kernel, ...]
    edges: tuple[tuple[int, int, int], ...]
    sample_bytes: int

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers in order."""
        return tuple(dict.fromkeys(kernel.layer for kernel in self.kernels))
