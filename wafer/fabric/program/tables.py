"""A program as tables: routes and code as arrays over the grid, which every engine reads.

Glossary: C colors, K switch positions, T tasks, S operations, H x W PEs, M words of memory.
"""

import dataclasses
import typing

from wafer.fabric.program.arrays import AnyArray as Array
from wafer.fabric.program.ops import Op
from wafer.spec import WaferSpec

__all__ = ["Filter", "Meta", "Program"]


class Meta(typing.NamedTuple):
    """The static side of a program: what compiled engines specialise on."""

    spec: WaferSpec  #: the machine
    width: int  #: W
    height: int  #: H
    colors: tuple[int, ...]  #: color ids in the order of the C axis
    arrays: tuple[tuple[str, int, int, str], ...]  #: (name, first word, words, dtype) of each array
    words: int  #: M
    #: (name, kind, color index or control id, high priority) in the order of the T axis
    tasks: tuple[tuple[str, str, int, bool], ...]
    main: str  #: level of the task's own thread
    threads: int  #: microthreads used
    filters: bool  #: whether any color is filtered
    switched: bool  #: whether any switch has a second position
    controls: bool  #: whether any operation sends control wavelets
    swaps: bool  #: whether any pair of colors changes places on a link
    teardown: bool  #: whether a task, a route or an operation deals with teardown

    @property
    def partners(self) -> tuple[int, ...]:
        """Index of each color's partner in a swap, the id that differs in the last bit."""
        known = {c: i for i, c in enumerate(self.colors)}
        return tuple(known.get(c ^ 1, i) for i, c in enumerate(self.colors))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A checked program.

    Attributes:
        rx: [K, C, H, W] uint8, ports a color is taken from, a mask of ``Port``.
        tx: [K, C, H, W] uint8, ports it leaves by.
        positions: [C, H, W] uint8, switch positions defined; 0 where the color is unused.
        swap: [2, C, H, W] bool, whether the color leaves by E and W, by N and S as its partner.
        ring: [C, H, W] bool, whether the switch wraps.
        start: [C, H, W] uint8, first switch position.
        depth: [C] int32, words of the input queue.
        filters: [4, C, H, W] int32, ``FilterKind`` and its three numbers.
        code: lists of operations, their ``launch`` filled in.
        entry: [T, H, W] int32, a task's list, -1 where it is not bound.
        active: [T, H, W] bool, tasks activated at the start.
        blocked: [T, H, W] bool, tasks blocked at the start.
        held: [A, H, W] bool, PEs that have an array.
        meta: static description.
    """

    rx: Array
    tx: Array
    positions: Array
    swap: Array
    ring: Array
    start: Array
    depth: Array
    filters: Array
    code: tuple[tuple[Op, ...], ...]
    entry: Array
    active: Array
    blocked: Array
    held: Array
    meta: Meta


@dataclasses.dataclass(frozen=True, kw_only=True)
class Filter:
    """Which wavelets of a color reach the CE; forwarding is not affected.

    Attributes:
        kind: "counter" passes a data wavelet while ``counter <= high`` and counts 0..``limit``;
            "range" passes it if its 16-bit index lies in ``low..high``.
        low: least index ("range").
        high: greatest index, or ``max_counter``.
        limit: the counter wraps to 0 after it ("counter").
        start: first value of the counter.
    """

    kind: str
    low: int = 0
    high: int = 0
    limit: int = 65535
    start: int = 0
