"""Cycles and memory of a dense layer, and of the loss, on a rectangle of PEs: closed forms.

They describe the kernels of :mod:`wafer.fabric.layers`, which train on the fabric cycle by cycle;
the tests hold one against the other. A layer's weights lie in tiles: columns of PEs share inputs,
rows share outputs. A kept weight is one ``@fmacs`` over the samples of a micro-batch in each of
forward, input gradient and weight gradient; a pruned one is in no list and takes no cycle.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wafer.fabric.errors import FabricError
from wafer.fabric.kernels.dense import FMACS_LOOP
from wafer.fabric.layers import in_flight, layer_words
from wafer.fabric.ops import mem
from wafer.fabric.softmax import WORDS, gradient_ops, loss_ops
from wafer.spec import WSE2, WaferSpec

__all__ = ["DenseCost", "dense_cost", "fullest_tile", "loss_cost", "pipeline_cycles"]


class DenseCost(NamedTuple):
    """What one micro-batch of ``batch`` samples costs the slowest PE of a kernel.

    forward: cycles of the forward pass; of a loss, up to the scores' gradient, divided by turns
    backward: cycles of weight gradient and input gradient; of a loss, of its value
    update: cycles of the update, once per optimizer step
    sram_words: 32-bit words of the PE that needs most
    words_in: words that arrive by the widest of its streams, at one per cycle
    words_out: words of activations sent on
    words_back: words of input gradients sent back
    turns: PEs that take the micro-batches in turn
    """

    forward: int
    backward: int
    update: int
    sram_words: int
    words_in: int = 0
    words_out: int = 0
    words_back: int = 0
    turns: int = 1

    @property
    def period(self) -> int:
        """Cycles from one micro-batch to the next when the kernel never waits."""
        return max(self.forward + self.backward, self.stream)

    @property
    def stream(self) -> int:
        """Words of the longest of its streams."""
        return max(self.words_in, self.words_out, self.words_back)


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
        rows = np.array_split(np.arange(fan_in), width)
        columns = np.array_split(np.arange(fan_out), height)
        return max(int(nnz[np.ix_(r, c)].sum()) for r in rows for c in columns)
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
        nnz: kept weights, see :func:`fullest_tile`.
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
    kept = fullest_tile(fan_in, fan_out, height, width, nnz)
    inputs, outputs = -(-fan_in // width) * batch, -(-fan_out // height) * batch
    vector = lambda words: spec.op_launch + words
    products = kept * (1 + FMACS_LOOP + batch)
    start = vector(1)  # of a microthread
    # The north-western PE is the root of both chains and has the most to do.
    forward = 2 * start + vector(outputs) * (1 + (width > 1)) + products
    backward = start + products
    if width == 1:
        backward += vector(outputs)  # the bias' gradient, elsewhere the easternmost PE's
    if input_gradient:
        backward += start + products + vector(inputs) * (4 + (height > 1))
    stored = kept + (outputs // batch if width == 1 else 0)
    update = vector(stored) * (2 if momentum else 1)
    words = layer_words(
        inputs=inputs // batch,
        outputs=outputs // batch,
        stored=kept + outputs // batch,
        batch=batch,
        slots=in_flight(stages_after) + 1,
        input_gradient=input_gradient,
        momentum=momentum,
    )
    if nnz is not None:
        words += kept  # input and output of a kept weight, 16 bits each
    back = fan_in * batch if input_gradient else 0
    return DenseCost(forward, backward, update, words, fan_in * batch, fan_out * batch, back)


def loss_cost(classes: int, batch: int = 1, pes: int = 1, spec: WaferSpec = WSE2) -> DenseCost:
    """Cost of softmax and cross-entropy; ``pes`` of them take the micro-batches in turn.

    "forward" is what lies between the scores and their gradient, "backward" the loss itself.
    """
    here, n = mem("here"), classes * batch
    first = gradient_ops(here, here, here, classes, batch)
    second = loss_ops(here, here, classes, batch)
    cycles = lambda ops: sum(spec.op_launch + op.n for op in ops) + 2 * (spec.op_launch + 1)
    words = n * (len(WORDS["wide"]) + 5) + batch * len(WORDS["narrow"]) + 1
    forward, backward = (-(-cycles(ops) // pes) for ops in (first, second))
    return DenseCost(forward, backward, 0, words, n, 0, n, pes)


def pipeline_cycles(layers: Sequence[DenseCost], loss: DenseCost, micro_batches: int) -> int:
    """Cycles of an optimizer step: one micro-batch up and down, then the slowest kernel's period.

    Args:
        layers: costs of the layers in order.
        loss: of the loss.
        micro_batches: of the step.
    """
    up = layers[0].words_in + sum(c.forward + c.words_out for c in layers)
    down = (
        loss.forward * loss.turns + loss.words_back + sum(c.backward + c.words_back for c in layers)
    )
    slowest = max(c.period for c in (*layers, loss))
    return up + down + (micro_batches - 1) * slowest + max(c.update for c in layers)
