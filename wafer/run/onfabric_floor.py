"""Where the kernels of a fabric network lie, what each PE holds, and which streams join them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from wafer.compiler.plan import Region
from wafer.fabric.errors import FabricError
from wafer.fabric.program import Filter
from wafer.fabric.regions import Spot, Stream, Wires, find_stream, pes_of, share

__all__ = ["Dense", "Shares", "connect", "find_streams", "lay_out", "shares_of"]

Ways = Mapping[tuple[str, str], Stream]  # (source, target) -> stream


class Dense(NamedTuple):
    """A dense layer with bias; all but the last are followed by a ReLU.

    name: of its parameters and of its region
    fan_in: inputs
    fan_out: outputs
    mask: [fan_in, fan_out] bool, the weights that exist; None for all
    """

    name: str
    fan_in: int
    fan_out: int
    mask: np.ndarray | None = None


class Shares(NamedTuple):
    """Which inputs and outputs of a layer lie where.

    inputs: per column of the region, indices of its inputs
    outputs: per row of the region, indices of its outputs
    """

    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]


def lay_out(layers: Sequence[Dense], regions: Sequence[Region]) -> dict[str, Region]:
    """Move the regions to the grid's corner, one PE from it, and add "input" and "loss".

    Raises:
        FabricError: a region that is missing, overlaps, or has more PEs than there is to share.
    """
    known = {r.name: r for r in regions}
    missing = [layer.name for layer in layers if layer.name not in known]
    if missing:
        raise FabricError(f"no region for layer {missing[0]!r}; regions: {list(known)}")
    for layer in layers:
        region = known[layer.name]
        if not (1 <= region.width <= layer.fan_in and 1 <= region.height <= layer.fan_out):
            raise FabricError(
                f"{layer.name}: {region.width} columns x {region.height} rows of PEs; columns share"
                f" out the inputs (1..{layer.fan_in}), rows the outputs (1..{layer.fan_out})"
            )
    names = [*(layer.name for layer in layers), *sorted({"input", "loss"} & set(known))]
    left = min(known[n].x for n in names) - 1
    top = min(known[n].y for n in names) - 1
    floor = {n: known[n]._replace(x=known[n].x - left, y=known[n].y - top) for n in names}
    taken: dict[Spot, str] = {}
    for name, region in floor.items():
        for place in pes_of(region):
            if place in taken:
                raise FabricError(f"regions {taken[place]!r} and {name!r} overlap")
            taken[place] = name
    for name, near in (("input", layers[0].name), ("loss", layers[-1].name)):
        if name not in floor:
            x, y = _free(taken, floor[near])
            floor[name] = Region(name, x, y, 1, 1)
            taken[x, y] = name
    if floor["input"].width * floor["input"].height != 1 or floor["loss"].width != 1:
        raise FabricError("region 'input' is one PE, region 'loss' one column of PEs")
    return floor


def _free(taken: Mapping[Spot, str], near: Region) -> Spot:
    """The free PE nearest to a region's north-western corner."""
    spots = {
        (x, y)
        for x in range(near.x + near.width + 1)
        for y in range(near.y + near.height + 1)
        if (x, y) not in taken
    }
    return min(spots, key=lambda s: (abs(s[0] - near.x) + abs(s[1] - near.y), s))


def find_streams(
    size: tuple[int, int], floor: Mapping[str, Region], order: Sequence[str]
) -> dict[tuple[str, str], Stream]:
    """Find the way of every stream: activations onwards, gradients back to the first layer.

    Args:
        size: (H, W).
        floor: regions by name.
        order: "input", the layers, "loss".
    """
    ways = {}
    for a, b in zip(order, order[1:], strict=False):
        first, second = floor[a], floor[b]
        column = [(first.x, first.y + k) for k in range(first.height)]
        ways[a, b] = find_stream(size, column, second, a)
        if a != "input":
            row = [(second.x + k, second.y) for k in range(second.width)]
            ways[b, a] = find_stream(size, pes_of(second) if b == "loss" else row, first, b)
    return ways


def shares_of(layer: Dense, region: Region, before: Stream | None, after: Stream) -> Shares:
    """Share out inputs and outputs in the order in which the streams take them.

    Args:
        layer: the layer.
        region: its rectangle.
        before: stream of its input gradients, if any.
        after: stream of its outputs.
    """
    inputs = np.array_split(np.arange(layer.fan_in), region.width)
    outputs = np.array_split(np.arange(layer.fan_out), region.height)
    if before is not None and before.line[0][0] != region.x:
        inputs = inputs[::-1]
    if after.line[0][1] != region.y:
        outputs = outputs[::-1]
    return Shares(tuple(inputs), tuple(outputs))


def connect(
    wires: Wires,
    ways: Ways,
    floor: Mapping[str, Region],
    shares: Mapping[str, Shares],
    order: Sequence[str],
    batch: int,
) -> dict[tuple[str, str], Stream]:
    """Route every stream, with the filters by which each PE keeps its share."""
    streams = {}
    for (a, b), way in ways.items():
        region = floor[b]
        filters: dict[Spot, Filter | None] = {}
        if b == "loss":
            words = sum(len(s) for s in shares[a].outputs) * batch
            line = ways[b, a].line
            if len(line) > 1:
                filters = {p: share(k * words, words, len(line) * words) for k, p in enumerate(line)}
        else:
            onwards = order.index(a) < order.index(b)
            slices = shares[b].inputs if onwards else shares[b].outputs
            words = sum(len(s) for s in slices) * batch
            for x, y in pes_of(region):
                own = slices[x - region.x if onwards else y - region.y]
                if len(slices) > 1:
                    filters[x, y] = share(int(own[0]) * batch, len(own) * batch, words)
        streams[a, b] = wires.connect(way, filters)
    return streams
