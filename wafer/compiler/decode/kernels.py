"""A decoder's kernels for one token, and how fast a floor plan of them writes.

A token goes through all kernels before the next one can begin, so one sequence alone has the rate
of the whole way. Several sequences, or the tokens of a prompt, follow one another through the
kernels: then the slowest one bounds the rate.
"""

import dataclasses
import math
from collections.abc import Sequence

from wafer.compiler.decode.mesh import mesh_parts, token_cycles
from wafer.compiler.graph import Graph, Kernel, Product
from wafer.compiler.plan import Compiled, Decoding, Mesh
from wafer.spec import Region, WaferSpec

_SIDES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 757, 994)


@dataclasses.dataclass(frozen=True)
class Inference:
    """What a wafer is to write."""

    context: int  #: tokens of a sequence whose keys and values are kept
    sequences: int = 1  #: that are written at once, by each copy


def decoding_graph(graph: Graph, inference: Inference) -> Graph:
    """Kernels of one token, from those of a sequence's loss.

    Products have one vector, attention the queries of one token, and what was the loss looks for
    the likeliest token. Pruned weights are zeros, as a row of a GEMV takes as long with them.

    Args:
        graph: of a decoder's loss, forward and backward.
        inference: how many tokens attention is to.

    Raises:
        ValueError: no embedding to read a sequence's length from.
    """
    reads = [kernel for kernel in graph.kernels if kernel.kind == "embedding"]
    if not reads:
        raise ValueError("the graph has no embedding: tokens per second are of decoders alone")
    length = reads[0].products[0].T  # tokens of the sequence that was traced
    into: dict[int, int] = {}
    for _, target, numbers in graph.edges:
        into[target] = max(into.get(target, 0), numbers)
    kernels = tuple(
        _of_token(kernel, length, inference.context, into.get(at, 0) // length)
        for at, kernel in enumerate(graph.kernels)
    )
    edges = tuple((a, b, max(1, n // length)) for a, b, n in graph.edges)
    return Graph(kernels, edges, 4)  # a token's number


def _of_token(kernel: Kernel, length: int, context: int, width: int) -> Kernel:
    """The kernel for one token; ``width`` numbers come in from the widest of those before."""
    per = lambda count: math.ceil(count / length)
    products = tuple(dataclasses.replace(p, T=per(p.T)) for p in kernel.products)
    lanes, half, elements, name = kernel.lanes, kernel.half_lanes, kernel.elements, kernel.name
    kind = kernel.kind
    if kind == "attention":
        # Scores and their values; keys are on one side of the traced product, queries on the other.
        first = kernel.products[0]
        queries = (first.T // length) * (first.N // length)
        products = (
            Product(first.groups, queries, first.K, context),
            Product(first.groups, queries, context, first.K),
        )
        share = context / length**2
        lanes, half = math.ceil(lanes * share), math.ceil(half * share)
    elif kind == "loss":
        name, kind, lanes, half, elements = "likeliest", "norm", 2 * width, 0, width
    else:
        lanes, half, elements = per(lanes), per(half), per(elements)
    return dataclasses.replace(
        kernel,
        name=name,
        kind=kind,
        layer=name if name == "likeliest" else kernel.layer,
        products=products,
        lanes=lanes,
        half_lanes=half,
        elements=max(1, elements),
        inputs=per(kernel.inputs),
        outputs=per(kernel.outputs),
        stashed=0,
        needs_dx=False,
        needs_dw=False,
        density=1.0,
    )


def with_decoding(
    compiled: Compiled, graph: Graph, inference: Inference, mesh: Mesh | None
) -> Compiled:
    """The floor plan with what it writes per second.

    Args:
        compiled: the plan of ``graph``.
        graph: of ``decoding_graph``.
        inference: what it was placed for.
        mesh: the decoder on one mesh, from ``fastest_mesh``.
    """
    regions = compiled.plan.regions
    busy = [kernel.cycles for kernel in compiled.kernels]
    latency, way = _longest(busy, regions, graph)
    kinds: dict[str, int] = {}
    for at in way:
        kind = compiled.kernels[at].kind
        kinds[kind] = kinds.get(kind, 0) + busy[at]
    kinds["ways"] = latency - sum(kinds.values())
    caches, fullest = [0], [0]  # bytes of keys and values: of a sequence, of a kernel's fullest PE
    for kernel, placed in zip(graph.kernels, compiled.kernels, strict=True):
        if kernel.kind == "attention":
            product = kernel.products[0]
            size = 2 * product.K * (kernel.bits // 8)
            caches.append(size * product.groups * product.N)
            heads, tokens = product.groups / placed.rows, product.N / placed.columns
            fullest.append(size * math.ceil(heads) * math.ceil(tokens) * inference.sequences)
    decoding = Decoding(
        context=inference.context,
        sequences=inference.sequences,
        latency=latency,
        kinds=dict(sorted(kinds.items(), key=lambda pair: -pair[1])),
        cache=sum(caches),
        cache_pe=max(fullest),
        mesh=mesh,
    )
    return dataclasses.replace(compiled, decoding=decoding)


def _longest(busy: Sequence[int], regions: Sequence[Region], graph: Graph) -> tuple[int, list[int]]:
    """Cycles until the last kernel is through, and the kernels on the way that takes longest."""
    finish, before = list(busy), [-1] * len(busy)
    for source, target, _ in sorted(graph.edges, key=lambda edge: edge[1]):
        a, b = regions[source], regions[target]
        across = abs(2 * a.x + a.width - 2 * b.x - b.width)  # between the middles, in half PEs
        down = abs(2 * a.y + a.height - 2 * b.y - b.height)
        arrived = finish[source] + (across + down) // 2  # a router takes a cycle
        if arrived + busy[target] > finish[target]:
            finish[target], before[target] = arrived + busy[target], source
    kernel = max(range(len(finish)), key=finish.__getitem__)
    latency, path = finish[kernel], []
    while kernel >= 0:
        path.append(kernel)
        kernel = before[kernel]
    return latency, path[::-1]


def fastest_mesh(cfg: object, inference: Inference, spec: WaferSpec) -> Mesh | None:
    """The mesh on which the example ``decoder`` writes fastest; None if it does not do the model.

    Args:
        cfg: of the model.
        inference: tokens of a sequence; the program writes one at once.
        spec: the machine.
    """
    meshes = []
    for height in (side for side in _SIDES if side <= spec.height):
        for width in (side for side in _SIDES if side <= spec.width):
            if parts := mesh_parts(cfg, (height, width), inference.context):
                cycles = token_cycles(parts, inference.context - 1)
                meshes.append(Mesh(height, width, cycles, parts.bytes))
    return min(meshes, key=lambda mesh: mesh.cycles, default=None)
