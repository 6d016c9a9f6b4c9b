"""A program as the image that PEs hold, which ``wafer.machine`` runs as it runs those of CSL.

PEs with the same tasks, arrays and queues share a program.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from wafer.fabric.errors import FabricError
from wafer.fabric.program.codes import Port
from wafer.fabric.program.pe import PeCode
from wafer.fabric.program.routers import router_registers
from wafer.fabric.program.tables import Program
from wafer.machine.arch import ARCHITECTURES
from wafer.machine.image import Image

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
        RouteError: a switch position that changes both sides, or names several ports.
    """
    meta = program.meta
    if meta.spec.ramp_latency != ARCHITECTURES[meta.spec.name].ramp_latency:
        raise FabricError(
            f"ramp_latency {meta.spec.ramp_latency}: the machine's is"
            f" {ARCHITECTURES[meta.spec.name].ramp_latency}; count_cycles times other ones"
        )
    color, switch, routed, filters = router_registers(program)
    keys = _keys(program, color, switch)
    kinds, tiles = np.unique(keys.reshape(-1, keys.shape[-1]), axis=0, return_inverse=True)
    tiles = tiles.reshape(meta.height, meta.width).astype(np.int32)
    programs, groups = [], []
    for number in range(len(kinds)):
        pes = tiles == number
        y, x = np.argwhere(pes)[0].tolist()
        own = PeCode(program, x, y, {"color": color[y, x], "switch": switch[y, x]})
        programs.append(own.program(f"PE ({x}, {y})"))
        groups.append(PeGroup(pes, own.places, own.size))
    return Emitted(
        Image(
            arch=meta.spec.name,
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


def _keys(program: Program, color: np.ndarray, switch: np.ndarray) -> np.ndarray:
    """[H, W, n] what decides of a PE's code, memory and queues."""
    down = np.bitwise_or.reduce(np.asarray(program.tx)) & Port.RAMP
    planes = [program.entry, program.active, program.blocked, program.held, down]
    keys = [np.moveaxis(np.asarray(plane, np.int64), 0, -1) for plane in planes]
    if program.meta.teardown:  # the code writes registers
        keys += [color, switch]
        keys += [np.moveaxis(t, (0, 1), (-2, -1)) for t in (program.rx[4:], program.tx[4:])]
        shape = program.meta.height, program.meta.width, -1
        keys = [key.reshape(shape) for key in keys]
    return np.concatenate(keys, axis=-1)
