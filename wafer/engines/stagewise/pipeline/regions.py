"""Which stages of a model make up a region of the pipeline, and on which device it lies.

A region is a run of consecutive stages. Regions are balanced by the sizes of the weights that a
stage multiplies its input by, which is what its time goes by: the slowest region sets the pace.
An embedding that is only looked up counts nothing; tied to the head, it counts there.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from wafer.models.base import Model
from wafer.models.paths import named_leaves


class StageRegion(NamedTuple):
    """A stage of the pipeline."""

    name: str  #: of its first and last stage
    stages: tuple[int, ...]  #: indices of the model's stages, consecutive
    place: int  #: index of the device (with N systems: of the group of N devices) it lies on


def partition(costs: Sequence[float], groups: int) -> tuple[tuple[int, ...], ...]:
    """Cut a sequence into consecutive groups so that the most expensive one costs least.

    Args:
        costs: of each element.
        groups: how many; none is empty.

    Returns:
        Indices of each group. Among equally good cuts, the earliest.

    Raises:
        ValueError: more groups than elements.

    Example:
        >>> partition([1, 1, 1, 3], 2)
        ((0, 1, 2), (3,))
    """
    if not 1 <= groups <= len(costs):
        raise ValueError(f"{groups} group(s) of {len(costs)} element(s): expected 1 to that many")

    @functools.cache
    def best(begin: int, left: int) -> tuple[float, int]:
        """(cost of the most expensive group from here on, end of the first of them)."""
        if left == 1:
            return sum(costs[begin:]), len(costs)
        ends = range(begin + 1, len(costs) - left + 2)
        return min((max(sum(costs[begin:end]), best(end, left - 1)[0]), end) for end in ends)

    cut, begin = [], 0
    for left in range(groups, 0, -1):
        end = best(begin, left)[1]
        cut.append(tuple(range(begin, end)))
        begin = end
    return tuple(cut)


def _costs(model: Model, shapes: PyTree) -> list[float]:
    """Weights each stage multiplies by; the first reader of an embedding looks it up."""
    seen: set[str] = set()
    costs = []
    for stage in model.stages:
        total = 0
        for branch in stage.params:
            for name, leaf in named_leaves({branch: shapes[branch]}):
                looked_up = "embed" in name and name not in seen
                total += 0 if looked_up else math.prod(leaf.shape)
                seen.add(name)
        costs.append(float(total))
    return costs


def regions(
    model: Model, shapes: PyTree, stages: int | None, devices: int
) -> tuple[StageRegion, ...]:
    """Group a model's stages and put the groups on devices.

    Args:
        model: what is trained.
        shapes: of its parameters.
        stages: S of the pipeline; None gives every stage of the model a region.
        devices: the regions are spread over, consecutive ones together.

    Raises:
        ValueError: more regions than stages, or more devices than regions.
    """
    costs = _costs(model, shapes)
    count = len(costs) if stages is None else stages
    if count > len(costs):
        names = ", ".join(stage.name for stage in model.stages)
        raise ValueError(f"{count} pipeline stages, but the model has {len(costs)}: {names}")
    if devices > count:
        raise ValueError(f"{devices} devices, but the pipeline has {count} stage(s)")
    groups = partition(costs, count)
    places = partition([sum(costs[i] for i in group) for group in groups], devices)
    place_of = {group: place for place, members in enumerate(places) for group in members}
    ends = [dict.fromkeys(model.stages[i].name for i in (g[0], g[-1])) for g in groups]
    return tuple(StageRegion("–".join(ends[i]), g, place_of[i]) for i, g in enumerate(groups))


class Copies(NamedTuple):
    """Copies of a pipeline, which take the micro-batches in turn."""

    number: int = 1  #: R
    groups: int = 1  #: of devices that they lie on, copy after copy
    devices: int = 1  #: of a group, with one for each place of a region

    def places(self, micro: int) -> range:
        """Numbers of the devices on which the copy that takes a micro-batch lies."""
        first = micro % self.number % self.groups * self.devices
        return range(first, first + self.devices)

    def place(self, region: StageRegion, micro: int = 0) -> int:
        """Number of the device of a region, in the copy that takes a micro-batch."""
        return self.places(micro)[region.place]


def spread(count: int, devices: int, available: int) -> Copies:
    """Put copies on groups of devices: as many groups as there are devices for, all alike.

    Args:
        count: of copies.
        devices: of a copy, over all systems.
        available: devices of the machine.

    Example:
        >>> [spread(4, 2, available).groups for available in (2, 5, 7, 9)]
        [1, 2, 2, 4]
    """
    most = max(available // devices, 1)
    groups = max(n for n in range(1, min(count, most) + 1) if count % n == 0)
    return Copies(count, groups, devices)


def meshes(num_csx: int, devices: int) -> tuple[Mesh, ...]:
    """Make a mesh of N systems, axis 'csx', for each place of a pipeline and of its copies.

    Raises:
        ValueError: fewer devices than N times the places.
    """
    seen, needed = jax.devices(), num_csx * devices
    if len(seen) < needed:
        raise ValueError(
            f"runconfig.pipeline.devices: {devices} device(s) for each of {num_csx} system(s), "
            f"but JAX sees {len(seen)} {seen[0].platform} device(s). On a CPU the command line "
            "makes as many as needed; in Python call "
            f"jax.config.update('jax_num_cpu_devices', {needed}) before first use."
        )
    return tuple(
        jax.make_mesh((num_csx,), ("csx",), devices=seen[i * num_csx : (i + 1) * num_csx])
        for i in range(devices)
    )
