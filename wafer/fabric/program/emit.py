"""A program as the image that PEs hold, which ``wafer.machine`` runs as it runs those of CSL.

PEs with the same tasks, arrays and queues share a program, whose symbols are its arrays.
"""

import functools

import numpy as np

from wafer.fabric.errors import FabricError
from wafer.fabric.program.codes import NO_SWITCH, Port
from wafer.fabric.program.pe import PeCode
from wafer.fabric.program.tables import Program
from wafer.machine.arch import ARCHITECTURES
from wafer.machine.image import COLORS, COLUMNS, Image

__all__ = ["emit"]


@functools.lru_cache(maxsize=8)
def emit(program: Program) -> Image:
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
    switch = np.full(shape, NO_SWITCH, np.int32)
    filters = np.zeros((*shape, len(COLUMNS["filters"])), np.int32)
    for number, own in program.colors.items():
        color[..., number], switch[..., number] = own.color, own.switch
        routed[..., number] = own.routed
        filters[:, :, number] = np.array(own.rules, np.int32)[own.filters]
    enters = {n: own.sides[1] & Port.RAMP != 0 for n, own in program.colors.items()}
    keys = _keys(program, enters)
    _, first, tiles = np.unique(
        keys.reshape(len(keys), -1), axis=1, return_index=True, return_inverse=True
    )
    places = [divmod(int(place), width) for place in first]
    codes = [PeCode(program, [n for n, there in enters.items() if there[pe]], pe) for pe in places]
    return Image(
        arch=spec.name,
        programs=tuple(code.program() for code in codes),
        tiles=tiles.reshape(height, width).astype(np.int32),
        colors=color,
        switches=switch,
        routed=routed,
        filters=filters,
        exports=(),
        streams={},
        params={},
    )


def _keys(program: Program, enters: dict[int, np.ndarray]) -> np.ndarray:
    """[n, H, W] what decides of a PE's code, memory and queues."""
    tasks, colors = program.tasks, program.colors.values()
    keys = [getattr(task, name) for name in ("entry", "active", "blocked") for task in tasks]
    keys += [*(array.held for array in program.arrays), *enters.values()]
    if any(op.position for ops in program.code for op in ops):  # the code writes registers
        keys += [word for own in colors for word in (own.color, own.switch, *own.reroutes)]
    return np.array(keys, np.int64).reshape(-1, program.height, program.width)
