"""Tokens per second of a LLaMA on a wafer, by the closed forms of this package's programs.

A model decodes as in WaferLLM (arXiv:2502.04563): every matrix lies on a square mesh of PEs, so
that products sum by turns along its columns and its rows and no vector is ever transposed. Layers
that the memory of one mesh does not hold are on another one beside it; a token goes through all of
them, one after another. Prefill multiplies matrices.

Products, sums and shifts are those that are simulated at small sizes; operations on vectors and
functions are counted by the table of costs.
"""

from typing import NamedTuple

import numpy as np

from wafer.errors import WaferError
from wafer.hpc.mesh import blocks, gemm, gemv, kvshift, tree
from wafer.spec import WSE2

_HALF = np.float16
_BYTES = 2  # of a number
# Cycles of an operation on vectors besides its numbers, of which it takes four a cycle: its issue
# and three descriptors. Of a number's exponential and what stands around it; of SiLU.
_OPERATION, _EXPONENTIAL, _SILU = 10, 70, 115
_TURNS = 14  # operations on vectors to turn queries and keys by their places


class Model(NamedTuple):
    """A decoder's sizes.

    width: of the residual
    hidden: of the feed-forward part
    heads, kv_heads: of queries; of keys and values
    head: numbers of a head
    layers: how many
    vocabulary: rows of the last matrix; 0 leaves it out
    """

    width: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    layers: int
    vocabulary: int = 0


LLAMA3_8B = Model(4096, 14336, 32, 8, 128, 32, 128256)


class Wafer(NamedTuple):
    """PEs of a row, rows, bytes of a PE, of which programs take some, cycles per second."""

    width: int = WSE2.width
    height: int = WSE2.height
    memory: int = WSE2.sram_bytes
    program: int = 8 * 1024
    clock_hz: float = WSE2.clock_hz


WAFER = Wafer()


def plain(model: Model, size: int) -> Model:
    """As the public decoding program of WaferLLM has it: one head, and no last matrix.

    Its sizes are the next multiples of the mesh's.
    """
    width, hidden = (blocks.ceil(n, size) * size for n in (model.width, model.hidden))
    return Model(width, hidden, 1, 1, width, model.layers)


def decode_layer(model: Model, size: int, context: int) -> dict[str, int]:
    """Cycles of a layer for one token, by part.

    Args:
        model: its sizes.
        size: PEs of a row of the mesh, and rows of them.
        context: tokens in the cache.
    """
    width, hidden = _share(model.width, size), _share(model.hidden, size)
    kv, tokens = _share(model.kv_heads * model.head, size), _share(context, size)
    group = model.heads // model.kv_heads
    return {
        "norms": 2 * (_vectors(4, width) + _sum(size, 1) + _EXPONENTIAL),
        "q, k, v": _product(width, width) + 2 * _product(width, kv) + _sum(size, width + 2 * kv),
        "places": _vectors(_TURNS, width),
        "cache": kvshift.cycles(1, size, kv),
        "scores": _product(kv * group, tokens) + _sum(size // model.kv_heads, group * tokens),
        "softmax": group * tokens * _EXPONENTIAL + 2 * _sum(size, group) + _vectors(4, tokens),
        "values": _product(group * tokens, kv) + _sum(size, group * kv),
        "output": _product(width, width) + _sum(size, width) + _vectors(1, width),
        "gate, up": 2 * _product(width, hidden) + _sum(size, 2 * hidden),
        "silu": hidden * _SILU + _vectors(2, hidden),
        "down": _product(hidden, width) + _sum(size, width) + _vectors(1, width),
    }


def decode_rate(model: Model, size: int, context: int, wafer: Wafer = WAFER) -> float:
    """Tokens per second of one request, as if the wafer had room for all layers.

    Args:
        model: its sizes.
        size: PEs of a row of a mesh, and rows of them.
        context: tokens in the cache.
        wafer: what it runs on.
    """
    width = _share(model.width, size)
    count = blocks.ceil(model.layers, max(1, layers_of_a_mesh(model, size, wafer)))
    total = model.layers * sum(decode_layer(model, size, context).values())
    total += (count - 1) * (size + width)  # from a mesh to the next one
    if model.vocabulary:
        total += _vectors(4, width) + _sum(size, 1) + _EXPONENTIAL
        last = _share(model.vocabulary, size)
        total += _product(width, last) + _sum(size, last)
    return wafer.clock_hz / total


def prefill_layer(model: Model, size: int, prompt: int) -> dict[str, int]:
    """Cycles of a layer for a prompt, by part. Scores of later tokens are not left out.

    Args:
        model: its sizes.
        size: PEs of a row of the mesh, and rows of them.
        prompt: tokens.
    """
    rows, width, hidden = (_share(n, size) for n in (prompt, model.width, model.hidden))
    kv = _share(model.kv_heads * model.head, size)
    numbers = model.heads * rows * rows

    def product(inner: int, columns: int) -> int:
        return gemm.block_cycles(size, rows, inner, _padded(columns), _HALF)

    return {
        "norms": 2 * (_vectors(4, rows * width) + _sum(size, rows) + rows * _EXPONENTIAL),
        "q, k, v": product(width, width) + 2 * product(width, kv),
        "places": _vectors(_TURNS, rows * width),
        "scores": product(width, rows),
        "softmax": numbers * _EXPONENTIAL + 2 * _sum(size, model.heads * rows),
        "values": product(rows, width),
        "output": product(width, width) + _vectors(1, rows * width),
        "gate, up": 2 * product(width, hidden),
        "silu": rows * hidden * _SILU + _vectors(2, rows * hidden),
        "down": product(hidden, width) + _vectors(1, rows * width),
    }


def prefill_rate(model: Model, size: int, prompt: int, wafer: Wafer = WAFER) -> float:
    """Tokens of a prompt per second; the last matrix, for one token, is left out.

    Args:
        model: its sizes.
        size: PEs of a row of the mesh, and rows of them.
        prompt: tokens.
        wafer: what it runs on.
    """
    layer = sum(prefill_layer(model, size, prompt).values())
    return wafer.clock_hz * prompt / (model.layers * layer)


def meshes(size: int, wafer: Wafer = WAFER) -> int:
    """Square meshes that the wafer has room for, side by side."""
    return (wafer.width // size) * (wafer.height // size)


def layers_of_a_mesh(model: Model, size: int, wafer: Wafer = WAFER) -> int:
    """Layers whose weights the PEs of a mesh can hold, without a cache."""
    return (wafer.memory - wafer.program) // _layer_bytes(model, size)


def cache_tokens(model: Model, size: int, wafer: Wafer = WAFER, *, shifts: bool = True) -> int:
    """Tokens that the cache takes when layers are spread evenly over all meshes.

    Args:
        model: its sizes.
        size: PEs of a row of a mesh, and rows of them.
        wafer: what it runs on.
        shifts: whether rows pass entries on; otherwise new ones stay in the lowest row.

    Raises:
        WaferError: the wafer does not hold the model.
    """
    _needed(model, size, wafer)
    layers = blocks.ceil(model.layers, meshes(size, wafer))
    free = wafer.memory - wafer.program - layers * _layer_bytes(model, size)
    entry = 2 * _BYTES * _share(model.kv_heads * model.head, size) * layers
    return kvshift.capacity(size, free // entry, shifts=shifts)


def _needed(model: Model, size: int, wafer: Wafer) -> int:
    """Meshes that hold the model."""
    room = layers_of_a_mesh(model, size, wafer)
    count = blocks.ceil(model.layers, room) if room else 0
    if not room or count > meshes(size, wafer):
        raise WaferError(
            f"size: {size} x {size} PEs hold {room} of the model's {model.layers} layers, and the"
            f" wafer of {wafer.width} x {wafer.height} PEs has room for {meshes(size, wafer)} such"
            " meshes; expected room for all layers: take another size"
        )
    return count


def _layer_bytes(model: Model, size: int) -> int:
    """Of a PE's weights of one layer, padded as products need them."""
    width, hidden = _share(model.width, size), _share(model.hidden, size)
    kv = _share(model.kv_heads * model.head, size)
    numbers = 2 * width * _padded(width) + 2 * width * _padded(kv)
    return _BYTES * (numbers + 2 * width * _padded(hidden) + hidden * _padded(width) + 2 * width)


def _share(numbers: int, size: int) -> int:
    return blocks.ceil(numbers, size)


def _padded(columns: int) -> int:
    lane = blocks.lane(_HALF)
    return blocks.ceil(columns, lane) * lane


def _product(rows: int, columns: int) -> int:
    return gemv.product_cycles(rows, _padded(columns), _HALF)


def _sum(size: int, words: int) -> int:
    return tree.cycles(max(size, 1), words)


def _vectors(operations: int, numbers: int) -> int:
    return operations * (_OPERATION + blocks.ceil(numbers, 4))
