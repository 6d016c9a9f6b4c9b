"""Writing a program: routes of each color and lists of operations for each class of PE.

A :class:`Layout` collects what CSL's ``layout`` block and PE files say; :meth:`Layout.build`
checks it and returns a :class:`Program`, tables over the grid.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from wafer.fabric.errors import FabricError, RouteError, SramError
from wafer.fabric.program.check import check_program
from wafer.fabric.program.ops import TYPES, Op
from wafer.fabric.program.tables import (
    BoundTask,
    DeclaredArray,
    Filter,
    Port,
    Program,
    RoutedColor,
    first_pe,
)
from wafer.machine.codes import NO_SWITCH, TORN, switch_position
from wafer.machine.image import COLUMNS
from wafer.spec import WSE2, WaferSpec

Where = np.ndarray | Callable[[np.ndarray, np.ndarray], np.ndarray] | None


def port_mask(ports: str | Sequence[str]) -> int:
    """Turn ``"RAMP"`` or ``("RAMP", "E")`` into a mask of ``Port``."""
    names = (ports,) if isinstance(ports, str) else tuple(ports)
    unknown = [p for p in names if p not in Port.__members__]
    if unknown:
        raise RouteError(f"unknown port {unknown[0]!r}; a router has {list(Port.__members__)}")
    return sum(Port[p] for p in set(names))


class Layout:
    """Collect a program: colors and routes, arrays, and the tasks of each class of PE.

    Args:
        width: PEs in x.
        height: PEs in y.
        spec: the machine.
        overheads: charge the software's costs, fitted to published runs (task start, operation
            launch); without them every operation starts in the cycle after the one before it,
            which closed forms of wires and PEs are for.
        host_io: keep memcpy's colors for it.
        main_thread_priority: of the running task against microthreads (``Op.priority``), a level
            of ``<tile_config>``: "medium_low", "medium", "medium_high" or "high".
    """

    def __init__(
        self,
        width: int,
        height: int = 1,
        spec: WaferSpec = WSE2,
        *,
        overheads: bool = True,
        host_io: bool = False,
        main_thread_priority: str = "high",
    ) -> None:
        limit = (spec.width, spec.height) if host_io else (spec.fabric_width, spec.fabric_height)
        fits = width <= limit[0] and height <= limit[1]
        # The published 757x996 runs lie along either axis.
        if not fits and not (height <= limit[0] and width <= limit[1]):
            raise FabricError(
                f"rectangle {width}x{height} PEs; {spec.name} offers {limit[0]}x{limit[1]}"
            )
        self.width, self.height, self.spec = width, height, spec
        self.overheads, self.host_io = overheads, host_io
        self.main_thread_priority = main_thread_priority
        self.y, self.x = np.mgrid[0:height, 0:width]
        self._colors: dict[int, RoutedColor] = {}
        self._arrays: dict[str, DeclaredArray] = {}
        self._bytes = np.zeros((height, width), np.int64)
        self._tasks: dict[str, BoundTask] = {}
        self._code: list[tuple[Op, ...]] = []

    def region(self, where: Where) -> np.ndarray:
        """Turn None, a mask or a function of (x, y) into an [H, W] bool mask."""
        if where is None:
            return np.ones((self.height, self.width), bool)
        mask = where(self.x, self.y) if callable(where) else where
        return np.broadcast_to(np.asarray(mask, bool), (self.height, self.width))

    def color(self, color: int | None = None, *, queue: int | None = None) -> int:
        """Declare a color, as ``@get_color``; None takes the lowest free id.

        ``queue`` is the input queue whose depth bounds what waits at a PE.
        """
        reserved = self.spec.memcpy_colors if self.host_io else ()
        free = [c for c in range(self.spec.colors) if c not in self._colors and c not in reserved]
        if color is None and not free:
            raise RouteError(
                f"no color left: {self.spec.name} routes {self.spec.colors},"
                f" {len(reserved)} of them kept for host I/O; share colors by switches"
            )
        color = free[0] if color is None else color
        if not 0 <= color < self.spec.colors or color in reserved:
            raise RouteError(
                f"color {color} is not routable: use 0..{self.spec.colors - 1}"
                + (f" without {reserved}, which host I/O holds" if reserved else "")
            )
        depth = self.spec.input_queue_depths[self.spec.default_queue if queue is None else queue]
        grid = (self.height, self.width)
        new = RoutedColor(
            depth=depth,
            color=np.zeros(grid, np.int32),
            switch=np.full(grid, NO_SWITCH, np.int32),
            filters=np.zeros(grid, np.int32),
            rules=[[0] * len(COLUMNS["filters"])],
            reroutes=[],
        )
        self._colors[color] = self._colors.get(color, new)._replace(depth=depth)
        return color

    def route(
        self,
        color: int,
        rx: str | Sequence[str],
        tx: str | Sequence[str],
        where: Where = None,
        *,
        switches: Sequence[Mapping[str, str | Sequence[str]]] = (),
        ring: bool = False,
        start: int = 0,
        filter: Filter | None = None,  # CSL's own name
        swap: str = "",
        torn: bool = False,
        reroutes: Sequence[tuple[str | Sequence[str], str | Sequence[str]]] = (),
    ) -> None:
        """Set a color's routes in a region, as ``@set_color_config``.

        Args:
            color: id from :meth:`color`.
            rx: ports taken from, in position 0.
            tx: ports left by, in position 0.
            where: region of PEs.
            switches: positions 1..3, each ``{"rx": port}`` or ``{"tx": port}``, on WSE-3 also
                both; a side that is not named keeps the value of the position before.
            ring: wrap past the last position; otherwise the switch stays there.
            start: ``current_switch_pos``.
            filter: which wavelets reach the CE.
            swap: "x", "y" or "xy": along these axes wavelets leave as the partner color, whose
                id differs in the last bit (``color_swap_x``); both colors must say so.
            torn: start in teardown, until :func:`wafer.fabric.program.ops.exit_teardown`.
            reroutes: further ``(rx, tx)`` that the PE itself may write in place of the routes;
                the first is position 4.

        Raises:
            RouteError: too many positions, or one that changes both sides on WSE-2.
        """
        mask = self.region(where)
        entry = self._color_of(color)
        location = f"{first_pe(mask)}, color {color}"
        if len(switches) + 1 > self.spec.switch_positions or start > len(switches):
            raise RouteError(
                f"{location}: {len(switches) + 1} switch positions starting at {start}; a router"
                f" holds {self.spec.switch_positions}"
            )
        word, switch = _route(rx, tx), (0 if torn else start) << 13 | ring << 12 | NO_SWITCH
        for k, change in enumerate(switches):
            code = self._position(change, f"{location}: switch position {k + 1}")
            switch = switch & ~(15 << 4 * k) | code << 4 * k
        entry.color[mask] = word | ("x" in swap) << 10 | ("y" in swap) << 11 | torn * TORN
        entry.switch[mask] = switch
        entry.filters[mask] = 0
        if filter is not None:
            entry.filters[mask] = len(entry.rules)
            entry.rules.append(_filter_row(filter, location))
        for k, route in enumerate(reroutes):
            if len(entry.reroutes) == k:
                entry.reroutes.append(np.zeros_like(entry.color))
            entry.reroutes[k][mask] = _route(*route)

    def array(self, name: str, words: int, dtype: str = "float32", where: Where = None) -> str:
        """Declare an array in PE memory; ``where`` only matters to the 48 KB budget.

        Raises:
            SramError: the arrays of some PE exceed its memory.
        """
        if name in self._arrays or dtype not in TYPES or words < 1:
            raise FabricError(
                f"array {name!r} of {words} {dtype}: names must differ, sizes be positive, types"
                f" one of {list(TYPES)}"
            )
        held = np.array(self.region(where))
        self._arrays[name] = DeclaredArray(name, words, dtype, held)
        self._bytes[held] += words * np.dtype(dtype).itemsize
        most = self._bytes.max()
        if most > self.spec.sram_bytes:
            raise SramError(
                f"{first_pe(self._bytes == most)}: {most} bytes of arrays after {name!r};"
                f" {self.spec.name} has {self.spec.sram_bytes}: use smaller tiles"
            )
        return name

    def task(
        self,
        name: str,
        ops: Sequence[Op],
        where: Where = None,
        *,
        active: bool = False,
        blocked: bool = False,
        high: bool = False,
        color: int | None = None,
        control: int | None = None,
        teardown: int | None = None,
    ) -> str:
        """Bind a task to a region's PEs; one name may have other operations elsewhere.

        Args:
            name: its name; activation by name. Order of first use is the task id.
            ops: what it does, run to completion in order.
            where: region of PEs.
            active: activate it at the start (``@activate`` in a comptime block).
            blocked: block it at the start.
            high: high priority.
            color: data task of that color: each wavelet's arrival runs it once.
            control: control task id: control wavelets naming it run it.
            teardown: a color: runs when that color has gone into teardown here
                (``@set_teardown_handler``).
        """
        keys = {"data": color, "control": control, "teardown": teardown, "local": -1}
        kind, key = next((k, v) for k, v in keys.items() if v is not None)
        if kind in {"data", "teardown"}:
            self._color_of(key)
        mask, shape = self.region(where), (self.height, self.width)
        if name not in self._tasks:
            zeros = np.zeros(shape, bool)
            self._tasks[name] = BoundTask(
                name, kind, int(key), high, np.full(shape, -1, np.int32), zeros, zeros.copy()
            )
        task = self._tasks[name]
        if (task.kind, task.key, task.high) != (kind, key, high):
            raise FabricError(f"task {name!r} is already a {task.kind} task of another binding")
        if not ops or (task.entry[mask] >= 0).any():
            raise FabricError(f"{first_pe(mask)}, task {name!r}: no operations, or bound twice")
        task.entry[mask] = len(self._code)
        task.active[mask], task.blocked[mask] = active, blocked
        waits = [self.spec.task_start, *[self.spec.op_launch] * (len(ops) - 1)]
        filled = [
            op if op.launch is not None else dataclasses.replace(op, launch=wait * self.overheads)
            for op, wait in zip(ops, waits, strict=True)
        ]
        self._code.append(tuple(filled))
        return name

    def build(self) -> Program:
        """Check everything and return the program.

        Raises:
            RouteError: a route off the grid, towards a router that never takes it, or a
                descriptor on a color that its PE does not route.
            FabricError: tasks, threads or addresses that do not exist.
        """
        if len(self._tasks) > self.spec.task_ids:
            raise FabricError(f"{len(self._tasks)} tasks; a PE has {self.spec.task_ids} ids")
        program = Program(
            spec=self.spec,
            width=self.width,
            height=self.height,
            main=self.main_thread_priority,
            colors=copy.deepcopy(self._colors),
            arrays=tuple(self._arrays.values()),
            tasks=copy.deepcopy(tuple(self._tasks.values())),
            code=tuple(self._code),
        )
        check_program(program)
        return program

    def _position(self, change: Mapping[str, str | Sequence[str]], location: str) -> int:
        """A switch position as the register has it."""
        sides = 1 + self.spec.switch_both_sides
        if not 1 <= len(change) <= sides or change.keys() - {"rx", "tx"}:
            raise RouteError(
                f"{location} changes {' and '.join(sorted(change)) or 'nothing'}; expected rx or tx"
                f"{', or both' if sides > 1 else f': {self.spec.name} has room for one side'}"
            )
        masks = {side: port_mask(ports) for side, ports in change.items()}
        for mask in masks.values():
            if mask.bit_count() != 1:
                raise RouteError(f"{location} names {mask.bit_count()} ports; it has one a side")
        return switch_position(masks, both=self.spec.switch_both_sides)

    def _color_of(self, color: int) -> RoutedColor:
        if color not in self._colors:
            raise RouteError(f"color {color} is not declared; call layout.color({color}) first")
        return self._colors[color]


def _route(rx: str | Sequence[str], tx: str | Sequence[str]) -> int:
    """Ports as a color register has them."""
    return port_mask(rx) << 5 | port_mask(tx)


def _filter_row(rule: Filter, prefix: str) -> list[int]:
    columns = dict.fromkeys(COLUMNS["filters"], 0) | {"limit2": -1, "start": rule.start}
    if rule.kind == "counter":
        columns |= {"kind": 1, "counts_data": 1, "most": rule.high, "limit1": rule.limit}
    elif rule.kind == "range":
        columns |= {"kind": 3, "low": rule.low, "high": rule.high}
    else:
        raise RouteError(
            f"{prefix}: filter kind {rule.kind!r}; there are 'counter' and 'range' (no public text"
            " gives the rule of CSL's sparse counter)"
        )
    return [*columns.values()]
