"""Where the kernels of a fabric network lie, what each PE holds, and which streams join them."""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from wafer.compiler.dense_kernel import DenseCost, dense_cost
from wafer.fabric.errors import FabricError, RouteError
from wafer.fabric.program.tables import Filter
from wafer.fabric.training.regions import (
    Links,
    RegionStream,
    Spot,
    Wires,
    find_stream,
    lane,
    line_links,
    pes_of,
    way_links,
)
from wafer.spec import Region, WaferSpec

Ways = Mapping[tuple[str, str], RegionStream]  # (source, target) -> stream


class DenseLayer(NamedTuple):
    """A dense layer with bias; all but the last are followed by a ReLU."""

    name: str  #: of its parameters and of its region
    fan_in: int  #: inputs
    fan_out: int  #: outputs
    mask: np.ndarray | None = None  #: [fan_in, fan_out] bool, the weights that exist; None for all


class PhaseShares(NamedTuple):
    """Which inputs and outputs of a layer lie where."""

    inputs: tuple[np.ndarray, ...]  #: per column of the region, indices of its inputs
    outputs: tuple[np.ndarray, ...]  #: per row of the region, indices of its outputs
    turned: bool  #: the other way round: rows share out the inputs, columns the outputs

    def ranks(self, region: Region, place: Spot) -> tuple[int, int]:
        """Which share of the inputs and which of the outputs a PE has."""
        column, row = place[0] - region.x, place[1] - region.y
        return (row, column) if self.turned else (column, row)


def lay_out(
    layers: Sequence[DenseLayer], regions: Sequence[Region], inputs: int
) -> dict[str, Region]:
    """Move the regions to the grid's corner, a free row and column apart; add "input" and "loss".

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
    taken: dict[Spot, str] = {}
    for name in names:
        for place in pes_of(known[name]):
            if place in taken:
                raise FabricError(f"regions {taken[place]!r} and {name!r} overlap")
            taken[place] = name
    across, down = (sorted({getattr(known[n], axis) for n in names}) for axis in "xy")
    floor = {
        n: known[n]._replace(
            x=known[n].x - across[0] + across.index(known[n].x) + 2,
            y=known[n].y - down[0] + down.index(known[n].y) + 1,
        )
        for n in names
    }
    if "input" not in floor:  # beside the first layer, in the column that is free
        floor["input"] = Region("input", 0, floor[layers[0].name].y, 1, inputs)
    if "loss" not in floor:
        lanes = [p for layer in layers for to in "ES" for p in lane(floor[layer.name], to)]
        full = {*lanes, *(p for region in floor.values() for p in pes_of(region))}
        near = floor[layers[-1].name]  # the free PE nearest to its north-western corner
        xs, ys = range(near.x + near.width + 1), range(near.y + near.height + 1)
        spot = min(
            {*itertools.product(xs, ys)} - full,
            key=lambda s: (abs(s[0] - near.x) + abs(s[1] - near.y), s),
        )
        floor["loss"] = Region("loss", *spot, 1, 1)
    for name in ("input", "loss"):
        if min(floor[name].width, floor[name].height) != 1:
            raise FabricError(f"region {name!r}: one column or row of PEs is possible")
    return floor


def cost_of(
    layer: DenseLayer, region: Region, *, batch: int, first: bool, momentum: bool, spec: WaferSpec
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


def find_streams(
    size: tuple[int, int],
    floor: Mapping[str, Region],
    layers: Sequence[DenseLayer],
    turned: Mapping[str, bool],
    *,
    batch: int,
    most: int,
) -> dict[tuple[str, str], RegionStream]:
    """Find the way of every stream: activations onwards, gradients back to the first layer.

    Args:
        size: (H, W).
        floor: regions by name.
        layers: in order.
        turned: layers that are turned.
        batch: samples of a micro-batch.
        most: words that may cross a link per micro-batch without slowing the slowest kernel.
    """
    links = Links(size, most)
    for layer in layers:
        _inside(links, layer, floor[layer.name], batch, first=layer is layers[0], turned=turned)
    # Possible lines of a stream's senders, how it spreads, words of a micro-batch.
    requests: dict[tuple[str, str], tuple[list[list[Spot]], str, int]] = {}
    names = ["input", *(layer.name for layer in layers), "loss"]
    sizes = [layers[0].fan_in, *(layer.fan_out for layer in layers)]
    for (a, b), features in zip(itertools.pairwise(names), sizes, strict=True):
        words = features * batch
        towards = "" if b == "loss" else _WAYS[turned[b]]
        lines = _either(floor[a]) if a == "input" else [_edge(floor[a], column=not turned[a])]
        requests[a, b] = lines, towards, words
        if a != "input":
            lines = _either(floor[b]) if b == "loss" else [_edge(floor[b], column=turned[b])]
            requests[b, a] = lines, _WAYS[not turned[a]], words
    ways: dict[tuple[str, str], RegionStream] = {}
    for _ in range(_ROUNDS):
        before = dict(ways)
        for (a, b), (lines, towards, words) in requests.items():
            if (a, b) in ways:
                links.add(way_links(ways[a, b]), -words)
            ways[a, b] = find_stream(links, lines, floor[b], towards=towards, words=words, source=a)
        if ways == before:
            break
    return ways


_ROUNDS = 8  # in which each stream is found anew, the others as they are (McMurchie, FPGA'95)
_WAYS = {False: "E", True: "S"}  # of the inputs through a layer, turned or not


def _inside(
    links: Links,
    layer: DenseLayer,
    region: Region,
    batch: int,
    *,
    first: bool,
    turned: Mapping[str, bool],
) -> None:
    """Count what a layer's own links carry: its streams spread out, and are gathered."""
    into, out = layer.fan_in * batch, layer.fan_out * batch
    way = turned[layer.name]
    for words, to in ((into, _WAYS[way]), (out, _WAYS[not way])):
        links.add(((place, to) for place in pes_of(region)), words)
    columns, rows = (region.height, region.width) if way else (region.width, region.height)
    links.add(line_links(_edge(region, column=not way)), out)
    links.add(((place, "N" if way else "W") for place in pes_of(region)), -(-out // rows))
    if not first:
        links.add(line_links(_edge(region, column=way)), into)
        links.add(((place, "W" if way else "N") for place in pes_of(region)), -(-into // columns))


def _either(region: Region) -> list[list[Spot]]:
    """Both orders of a line of PEs."""
    return [pes_of(region), pes_of(region)[::-1]]


def _edge(region: Region, *, column: bool) -> list[Spot]:
    """The first column or row, from the corner on."""
    if column:
        return [(region.x, region.y + k) for k in range(region.height)]
    return [(region.x + k, region.y) for k in range(region.width)]


def shares_of(layer: DenseLayer, region: Region, *, turned: bool) -> PhaseShares:
    """Share out inputs and outputs in the order in which the streams take them.

    Args:
        layer: the layer.
        region: its rectangle.
        turned: see `cost_of`.
    """
    columns, rows = (region.height, region.width) if turned else (region.width, region.height)
    inputs = np.array_split(np.arange(layer.fan_in), columns)
    outputs = np.array_split(np.arange(layer.fan_out), rows)
    return PhaseShares(tuple(inputs), tuple(outputs), turned)


def connect(
    wires: Wires,
    ways: Ways,
    floor: Mapping[str, Region],
    shares: Mapping[str, PhaseShares],
    *,
    batch: int,
    micro_batches: int,
) -> dict[tuple[str, str], RegionStream]:
    """Route every stream, with the filters by which each PE keeps its share."""
    order = ["input", *shares, "loss"]
    streams: dict[tuple[str, str], RegionStream] = {}
    kept: dict[tuple[str, str], dict[Spot, Filter | None]] = {}
    queues: dict[tuple[str, str], int] = {}
    for (a, b), way in ways.items():
        onwards = order.index(a) < order.index(b)
        if b == "loss":  # micro-batches are dealt to the PEs of its line in turn
            words, line = sum(len(s) for s in shares[a].outputs) * batch, ways[b, a].line
            kept[a, b] = {
                p: Filter.share(k * words, words, len(line) * words)
                for k, p in enumerate(line)
                if len(line) > 1
            }
        else:
            kept[a, b] = _slices(floor[b], shares[b], batch, inputs=onwards)
        queues[a, b] = 0 if onwards else 1
        streams[a, b] = wires.connect(way, kept[a, b], queues[a, b])
    # Micro-batches take two colors in turn, so that one arrives while another waits. Where PEs take
    # turns at one end they do not; images do if they can be dealt out in pairs.
    for ends, stream in list(streams.items()):
        paired = micro_batches % (2 * len(stream.line)) == 0
        alternates = paired if ends[0] == "input" else "loss" not in ends
        if alternates:
            with contextlib.suppress(RouteError):  # one color does where none is left
                streams[ends] = wires.connect(stream, kept[ends], 2 + queues[ends])
    return streams


def _slices(
    region: Region, shares: PhaseShares, batch: int, *, inputs: bool
) -> dict[Spot, Filter | None]:
    """Each PE's own inputs, or the gradients of its own outputs."""
    slices = shares.inputs if inputs else shares.outputs
    words = sum(len(s) for s in slices) * batch
    filters: dict[Spot, Filter | None] = {}
    for place in pes_of(region) if len(slices) > 1 else ():
        own = slices[shares.ranks(region, place)[0 if inputs else 1]]
        filters[place] = Filter.share(int(own[0]) * batch, len(own) * batch, words)
    return filters
