"""What a kernel costs on h x w PEs: cycles of its three phases and SRAM, by closed formulas.

Products follow the fabric's own kernels (:mod:`wafer.fabric.library`): weights stay in tiles,
columns of PEs share inputs, rows share outputs. Data enter from the north and are broadcast down
the columns, each PE adds scaled vectors (one ``@fmacs`` in a CSL loop: ``1 + n`` cycles and 43 of
overhead, ``n`` shortened by SIMD in 16 bit), partial sums are chained along the rows and leave in
the west. Streams overlap the products, as in SUMMA. A pruned weight is in no list and costs no
turn. The phases share the PEs, so a kernel's cycles per sample are their sum.

Letters: T vectors per sample, t of them at a time, K inputs, N outputs; a PE has k inputs and n
outputs, p of the N T queries of attention, s keys.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from wafer.compiler.decode.mesh import attention_cycles, gemv_cycles, norm_cycles
from wafer.compiler.dense_kernel import dense_cost, loss_cost
from wafer.compiler.graph import Kernel
from wafer.fabric.library.kernels import FMACS_LOOP
from wafer.spec import WSE2, WaferSpec

CODE_BYTES = 4096
"""Program and stack of a PE: the fabric's own programs are well below it."""
_MATCH = 10  # cycles to compare an id with a PE's range and branch, scalar code
_UPDATE = 6  # operations per weight of an optimizer step (Adam's moments, decay, the weight)
_PASSES = 3  # lane operations of forward and backward together, per forward one

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the costs of a kernel depend on besides the kernel."""

    spec: WaferSpec = WSE2  #: the machine
    batch: int = 1  #: samples of an optimizer step
    micro: int = 1  #: samples that pass through a net of dense layers together
    state_bytes: float = 8.0  #: optimizer state per weight
    waiting: int = 1  #: samples begun and not yet undone at this layer: their stashes are held
    after: int = 1  #: kernels behind this one, the loss included
    train: bool = True  #: False for a forward pass alone
    #: the net is of dense layers on vectors (T = 1), which have a kernel of their own
    dense: bool = False
    #: that a decoder writes at once, a token of one after another; 0 is no decoding
    sequences: int = 0

    def simd(self, kernel: Kernel) -> int:
        """Numbers that a PE works on in a cycle."""
        return self.spec.simd_16bit if kernel.bits == 16 else 1


@dataclasses.dataclass(frozen=True)
class Choices:
    """Ways to run a kernel, in columns; rows and columns are h and w, one PE for each part."""

    rows: Array
    columns: Array
    forward: Array  #: cycles per sample, of each phase
    backward: Array
    update: Array
    sram: Array  #: bytes of the fullest PE

    @property
    def cycles(self) -> Array:
        """Cycles per sample."""
        return self.forward + self.backward + self.update

    def fitting(self, limit: int) -> "Choices":
        """Those whose fullest PE needs at most ``limit`` bytes."""
        return self._where(self.sram <= limit)

    def within(self, slack: float) -> "Choices":
        """Those at most so many times as slow as the fastest."""
        return self._where(self.cycles <= slack * self.cycles.min())

    def _where(self, keep: Array) -> "Choices":
        return Choices(*(getattr(self, f.name)[keep] for f in dataclasses.fields(self)))


def tile_cycles(m: Array, k: Array | int, n: Array | int, simd: int) -> Array:
    """Return the cycles of ``C[m, n] += A[m, k] B[k, n]`` inside a PE: the better of two loops.

    ``k n (1 + m / simd + 43)`` as :func:`wafer.fabric.library.kernels.tile_matmul_cycles`.

    Args:
        m: rows, [choices]; the vector of one loop.
        k: summed.
        n: columns; the vector of the other loop.
        simd: elements per cycle.
    """
    return np.minimum(k * n * _turn(m, simd), k * m * _turn(n, simd))


def _ceil(a: Array | int, b: Array | int) -> Array:
    return -(-np.asarray(a) // b)


def _steps(n: int) -> Array:
    """The splits of ``n`` worth trying: the least s for each value of ceil(n / s), ascending."""
    parts = np.arange(1, n + 1)
    return np.unique(-(-n // -(-n // parts)))


def _grid(rows: int, columns: int, spec: WaferSpec) -> tuple[Array, Array]:
    """Splits worth trying that fit the wafer either way round."""
    longest, widest = max(spec.width, spec.height), min(spec.width, spec.height)
    h, w = (x.ravel() for x in np.meshgrid(_steps(rows), _steps(columns), indexing="ij"))
    fits = (np.maximum(h, w) <= longest) & (np.minimum(h, w) <= widest)
    return h[fits].astype(np.int64), w[fits].astype(np.int64)


def matmul_cycles(
    dims: tuple[int, Array, Array], chunk: Array, simd: int, density: Array | None = None
) -> tuple[Array, Array]:
    """Return the cycles of T vectors through tiles [k, n].

    Words of 32 bits cross a link one per cycle, so ``simd > 1`` packs two numbers into each.

    Args:
        dims: (T, k, n), k and n [choices].
        chunk: [choices] vectors that a PE works on at a time.
        simd: elements per cycle.
        density: [choices] kept share of each tile; None is all.

    Returns:
        (forward or input gradient, weight gradient), [choices] each.
    """
    (T, k, n), pack = dims, 2 if simd > 1 else 1
    chunks = np.ceil(T / chunk)
    kept = k * n if density is None else np.ceil(k * n * density)
    by_vector = kept * _turn(chunk, simd)
    products = by_vector
    if density is None:  # a whole row of the tile may be the vector
        products = np.minimum(by_vector, chunk * k * _turn(n, simd))
    stream = _ceil(chunk * (k + n), pack)
    gradient = np.maximum(products, _ceil(chunk * k, pack))
    return chunks * np.maximum(products, stream), chunks * gradient


def _turn(length: Array | int, simd: int) -> Array:
    """Cycles of one ``@fmacs`` in a loop."""
    return 1 + _ceil(length, simd) + FMACS_LOOP


def _fill(numbers: tuple[Array, Array], h: Array, w: Array, spec: WaferSpec, simd: int) -> Array:
    """Cycles until the first numbers are in (a broadcast) and after the last product (a chain)."""
    (into, out), pack = numbers, 2 if simd > 1 else 1
    arrive = _ceil(into, pack) + (h - 1) + 2 * spec.ramp_latency + 1
    return arrive + _ceil(out, pack) + spec.hop_to_hop * (w - 1)


def weight_bytes(kernel: Kernel, setting: Setting) -> float:
    """Bytes per kept weight: 32-bit master, 16-bit copy, index, gradient, optimizer state."""
    copy = 2 if kernel.bits == 16 else 0
    index = 2 if kernel.density < 1 else 0
    if not (setting.train and kernel.needs_dw):
        return (copy or 4) + index
    return 4 + copy + index + 4 + setting.state_bytes


def _rest(kernel: Kernel, setting: Setting, pes: Array) -> tuple[Array, Array, Array]:
    """(lane cycles forward, lane cycles backward, bytes of stashes) shared out over the PEs."""
    simd = setting.spec.simd_16bit
    lanes = kernel.lanes + kernel.half_lanes / simd
    forward = np.ceil(lanes / pes)
    trained = setting.train and (kernel.needs_dx or kernel.needs_dw)
    stash = kernel.stashed * setting.waiting if trained else 0
    return forward, (_PASSES - 1) * forward * trained, np.ceil(stash / pes)


def _matmul(kernel: Kernel, setting: Setting) -> Choices:
    spec = setting.spec
    product = max(kernel.products, key=lambda p: p.macs)
    K, N = product.K, product.N
    wide = K * product.groups if kernel.kind == "convolution" else K
    h, w = _grid(N, wide, spec)
    k, n = _ceil(wide, w), _ceil(N, h)
    pes = h * w
    simd = setting.simd(kernel)
    density, weights = None, k * n
    if kernel.density < 1:  # the share kept in the fullest of random tiles, in expectation
        spread = np.sqrt(
            2 * weights * kernel.density * (1 - kernel.density) * np.log(np.maximum(2, pes))
        )
        density = np.minimum(1.0, kernel.density + spread / weights)
        weights = np.ceil(weights * density)
    held = weights * weight_bytes(kernel, setting)
    lanes, lanes_back, stash = _rest(kernel, setting, pes)
    free = spec.sram_bytes - CODE_BYTES - held - stash
    token_bytes = (k + n) * 2 * (kernel.bits // 8)  # in and out, twice: one moves while one is used
    chunk = np.clip(free // token_bytes, 1, product.T)
    chunk = np.ceil(product.T / np.ceil(product.T / chunk)).astype(np.int64)
    pass_, gradient = matmul_cycles((product.T, k, n), chunk, simd, density)
    others = sum(p.macs for p in kernel.products) / product.macs
    fill = _fill((chunk * k, chunk * n), h, w, spec, simd)
    forward = pass_ * others + fill + lanes
    backward = (pass_ * others + fill) * (setting.train and kernel.needs_dx) + lanes_back
    trains = setting.train and kernel.needs_dw
    update = (gradient * others + weights * _UPDATE / setting.batch) * trains
    sram = CODE_BYTES + held + stash + chunk * token_bytes
    return _choices(h, w, forward, backward, update, sram)


def _attention(kernel: Kernel, setting: Setting) -> Choices:
    spec = setting.spec
    first, second = kernel.products[0], kernel.products[min(1, len(kernel.products) - 1)]
    heads, queries, size, keys = first.groups, first.T, first.K, first.N
    h, w = _grid(heads * queries, keys, spec)
    p, s = _ceil(heads * queries, h), _ceil(keys, w)
    pes = h * w
    simd = setting.simd(kernel)
    pe_heads = np.ceil(p / queries)  # heads whose keys a PE needs
    block = np.minimum(p, queries)
    pack = 2 if simd > 1 else 1
    scores = pe_heads * tile_cycles(block, np.full_like(s, size), s, simd)
    mixed = pe_heads * tile_cycles(block, s, np.full_like(s, size), simd)
    stream = _ceil(p * size + 2 * pe_heads * s * size, pack)
    lanes, lanes_back, stash = _rest(kernel, setting, pes)
    fill = _fill((p * size, p * size), h, w, spec, simd)
    others = sum(x.macs for x in kernel.products) / (first.macs + second.macs)
    products = others * (scores + mixed) * (1 if len(kernel.products) > 1 else 0.5)
    forward = np.maximum(products, stream) + fill + lanes
    # Scores again, then a gradient for both operands of both products.
    back = np.maximum(2.5 * products, 2 * stream) + fill
    backward = (back + lanes_back) * (setting.train and kernel.needs_dx)
    tile = p * np.minimum(s, 64)  # scores of some keys at a time
    sram = CODE_BYTES + stash + (2 * p * size + 2 * pe_heads * s * size + tile) * (kernel.bits // 8)
    return _choices(h, w, forward, backward, np.zeros(len(h)), sram)


def _lookup(kernel: Kernel, setting: Setting) -> Choices:
    spec = setting.spec
    product = max(kernel.products, key=lambda x: x.K)
    h, w = _grid(product.K, product.N, spec)
    n, held = _ceil(product.N, w), _ceil(product.K, h) * _ceil(product.N, w)
    nbytes = weight_bytes(kernel, setting)
    pack = 2 if kernel.bits == 16 else 1
    lanes, lanes_back, stash = _rest(kernel, setting, h * w)
    words = _ceil(product.T * n, pack)
    forward = product.T * _MATCH + words + h + lanes
    trains = setting.train and kernel.needs_dw
    update = (product.T * _MATCH + words + held * _UPDATE / setting.batch) * trains
    buffers = 2 * n * (kernel.bits // 8)
    return _choices(h, w, forward, lanes_back, update, CODE_BYTES + held * nbytes + stash + buffers)


def _lanewise(kernel: Kernel, setting: Setting) -> Choices:
    """Norms, losses, elementwise functions: lane operations and two sums along each row."""
    spec = setting.spec
    side = max(1, math.isqrt(kernel.elements))
    longest = min(max(spec.width, spec.height), max(1, kernel.elements))
    sizes = np.unique(
        np.concatenate(
            [np.geomspace(1, longest, 60).round().astype(np.int64), [min(side, longest)]]
        )
    )
    h, w = (x.ravel() for x in np.meshgrid(sizes, sizes, indexing="ij"))
    fits = (h * w <= max(1, kernel.elements)) & (np.minimum(h, w) <= min(spec.width, spec.height))
    h, w = h[fits], w[fits]
    lanes, lanes_back, stash = _rest(kernel, setting, h * w)
    chain = spec.hop_to_hop * (w - 1)
    rows = np.ceil(side / h)
    sums = np.where(w > 1, 2 * (rows + chain), 0) if kernel.kind in {"norm", "loss"} else 0 * w
    held = kernel.weights * weight_bytes(kernel, setting) / np.minimum(w, max(1, kernel.weights))
    # A loss passes over its scores several times and turns round at once: it holds one sample.
    elements = kernel.elements if kernel.kind == "loss" else kernel.elements / max(side, 1)
    buffers = np.ceil(elements / (h * w)) * (kernel.bits // 8)
    backward = lanes_back + sums * (setting.train and kernel.needs_dx)
    zero = np.zeros(len(h))
    return _choices(h, w, lanes + sums, backward, zero, CODE_BYTES + held + stash + buffers)


def _dense(kernel: Kernel, setting: Setting) -> Choices:
    """A dense layer on single vectors: the fabric's own trainable kernel, micro-batch by batch."""
    product = kernel.products[0]
    rows, spec = [], setting.spec
    for h, w in zip(*_grid(product.N, product.K, spec), strict=True):
        cost = dense_cost(
            product.K,
            product.N,
            int(h),
            int(w),
            nnz=None if kernel.density == 1 else round(kernel.density * product.K * product.N),
            batch=setting.micro,
            input_gradient=kernel.needs_dx,
            momentum=setting.state_bytes > 0,
            stages_after=setting.after,
            spec=spec,
        )
        waits = cost.period - cost.forward  # with the words it moves, or for its streams
        rows.append((h, w, cost.forward, waits, cost.update, CODE_BYTES + 4 * cost.sram_words))
    h, w, forward, backward, update, sram = (np.asarray(x) for x in zip(*rows, strict=True))
    forward, backward = np.ceil(forward / setting.micro), np.ceil(backward / setting.micro)
    trains = setting.train and kernel.needs_dw
    update = update / setting.batch * trains
    return _choices(h, w, forward, backward * setting.train, update, sram)


def _dense_loss(kernel: Kernel, setting: Setting) -> Choices:
    pes = np.arange(1, 65)
    costs = [loss_cost(kernel.elements, setting.micro, int(p), setting.spec) for p in pes]
    forward = np.asarray([c.forward for c in costs]) / setting.micro
    backward = np.asarray([c.period - c.forward for c in costs]) / setting.micro
    sram = np.asarray([CODE_BYTES + 4 * c.sram_words for c in costs])
    return _choices(pes, np.ones_like(pes), forward, backward, np.zeros(len(pes)), sram)


def _gemv(kernel: Kernel, setting: Setting) -> Choices:
    """A product with a weight, of one token."""
    spec = setting.spec
    product = max(kernel.products, key=lambda p: p.macs)
    h, w = _grid(product.N, product.K, spec)
    k, n = _ceil(product.K, w), _ceil(product.N, h)
    simd = setting.simd(kernel)
    others = sum(p.macs for p in kernel.products) / product.macs
    lanes, _, _ = _rest(kernel, setting, h)
    forward = gemv_cycles(k, n, (h, w), simd) * others + lanes
    held = k * n * others * weight_bytes(kernel, setting)
    buffers = 2 * (k + n) * (kernel.bits // 8)
    return _choices(h, w, forward, 0, 0, CODE_BYTES + held + buffers)


def _cached_attention(kernel: Kernel, setting: Setting) -> Choices:
    """Attention of one token to those before it, whose keys and values stay on the PEs."""
    spec, product = setting.spec, kernel.products[0]
    h, w = _grid(product.groups, product.N, spec)
    pe_heads, held = _ceil(product.groups, h), _ceil(product.N, w)
    forward = attention_cycles(kernel, pe_heads, held, w, spec)
    cache = 2 * pe_heads * product.K * held * setting.sequences
    scores = pe_heads * product.T * (held + 3 * product.K)
    return _choices(h, w, forward, 0, 0, CODE_BYTES + (cache + scores) * (kernel.bits // 8))


def _one_norm(kernel: Kernel, setting: Setting) -> Choices:
    """A norm of one vector, or the search for its greatest number, on a line of PEs."""
    spec = setting.spec
    w = _steps(min(kernel.elements, spec.width, spec.height)).astype(np.int64)
    lanes, _, _ = _rest(kernel, setting, w)
    words = np.ceil(kernel.elements / w) + np.ceil(kernel.weights / w)
    sram = CODE_BYTES + words * weight_bytes(kernel, setting)
    return _choices(np.ones_like(w), w, norm_cycles(lanes, w), 0, 0, sram)


def _choices(h: Array, w: Array, *columns: Array | float) -> Choices:
    """Forward, backward, update, SRAM, rounded up to whole cycles and bytes."""
    whole = lambda x: np.ceil(np.broadcast_to(x, h.shape)).astype(np.int64)
    return Choices(h, w, *(whole(x) for x in columns))


_BY_KIND: dict[str, Callable[[Kernel, Setting], Choices]] = {
    "matmul": _matmul,
    "convolution": _matmul,
    "attention": _attention,
    "embedding": _lookup,
}
_DECODING = _BY_KIND | {"matmul": _gemv, "attention": _cached_attention, "norm": _one_norm}


def choices_of(kernel: Kernel, setting: Setting) -> Choices:
    """All useful ways to run a kernel, whether or not they fit a PE's memory."""
    if setting.sequences:
        return _DECODING.get(kernel.kind, _lanewise)(kernel, setting)
    if setting.dense and kernel.kind == "matmul":
        return _dense(kernel, setting)
    if setting.dense and kernel.kind == "loss":
        return _dense_loss(kernel, setting)
    return _BY_KIND.get(kernel.kind, _lanewise)(kernel, setting)


def is_dense_net(kernels: tuple[Kernel, ...]) -> bool:
    """Whether a graph is nothing but dense layers on single vectors, and a loss."""
    return all(
        k.kind in {"matmul", "loss"} and all(p.T == 1 and p.groups == 1 for p in k.products)
        for k in kernels
    )


def useful_cycles(kernel: Kernel, setting: Setting) -> float:
    """Cycles of one PE at full rate that the kernel's arithmetic of a sample takes."""
    simd = setting.simd(kernel)
    passes = 1.0
    if setting.train:
        passes += (2 if kernel.kind == "attention" else 1) * kernel.needs_dx
        passes += kernel.needs_dw and kernel.kind != "attention"
    lanes = kernel.lanes + kernel.half_lanes / setting.spec.simd_16bit
    trained = setting.train and (kernel.needs_dx or kernel.needs_dw)
    return kernel.macs * kernel.density * passes / simd + lanes * (_PASSES if trained else 1)
