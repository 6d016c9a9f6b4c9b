"""Compile a graph of kernels to a floor plan with its predicted speed.

``trace`` turns a function into the graph, ``compile_graph`` places it, in as many copies as asked
for. Samples flow through the layers as in ``stagewise.pipeline.schedule``: of S layers,
layer s holds the activations of S - s samples.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from jaxtyping import PyTree

from wafer.compiler.costs import (
    Choices,
    Setting,
    choices_of,
    is_dense_net,
    useful_cycles,
    weight_bytes,
)
from wafer.compiler.flatten import flatten
from wafer.compiler.floor import Fit, area_bound, fit, lay_out
from wafer.compiler.graph import Graph, Kernel
from wafer.compiler.matching import build_graph
from wafer.compiler.plan import INPUT_BYTES, Compiled, FloorPlan, PlacedKernel
from wafer.config.engines import engines_with
from wafer.errors import CapacityError
from wafer.models.paths import named_leaves
from wafer.spec import WSE2, Region, WaferSpec

_GIB = 2**30
_MIB = 2**20
# While a decoder writes a token, its kernels work one after another: each is to be fast, though
# another one bounds the plan's cap. Times as slow as its fastest rectangle that one may be.
_SLACKS = (1.05, 1.2, 1.5, 2.0, 4.0, 16.0, math.inf)
_COPIES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 20, 24, 30, 32, 40, 48, 64, 80, 96, 128, 192, 256)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Options of a compilation."""

    name: str = "model"  #: of the model, for the report
    spec: WaferSpec = WSE2  #: the machine
    batch: int = 1  #: samples of an optimizer step
    micro: int = 1  #: samples that pass through dense layers together
    state_bytes: float = 8.0  #: optimizer state per weight
    train: bool = True  #: False for a forward pass alone
    replicas: int = 1  #: copies; 0 takes as many as are fastest
    #: parts of a batch that copies must divide where the compiler chooses how many; 0 lets it take
    #: any number
    portions: int = 0
    seed: int = 0  #: of the placer
    sequences: int = 0  #: that a decoder writes at once, of a graph for decoding; 0 is no decoding


def trace(
    fn: Callable[..., PyTree],
    params: PyTree,
    *inputs: PyTree,
    frozen: frozenset[str] = frozenset(),
    densities: Mapping[str, float] | None = None,
) -> Graph:
    """Find the kernels of a function, without memory for its arrays.

    Args:
        fn: ``fn(params, *inputs)`` for one sample; a scalar result is a loss.
        params: tree of arrays or of ``jax.ShapeDtypeStruct``.
        *inputs: arrays or ``jax.ShapeDtypeStruct`` of one sample.
        frozen: names of parameters that are not trained.
        densities: kept share of each sparse parameter.

    Raises:
        CompileError: primitives that no kernel does, with their source lines.

    Example:
        >>> import jax.numpy as jnp
        >>> graph = trace(lambda w, x: jnp.tanh(x @ w), jnp.zeros((8, 4)), jnp.zeros(8))
        >>> [(kernel.kind, kernel.macs) for kernel in graph.kernels]
        [('matmul', 32)]
    """
    closed = jax.make_jaxpr(fn)(params, *inputs)
    leaves = named_leaves(params)
    names = [name or "weight" for name, _ in leaves]
    rest = len(closed.jaxpr.invars) - len(names)
    ops, ins, outs = flatten(closed, [*names, *[None] * rest], frozen)
    sizes = {name: int(np.prod(leaf.shape)) for name, (_, leaf) in zip(names, leaves, strict=True)}
    return build_graph(ops, ins, outs, sizes, dict(densities or {}))


def _settings(graph: Graph, options: CompileOptions) -> list[Setting]:
    layers = {name: i for i, name in enumerate(graph.layers)}
    dense = is_dense_net(graph.kernels)
    return [
        Setting(
            spec=options.spec,
            batch=options.batch,
            micro=options.micro if dense else 1,
            state_bytes=options.state_bytes,
            waiting=min(options.batch, len(layers) - layers[kernel.layer]),
            after=max(1, len(graph.kernels) - 1 - position),
            train=options.train,
            dense=dense,
            sequences=options.sequences,
        )
        for position, kernel in enumerate(graph.kernels)
    ]


def _memory(kernel: Kernel, setting: Setting) -> float:
    trained = setting.train and (kernel.needs_dx or kernel.needs_dw)
    weights = kernel.weights * kernel.density * weight_bytes(kernel, setting)
    return weights + kernel.stashed * setting.waiting * trained


def _all_choices(kernels: Sequence[Kernel], settings: Sequence[Setting]) -> list[Choices]:
    """Choices that fit a PE; kernels that differ in name alone share them."""
    known: dict[tuple[Kernel, Setting], Choices] = {}
    out = []
    for kernel, setting in zip(kernels, settings, strict=True):
        key = dataclasses.replace(kernel, name="", layer="", names=(), source=""), setting
        if key not in known:
            known[key] = choices_of(kernel, setting).fitting(setting.spec.sram_bytes)
        out.append(known[key])
    return out


def _capacity(
    graph: Graph, held: Sequence[float], choices: Sequence[Choices], spec: WaferSpec
) -> None:
    """Refuse what cannot fit, before any search.

    Raises:
        CapacityError: the kernel that needs most, the bytes, the advice.
    """
    pes = spec.width * spec.height
    areas = [int((c.rows * c.columns).min()) if len(c.rows) else pes + 1 for c in choices]
    if sum(areas) > pes:
        alone = max(areas) > pes  # a kernel that fits no number of PEs is the one to name
        raise _too_large(graph, held, int(np.argmax(areas if alone else held)), spec)


def _size(count: float) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:,.0f} MiB"


def _too_large(graph: Graph, held: Sequence[float], worst: int, spec: WaferSpec) -> CapacityError:
    pes = spec.width * spec.height
    available = pes * spec.sram_bytes
    kernel, needed = graph.kernels[worst], sum(held)
    weights = sum(k.weights for k in graph.kernels)
    is_partial = pes < WSE2.width * WSE2.height
    streaming = engines_with("lazy_restore")
    message = (
        f"the model does not fit on the wafer: {_size(needed)} are held at once (weights,"
        f" optimizer state, activations of the samples in flight; {weights:,} weights), and"
        f" {pes:,} PEs of {spec.sram_bytes // 1024} KiB have {_size(available)}, less code,"
        f" buffers and what tiles leave over. The kernel that needs most is {kernel.name}"
        f" ({kernel.kind}) with {held[worst] / _MIB:,.0f} MiB."
        + (" Use more of the wafer (runconfig.fabric). Or stream" if is_partial else " Stream")
        + f" the weights instead: runconfig.execution_strategy: {streaming}, or `wafer run"
        f" --execution {streaming}`; `wafer plan` predicts its speed"
    )
    return CapacityError(message, kernel=kernel.name, needed=needed, available=available)


def _replicate(
    graph: Graph, choices: Sequence[Choices], options: CompileOptions
) -> tuple[Fit, tuple[int, int]] | None:
    """The fastest copies: (what fits of one, (copies in x, copies in y)); None if none fits."""
    spec, edges = options.spec, [(a, b) for a, b, _ in graph.edges]
    pes = spec.width * spec.height
    smallest = sum(int((c.rows * c.columns).min()) for c in choices)
    limit = INPUT_BYTES / max(graph.sample_bytes, 1) / spec.clock_hz  # samples per cycle
    best: tuple[Fit, tuple[int, int]] | None = None
    rate, worse = 0.0, 0
    able = tuple(count for count in _COPIES if options.portions % count == 0)
    for count in (options.replicas,) if options.replicas else able:
        if smallest * count > pes or worse >= 3 or 1.001 * rate >= limit:
            break
        worse += 1
        for across, down in ((n, count // n) for n in range(1, count + 1) if count % n == 0):
            width, height = spec.width // across, spec.height // down
            skewed = max(across, down) > 4 * min(across, down) and not options.replicas
            if skewed or not min(width, height):
                continue
            most = count / (1.001 * rate) if rate else math.inf
            if (fitting := fit(choices, edges, width, height, most)) is not None:
                rate = min(count / fitting.cap, limit)
                best, worse = (fitting, (across, down)), 0
    return best


def _fastest(
    graph: Graph, choices: list[Choices], options: CompileOptions
) -> tuple[list[Choices], tuple[Fit, tuple[int, int]] | None]:
    """``_replicate``'s answer, and the choices that it is of."""
    if not options.sequences:
        return choices, _replicate(graph, choices, options)
    for slack in _SLACKS:
        known = {id(option): option.within(slack) for option in choices}
        quick = [known[id(option)] for option in choices]
        if (fastest := _replicate(graph, quick, options)) is not None:
            return quick, fastest
    return choices, None


def compile_graph(graph: Graph, options: CompileOptions | None = None) -> Compiled:
    """Give every kernel a rectangle so that the slowest is as fast as possible.

    Raises:
        CapacityError: it does not fit, once or in the copies asked for.
    """
    options = options or CompileOptions()
    spec = options.spec
    settings = _settings(graph, options)
    choices = _all_choices(graph.kernels, settings)
    held = list(map(_memory, graph.kernels, settings))
    _capacity(graph, held, choices, spec)
    choices, fastest = _fastest(graph, choices, options)
    if fastest is None:
        copies = options.replicas or 1
        each = [size * copies for size in held]
        raise _too_large(graph, each, int(np.argmax(each)), spec)
    fitting, (across, down) = fastest
    edges = [(a, b) for a, b, _ in graph.edges]
    single = floor = lay_out(choices, edges, fitting, options.seed)
    if across * down > 1 and (alone := fit(choices, edges, spec.width, spec.height)):
        single = lay_out(choices, edges, alone, options.seed)
    regions, kernels = [], []
    for kernel, setting, option, spot, size in zip(
        graph.kernels, settings, choices, floor.spots, held, strict=True
    ):
        h, w = int(option.rows[spot.choice]), int(option.columns[spot.choice])
        wide, high = (h, w) if spot.turned else (w, h)
        regions.append(Region(kernel.name, spot.x, spot.y, wide, high))
        flops = [kernel.flops[0], *(kernel.flops[1:] if setting.train else ())]
        pruned = 2 * kernel.macs * (1 - kernel.density) * len([f for f in flops if f])
        placed = PlacedKernel(
            name=kernel.name,
            kind=kernel.kind,
            layer=kernel.layer,
            rows=h,
            columns=w,
            forward=int(option.forward[spot.choice]),
            backward=int(option.backward[spot.choice]),
            update=int(option.update[spot.choice]),
            useful=useful_cycles(kernel, setting),
            flops=round(sum(flops) - pruned),
            sram=int(option.sram[spot.choice]),
            held=round(size),
            weights=kernel.weights,
            density=kernel.density,
            in_side="W" if spot.turned else "N",
            out_side="N" if spot.turned else "W",
        )
        kernels.append(placed)
    offsets = tuple(
        (i * (spec.width // across), j * (spec.height // down))
        for j in range(down)
        for i in range(across)
    )
    widths = [kernel.bits // 8 for kernel in graph.kernels]
    return Compiled(
        name=options.name,
        spec=spec,
        kernels=tuple(kernels),
        edges=tuple((a, b, n * widths[a]) for a, b, n in graph.edges),
        plan=FloorPlan(spec.width, spec.height, tuple(regions), offsets),
        sample_bytes=graph.sample_bytes,
        batch=options.batch,
        train=options.train,
        bound=area_bound(choices, spec.width, spec.height),
        single=single.cap,
        seed=options.seed,
    )
