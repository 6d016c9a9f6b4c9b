"""A stack of dense layers trains on the fabric simulator: one rectangle of PEs per layer.

`build` turns layers and their regions (from a floor plan, or chosen by hand) into one PE program
for an optimizer step; `step` runs it cycle by cycle. Weights, gradients and velocities stay in the
memory of their rectangle; between rectangles only activations and their gradients travel, on
routed colors; the host writes images into one PE and labels into the PEs of the loss.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree
from numpy.typing import ArrayLike

from wafer.compiler.dense_kernel import DenseCost, in_flight, loss_cost, pipeline_cycles
from wafer.engines.fabric.floor import (
    DenseLayer,
    PhaseShares,
    connect,
    cost_of,
    find_streams,
    lay_out,
    shares_of,
)
from wafer.fabric.errors import FabricError, SramError
from wafer.fabric.program.layout import Layout
from wafer.fabric.program.tables import Program
from wafer.fabric.simulator import cycles, initial_arrays, simulate
from wafer.fabric.training.layers import (
    LayerProgram,
    LayerTile,
    arrays,
    input_ops,
    loss_pe_ops,
    tile_ops,
)
from wafer.fabric.training.regions import RegionStream, Spot, Wires, chains, pes_of, spot
from wafer.fabric.training.softmax import WORDS
from wafer.spec import WSE2, Region, WaferSpec

_MAX_CYCLES = 100_000_000  # of a step

Memory = Mapping[str, np.ndarray]  # array -> [H, W, n] values in all PEs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Net:
    """A built network."""

    program: Program  #: the PE program of one optimizer step
    layers: tuple[DenseLayer, ...]  #: as given
    #: of the layers, then "input" and "loss", in the program's coordinates
    regions: tuple[Region, ...]
    shares: tuple[PhaseShares, ...]  #: of every layer
    tiles: tuple[Mapping[Spot, LayerTile], ...]  #: of every layer, by PE
    batch: int  #: samples of a micro-batch
    micro_batches: int  #: of an optimizer step
    costs: tuple[tuple[DenseCost, ...], DenseCost]  #: predicted for every layer, and for the loss
    #: PEs of "input" and of "loss", in the order in which they take the micro-batches
    lines: Mapping[str, tuple[Spot, ...]]

    @functools.cached_property
    def predicted(self) -> int:
        """Cycles of a step by closed forms."""
        return pipeline_cycles(*self.costs, self.micro_batches)


class NetworkStep(NamedTuple):
    """What a step reports."""

    loss: float  #: mean cross-entropy, as the PEs of the loss computed it
    cycles: int  #: from the first word to the last update
    busy: np.ndarray  #: [H, W] int32 cycles in which each PE issued


def build(
    layers: Sequence[DenseLayer],
    regions: Sequence[Region],
    *,
    batch: int,
    micro_batches: int = 1,
    momentum: float = 0.0,
    spec: WaferSpec = WSE2,
) -> Net:
    """Write the program that trains a stack of dense layers.

    Args:
        layers: in order; each one's ``fan_out`` is the next one's ``fan_in``.
        regions: one of each layer's name; also "input" and "loss", a column or row of PEs each
            that take the micro-batches in turn (a divisor of their number is used); otherwise
            free PEs are taken. Others are ignored.
        batch: samples of a micro-batch.
        micro_batches: of an optimizer step.
        momentum: decay of SGD's velocity; 0 keeps none.
        spec: the machine.

    Raises:
        FabricError: sizes that do not fit together.
        SramError: a layer that does not fit its rectangle.
        RouteError: regions between which nothing can be routed.
    """
    _check(layers, batch, micro_batches)
    floor = lay_out(layers, regions, _input_pes(layers[0].fan_in * batch, micro_batches, spec))
    for name in ("input", "loss"):
        line = floor[name]  # as many of its PEs as take the micro-batches in turn evenly
        pes = max(p for p in range(1, len(pes_of(line)) + 1) if micro_batches % p == 0)
        floor[name] = line._replace(width=min(line.width, pes), height=min(line.height, pes))
    quickest = {
        layer.name: cost_of(
            layer,
            floor[layer.name],
            batch=batch,
            first=layer is layers[0],
            momentum=bool(momentum),
            spec=spec,
        )
        for layer in layers
    }
    costs = [cost for cost, _ in quickest.values()]
    turned = {name: way for name, (_, way) in quickest.items()}
    of_loss = loss_cost(layers[-1].fan_out, batch, len(pes_of(floor["loss"])), spec)
    flying = in_flight(costs, of_loss)
    order = ["input", *(layer.name for layer in layers), "loss"]
    width = max(r.x + r.width for r in floor.values()) + 1
    height = max(r.y + r.height for r in floor.values()) + 1
    layout = Layout(
        width, height, spec, overheads=True, host_io=True, main_thread_priority="medium_low"
    )
    most = max(cost.period for cost in (*costs, of_loss))
    ways = find_streams((height, width), floor, layers, turned, batch=batch, most=most)
    shares = {n.name: shares_of(n, floor[n.name], turned=turned[n.name]) for n in layers}
    tiles = {n.name: _tiles(n, floor[n.name], shares[n.name]) for n in layers}
    wires, images = Wires(layout), ("input", layers[0].name)
    # Images go sample by sample, so that no PE's words come in a row: gradients pass beside them.
    streams = connect(
        wires, {images: ways.pop(images)}, floor, shares, batch=1, micro_batches=micro_batches
    )
    # After the images' colors, which so go first: every sweep of theirs crosses the chains' wave.
    rows, columns = [(layout.color(), layout.color()) for _ in range(2)]
    streams |= connect(wires, ways, floor, shares, batch=batch, micro_batches=micro_batches)
    for before, layer, after in zip(order, layers, order[2:], strict=False):
        name = layer.name
        axes = "yx" if turned[name] else "xy"
        chains(layout, floor[name], rows, axes[0])
        chains(layout, floor[name], columns, axes[1])
        program = LayerProgram(
            name=name,
            batch=batch,
            micro_batches=micro_batches,
            flying=flying[order.index(name) - 1],
            x=streams[before, name],
            dy=streams[after, name],
            y=streams[name, after],
            dx=streams.get((name, before)),
            rows=rows,
            columns=columns,
            relu=after != "loss",
            momentum=momentum,
        )
        _bind_layer(layout, program, layer, floor[name], tiles[name])
    _bind_input(layout, streams["input", order[1]], layers[0].fan_in * batch, micro_batches)
    into, out = streams[order[-2], "loss"], streams["loss", order[-2]]
    _bind_loss(layout, (into, out), layers[-1].fan_out, batch, micro_batches)
    return Net(
        program=layout.build(),
        layers=tuple(layers),
        regions=tuple(floor[name] for name in [*order[1:-1], "input", "loss"]),
        shares=tuple(shares.values()),
        tiles=tuple(tiles.values()),
        batch=batch,
        micro_batches=micro_batches,
        costs=(tuple(costs), of_loss),
        lines={"input": streams["input", order[1]].line, "loss": out.line},
    )


def _input_pes(words: int, micro_batches: int, spec: WaferSpec) -> int:
    """PEs among which a step's images fit."""
    for pes in range(1, micro_batches + 1):
        if micro_batches % pes == 0 and 4 * words * micro_batches // pes <= spec.sram_bytes:
            return pes
    raise SramError(
        f"input: one micro-batch is {4 * words:,} bytes; {spec.name} has {spec.sram_bytes:,} per"
        " PE: take smaller micro-batches"
    )


def _check(layers: Sequence[DenseLayer], batch: int, micro_batches: int) -> None:
    if not layers or batch < 1 or micro_batches < 1:
        raise FabricError(
            f"{len(layers)} layers, {micro_batches} micro-batches of {batch}: all must be positive"
        )
    for before, layer in itertools.pairwise(layers):
        if before.fan_out != layer.fan_in:
            raise FabricError(
                f"{layer.name}: takes {layer.fan_in} inputs, but {before.name} gives"
                f" {before.fan_out}"
            )
    for layer in layers:
        shape = (layer.fan_in, layer.fan_out)
        if layer.mask is not None and layer.mask.shape != shape:
            raise FabricError(f"{layer.name}: mask {layer.mask.shape}, expected {shape}")


def _tiles(layer: DenseLayer, region: Region, shares: PhaseShares) -> dict[Spot, LayerTile]:
    whole = np.ones((layer.fan_in, layer.fan_out)) if layer.mask is None else layer.mask
    tiles = {}
    for place in pes_of(region):
        rank = shares.ranks(region, place)
        inputs, outputs = shares.inputs[rank[0]], shares.outputs[rank[1]]
        kept = whole[np.ix_(inputs, outputs)]
        entries = tuple((int(i), int(o)) for i, o in np.argwhere(kept))
        size = (len(shares.inputs), len(shares.outputs))
        tiles[place] = LayerTile(place, rank, size, len(inputs), len(outputs), entries)
    return tiles


def _bind_layer(
    layout: Layout,
    program: LayerProgram,
    layer: DenseLayer,
    region: Region,
    tiles: Mapping[Spot, LayerTile],
) -> None:
    """Declare a layer's arrays, and one task for all PEs that do the same."""
    where = np.zeros((layout.height, layout.width), bool)
    where[region.y : region.y + region.height, region.x : region.x + region.width] = True
    fullest = max(tiles.values(), key=lambda tile: tile.stored)
    words = arrays(
        inputs=max(tile.inputs for tile in tiles.values()),
        outputs=max(tile.outputs for tile in tiles.values()),
        stored=max(1, fullest.stored),
        batch=program.batch,
        slots=program.slots,
        ahead=len(program.dy.colors),
        input_gradient=program.dx is not None,
        momentum=bool(program.momentum),
    )
    # A pattern is two 16-bit numbers per kept weight; a whole tile needs none.
    pattern = 0 if layer.mask is None else len(fullest.entries)
    needed, spec = 4 * (sum(words.values()) + pattern), layout.spec
    if needed > spec.sram_bytes:
        raise SramError(
            f"{layer.name}: PE {fullest.place} of its {region.width} x {region.height} needs "
            f"{needed:,} bytes; {spec.name} has {spec.sram_bytes:,} per PE. Give the layer a "
            f"larger region (up to {layer.fan_in} x {layer.fan_out}), take smaller micro-batches, "
            "or stream the weights (--execution weight_streaming)"
        )
    for array, count in words.items():
        layout.array(f"{layer.name}/{array}", count, where=where)
    classes: dict[tuple, list[Spot]] = {}
    for place, tile in tiles.items():
        ends = tuple(s is not None and place == s.line[-1] for s in (program.y, program.dx))
        column, row = (  # the same for ranks that do the same: root, last, odd and even
            r if r in {0, size - 1} else -1 - r % 2
            for r, size in zip(tile.rank, tile.size, strict=True)
        )
        alike = (tile._replace(place=(0, 0), rank=(column, row)), ends)
        classes.setdefault(alike, []).append(place)
    for places in classes.values():
        mask = np.logical_or.reduce([spot(layout, place) for place in places])
        layout.task("step", tile_ops(program, tiles[places[0]]), mask, active=True)


def _bind_input(layout: Layout, stream: RegionStream, words: int, micro_batches: int) -> None:
    where = np.logical_or.reduce([spot(layout, place) for place in stream.line])
    layout.array("input", words * micro_batches // len(stream.line), where=where)
    for place in stream.line:
        ops = input_ops(stream, place, words, micro_batches)
        layout.task("step", ops, spot(layout, place), active=True)


def _bind_loss(
    layout: Layout,
    streams: tuple[RegionStream, RegionStream],
    classes: int,
    batch: int,
    micro_batches: int,
) -> None:
    into, out = streams
    where = np.logical_or.reduce([spot(layout, place) for place in out.line])
    n = classes * batch
    layout.array("labels", n * micro_batches // len(out.line), where=where)
    for name in ("scores", "out"):
        layout.array(name, 2 * n, where=where)
    for name in WORDS["wide"]:
        layout.array(name, n, where=where)
    for name in WORDS["narrow"]:
        layout.array(name, batch, where=where)
    layout.array("loss", 1, where=where)
    for place in out.line:
        ops = loss_pe_ops(
            into, out, place, classes=classes, batch=batch, micro_batches=micro_batches
        )
        layout.task("step", ops, spot(layout, place), active=True)


def _exchange(
    net: Net, memory: Memory, tree: Mapping[str, PyTree], array: str, *, load: bool
) -> None:
    """Copy every layer's kernel and bias to its PEs, or from them; or what is shaped like them."""
    for layer, shares, tiles in zip(net.layers, net.shares, net.tiles, strict=True):
        words = memory[f"{layer.name}/{array}"]
        kernel, bias = tree[layer.name]["kernel"], tree[layer.name]["bias"]
        for place, tile in tiles.items():
            own = words[place[1], place[0]]
            inputs, outputs = shares.inputs[tile.rank[0]], shares.outputs[tile.rank[1]]
            at = np.array(tile.entries, int).reshape(-1, 2).T
            kept = (inputs[at[0]], outputs[at[1]])
            n, biases = len(tile.entries), slice(len(tile.entries), tile.stored)
            if load:
                own[:n], own[biases] = kernel[kept], bias[outputs][: tile.stored - n]
            else:
                kernel[kept] = own[:n]
                if tile.biased:
                    bias[outputs] = own[biases]


def init(
    net: Net, tree: Mapping[str, PyTree], velocities: Mapping[str, PyTree] | None = None
) -> Memory:
    """Load parameters into the PEs; returns their memory, by array [H, W, n].

    Args:
        net: the network.
        tree: per layer ``{"kernel": [fan_in, fan_out], "bias": [fan_out]}``, as
            ``fc_mnist`` has them; pruned weights are left out.
        velocities: the same of SGD's velocity, for a net with momentum; None begins at 0.

    Raises:
        FabricError: an array of another shape.
    """
    memory = initial_arrays(net.program, None)
    given = {"weights": tree} | ({} if velocities is None else {"velocities": velocities})
    for array, values in given.items():
        _exchange(net, memory, _check_shapes(net, values), array, load=True)
    return memory


def _check_shapes(net: Net, tree: Mapping[str, PyTree]) -> dict[str, dict[str, np.ndarray]]:
    host: dict[str, Any] = {}
    for layer in net.layers:
        name = layer.name
        wanted = {"kernel": (layer.fan_in, layer.fan_out), "bias": (layer.fan_out,)}
        host[name] = {k: np.asarray(tree[name][k]) for k in wanted}
        for key, shape in wanted.items():
            got = host[name][key].shape
            if got != shape:
                raise FabricError(f"{name}/{key}: shape {got}, expected {shape}")
    return host


def params(net: Net, memory: Memory) -> dict[str, dict[str, np.ndarray]]:
    """Read the parameters back; pruned weights are 0."""
    return read(net, memory, "weights")


def read(net: Net, memory: Memory, array: str) -> dict[str, dict[str, np.ndarray]]:
    """Read back "weights", "velocities", or the last step's mean "gradients"; 0 where pruned."""
    tree = {
        layer.name: {
            "kernel": np.zeros((layer.fan_in, layer.fan_out), np.float32),
            "bias": np.zeros(layer.fan_out, np.float32),
        }
        for layer in net.layers
    }
    _exchange(net, memory, tree, array, load=False)
    return tree


def step(
    net: Net,
    memory: Memory,
    x: ArrayLike,
    y: ArrayLike,
    *,
    learning_rate: float,
    implementation: str = "auto",
) -> tuple[Memory, NetworkStep]:
    """Run one optimizer step of SGD on the fabric, cycle by cycle.

    Args:
        net: the network.
        memory: of the PEs, from ``init`` or the step before.
        x: [N, fan_in] float, N = ``batch * micro_batches``.
        y: [N] int class labels.
        learning_rate: of this step.
        implementation: machine, see :func:`wafer.fabric.simulate`.

    Returns:
        The memory after the update, and the report.
    """
    count, fan_in = net.batch * net.micro_batches, net.layers[0].fan_in
    x, y, classes = np.asarray(x, np.float32), np.asarray(y), net.layers[-1].fan_out
    if x.shape != (count, fan_in) or y.shape != (count,):
        raise FabricError(
            f"step: x {x.shape} and y {y.shape}; this program takes [{count}, {fan_in}] and"
            f" [{count}], {net.micro_batches} micro-batches of {net.batch}"
        )
    if y.min() < 0 or y.max() >= classes:
        raise FabricError(f"step: labels {y.min()}..{y.max()}; the last layer has {classes}")
    values: dict[str, Any] = {n: np.zeros_like(memory[n]) for n in ("input", "labels")}
    values |= {f"{layer.name}/rate": -learning_rate for layer in net.layers}
    _deal(net, values, "input", x)
    _deal(net, values, "labels", np.eye(classes)[y])
    end = simulate(net.program, {**memory, **values}, _MAX_CYCLES, implementation)
    losses = [float(end.arrays["loss"][y, x, 0]) for x, y in net.lines["loss"]]
    report = NetworkStep(sum(losses), int(cycles(end)), end.busy)
    return end.arrays, report


def _deal(net: Net, memory: Memory, name: str, rows: np.ndarray) -> None:
    """Write [N, features] to the PEs of a line.

    Images: a run of micro-batches each, sample by sample. Labels: micro-batches in turn, feature
    by feature.
    """
    words, images = memory[name], name == "input"
    line = net.lines["input" if images else "loss"]
    parts = rows.reshape(-1, net.batch, rows.shape[1])
    parts = parts.reshape(len(line), -1) if images else parts.swapaxes(1, 2)
    for rank, (x, y) in enumerate(line):
        own = parts[rank] if images else parts[rank :: len(line)]
        words[y, x] = own.reshape(-1)
