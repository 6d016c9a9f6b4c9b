"""A dense layer that trains on a rectangle of PEs, and the loss: operation lists PE by PE.

Columns of PEs share out the inputs, rows the outputs; a PE keeps its tile of the weights, their
gradients and velocities, and the easternmost PEs the biases. For each micro-batch of B samples,
feature by feature:

- forward: inputs arrive in every PE of a column, each kept weight is one fmacs over the samples,
  partial sums run west along the rows, and the first column sends the outputs (after ReLU) on;
- backward: output gradients arrive in every PE of a row; a weight's gradient is the hardware's
  inner product over the samples (Rocki et al., SC'20), the inputs' gradient one fmacs per kept
  weight again; partial sums run north, and the first row sends them back, times the sign of the
  inputs (the ReLU of the layer before, whose outputs they are);
- after the last micro-batch every PE updates its weights in place.

Micro-batches are in flight in the order of PipeDream's 1F1B (Narayanan et al., SOSP'19), flushed
at the update, so that the result is the sequential one. Words arrive in microthreads, one buffer
ahead of the computation, and leave in others.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from wafer.fabric.library.kernel_programs import scaled_sum
from wafer.fabric.library.routes import chain_op
from wafer.fabric.program.ops import (
    Const,
    Mem,
    Op,
    fabin,
    fabout,
    fadds,
    fmaxs,
    fmovs,
    fmuls,
    mem,
    work,
)
from wafer.fabric.training.regions import RegionStream, Spot, reset_switches
from wafer.fabric.training.softmax import gradient_ops, loss_ops

# Microthreads: inputs and output gradients of two micro-batches in turn, outputs, input gradients,
# and what follows the last two.
_X, _DY, _Y, _DX, _AFTER_Y, _AFTER_DX = (0, 1), (2, 3), 4, 5, 6, 7
_AFTER = {_Y: _AFTER_Y, _DX: _AFTER_DX}


def schedule(micro_batches: int, flying: int) -> list[tuple[str, int]]:
    """Passes of one kernel in order: ``flying`` times forward, then backward, forward in turn.

    >>> schedule(3, 2)
    [('F', 0), ('F', 1), ('B', 0), ('F', 2), ('B', 1), ('B', 2)]
    """
    first = min(flying, micro_batches)
    order = [("F", m) for m in range(first)]
    for m in range(micro_batches):
        order.append(("B", m))
        if first + m < micro_batches:
            order.append(("F", first + m))
    return order


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerProgram:
    """What the PEs of one layer have in common."""

    name: str  #: prefix of its arrays
    batch: int  #: samples of a micro-batch
    micro_batches: int  #: of an optimizer step
    flying: int  #: micro-batches taken in before the first gradient comes back
    x: RegionStream  #: stream of the inputs
    dy: RegionStream  #: stream of the output gradients
    y: RegionStream  #: stream of the outputs
    dx: RegionStream | None  #: stream of the input gradients; None in the first layer
    rows: tuple[int, int]  #: the two colors of the chains along rows
    columns: tuple[int, int]  #: the two colors of the chains along columns
    relu: bool  #: whether the outputs pass a ReLU
    momentum: float  #: decay of the velocity; 0 keeps none

    @property
    def slots(self) -> int:
        """Inputs kept: those in flight, and the ones arriving."""
        return self.flying + len(self.x.colors)


class LayerTile(NamedTuple):
    """What is one PE's own."""

    place: Spot  #: (x, y)
    rank: tuple[int, int]  #: place in its row's chain and in its column's, 0 at the root
    size: tuple[int, int]  #: length of both chains
    inputs: int  #: inputs of its column
    outputs: int  #: outputs of its row
    #: (input, output) of each kept weight, counted inside the tile
    entries: tuple[tuple[int, int], ...]

    @property
    def biased(self) -> bool:
        """Whether the row's biases lie here, after the weights."""
        return self.rank[0] == self.size[0] - 1

    @property
    def stored(self) -> int:
        """Trained words."""
        return len(self.entries) + self.biased * self.outputs


def arrays(
    *,
    inputs: int,
    outputs: int,
    stored: int,
    batch: int,
    slots: int,
    ahead: int = 2,
    input_gradient: bool,
    momentum: bool,
) -> dict[str, int]:
    """Arrays of a layer's PE and their words; ``ahead`` output gradients arrive beforehand."""
    words = {"weights": stored, "gradients": stored, "rate": 1}
    words |= {"velocities": stored} if momentum else {}
    each = outputs * batch
    words |= {"x": slots * inputs * batch, "dy": (1 + ahead) * each, "y": 2 * each}
    if input_gradient:
        words |= {"dx": 2 * inputs * batch, "sign": inputs * batch}
    return words


def _ahead(ops: list[Op]) -> list[Op]:
    """Let all microthreads go before the task, so that a stream never waits for a product.

    The words of a stream pass through all PEs of a region together: one that is late holds all up.
    """
    levels = ["high"] * _AFTER_Y + ["medium"] * 2
    return [
        op if op.thread is None else dataclasses.replace(op, priority=levels[op.thread])
        for op in ops
    ]


def _wait(thread: int) -> Op:
    """Go on once a microthread is through."""
    return work(1, thread=thread)


class _PE:
    """Operations of one PE of a layer."""

    def __init__(self, layer: LayerProgram, tile: LayerTile) -> None:
        self.k, self.tile = layer, tile
        self.ops: list[Op] = []
        self.into, self.out = tile.inputs * layer.batch, tile.outputs * layer.batch

    def at(self, array: str, offset: int = 0, stride: int = 1, **loops: int) -> Mem:
        return mem(f"{self.k.name}/{array}", offset, stride, **loops)

    def x(self, m: int) -> int:
        return m % self.k.slots * self.into

    def dy(self, m: int) -> int:
        return m % (1 + len(self.k.dy.colors)) * self.out

    def receive(self, stream: RegionStream, m: int) -> None:
        """Start on micro-batch m of inputs or output gradients, once its thread is free."""
        inward = stream is self.k.x
        thread = (_X if inward else _DY)[m % len(stream.colors)]
        if m >= self.k.micro_batches:
            self.ops.append(_wait(thread))
            return
        n = self.into if inward else self.out
        operand = self.at("x", self.x(m)) if inward else self.at("dy", self.dy(m))
        if inward and self.k.dx is None:  # images come sample by sample
            operand = self.at("x", self.x(m), self.k.batch, inner=self.tile.inputs, outer=1)
        self.ops.append(fmovs(operand, fabin(stream.color(m)), n, thread=thread))

    def open(self) -> None:
        """Start on the first micro-batches."""
        for stream in (self.k.x, self.k.dy):
            for m in range(min(len(stream.colors), self.k.micro_batches)):
                self.receive(stream, m)

    def clear(self, dst: Mem, n: int) -> None:
        self.ops.append(fmovs(dst, Const(0.0), n))

    def chain(self, axis: int, words: Mem, n: int) -> bool:
        """Add up along a row (0) or column (1); whether the sum is here."""
        rank, size = self.tile.rank[axis], self.tile.size[axis]
        colors = (self.k.rows, self.k.columns)[axis]
        if size > 1:
            last = rank == size - 1
            self.ops.append(chain_op(colors, rank, last=last, operand=words, words=n))
        return rank == 0

    def products(self, operands: Callable[[int, int, int], tuple[Mem, Mem, Mem]]) -> None:
        """Of each kept weight, of its place and the first words of its input and output."""
        b = self.k.batch
        for e, (i, o) in enumerate(self.tile.entries):
            self.ops.append(scaled_sum(*operands(e, i * b, o * b), b))

    def send(self, stream: RegionStream, m: int, op: Op) -> None:
        if op.thread is None or not stream.resets(self.tile.place):
            self.ops.append(op)
            return
        after = _AFTER[op.thread]
        self.ops += [_wait(after), op, reset_switches(stream, m, after)]

    def forward(self, m: int) -> None:
        k, b, x = self.k, self.k.batch, self.x(m)
        self.receive(k.x, m + len(k.x.colors))
        y = m % 2 * self.out
        if self.tile.biased:
            bias = self.at("weights", len(self.tile.entries), 0, inner=b, outer=1)
            self.ops.append(fmovs(self.at("y", y), bias, self.out))
        else:
            self.clear(self.at("y", y), self.out)
        self.products(
            lambda e, i, o: (self.at("y", y + o), self.at("x", x + i), self.at("weights", e, 0))
        )
        if self.chain(0, self.at("y", y), self.out):
            out, own = k.y.out(self.tile.place, m), self.at("y", y)
            relu = fmaxs(out, own, Const(0.0), self.out, thread=_Y)
            self.send(k.y, m, relu if k.relu else fmovs(out, own, self.out, thread=_Y))

    def backward(self, m: int) -> None:
        b, dy, x = self.k.batch, self.dy(m), self.x(m)
        self.receive(self.k.dy, m + len(self.k.dy.colors))
        self.products(
            lambda e, i, o: (self.at("gradients", e, 0), self.at("x", x + i), self.at("dy", dy + o))
        )
        if self.tile.biased:
            sums = self.at("gradients", len(self.tile.entries), 0, inner=b, outer=1)
            self.ops.append(fadds(sums, sums, self.at("dy", dy), self.out))
        if self.k.dx is not None:
            self.input_gradient(m, self.k.dx)

    def input_gradient(self, m: int, stream: RegionStream) -> None:
        dy, dx = self.dy(m), m % 2 * self.into
        self.clear(self.at("dx", dx), self.into)
        self.products(
            lambda e, i, o: (self.at("dx", dx + i), self.at("dy", dy + o), self.at("weights", e, 0))
        )
        gradient, sign, n = self.at("dx", dx), self.at("sign"), self.into
        if self.chain(1, gradient, n):
            # x is 0 or positive: -min(1, x 2^127) is 0 or -1, the last product turns it round
            self.ops += [
                fmuls(sign, self.at("x", self.x(m)), Const(-(2.0**127)), n),
                fmaxs(sign, sign, Const(-1.0), n),
                fmuls(gradient, gradient, sign, n),
            ]
            out = stream.out(self.tile.place, m)
            self.send(stream, m, fmuls(out, gradient, Const(-1.0), n, thread=_DX))

    def update(self) -> None:
        """``w += rate g``, or ``v = momentum v + g; w += rate v``."""
        n, w, change = self.tile.stored, self.at("weights"), self.at("gradients")
        if not n:
            return
        if self.k.momentum:
            v = self.at("velocities")
            self.ops.append(Op("mac", v, change, v, Const(self.k.momentum), n=n))
            change = v
        self.ops.append(Op("mac", w, w, change, self.at("rate", 0, 0), n=n))


def tile_ops(layer: LayerProgram, tile: LayerTile) -> list[Op]:
    """Everything one PE of a layer does in an optimizer step."""
    pe = _PE(layer, tile)
    pe.open()
    if tile.stored:
        pe.clear(pe.at("gradients"), tile.stored)
    for kind, m in schedule(layer.micro_batches, layer.flying):
        (pe.forward if kind == "F" else pe.backward)(m)
    pe.update()
    return _ahead(pe.ops)


def input_ops(stream: RegionStream, pe: Spot, words: int, micro_batches: int) -> list[Op]:
    """A PE that the host writes images to: send array "input", then let the next PE send its own.

    Micro-batches that follow each other come from one PE, as far as possible: between two PEs
    nothing keeps the second one's from overtaking the first one's on the other color.

    Args:
        stream: of the images.
        pe: this PE; its rank in the stream's line says which micro-batches are its own.
        words: of a micro-batch.
        micro_batches: of an optimizer step, a multiple of the PEs.
    """
    ops, own = [], micro_batches // len(stream.line)
    for m in range(own):
        last = m + len(stream.colors) >= own  # of this color, which lets the others pass
        out = stream.out(pe, m) if last else fabout(stream.color(m))
        ops.append(fmovs(out, mem("input", m * words), words))
    if stream.resets(pe):
        ops += [reset_switches(stream, m) for m in range(len(stream.colors))]
    return ops


def loss_pe_ops(
    scores: RegionStream,
    stream: RegionStream,
    pe: Spot,
    *,
    classes: int,
    batch: int,
    micro_batches: int,
) -> list[Op]:
    """The PEs of the loss take micro-batches in turn: gradient first, then the loss itself.

    Args:
        scores: stream of the scores.
        stream: of the gradients.
        pe: this PE; its rank in the stream's line is its first micro-batch.
        classes: number of scores.
        batch: samples of a micro-batch.
        micro_batches: of an optimizer step, a multiple of the PEs.
    """
    n, color, thread = classes * batch, scores.color(0), _X[0]
    scale = Const(1 / (batch * micro_batches))
    loss = mem("loss", 0, 0)
    turns = micro_batches // len(stream.line)
    ops = [fmovs(mem("scores"), fabin(color), n, thread=thread), fmovs(loss, Const(0.0))]
    for turn in range(turns):
        now, after = turn % 2 * n, (turn + 1) % 2 * n
        last = turn + 1 == turns
        labels, out = mem("labels", turn * n), mem("out", now)
        into = fmovs(mem("scores", after), fabin(color), n, thread=thread)
        ops.append(_wait(thread) if last else into)
        ops += gradient_ops(mem("scores", now), labels, out, classes, batch)
        ops.append(fmuls(stream.out(pe, 0), out, scale, n, thread=_DX))
        ops += loss_ops(labels, loss, classes, batch)
        if stream.resets(pe):
            ops.append(reset_switches(stream, 0, _DX))
    return _ahead([*ops, fmuls(loss, loss, scale)])
