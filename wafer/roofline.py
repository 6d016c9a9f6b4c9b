"""How long a streamed step would take on a stated machine: a roofline per stage, then a sum.

A stage's time is the longest of what runs at once: its arithmetic, the traffic of its weights and
activations to the device's memory, and the fetching of its weights from MemoryX (which SwarmX
broadcasts to all systems, so it does not grow with their number). The reduction of gradients
through SwarmX overlaps the backward sweep likewise; its latency does not. Letters: N systems,
T tokens of the whole batch.
"""

import dataclasses
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import psutil

from wafer.machine.arch import ARCHITECTURES
from wafer.models.base import Model
from wafer.models.counts import flops_per_token
from wafer.models.paths import Params, named_leaves
from wafer.spec import WSE2


@dataclasses.dataclass(frozen=True, kw_only=True)
class SystemRates:
    """What the roofline knows of one system and of what joins them."""

    name: str  #: for the table
    flops: float  #: operations per second it sustains on large matrix products
    memory: float  #: bytes per second between its arithmetic and its memory
    fetch: float  #: bytes per second of weights from MemoryX, all systems getting the same ones
    reduce: float  #: bytes per second of gradients through SwarmX, whatever N
    hop: float  #: seconds of latency per stage and doubling of N
    store: float  #: bytes per second of MemoryX's own updates
    capacity: float  #: bytes of memory
    shared: bool = False  #: systems are devices of one host and share flops, memory and capacity
    note: str = ""  #: where the numbers come from


# CS-2: 2 operations x 4 lanes (16 bit) x 850,000 cores x 0.85 GHz; 20 PB/s SRAM; 1.2 Tb/s I/O.
_CORES = ARCHITECTURES["wse2"].cores
_CS2_PEAK = 2 * WSE2.simd_16bit * _CORES * WSE2.clock_hz
MACHINES = {
    "cs2": SystemRates(
        name="CS-2",
        flops=0.36 * _CS2_PEAK,
        memory=20e15,
        fetch=150e9,
        reduce=150e9,
        hop=2e-6,
        store=300e9,
        capacity=_CORES * WSE2.sram_bytes,
        note="data sheet; 36 % of peak, what SUMMA sustains on a CS-2; MemoryX updates assumed "
        "at twice the link",
    ),
    "h200": SystemRates(
        name="H200",
        flops=0.5 * 989e12,
        memory=4.8e12,
        fetch=55e9,
        reduce=225e9,
        hop=10e-6,
        store=200e9,
        capacity=141e9,
        note="data sheet, bfloat16; half of peak, PCIe 5 x16 for weights, NVLink for gradients",
    ),
}


@dataclasses.dataclass(frozen=True)
class StageCost:
    """What one stage takes, per step of T tokens."""

    name: str  #: of the stage
    weights: float  #: bytes of its branches
    flops: float  #: of the forward pass
    activations: float  #: bytes of its input, for all tokens
    fresh: float  #: bytes of parameters whose update ends here
    products: float = 0.0  #: bytes of the results of its products with weights, for all tokens
    kept: float = 0.0  #: of these, bytes that its backward pass is given
    uses: int = 1  #: times that it uses its weights; each gives a gradient of their size


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A step on N systems."""

    systems: int  #: N
    seconds: float  #: of a step
    compute: float  #: seconds in which arithmetic or memory bounds
    waited: float  #: seconds in which weights, gradients or updates are waited for beyond that
    latency: float  #: seconds of hops
    #: bytes on each system at the peak: two stages' weights and a gradient, activations
    memory: float
    streamed: float  #: bytes that leave and enter MemoryX
    stages: dict[str, tuple[float, float]]  #: stage -> (forward, backward) seconds
    #: seconds of a step of one program whose state is in N parts (``shard_state``)
    sharded_seconds: float = 0.0
    sharded_memory: float = 0.0  #: bytes on each system at its peak


def costs(
    model: Model, shapes: Params, tokens: int, length: int, *, bytes_each: float
) -> list[StageCost]:
    """Count what each stage of a model takes.

    Args:
        model: any family with ``hidden_size``.
        shapes: of its parameters.
        tokens: T, of the whole batch.
        length: S, of a sequence.
        bytes_each: of a parameter or activation on its way.
    """
    sizes = {
        name: sum(math.prod(x.shape) for _, x in named_leaves(b)) for name, b in shapes.items()
    }
    kernels = {
        name: sum(math.prod(x.shape) for leaf, x in named_leaves(b) if leaf.endswith("kernel"))
        for name, b in shapes.items()
    }
    widths = {
        name: sum(x.shape[-1] for leaf, x in named_leaves(b) if leaf.endswith("kernel"))
        for name, b in shapes.items()
    }
    total = flops_per_token(model, length, training=False)
    layers = [s for s in model.stages if "layer" in s.kind]
    tied = scores = 0.0
    cfg = model.config
    if getattr(cfg, "with_lm_head", False) and getattr(cfg, "share_embedding_weights", False):
        tied, scores = 2.0 * cfg.vocab_size * cfg.hidden_size, cfg.vocab_size
    attention = total - 2.0 * sum(kernels.values()) - tied  # what no kernel accounts for
    first = {name: i for i, s in reversed(list(enumerate(model.stages))) for name in s.params}
    activations = bytes_each * tokens * getattr(cfg, "hidden_size", 1)
    two_sided = getattr(cfg, "share_encoder_decoder_embedding", False)
    out = []
    for i, stage in enumerate(model.stages):
        flops = 2.0 * sum(kernels[name] for name in stage.params)
        if stage in layers:
            flops += attention / len(layers)
        width = sum(widths[name] for name in stage.params)
        if i == len(model.stages) - 1:
            flops, width = flops + tied, width + scores
        products = bytes_each * tokens * width
        out.append(
            StageCost(
                name=stage.name,
                weights=bytes_each * sum(sizes[name] for name in stage.params),
                flops=flops * tokens,
                activations=activations,
                fresh=bytes_each * sum(sizes[n] for n in stage.params if first[n] == i),
                products=products,
                # The last product of a layer is in the input of the next stage.
                kept=max(products - activations, 0.0) if stage in layers else products,
                uses=2 if two_sided and i == 0 else 1,
            )
        )
    return out


def predict(
    stages: list[StageCost],
    machine: SystemRates,
    systems: int,
    *,
    state_ratio: float,
    recompute: bool,
) -> Prediction:
    """Predict a streamed step.

    Args:
        stages: from ``costs``.
        machine: what it runs on.
        systems: N; each takes T / N tokens.
        state_ratio: optimizer-state bytes per weight byte.
        recompute: the backward sweep computes each stage's forward pass again.
    """
    workers = 1 if machine.shared else systems
    seconds = compute = waited = latency = streamed = 0.0
    hop = machine.hop * math.ceil(math.log2(systems)) if systems > 1 else 0.0
    per_stage: dict[str, tuple[float, float]] = {}
    last = stages[-1]
    for stage in stages:
        copies = systems if machine.shared else 1  # devices of one host all read their own copy
        moved = stage.weights * copies + 8 * stage.activations / workers
        work = stage.flops / workers / machine.flops
        down = max(work, moved / machine.memory)
        up = max((3 if recompute and stage is not last else 2) * work, 2 * moved / machine.memory)
        bring = stage.weights / machine.fetch
        give = stage.fresh / machine.reduce if systems > 1 else 0.0
        update = stage.fresh * (3 + 2 * state_ratio) * copies / machine.store
        if machine.shared:  # the host itself updates: nothing overlaps
            forward, backward = max(down, bring), max(up, bring) + give + update
        else:
            forward, backward = max(down, bring), max(up, bring, give, update)
        forward = 0.0 if stage is last else forward
        backward += down if stage is last else 0.0
        per_stage[stage.name] = (forward + hop, backward + hop)
        seconds += forward + backward + 2 * hop
        compute += up + down
        waited += forward + backward - up - down
        latency += 2 * hop
        streamed += stage.weights * (1 if stage is last else 2) + stage.fresh
    largest = max(stage.weights for stage in stages)
    boundaries = sum(stage.activations for stage in stages) / systems
    return Prediction(
        systems=systems,
        seconds=seconds,
        compute=compute,
        waited=waited,
        latency=latency,
        memory=3 * largest + boundaries,
        streamed=streamed,
        stages=per_stage,
    )


def predict_sharded_seconds(
    stages: list[StageCost],
    machine: SystemRates,
    systems: int,
    *,
    weights: float,
    moments: float,
    copied: float = 0.0,
) -> float:
    """Predict the seconds of a step of sharded state.

    A stage waits for its weights twice and for the reduction of its gradients; nothing overlaps.

    Args:
        stages: from ``costs``.
        machine: what it runs on.
        systems: N; each takes T / N tokens.
        weights: bytes of the weights as they are stored; gradients have as many.
        moments: bytes of the optimizer state.
        copied: share of both that every system holds whole, since N divides no axis of it.
    """
    held = copied + (1 - copied) / systems
    workers, copies = (1, systems) if machine.shared else (systems, 1)
    hop = machine.hop * math.ceil(math.log2(systems)) if systems > 1 else 0.0
    stored = weights / sum(stage.fresh for stage in stages)  # bytes that are stored per byte
    seconds = (2 * weights + moments) * copies * held / machine.memory  # the update
    for stage in stages:
        moved = stage.weights * copies + 8 * stage.activations / workers
        work = 3 * stage.flops / workers / machine.flops
        seconds += max(work, 3 * moved / machine.memory) + 3 * hop
        if systems > 1:
            seconds += 3 * stored * stage.weights * copies / machine.reduce
    return seconds


def predict_sharded_bytes(
    stages: list[StageCost],
    systems: int,
    *,
    weights: float,
    moments: float,
    copied: float = 0.0,
    transposed: Sequence[float] = (),
    accumulates: bool = False,
) -> float:
    """Predict the bytes on each system at the peak of a step of sharded state.

    The peak is in the backward pass of a stage. There are parts of weights, moments, and gradients
    from the last stage to this one; the stage's weights and their gradients; inputs and products of
    the stages up to it, and the gradient of its own. What a stage computes between its products is
    not counted, and XLA may free some of it earlier: ``tests/bench/sharded.py`` compares.

    Args:
        stages: from ``costs``, for the tokens of a micro-batch of all systems.
        systems: N; each takes T / N tokens.
        weights: bytes of the weights as they are stored; gradients have as many.
        moments: bytes of the optimizer state.
        copied: share of both that every system holds whole, since N divides no axis of it.
        transposed: stage by stage, bytes of the weights that are split along another axis than
            their first: what is put together is transposed.
        accumulates: whether gradients are added up over micro-batches.
    """
    held = copied + (1 - copied) / systems
    stored = weights / sum(stage.fresh for stage in stages)  # bytes that are stored per byte
    gathered = stored * (1 - copied) if systems > 1 else 0.0
    peak, parts = 0.0, (1 + accumulates) * weights + moments
    kept = sum(stage.activations + stage.kept for stage in stages)
    extra = [*transposed] or [0.0] * len(stages)
    for stage, copy in reversed([*zip(stages, extra, strict=True)]):
        parts += stored * stage.fresh
        whole = gathered * (1 + stage.uses) * stage.weights + copy
        peak = max(peak, parts * held + (kept + stage.products) / systems + whole)
        kept -= stage.activations + stage.kept
    return peak


def _best(fn: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        jax.block_until_ready(fn())
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def measure_host(folder: str | None = None) -> SystemRates:
    """Measure this machine: a matrix product, a pass over memory, a file.

    Args:
        folder: where MemoryX would put its file; None measures memory only.
    """
    n = 1536
    a = jnp.ones((n, n), jnp.float32)
    product = jax.jit(lambda x: x @ x)
    flops = 2 * n**3 / _best(lambda: product(a))
    big = jnp.ones(1 << 25, jnp.float32)
    scale = jax.jit(lambda x: x * 1.5)
    memory = 2 * big.nbytes / _best(lambda: scale(big))
    fetch = memory
    if folder is not None:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            block = np.zeros(1 << 26, np.uint8)
            file.write(block.tobytes())
            file.flush()
            begin = time.perf_counter()
            os.pread(file.fileno(), block.nbytes, 0)
            fetch = block.nbytes / (time.perf_counter() - begin)
    return SystemRates(
        name="this host",
        flops=flops,
        memory=memory,
        fetch=fetch,
        reduce=memory / 3,
        hop=1e-4,
        store=memory,
        capacity=psutil.virtual_memory().total,
        shared=True,
        note="measured just now, float32; all systems share it",
    )
