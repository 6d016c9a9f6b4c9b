"""A program as the image that PEs hold, which ``wafer.machine`` runs as it runs those of CSL.

PEs with the same tasks, arrays and queues share a program.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from wafer.fabric.errors import FabricError
from wafer.fabric.program.codes import Port, switch_register
from wafer.fabric.program.pe import PeCode
from wafer.fabric.program.tables import Program
from wafer.machine.arch import ARCHITECTURES
from wafer.machine.image import COLORS, COLUMNS, Image

__all__ = ["Emitted", "PeGroup", "emit"]


class PeGroup(NamedTuple):
    """PEs that hold the same."""

    pes: np.ndarray  #: [H, W] bool
    places: Mapping[str, int]  #: array -> its address in bytes
    size: int  #: bytes of memory


class Emitted(NamedTuple):
    """An image; ``groups`` are its programs' PEs and their arrays, in order."""

    image: Image
    groups: tuple[PeGroup, ...]


@functools.lru_cache(maxsize=8)
def emit(program: Program) -> Emitted:
    """Make the image of a program.

    Args:
        program: of ``Layout.build``.

    Raises:
        FabricError: an operation, a task or a machine that the image has no room for.
    """
    spec, height, width = program.spec, program.height, program.width
    if spec.ramp_latency != ARCHITECTURES[spec.name].ramp_latency:
        raise FabricError(
            f"ramp_latency {spec.ramp_latency}: the machine's is"
            f" {ARCHITECTURES[spec.name].ramp_latency}; count_cycles times other ones"
        )
    shape = (height, width, COLORS)
    color, routed = np.zeros(shape, np.int32), np.zeros(shape, bool)
    switch = np.full(shape, switch_register([]), np.int32)
    filters = np.zeros((*shape, len(COLUMNS["filters"])), np.int32)
    for number, own in program.colors.items():
        color[..., number], switch[..., number] = own.color, own.switch
        routed[..., number] = own.routed
        filters[:, :, number] = np.array(own.rules, np.int32)[own.filters]
    enters = {n: own.sides[1] & Port.RAMP != 0 for n, own in program.colors.items()}
    keys = _keys(program, enters)
    kinds, tiles = np.unique(keys.reshape(len(keys), -1), axis=1, return_inverse=True)
    tiles = tiles.reshape(height, width).astype(np.int32)
    programs, groups = [], []
    for number in range(kinds.shape[1]):
        pes = tiles == number
        y, x = np.argwhere(pes)[0].tolist()
        own = PeCode(program, [n for n, there in enters.items() if there[y, x]], x, y)
        programs.append(own.program(f"PE ({x}, {y})"))
        groups.append(PeGroup(pes, own.places, own.size))
    return Emitted(
        Image(
            arch=spec.name,
            programs=tuple(programs),
            tiles=tiles,
            colors=color,
            switches=switch,
            routed=routed,
            filters=filters,
            exports=(),
            streams={},
            params={},
        ),
        tuple(groups),
    )


def _keys(program: Program, enters: dict[int, np.ndarray]) -> np.ndarray:
    """[n, H, W] what decides of a PE's code, memory and queues."""
    tasks, colors = program.tasks, program.colors.values()
    keys = [getattr(task, name) for name in ("entry", "active", "blocked") for task in tasks]
    keys += [*(array.held for array in program.arrays), *enters.values()]
    if any(op.position for ops in program.code for op in ops):  # the code writes registers
        keys += [word for own in colors for word in (own.color, own.switch, *own.reroutes)]
    return np.array(keys, np.int64).reshape(-1, program.height, program.width)
