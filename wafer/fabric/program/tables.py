"""A program as tables: what the routers and PEs of the grid, H x W, hold.

The planes time it as it is; of these tables ``emit`` makes the image that the machine runs.
"""

import dataclasses
import enum
from typing import NamedTuple

import numpy as np

from wafer.fabric.program.ops import Op
from wafer.machine.codes import ports_at_any_position
from wafer.spec import WaferSpec

Port = enum.IntFlag("Port", "W E S N RAMP")  # of a router, as a mask, in the order of arch.PORTS


def first_pe(mask: np.ndarray) -> str:
    """Return the first PE of a mask, [H, W] bool, for messages."""
    places = np.argwhere(mask)
    return f"PE ({places[0][1]}, {places[0][0]})" if len(places) else "no PE"


class RoutedColor(NamedTuple):
    """A color in all routers, as their registers have it."""

    depth: int  #: words of its input queue
    color: np.ndarray  #: [H, W] int32 color registers, 0 without a route
    switch: np.ndarray  #: [H, W] int32 switch registers
    filters: np.ndarray  #: [H, W] int32, places in ``rules``
    rules: list[list[int]]  #: rows of the machine's table of filters; the first filters nothing
    reroutes: list[np.ndarray]  #: [H, W] int32 color registers that a PE itself may write

    @property
    def sides(self) -> tuple[np.ndarray, np.ndarray]:
        """[H, W] masks of ``Port``: where it is taken from and leaves by, in any position."""
        color = np.bitwise_or.reduce([self.color, *self.reroutes])
        return ports_at_any_position(color, self.switch)

    @property
    def swaps(self) -> np.ndarray:
        """[H, W] int: 1 where it leaves by E and W as its partner, plus 2 by N and S."""
        return self.color >> 10 & 3


class DeclaredArray(NamedTuple):
    """An array of the PEs that declare it, and of those whose operations use it."""

    name: str  #: its name
    words: int  #: how many elements
    dtype: str  #: of its elements
    held: np.ndarray  #: [H, W] bool, PEs that declare it


class BoundTask(NamedTuple):
    """A task of the PEs where it is bound."""

    name: str  #: its name
    kind: str  #: "local", "data", "control" or "teardown"
    key: int  #: a color, a control id, or -1
    high: bool  #: high priority
    entry: np.ndarray  #: [H, W] int32, its list of operations, -1 where it is not bound
    active: np.ndarray  #: [H, W] bool, activated at the start
    blocked: np.ndarray  #: [H, W] bool, blocked at the start


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A checked program."""

    spec: WaferSpec  #: the machine
    width: int  #: W
    height: int  #: H
    main: str  #: level of the task's own thread
    colors: dict[int, RoutedColor]  #: by id, in the order of declaration
    arrays: tuple[DeclaredArray, ...]  #: in the order of declaration
    tasks: tuple[BoundTask, ...]  #: in the order of first use
    code: tuple[tuple[Op, ...], ...]  #: lists of operations, their ``launch`` filled in


@dataclasses.dataclass(frozen=True, kw_only=True)
class Filter:
    """Which wavelets of a color reach the CE; forwarding is not affected."""

    #: "counter" passes a data wavelet while ``counter <= high`` and counts 0..``limit``; "range"
    #: passes it if its 16-bit index lies in ``low..high``
    kind: str
    low: int = 0  #: least index ("range")
    high: int = 0  #: greatest index, or ``max_counter``
    limit: int = 65535  #: the counter wraps to 0 after it ("counter")
    start: int = 0  #: first value of the counter

    @classmethod
    def share(cls, first: int, words: int, period: int) -> "Filter":
        """Keep words ``first .. first + words - 1`` of every ``period``."""
        start = (period - first) % period
        return cls(kind="counter", high=words - 1, limit=period - 1, start=start)
