"""Cycles and memory of a dense layer, and of the loss, on a rectangle of PEs: closed forms.

They describe the kernels of :mod:`wafer.fabric.training.layers`, which train on the fabric cycle by
cycle; the tests hold one against the other. A layer's weights lie in tiles: columns of PEs share
inputs, rows share outputs. A kept weight is one ``@fmacs`` over the samples of a micro-batch in
each of forward, input gradient and weight gradient; a pruned one is in no list and takes no cycle.
"""

import collections
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from wafer.fabric.errors import FabricError
from wafer.fabric.library.kernels import FMACS_LOOP
from wafer.fabric.program.ops import mem, steps_of
from wafer.fabric.training.layers import arrays, schedule
from wafer.fabric.training.softmax import WORDS, gradient_ops, loss_ops
from wafer.machine.arch import ARCHITECTURES
from wafer.spec import WSE2, WaferSpec


class Tiles(NamedTuple):
    """Cycles of each PE of a layer whose tiles differ, and the words of its rows and columns."""

    forward: np.ndarray  #: [rows, columns] of a forward pass, with the words that come and go
    backward: np.ndarray  #: [rows, columns] of a backward pass, with the words that come and go
    outputs: np.ndarray  #: [rows] words of activations
    inputs: np.ndarray  #: [columns] words of input gradients; 0 where none are sent back


class DenseCost(NamedTuple):
    """What one micro-batch of ``batch`` samples costs the slowest PE of a kernel."""

    #: cycles of the forward pass; of a loss, up to the scores' gradient, divided by turns
    forward: int
    backward: int  #: cycles of weight gradient and input gradient; of a loss, of its value
    update: int  #: cycles of the update, once per optimizer step
    sram_words: int  #: 32-bit words of the PE that needs most
    #: words of its inputs, at one per cycle, and the launch of their operation, if any
    words_in: int = 0
    words_out: int = 0  #: words of activations sent on
    words_back: int = 0  #: words of input gradients sent back
    #: cycles that a micro-batch needs beyond the passes and its words: chains, ramps, hops
    fill: int = 0
    turns: int = 1  #: PEs that take the micro-batches in turn
    moved: int = 0  #: words that microthreads put into the PE and take out, a cycle each
    #: cycles that the output gradients take, besides those in which the inputs arrive
    gradients: int = 0
    #: cycles of the busiest PE; None if one PE has the most to do in each pass
    busy: int | None = None
    #: each PE's own cycles; None if no PE has more to do than the north-western one
    tiles: Tiles | None = None

    @property
    def period(self) -> int:
        """Cycles from one micro-batch to the next: of the busiest PE, or of the streams."""
        busy = self.forward + self.backward + self.moved if self.busy is None else self.busy
        return max(busy, self.stream)

    @property
    def stream(self) -> int:
        """Cycles of its streams: those into it share the PEs, the others have their own links."""
        return max(self.words_in + self.gradients, self.words_out, self.words_back)


def fullest_tile(
    fan_in: int, fan_out: int, height: int, width: int, nnz: int | np.ndarray | None
) -> int:
    """Kept weights of the PE that has most.

    Args:
        fan_in: inputs.
        fan_out: outputs.
        height: rows of PEs, which share out the outputs.
        width: columns of PEs, which share out the inputs.
        nnz: None for all, the [fan_in, fan_out] mask itself, or only how many weights it keeps:
            then what the fullest of the tiles of a random mask holds in expectation.
    """
    if isinstance(nnz, np.ndarray):
        return int(_kept(nnz, height, width).max())
    size = -(-fan_in // width) * -(-fan_out // height)
    if nnz is None:
        return size
    kept = nnz / (fan_in * fan_out)
    spread = math.sqrt(2 * size * kept * (1 - kept) * math.log(max(2, height * width)))
    return min(size, math.ceil(size * kept + spread))


def dense_cost(
    fan_in: int,
    fan_out: int,
    height: int,
    width: int,
    *,
    nnz: int | np.ndarray | None = None,
    batch: int = 1,
    input_gradient: bool = True,
    momentum: bool = False,
    stages_after: int = 1,
    spec: WaferSpec = WSE2,
) -> DenseCost:
    """Cost of one dense layer with bias on ``height x width`` PEs.

    Args:
        fan_in: inputs, shared out over the columns: ``width <= fan_in``.
        fan_out: outputs, shared out over the rows: ``height <= fan_out``.
        height: rows of PEs.
        width: columns of PEs.
        nnz: kept weights, all of them or [height, width] per tile; see :func:`fullest_tile`.
        batch: samples per micro-batch, the length of the vector operations.
        input_gradient: False for the first layer.
        momentum: whether the update keeps a velocity.
        stages_after: kernels behind this one, the loss included: they set how many inputs wait
            for their gradient.
        spec: the machine.

    Raises:
        FabricError: more columns than inputs, or more rows than outputs.
    """
    if not (1 <= width <= fan_in and 1 <= height <= fan_out):
        raise FabricError(
            f"dense {fan_in} -> {fan_out} on {height} rows x {width} columns of PEs: rows share"
            f" out the outputs (1..{fan_out}), columns the inputs (1..{fan_in})"
        )
    nonzeros = fullest_tile(fan_in, fan_out, height, width, nnz)
    inputs, outputs = -(-fan_in // width) * batch, -(-fan_out // height) * batch
    vector = lambda words: spec.op_launch + words
    pe = _PE((height, width), batch, input_gradient, spec)
    tiles = None
    if isinstance(nnz, np.ndarray):
        tiles, work = pe.tiles(nnz)
        works = [work]
    elif nnz is None or height * width == 1:
        # All tiles are alike: the root of both chains has the most to do.
        works = [pe.work(nonzeros, inputs, outputs, root=(True, True), biased=width == 1)]
    else:  # the fullest tile is hardly ever the root's, which has one like the others
        usual = math.ceil(inputs * outputs / batch**2 * nnz / (fan_in * fan_out))
        works = [
            pe.work(usual, inputs, outputs, root=(True, True), biased=width == 1),
            pe.work(nonzeros, inputs, outputs, root=(width == 1, height == 1), biased=width == 1),
        ]
    forward, backward, moved = (max(int(np.max(w[i])) for w in works) for i in range(3))
    busy = max(int(np.max(sum(work))) for work in works)
    stored = nonzeros + (outputs // batch if width == 1 else 0)
    update = vector(stored) * (2 if momentum else 1)
    words = arrays(
        inputs=inputs // batch,
        outputs=outputs // batch,
        stored=nonzeros + outputs // batch,
        batch=batch,
        slots=2 * stages_after + 1,
        input_gradient=input_gradient,
        momentum=momentum,
    )
    stored_words = sum(words.values())
    if nnz is not None:
        stored_words += nonzeros  # input and output of a kept weight, 16 bits each
    back = fan_in * batch if input_gradient else 0
    gradients = fan_out * batch
    if not input_gradient:
        # Those that do not go by beside the images. Inputs are for one column at a time, gradients
        # for one row: where both cross lies a PE that is to take a word of each, but takes one per
        # cycle, the input first (its microthread has the lower id). Meanwhile gradients fill their
        # queue, and then all PEs wait for it. Between layers a PE's words come in one run, far
        # longer than the queue, so that the streams take turns; images come sample by sample.
        queue = (spec.input_queue_depths[1] + spec.input_queue_depths[3]) / 2  # colors in turn
        gradients -= round(fan_in * batch * min(1.0, queue / (inputs // batch)))
    # An element goes from root to root of the chains; a word over the region and two ramps.
    chained = width - 1 + (height - 1 if input_gradient else 0)
    streams = (1 + input_gradient) * (width + height + spec.op_launch + spec.hop_to_hop)
    fill = spec.hop_to_hop * chained + streams
    return DenseCost(
        forward,
        backward,
        update,
        stored_words,
        # The PE of the images launches an operation for each micro-batch.
        fan_in * batch + (0 if input_gradient else spec.op_launch),
        fan_out * batch,
        back,
        fill,
        moved=moved,
        gradients=max(0, gradients),
        busy=busy,
        tiles=tiles,
    )


class _PE(NamedTuple):
    """Cycles of a layer's PE, by where it lies in the region."""

    size: tuple[int, int]  #: rows and columns
    batch: int  #: samples of a micro-batch
    input_gradient: bool  #: False for the first layer
    spec: WaferSpec  #: the machine

    def work(
        self,
        nonzeros: Any,
        inputs: Any,
        outputs: Any,
        *,
        root: tuple[Any, Any],
        biased: Any,
    ) -> tuple[Any, Any, Any]:
        """Cycles of its forward pass and of its backward pass, and the words it moves.

        Args:
            nonzeros: weights of its tile; like the others, a number or one per PE.
            inputs: words of its inputs.
            outputs: words of its outputs.
            root: whether it is the root of its row's chain, and of its column's.
            biased: whether it has the biases.
        """
        height, width = self.size
        rate = ARCHITECTURES[self.spec.name].width
        vector = lambda words, builtin="": self.spec.op_launch + -(-words // rate(builtin))
        products, start = nonzeros * (1 + FMACS_LOOP + self.batch), vector(1)  # of a microthread
        west, north = root
        forward = start + west * start + vector(outputs, "fmovs") + products
        forward = forward + vector(outputs) * (width > 1)
        backward = start + products + biased * vector(outputs, "fadds")
        if self.input_gradient:
            backward = backward + products + vector(inputs, "fmovs") + vector(inputs) * (height > 1)
            ends = 2 * vector(inputs) + vector(inputs, "fmaxs") + start
            backward = backward + north * ends
        moved = inputs + outputs + west * outputs + north * inputs * self.input_gradient
        return forward, backward, moved

    def tiles(self, mask: np.ndarray) -> tuple[Tiles, tuple[Any, Any, Any]]:
        """All PEs: their passes with the words that come and go meanwhile, and :meth:`work`."""
        height, width = self.size
        inputs, outputs = (
            self.batch * np.array([len(part) for part in np.array_split(np.arange(n), parts)])
            for n, parts in zip(mask.shape, (width, height), strict=True)
        )
        column, row = np.arange(width), np.arange(height)[:, None]
        west, north = column == 0, row == 0
        into, out = inputs[None], outputs[:, None]
        work = self.work(
            _kept(mask, height, width), into, out, root=(west, north), biased=column == width - 1
        )
        forward = work[0] + into + west * out
        backward = work[1] + out + north * into * self.input_gradient
        return Tiles(forward, backward, outputs, inputs * self.input_gradient), work


def _kept(mask: np.ndarray, height: int, width: int) -> np.ndarray:
    """[height, width] weights that a [fan_in, fan_out] mask keeps in each PE."""
    fan_in, fan_out = mask.shape
    sums = mask.astype(np.int64)
    for axis, (n, parts) in enumerate(((fan_in, width), (fan_out, height))):
        firsts = [part[0] for part in np.array_split(np.arange(n), parts)]
        sums = np.add.reduceat(sums, firsts, axis=axis)
    return sums.T


def loss_cost(classes: int, batch: int = 1, pes: int = 1, spec: WaferSpec = WSE2) -> DenseCost:
    """Return the cost of softmax and cross-entropy.

    "forward" is what lies between the scores and their gradient, "backward" the loss itself.

    Args:
        classes: scores of a sample.
        batch: samples per micro-batch.
        pes: PEs that take the micro-batches in turn.
        spec: the machine.
    """
    here, n = mem("here"), classes * batch
    first = gradient_ops(here, here, here, classes, batch)
    second = loss_ops(here, here, classes, batch)
    start = spec.op_launch + 1  # of a microthread
    steps = lambda op: steps_of(op, spec)
    cycles = lambda ops: sum(spec.op_launch + steps(op) for op in ops) + start
    words = n * (len(WORDS["wide"]) + 5) + batch * len(WORDS["narrow"]) + 1
    forward, backward = (-(-cycles(ops) // pes) for ops in (first, second))
    return DenseCost(forward, backward, 0, words, n, 0, n, 2 * start, pes, -(-2 * n // pes))


def in_flight(layers: Sequence[DenseCost], loss: DenseCost) -> list[int]:
    """Micro-batches that each layer takes in before the first one's gradient is to come back.

    Enough to keep the slowest kernel busy: while one is on its way to the layer below and back,
    worked on at both ends, the layer goes on to others, one per period. More would only lengthen
    the phases in which all go one way.
    """
    period = max(c.period for c in (*layers, loss))

    def ways(upper: DenseCost, lower: DenseCost) -> int:
        # Streams that bind a layer leave each other waiting: each takes its whole period.
        arriving = lambda words, c: c.stream if c.stream == c.period else words
        onward, back = arriving(upper.words_out, lower), arriving(lower.words_back, upper)
        return onward + upper.fill + back + lower.fill

    below = loss.forward * loss.turns + ways(layers[-1], loss)
    below += layers[-1].forward + layers[-1].backward
    flying = [1 + -(-below // period)]
    for upper, lower in reversed(list(itertools.pairwise(layers))):
        below = sum(c.forward + c.backward for c in (upper, lower)) + ways(upper, lower)
        flying.append(flying[-1] - (-below // period))
    return flying[::-1]


def pipeline_cycles(layers: Sequence[DenseCost], loss: DenseCost, micro_batches: int) -> int:
    """Cycles of an optimizer step: every pass starts when its words are there and its PEs free.

    The recurrence runs over the passes, `wafer.fabric.training.layers.schedule` being the order of
    each layer's; it takes nothing from a simulation. Words of a micro-batch come in once the one
    two before it is being worked on, since there are two colors and microthreads for them; those
    from the loss have one.

    Args:
        layers: costs of the layers in order.
        loss: of the loss.
        micro_batches: of the step.
    """
    flying, last = in_flight(layers, loss), len(layers)
    queues = [collections.deque(schedule(micro_batches, f)) for f in flying]
    sent = {("F", 0, m): 0 for m in range(micro_batches)}  # (pass, layer, micro-batch)
    begun: dict[tuple[str, int, int], int] = {}
    pes, link_free, turns = [_Passes(c) for c in layers], [0] * last, [0] * loss.turns
    while any(queues):
        for k, queue in enumerate(queues):
            c = layers[k]
            while queue and (queue[0][0], k, queue[0][1]) in sent:
                kind, m = queue.popleft()
                onward = kind == "F"
                words, shared = (c.words_in, c.words_in) if onward else (c.words_out, c.gradients)
                ahead = 2 if onward or k + 1 < last else 1
                first = max(sent[kind, k, m], link_free[k], begun.get((kind, k, m - ahead), 0))
                link_free[k] = first + shared
                begun[kind, k, m], out = pes[k].run(first + words, onward=onward)
                out += c.fill // 2
                if onward and k + 1 < last:
                    sent["F", k + 1, m] = out
                elif onward:
                    pe = m % loss.turns
                    scored = max(turns[pe], out + c.words_out) + loss.forward * loss.turns
                    turns[pe] = scored + (loss.backward + loss.moved) * loss.turns
                    sent["B", k, m] = scored + loss.fill
                elif k:
                    sent["B", k - 1, m] = out
    return max(int(p.free.max()) + c.update for p, c in zip(pes, layers, strict=True))


class _Passes:
    """When the PEs of a layer are through with their passes; one for all where all do the same.

    The sums along a row wait for its slowest PE, and so do those along a column in the backward
    pass; rows and columns wait for each other only where their words go out one after another.
    """

    def __init__(self, cost: DenseCost) -> None:
        tiles = cost.tiles
        if tiles is None:
            half, zero = cost.moved // 2, np.zeros(1, int)
            tiles = Tiles(
                np.full((1, 1), half + cost.forward),
                np.full((1, 1), half + cost.backward),
                zero + cost.words_out,
                zero + cost.words_back,
            )
        self.tiles, self.free = tiles, np.zeros_like(tiles.forward)

    def run(self, arrived: int, *, onward: bool) -> tuple[int, int]:
        """Do a pass, whose words have arrived by then.

        Returns:
            When the last PE begins, and when the words out could be gone from, at one per cycle.
        """
        begun = np.maximum(self.free, arrived)
        cycles, words = self.tiles.backward, self.tiles.inputs
        if onward:
            cycles, words = self.tiles.forward, self.tiles.outputs
        self.free = begun + cycles
        if not words.any():  # no input gradient, no sums along the columns
            return int(begun.max()), 0
        ready = self.free.max(axis=int(onward), keepdims=True)
        self.free = np.broadcast_to(ready, self.free.shape)
        # The senders take turns when they are ready: when a stream begins that ends as this one.
        rest = np.cumsum(words[::-1])[::-1]
        return int(begun.max()), int((ready.ravel() + rest).max() - rest[0])
