"""The numbers of one wafer-scale engine, in one place.

Sources: Cerebras/csl-examples (SDK 1.4) for grid, colours and queues; the fit of SpMM_Cerebras'
simfabric tables for the ramp latency and the three software overheads; Hot Chips 34 for the PE.
"""

import dataclasses
from typing import NamedTuple

__all__ = ["SPECS", "WSE2", "WSE3", "Region", "WaferSpec"]


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
        colors: routable colours, ids ``0 .. colors - 1``.
        memcpy_colors: ids that host I/O keeps when it is linked in.
        switch_positions: positions of one colour's switch in one router.
        switch_both_sides: whether a switch position may change rx and tx together.
        color_swap: whether pairs of colours may change places on a link.
        per_hop_commands: consume one control command per router (the 25-point example's rule)
            in place of the measured one, slot 0 at every router reached.
        ramp_latency: cycles T_R between router and CE, each way.
        link_latency: cycles of one hop between neighbouring routers.
        router_depth: words a router holds per colour.
        input_queue_depths: words of each of the eight input queues.
        default_queue: the input queue of a colour that names none.
        microthreads: asynchronous threads of one PE.
        task_ids: local task ids of one PE.
        simd_16bit: elements per cycle of a memory-to-memory operation on 16-bit types.
        clock_hz: cycles per second used to turn cycles into time.
        task_start: cycles from a task's activation to its first element (fitted).
        op_launch: cycles between two synchronous DSD operations, descriptors loaded (fitted).
        op_reload: the same where descriptors are loaded again, as in a loop (fitted).
    """

    name: str = "wse2"
    width: int = 750
    height: int = 994
    fabric_width: int = 757
    fabric_height: int = 996
    sram_bytes: int = 49152
    colors: int = 24
    memcpy_colors: tuple[int, ...] = (21, 22, 23)
    switch_positions: int = 4
    switch_both_sides: bool = False
    color_swap: bool = True
    per_hop_commands: bool = False
    ramp_latency: int = 2
    link_latency: int = 1
    router_depth: int = 2
    input_queue_depths: tuple[int, ...] = (6, 6, 4, 4, 2, 2, 2, 2)
    default_queue: int = 4
    microthreads: int = 8
    task_ids: int = 31
    simd_16bit: int = 4
    clock_hz: float = 0.85e9
    task_start: int = 61
    op_launch: int = 15
    op_reload: int = 36

    def __post_init__(self) -> None:
        """Refuse values that the engines do not model."""
        if self.ramp_latency < 1:
            raise ValueError(
                f"WaferSpec.ramp_latency is {self.ramp_latency}; the ramp needs at least 1 cycle"
            )
        if self.link_latency != 1 or self.router_depth != 2:
            raise ValueError(
                f"WaferSpec.link_latency={self.link_latency}, router_depth={self.router_depth}: the"
                " engines model one cycle per hop and two words per colour and router (the depth"
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
    name="wse3",
    width=755,
    height=1174,
    fabric_width=762,
    fabric_height=1176,
    switch_both_sides=True,
    color_swap=False,
    input_queue_depths=(8, 8, 4, 4, 4, 4, 4, 4),
    simd_16bit=8,
    clock_hz=0.875e9,
)
SPECS = {"wse2": WSE2, "wse3": WSE3}


class Region(NamedTuple):
    """A rectangle of PEs.

    name: of the kernel, 'layers_0/attn/query'
    x, y: north-west (upper left) corner; PE columns x .. x + width - 1 belong to it
    width, height: PEs eastwards and southwards
    """

    name: str
    x: int
    y: int
    width: int
    height: int
