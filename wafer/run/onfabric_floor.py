"""Where the kernels of a fabric network lie, what each PE holds, and which streams join them."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from wafer.compiler.dense_kernel import DenseCost, dense_cost
from wafer.compiler.plan import Region
from wafer.fabric.errors import FabricError
from wafer.fabric.program import Filter
from wafer.fabric.regions import Spot, Stream, Wires, find_stream, pes_of, share
from wafer.spec import WaferSpec

__all__ = ["Dense", "Shares", "connect", "cost_of", "find_streams", "lay_out", "shares_of"]

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
    turned: the other way round: rows share out the inputs, columns the outputs
    """

    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    turned: bool

    def ranks(self, region: Region, place: Spot) -> tuple[int, int]:
        """Which share of the inputs and which of the outputs a PE has."""
        column, row = place[0] - region.x, place[1] - region.y
        return (row, column) if self.turned else (column, row)


def lay_out(layers: Sequence[Dense], regions: Sequence[Region], inputs: int) -> dict[str, Region]:
    """Move the regions to the grid's corner, one PE from it, and add "input" and "loss".

    Args:
        layers: in order.
        regions: by their names; others are ignored.
        inputs: PEs for the images.

    Raises:
        FabricError: a region that is missing, overlaps, or has more PEs than there is to share.
    """
    known = {r.name: r for r in regions}
    missing = [layer.name for layer in layers if layer.name not in known]
    if missing:
        raise FabricError(f"no region for layer {missing[0]!r}; regions: {list(known)}")
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
    if "input" not in floor:  # beside the first layer, in the column that is free
        floor["input"] = Region("input", 0, floor[layers[0].name].y, 1, inputs)
    if "loss" not in floor:
        taken |= dict.fromkeys(pes_of(floor["input"]), "input")
        floor["loss"] = Region("loss", *_free(taken, floor[layers[-1].name]), 1, 1)
    for name in ("input", "loss"):
        if min(floor[name].width, floor[name].height) != 1:
            raise FabricError(f"region {name!r}: one column or row of PEs is possible")
    return floor


def cost_of(
    layer: Dense, region: Region, *, batch: int, first: bool, momentum: bool, spec: WaferSpec
) -> tuple[DenseCost, bool]:
    """Cost of a layer in its region, and whether its rows share out the inputs: the quicker way.

    Args:
        layer: the layer.
        region: its rectangle.
        batch: samples of a micro-batch.
        first: whether it needs no input gradient.
        momentum: whether its update keeps a velocity.
        spec: the machine.

    Raises:
        FabricError: more PEs than there is to share, either way.
    """
    sides = (region.height, region.width)
    costs = [
        (
            dense_cost(
                layer.fan_in,
                layer.fan_out,
                height,
                width,
                nnz=layer.mask,
                batch=batch,
                input_gradient=not first,
                momentum=momentum,
                spec=spec,
            ),
            turned,
        )
        for (height, width), turned in ((sides, False), (sides[::-1], True))
        if width <= layer.fan_in and height <= layer.fan_out
    ]
    if not costs:
        raise FabricError(
            f"{layer.name}: {region.width} columns x {region.height} rows of PEs; one side shares"
            f" out the inputs (1..{layer.fan_in}), the other the outputs (1..{layer.fan_out})"
        )
    return min(costs, key=lambda pair: pair[0].period)


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
    size: tuple[int, int],
    floor: Mapping[str, Region],
    order: Sequence[str],
    turned: Mapping[str, bool],
) -> dict[tuple[str, str], Stream]:
    """Find the way of every stream: activations onwards, gradients back to the first layer.

    Args:
        size: (H, W).
        floor: regions by name.
        order: "input", the layers, "loss".
        turned: layers that are turned.
    """
    ways = {}
    for a, b in itertools.pairwise(order):
        first, second = floor[a], floor[b]
        # Outputs lie in the first column, input gradients in the first row.
        ways[a, b] = find_stream(size, _edge(first, column=not turned.get(a)), second, a)
        if a != "input":
            whole = pes_of(second) if b == "loss" else _edge(second, column=turned[b])
            ways[b, a] = find_stream(size, whole, first, b)
    return ways


def _edge(region: Region, *, column: bool) -> list[Spot]:
    if column:
        return [(region.x, region.y + k) for k in range(region.height)]
    return [(region.x + k, region.y) for k in range(region.width)]


def shares_of(
    layer: Dense, region: Region, before: Stream | None, after: Stream, *, turned: bool
) -> Shares:
    """Share out inputs and outputs in the order in which the streams take them.

    Args:
        layer: the layer.
        region: its rectangle.
        before: stream of its input gradients, if any.
        after: stream of its outputs.
        turned: see `cost_of`.
    """
    corner = (region.x, region.y)
    columns, rows = (region.height, region.width) if turned else (region.width, region.height)
    inputs = np.array_split(np.arange(layer.fan_in), columns)
    outputs = np.array_split(np.arange(layer.fan_out), rows)
    if before is not None and before.line[0] != corner:
        inputs = inputs[::-1]
    if after.line[0] != corner:
        outputs = outputs[::-1]
    return Shares(tuple(inputs), tuple(outputs), turned)


def connect(
    wires: Wires,
    ways: Ways,
    floor: Mapping[str, Region],
    shares: Mapping[str, Shares],
    batch: int,
) -> dict[tuple[str, str], Stream]:
    """Route every stream, with the filters by which each PE keeps its share."""
    order = ["input", *shares, "loss"]
    streams = {}
    for (a, b), way in ways.items():
        region, onwards = floor[b], order.index(a) < order.index(b)
        filters: dict[Spot, Filter | None] = {}
        if b == "loss":
            words = sum(len(s) for s in shares[a].outputs) * batch
            line = ways[b, a].line
            if len(line) > 1:
                filters = {
                    p: share(k * words, words, len(line) * words) for k, p in enumerate(line)
                }
        else:
            slices = shares[b].inputs if onwards else shares[b].outputs
            words = sum(len(s) for s in slices) * batch
            for place in pes_of(region):
                own = slices[shares[b].ranks(region, place)[0 if onwards else 1]]
                if len(slices) > 1:
                    filters[place] = share(int(own[0]) * batch, len(own) * batch, words)
        # The deepest queues, since a microthread takes words only when its task pauses.
        streams[a, b] = wires.connect(way, filters, queue=0 if onwards else 1)
    return streams
