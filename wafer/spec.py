"""What programs of ``wafer.fabric`` and the compiler may assume of a wafer, or of a part of it.

Figures of the hardware are those of ``wafer.machine.arch``. The three software overheads are fitted
to whole published programs (SpMM_Cerebras' tables), their compiler's scalar code included.
"""

import dataclasses
from typing import NamedTuple

from wafer.machine.arch import ARCHITECTURES, LINK_LATENCY, ROUTER_DEPTH

_WSE2, _WSE3 = ARCHITECTURES["wse2"], ARCHITECTURES["wse3"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WaferSpec:
    """What a program may assume of the machine.

    Attributes:
        name: generation, as CSL's ``--arch`` spells it.
        width: PEs in x that a program with host I/O may occupy.
        height: PEs in y, likewise.
        fabric_width: PEs in x of the whole user fabric.
        fabric_height: PEs in y of the whole user fabric.
        sram_bytes: memory of one PE.
        colors: routable colors, ids ``0 .. colors - 1``.
        memcpy_colors: ids that host I/O keeps when it is linked in.
        switch_positions: positions of one color's switch in one router.
        switch_both_sides: whether a switch position may change rx and tx together.
        color_swap: whether pairs of colors may change places on a link.
        ramp_latency: cycles T_R between router and CE, each way.
        link_latency: cycles of one hop between neighbouring routers.
        router_depth: words a router holds per color.
        input_queue_depths: words of each of the eight input queues.
        default_queue: the input queue of a color that names none.
        microthreads: asynchronous threads of one PE.
        task_ids: local task ids of one PE.
        simd_16bit: elements per cycle of a memory-to-memory operation on 16-bit types.
        clock_hz: cycles per second used to turn cycles into time.
        task_start: cycles from a task's activation to its first element (fitted).
        op_launch: cycles between two synchronous DSD operations, descriptors loaded (fitted).
        op_reload: the same where descriptors are loaded again, as in a loop (fitted).
    """

    name: str = _WSE2.name
    width: int = _WSE2.program[0]
    height: int = _WSE2.program[1]
    fabric_width: int = _WSE2.fabric[0]
    fabric_height: int = _WSE2.fabric[1]
    sram_bytes: int = _WSE2.sram_bytes
    colors: int = _WSE2.colors
    memcpy_colors: tuple[int, ...] = _WSE2.memcpy_colors
    switch_positions: int = _WSE2.switch_positions
    switch_both_sides: bool = _WSE2.switch_both_sides
    color_swap: bool = _WSE2.color_swap
    ramp_latency: int = _WSE2.ramp_latency
    link_latency: int = LINK_LATENCY
    router_depth: int = ROUTER_DEPTH
    input_queue_depths: tuple[int, ...] = _WSE2.input_depths
    default_queue: int = 4
    microthreads: int = _WSE2.threads
    task_ids: int = _WSE2.local_tasks
    simd_16bit: int = _WSE2.widths["fmach"]
    clock_hz: float = _WSE2.clock_hz
    task_start: int = 61
    op_launch: int = 15
    op_reload: int = 36

    def __post_init__(self) -> None:
        """Refuse values that the engines do not model."""
        if self.ramp_latency < 1:
            raise ValueError(
                f"WaferSpec.ramp_latency is {self.ramp_latency}; the ramp needs at least 1 cycle"
            )
        if (self.link_latency, self.router_depth) != (LINK_LATENCY, ROUTER_DEPTH):
            raise ValueError(
                f"WaferSpec.link_latency={self.link_latency}, router_depth={self.router_depth}: the"
                " engines model one cycle per hop and two words per color and router (the depth"
                " that sustains one word per cycle under one-cycle credits)"
            )
        if min(self.input_queue_depths) < 2:
            raise ValueError(
                f"WaferSpec.input_queue_depths is {self.input_queue_depths}; every queue needs at"
                " least 2 words to sustain one word per cycle"
            )

    @property
    def hop_to_hop(self) -> int:
        """Cycles from an element's issue at one PE to its use next door: ``2 T_R + 2``."""
        return 2 * self.ramp_latency + 1 + self.link_latency

    def seconds(self, cycles: float) -> float:
        """Turn cycles into seconds at ``clock_hz``."""
        return cycles / self.clock_hz


WSE2 = WaferSpec()
WSE3 = WaferSpec(
    name=_WSE3.name,
    width=_WSE3.program[0],
    height=_WSE3.program[1],
    fabric_width=_WSE3.fabric[0],
    fabric_height=_WSE3.fabric[1],
    switch_both_sides=_WSE3.switch_both_sides,
    color_swap=_WSE3.color_swap,
    input_queue_depths=_WSE3.input_depths,
    simd_16bit=_WSE3.widths["fmach"],
    clock_hz=_WSE3.clock_hz,
)
SPECS = {"wse2": WSE2, "wse3": WSE3}


class Region(NamedTuple):
    """A rectangle of PEs."""

    name: str  #: of the kernel, 'layers_0/attn/query'
    x: int  #: x, y: north-west (upper left) corner; PE columns x .. x + width - 1 belong to it
    y: int
    width: int  #: width, height: PEs eastwards and southwards
    height: int
