"""Figures of the hardware, per architecture: each once, with its source.

Both front ends (``wafer.fabric``, ``wafer.csl``), the machine, the compiler and the roofline read
them here. Fitted costs of instructions are in ``wafer.machine.costs``, fitted overheads of whole
published programs in ``wafer.spec``.

Sources:

- grid, columns and rows of host I/O, its colors: Cerebras/csl-examples (SDK 1.4); WSE-3's grid is
  second hand.
- PE (SRAM, banks, two 32-bit reads and one write per cycle): Hot Chips 34; ``widths`` and
  ``stride_widths``: appendix of the CSL guide. A bank there is one of 16-bit words, so
  four of 32 bits; where the text contradicts itself (stride 4: 2 or 4) the smaller width is here.
- queues, threads, ids, switches: pages of the CSL guide; that a position changes both sides on
  WSE-3: SPADA's tests with the publisher's compiler, xDSL's programs, ``set_rxtx_switch_pos`` of
  the publisher's library.
- ``unbound_depth``: a data task's color is bound to an input queue even if the program names none
  (comment in ``allreduce2R1E`` of the publisher's examples). Those hold 2, 4 or 6 words; with 3
  words of a stream on their way each way (``wafer/csl/host/commands.py``) only 6 let the 48 words
  of the example ``15-async-operations`` in.
- ramp latency: published tables of chain reduces on Cerebras's simulator (14 of 14 exact).
- clock: all published conversions of cycles to time.
"""

from typing import NamedTuple

PORTS = ("W", "E", "S", "N", "RAMP")  # of a router, in the order of the bits of its registers
STEPS = {"N": (0, -1), "E": (1, 0), "S": (0, 1), "W": (-1, 0)}  # (x, y) to the neighbor there
OPPOSITE = {"N": "S", "E": "W", "S": "N", "W": "E"}  # a side as that neighbor sees it
LINK_LATENCY = 1  # cycles of a hop between neighboring routers
_STRIDES = (1, 2, 8, 8, 2, 8, 8, 2)  # the appendix's table
ROUTER_DEPTH = 2  # words per color and router: one word per cycle under one-cycle credits


def neighbor(x: int, y: int, side: str) -> tuple[int, int]:
    """Return column and row of the PE by a side.

    Args:
        x: column.
        y: row.
        side: W or WEST, …; of RAMP, the PE itself.
    """
    dx, dy = STEPS.get(side[0], (0, 0))
    return x + dx, y + dy


class Architecture(NamedTuple):
    """What is known of one generation."""

    name: str  #: as CSL's ``--arch`` has it
    cores: int  #: of the data sheet, for peaks
    fabric: tuple[int, int]  #: (columns, rows) of PEs that users may address
    clock_hz: float  #: cycles per second
    input_depths: tuple[int, ...]  #: words of each input queue
    output_depths: tuple[int, ...]  #: words of each output queue
    switched_colors: frozenset[int]  #: colors that may have several positions
    switch_both_sides: bool  #: whether a position may change rx and tx together
    color_swap: bool  #: whether pairs of colors may change places on a link
    #: most elements per cycle of an operation in memory, by its builtin's name; others 1
    widths: dict[str, int]
    #: (columns, rows) of these that host I/O takes from a program
    host_margin: tuple[int, int] = (7, 2)
    sram_bytes: int = 48 * 1024  #: memory of one PE
    banks: int = 4  #: of the memory, as its 32-bit reads see them
    bank_bytes: int = 4  #: of one bank, side by side; then comes the next one
    colors: int = 24  #: with routes, ids from 0 on
    #: colors that host I/O keeps when it is linked in
    memcpy_colors: tuple[int, ...] = (21, 22, 23)
    #: words of a color that no queue is bound to, on WSE-2 or of a stream from the host
    unbound_depth: int = 6
    threads: int = 8  #: microthreads of a PE
    local_tasks: int = 31  #: ids of local tasks
    control_tasks: int = 64  #: ids of control tasks
    ramp_latency: int = 2  #: cycles between router and CE, each way
    switch_positions: int = 4  #: of one color in one router
    #: most elements per cycle of 16 and of 32 bits by the stride modulo 8, strides 0 and 1 apart
    stride_widths: tuple[tuple[int, ...], ...] = (_STRIDES, _STRIDES)
    link_latency: int = LINK_LATENCY  #: cycles of a hop between neighboring routers
    #: cycles per element of a sum into a scalar, by the builtin's name; others 1
    sums: dict[str, int] = {}  # noqa: RUF012 -- never changed

    @property
    def program(self) -> tuple[int, int]:
        """(columns, rows) that a program with host I/O may occupy."""
        return self.fabric[0] - self.host_margin[0], self.fabric[1] - self.host_margin[1]

    def width(self, builtin: str, strides: tuple[int, ...] = ()) -> int:
        """Return the most elements per cycle of an operation whose operands are in memory.

        Args:
            builtin: its name, 'fadds'; an operation that CSL lacks takes one.
            strides: of its operands in memory, in elements.
        """
        widths = self.stride_widths[not builtin.endswith(("h", "16"))]
        limits = [widths[stride % 8] for stride in strides if stride not in {0, 1}]
        return min([self.widths.get(builtin, 1), *limits])


_SUMS = "fadds fsubs fmaxs faddh fsubh fmaxh faddhs fmacs fmach fmachs"


def _widths(wse3: bool) -> dict[str, int]:
    """The appendix's table: elements per cycle on WSE-2 and WSE-3."""
    groups = {
        "add16 sub16 and16 or16 xor16 mov16 fmovh faddh fsubh fmulh fnegh fabsh fnormh fscaleh"
        " fmach": (4, 8),
        "mov32 fmovs fadds fsubs fnegs fabss fnorms fscales faddhs fmachs": (2, 4),
        "addc16 fmaxh fh2xp16 xp162fh": (1, 8),
        "fmaxs sll16 slr16 sar16 fs2h fh2s fs2xp16 xp162fs": (1, 4),
    }
    return {name: pair[wse3] for names, pair in groups.items() for name in names.split()}


ARCHITECTURES = {
    "wse2": Architecture(
        name="wse2",
        cores=850_000,
        fabric=(757, 996),
        clock_hz=0.85e9,
        input_depths=(6, 6, 4, 4, 2, 2, 2, 2),
        output_depths=(2, 2, 6, 6, 2, 2, 2, 2),
        switched_colors=frozenset(range(24)),
        switch_both_sides=False,
        color_swap=True,
        widths=_widths(wse3=False),
    ),
    "wse3": Architecture(
        name="wse3",
        cores=900_000,
        fabric=(762, 1176),
        clock_hz=0.875e9,
        input_depths=(8, 8, 4, 4, 4, 4, 4, 4),
        output_depths=(8,) * 8,
        switched_colors=frozenset({*range(10), 12, 13, 16, 17, 20, 21}),
        switch_both_sides=True,
        color_swap=False,
        widths=_widths(wse3=True),
        stride_widths=((1, 8, 4, 8, 2, 8, 4, 8), _STRIDES),  # of 16 bits: eight banks of 16
        link_latency=2,
        sums=dict.fromkeys(_SUMS.split(), 2),
    ),
}
