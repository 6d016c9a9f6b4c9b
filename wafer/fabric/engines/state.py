"""Everything that changes while a program runs: arrays over the grid.

Order of the axes: colors C, then stages or slots, then H, W; memory is [M, H, W].
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from wafer.fabric.program.codes import FilterKind
from wafer.fabric.program.tables import Program

__all__ = ["FabricState", "Lanes", "empty_state"]

# Flag bits of a wavelet; 0 is an empty slot.
VALID, CONTROL, ADVANCE = 1, 2, 4


class Lanes(NamedTuple):
    """Wavelets held in some pipe or queue.

    data: [C, D, H, W] uint32 payloads
    flag: [C, D, H, W] uint8 flag bits, 0 where empty; slots fill from 0
    """

    data: Array
    flag: Array


class FabricState(NamedTuple):
    """One instant of the fabric.

    Attributes:
        cycle: [] int32 cycles so far
        progress: [] bool, whether the last cycle changed anything
        fault: [4] int32 ``Fault``, color index, y, x of the first fault
        router: [C, 2, H, W] lanes, the routers' FIFO per color
        up: [C, T_R, H, W] lanes from CE to router, stage 0 at the CE
        down: [C, T_R - 1, H, W] lanes from router to CE, stage 0 at the router
        queue: [C, D, H, W] lanes, input queues
        pos_rx: [C, H, W] uint8 switch position for wavelets that enter
        pos_tx: [C, H, W] uint8 switch position for wavelets that leave
        counter: [C, H, W] int32 of counter filters
        pc: [1 + U, H, W] int32 operation of the task (0) and of the microthreads, -1 idle
        left: [1 + U, H, W] int32 elements to go
        wait: [1 + U, H, W] int32 cycles until the first element
        active: [H, W] int32 bits of activated tasks
        blocked: [H, W] int32 bits of blocked tasks
        arg: [H, W] uint32 wavelet that the running data or control task was activated by
        mem: [M, H, W] uint32 memory words
        busy: [H, W] int32 cycles in which the CE issued
        end: [H, W] int32 one past the last such cycle
        links: [5, H, W] int32 words sent W, E, S, N and to the CE
    """

    cycle: Array
    progress: Array
    fault: Array
    router: Lanes
    up: Lanes
    down: Lanes
    queue: Lanes
    pos_rx: Array
    pos_tx: Array
    counter: Array
    pc: Array
    left: Array
    wait: Array
    active: Array
    blocked: Array
    arg: Array
    mem: Array
    busy: Array
    end: Array
    links: Array


def _bits(plane: Any, count: int, xp: Any) -> Array:
    out = xp.zeros(plane.shape[-2:], xp.int32)
    for task in range(count):
        out = out | (plane[task].astype(xp.int32) << task)
    return out


def empty_state(program: Program, mem: Array) -> FabricState:
    """Build the state before the first task is dispatched.

    Args:
        program: the program.
        mem: [M, H, W] uint32 initial memory.
    """
    # In JAX every shape of zeros would be a program, compiled before the first run.
    xp: Any = np if isinstance(program.active, np.ndarray) else jnp
    meta = program.meta
    grid = (meta.height, meta.width)
    colors, ramp = len(meta.colors), meta.spec.ramp_latency
    queue = max(meta.spec.input_queue_depths)
    threads = (1 + meta.threads, *grid)

    def lanes(depth: int) -> Lanes:
        shape = (colors, depth, *grid)
        return Lanes(xp.zeros(shape, xp.uint32), xp.zeros(shape, xp.uint8))

    state = FabricState(
        cycle=xp.int32(0),
        progress=xp.bool_(True),
        fault=xp.zeros(4, xp.int32),
        router=lanes(2),
        up=lanes(ramp),
        down=lanes(ramp - 1),
        queue=lanes(queue),
        pos_rx=xp.asarray(program.start, xp.uint8),
        pos_tx=xp.asarray(program.start, xp.uint8),
        counter=xp.where(program.filters[0] == FilterKind.COUNTER, program.filters[3], 0).astype(
            xp.int32
        ),
        pc=xp.full(threads, -1, xp.int32),
        left=xp.zeros(threads, xp.int32),
        wait=xp.zeros(threads, xp.int32),
        active=_bits(program.active, len(meta.tasks), xp),
        blocked=_bits(program.blocked, len(meta.tasks), xp),
        arg=xp.zeros(grid, xp.uint32),
        mem=mem,
        busy=xp.zeros(grid, xp.int32),
        end=xp.zeros(grid, xp.int32),
        links=xp.zeros((5, *grid), xp.int32),
    )
    return jax.device_put(state)
