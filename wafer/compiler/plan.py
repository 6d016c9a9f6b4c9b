"""What a compilation results in: kernels with costs, their rectangles, the predicted speed.

Coordinates are those of ``wafer.fabric``: x grows eastwards, y grows southwards, and a region's
(x, y) is its north-west corner, the upper left in pictures. All sizes are in PEs, all times in
cycles per sample unless a name says otherwise.
"""

import dataclasses

from wafer.spec import Region, WaferSpec

INPUT_BYTES = 1.2e12 / 8
"""Bytes per second that enter a CS-2: twelve 100-gigabit links."""


@dataclasses.dataclass(frozen=True)
class FloorPlan:
    """Where everything lies."""

    width: int  #: PEs in x that may be used
    height: int  #: PEs in y that may be used
    regions: tuple[Region, ...]  #: one per kernel of the first replica, in the order of the data
    #: (x, y) by which each copy is moved from the first, which is (0, 0)
    replicas: tuple[tuple[int, int], ...] = ((0, 0),)

    def __getitem__(self, name: str) -> Region:
        """The first replica's region of a kernel.

        Raises:
            KeyError: no kernel of that name.
        """
        for region in self.regions:
            if region.name == name:
                return region
        raise KeyError(f"{name!r}; kernels are {', '.join(r.name for r in self.regions)}")


@dataclasses.dataclass(frozen=True)
class PlacedKernel:
    """A kernel as it was placed."""

    name: str  #: scope or parameter path
    kind: str  #: 'matmul', 'attention', 'norm', 'embedding', 'elementwise', 'convolution', 'loss'
    layer: str  #: the layer it belongs to, which gives its color
    rows: int  #: parts its input side is split into over the region's height
    columns: int  #: parts its output side is split into over the region's width
    #: cycles per sample of the busiest PE, of each phase
    forward: int
    backward: int
    update: int
    useful: float  #: its arithmetic per sample, all PEs together, as cycles of one PE at full rate
    flops: int  #: of the three phases per sample, pruned weights left out
    sram: int  #: bytes of the fullest PE
    held: int  #: bytes it holds in all: weights with their optimizer state, activations that wait
    weights: int  #: parameters it holds
    density: float  #: kept share of its weights
    in_side: str  #: 'W', 'N', 'E' or 'S', where data enters
    out_side: str  #: where data leaves

    @property
    def cycles(self) -> int:
        """Cycles per sample: the three phases share the region's PEs."""
        return self.forward + self.backward + self.update


@dataclasses.dataclass(frozen=True)
class Mesh:
    """A decoder on one mesh, all PEs of which do every product: the example ``decoder``."""

    height: int  #: of it, in PEs
    width: int
    cycles: int  #: of the last token of the context
    bytes: int  #: of a PE's memory


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How a decoder's floor plan writes."""

    context: int  #: tokens of a sequence
    sequences: int  #: written at once, by each copy
    latency: int  #: cycles from a token to the next one of its sequence
    #: cycles of it by kind of kernel, most first; 'ways' are those between kernels
    kinds: dict[str, int]
    cache: int  #: bytes of a sequence's keys and values
    cache_pe: int  #: of the fullest PE, all sequences together
    mesh: Mesh | None  #: the same decoder on one mesh, or None


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A model on the wafer."""

    name: str  #: of the model
    spec: WaferSpec  #: the machine
    kernels: tuple[PlacedKernel, ...]  #: in the order of ``plan.regions``
    #: data paths, (source, target, bytes per sample), indices into ``kernels``
    edges: tuple[tuple[int, int, int], ...]
    plan: FloorPlan  #: the floor plan
    sample_bytes: int  #: bytes that enter per sample
    batch: int  #: samples of an optimizer step
    train: bool
    #: cycles per sample that no plan of one replica can beat (its areas fill the wafer)
    bound: float
    single: int  #: cycles per sample of one replica alone on the wafer
    seed: int  #: of the placer
    decoding: Decoding | None = None  #: of a plan for inference, in which a sample is a token

    @property
    def cycles(self) -> int:
        """Cycles per sample of the slowest kernel."""
        return max(kernel.cycles for kernel in self.kernels)

    @property
    def slowest(self) -> PlacedKernel:
        """The kernel that bounds the throughput."""
        return max(self.kernels, key=lambda kernel: kernel.cycles)

    @property
    def compute_samples(self) -> float:
        """Samples per second of all replicas, were the input never late."""
        return len(self.plan.replicas) * self.spec.clock_hz / self.cycles

    @property
    def transmission_samples(self) -> float:
        """Samples per second that the wafer's input takes."""
        return INPUT_BYTES / max(self.sample_bytes, 1)

    @property
    def samples(self) -> float:
        """Samples per second: the lower of the two."""
        return min(self.compute_samples, self.transmission_samples)

    @property
    def speedup(self) -> float:
        """Of all replicas over one alone."""
        one = min(self.spec.clock_hz / self.single, self.transmission_samples)
        return self.samples / one

    @property
    def active_share(self) -> float:
        """Share of the wafer's PEs that lie in a region."""
        area = sum(r.width * r.height for r in self.plan.regions) * len(self.plan.replicas)
        return area / (self.plan.width * self.plan.height)

    @property
    def busy_share(self) -> float:
        """Share of the time in which the active PEs run kernel code, the report's utilization."""
        busy = sum(
            r.width * r.height * k.cycles
            for r, k in zip(self.plan.regions, self.kernels, strict=True)
        )
        return busy / (sum(r.width * r.height for r in self.plan.regions) * self.cycles)

    @property
    def arithmetic_share(self) -> float:
        """Share of the active PEs' cycles that would do at full rate: overheads left out."""
        area = sum(r.width * r.height for r in self.plan.regions)
        return sum(kernel.useful for kernel in self.kernels) / (area * self.cycles)

    @property
    def tokens(self) -> float:
        """Tokens per second of all sequences in all copies; 0 without decoding."""
        if self.decoding is None:
            return 0.0
        alone = self.spec.clock_hz / self.decoding.latency
        return min(len(self.plan.replicas) * self.decoding.sequences * alone, self.samples)

    @property
    def bounded_by(self) -> str:
        """What the tokens per second would rise with."""
        if self.decoding is None:
            return ""
        if self.tokens == self.samples:
            return f"the slowest kernel, {self.slowest.name}"
        kind, cycles = next(iter(self.decoding.kinds.items()))
        return f"the way of a token: {kind}, {cycles / self.decoding.latency:.0%} of it"
