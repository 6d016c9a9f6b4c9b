"""What the compiler works on: kernels of a model, their work and size, and what flows between.

Dims: T vectors per sample, K numbers into a product, N out of it.
"""

import dataclasses


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
    """What one rectangle of PEs computes per sample."""

    name: str  #: parameter path or scope
    kind: str  #: 'matmul', 'attention', 'norm', 'embedding', 'elementwise', 'convolution', 'loss'
    layer: str  #: first part of the name
    #: in order; of an embedding ``groups=1, T`` look-ups, ``K`` rows, ``N`` features
    products: tuple[Product, ...]
    lanes: int  #: elementwise and reduction operations per sample, forward, in 32 bit
    half_lanes: int  #: elementwise and reduction operations per sample, forward, in 16 bit
    elements: int  #: largest array those work on
    weights: int  #: parameters it holds
    names: tuple[str, ...]  #: of those parameters
    inputs: int  #: numbers that enter per sample
    outputs: int  #: numbers that leave per sample
    stashed: int  #: bytes kept per sample from forward to backward
    needs_dx: bool  #: a gradient flows to its input
    needs_dw: bool  #: its weights are trained
    bits: int  #: 16 or 32, of its products' operands
    density: float = 1.0  #: kept share of its weights
    source: str = ""  #: where its first operation was written

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
    """Kernels in the order of the data, and what flows between them."""

    kernels: tuple[Kernel, ...]  #: all of them
    #: (source, target, numbers per sample), indices into ``kernels``
    edges: tuple[tuple[int, int, int], ...]
    sample_bytes: int  #: of the inputs, per sample

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers in order."""
        return tuple(dict.fromkeys(kernel.layer for kernel in self.kernels))
