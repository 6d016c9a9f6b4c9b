"""Writing a program: routes of each color and lists of operations for each class of PE.

A :class:`Layout` collects what CSL's ``layout`` block and PE files say; :meth:`Layout.build`
checks it and returns a :class:`Program`, arrays over the grid. ``emit`` makes the image of it that
the machine runs; the planes time it as it is.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from wafer.fabric.errors import FabricError, RouteError, SramError
from wafer.fabric.program.check import check_operation, check_program
from wafer.fabric.program.codes import TORN, FilterKind, Port
from wafer.fabric.program.ops import FabOut, Mem, Op
from wafer.fabric.program.tables import Filter, Meta, Program
from wafer.spec import WSE2, WaferSpec

__all__ = ["Layout", "Where"]

_ITEM_BYTES = {"float32": 4, "uint32": 4, "float16": 2}

Where = np.ndarray | Callable[[np.ndarray, np.ndarray], np.ndarray] | None


def port_mask(ports: str | Sequence[str]) -> int:
    """Turn ``"RAMP"`` or ``("RAMP", "E")`` into a mask of ``Port``."""
    names = (ports,) if isinstance(ports, str) else tuple(ports)
    unknown = [p for p in names if p not in Port.__members__]
    if unknown:
        raise RouteError(f"unknown port {unknown[0]!r}; a router has {list(Port.__members__)}")
    return sum(Port[p] for p in set(names))


@dataclasses.dataclass
class _Task:
    name: str
    kind: str
    key: int
    high: bool
    entry: np.ndarray
    active: np.ndarray
    blocked: np.ndarray


class Layout:
    """Collect a program: colors and routes, arrays, and the tasks of each class of PE.

    Args:
        width: PEs in x.
        height: PEs in y.
        spec: the machine.
        overheads: charge the software's costs, fitted to published runs (task start, operation
            launch); without them every operation starts in the cycle after the one before it,
            which closed forms of wires and PEs are for.
        reload: charge ``op_reload`` in place of ``op_launch``.
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
        reload: bool = False,
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
        self.overheads, self.reload, self.host_io = overheads, reload, host_io
        self.main_thread_priority = main_thread_priority
        self.y, self.x = np.mgrid[0:height, 0:width]
        self._queues: dict[int, int] = {}
        self._routes: dict[int, dict[str, np.ndarray]] = {}
        self._arrays: dict[str, tuple[int, int, str]] = {}
        self._held: dict[str, np.ndarray] = {}
        self._bytes = np.zeros((height, width), np.int64)
        self._tasks: dict[str, _Task] = {}
        self._ops: list[tuple[tuple[Op, ...], np.ndarray]] = []

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
        free = [c for c in range(self.spec.colors) if c not in self._queues and c not in reserved]
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
        self._queues[color] = self.spec.default_queue if queue is None else queue
        shape = (self.spec.switch_positions, self.height, self.width)
        self._routes.setdefault(
            color,
            {
                "rx": np.zeros(shape, np.uint8),
                "tx": np.zeros(shape, np.uint8),
                "positions": np.zeros(shape[1:], np.uint8),
                "swap": np.zeros((2, *shape[1:]), bool),
                "ring": np.zeros(shape[1:], bool),
                "start": np.zeros(shape[1:], np.uint8),
                "filter": np.zeros((4, *shape[1:]), np.int32),
            },
        )
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
            switches: positions 1..3, each ``{"rx": ...}`` and/or ``{"tx": ...}``; a side not
                named keeps the value of the position before.
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
        r = self._route_of(color)
        place = self._place(mask, color)
        if len(switches) + 1 > self.spec.switch_positions or start > len(switches):
            raise RouteError(
                f"{place}: {len(switches) + 1} switch positions starting at {start}; a router"
                f" holds {self.spec.switch_positions}"
            )
        now = {"rx": port_mask(rx), "tx": port_mask(tx)}
        sides = [dict(now)]
        for number, change in enumerate(switches, start=1):
            if len(change) > 1 and not self.spec.switch_both_sides:
                raise RouteError(
                    f"{place}: switch position {number} changes rx and tx; {self.spec.name} lets"
                    " a position change one of them"
                )
            now |= {side: port_mask(ports) for side, ports in change.items()}
            sides.append(dict(now))
        sides += [sides[-1]] * (self.spec.switch_positions - len(sides))
        for side in ("rx", "tx"):
            r[side][: len(sides), mask] = np.array([s[side] for s in sides], np.uint8)[:, None]
        for k, (into, out) in enumerate(reroutes, start=self.spec.switch_positions):
            for side, ports in (("rx", into), ("tx", out)):
                if len(r[side]) <= k:
                    r[side] = np.concatenate([r[side], 0 * r[side][:1]])
                r[side][k, mask] = port_mask(ports)
        r["positions"][mask], r["ring"][mask] = len(switches) + 1, ring
        r["start"][mask] = TORN if torn else start
        r["swap"][:, mask] = np.array([axis in swap for axis in "xy"])[:, None]
        r["filter"][:, mask] = _encode_filter(filter, place)[:, None]

    def array(self, name: str, words: int, dtype: str = "float32", where: Where = None) -> str:
        """Declare an array in PE memory; ``where`` only matters to the 48 KB budget.

        Raises:
            SramError: the arrays of some PE exceed its memory.
        """
        if name in self._arrays or dtype not in _ITEM_BYTES or words < 1:
            raise FabricError(
                f"array {name!r} of {words} {dtype}: names must differ, sizes be positive, types"
                f" one of {list(_ITEM_BYTES)}"
            )
        base = sum(n for _, n, _ in self._arrays.values())
        self._arrays[name] = (base, words, dtype)
        self._held[name] = np.array(self.region(where))
        self._bytes[self._held[name]] += words * _ITEM_BYTES[dtype]
        if self._bytes.max() > self.spec.sram_bytes:
            y, x = np.unravel_index(int(self._bytes.argmax()), self._bytes.shape)
            raise SramError(
                f"PE ({x}, {y}): {self._bytes[y, x]} bytes of arrays after {name!r};"
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
            self._route_of(key)
        mask, shape = self.region(where), (self.height, self.width)
        if name not in self._tasks:
            zeros = np.zeros(shape, bool)
            self._tasks[name] = _Task(
                name, kind, int(key), high, np.full(shape, -1, np.int32), zeros, zeros.copy()
            )
        task = self._tasks[name]
        if (task.kind, task.key, task.high) != (kind, key, high):
            raise FabricError(f"task {name!r} is already a {task.kind} task of another binding")
        if not ops or (task.entry[mask] >= 0).any():
            y, x = np.argwhere(mask)[0] if mask.any() else (0, 0)
            raise FabricError(f"PE ({x}, {y}), task {name!r}: no operations, or bound twice")
        task.entry[mask] = len(self._ops)
        task.active[mask], task.blocked[mask] = active, blocked
        overhead = self.spec.op_reload if self.reload else self.spec.op_launch
        waits = [self.spec.task_start, *[overhead] * (len(ops) - 1)] if self.overheads else [0]
        filled = [
            op if op.launch is not None else dataclasses.replace(op, launch=wait)
            for op, wait in zip(ops, itertools.cycle(waits), strict=False)
        ]
        self._ops.append((tuple(filled), mask))
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
        colors = tuple(self._queues)
        routes = [self._routes[c] for c in colors]
        shape = (self.height, self.width)
        rows = list(self._tasks.values())
        data_keys, colored = {c: i for i, c in enumerate(colors)}, ("data", "teardown")
        every = [op for ops, _ in self._ops for op in ops]
        sends = [op.dst for op in every if isinstance(op.dst, FabOut)]
        teardown = _tears_down(every, rows, [r["start"] for r in routes])
        program = Program(
            rx=_stack(_level([r["rx"] for r in routes]), (4, *shape), 1),
            tx=_stack(_level([r["tx"] for r in routes]), (4, *shape), 1),
            positions=_stack([r["positions"] for r in routes], shape, 0),
            swap=_stack([r["swap"] for r in routes], (2, *shape), 1).astype(bool),
            ring=_stack([r["ring"] for r in routes], shape, 0).astype(bool),
            start=_stack([r["start"] for r in routes], shape, 0),
            depth=np.array(
                [self.spec.input_queue_depths[self._queues[c]] for c in colors], np.int32
            ),
            filters=_stack([r["filter"] for r in routes], (4, *shape), 1).astype(np.int32),
            code=tuple(ops for ops, _ in self._ops),
            entry=_stack([t.entry for t in rows], shape, 0).astype(np.int32),
            active=_stack([t.active for t in rows], shape, 0).astype(bool),
            blocked=_stack([t.blocked for t in rows], shape, 0).astype(bool),
            held=_stack([self._holders(name) for name in self._arrays], shape, 0).astype(bool),
            meta=Meta(
                spec=self.spec,
                width=self.width,
                height=self.height,
                colors=colors,
                arrays=tuple((k, *v) for k, v in self._arrays.items()),
                words=max(1, sum(n for _, n, _ in self._arrays.values())),
                tasks=tuple(
                    (t.name, t.kind, data_keys[t.key] if t.kind in colored else t.key, t.high)
                    for t in rows
                ),
                main=self.main_thread_priority,
                threads=1 + max([-1, *(op.thread for op in every if op.thread is not None)]),
                filters=any(r["filter"].any() for r in routes),
                switched=teardown or any((r["positions"] > 1).any() for r in routes),
                controls=any(out.control for out in sends),
                swaps=any(r["swap"].any() for r in routes),
                teardown=teardown,
            ),
        )
        for op in every:
            check_operation(op, program.meta)
        check_program(program, [(op, mask) for ops, mask in self._ops for op in ops])
        return program

    def _holders(self, name: str) -> np.ndarray:
        """[H, W] bool: PEs for which an array is declared, or that use it."""
        out = self._held[name].copy()
        for ops, mask in self._ops:
            operands = (operand for op in ops for operand in op.operands)
            if any(isinstance(o, Mem) and o.array == name for o in operands):
                out |= mask
        return out

    def _route_of(self, color: int) -> dict[str, np.ndarray]:
        if color not in self._routes:
            raise RouteError(f"color {color} is not declared; call layout.color({color}) first")
        return self._routes[color]

    @staticmethod
    def _place(mask: np.ndarray, color: int) -> str:
        where = np.argwhere(mask)
        return f"PE ({where[0][1]}, {where[0][0]}), color {color}" if len(where) else "no PE"


def _level(tables: list[np.ndarray]) -> list[np.ndarray]:
    """Give all route tables as many positions as the longest."""
    most = max([len(t) for t in tables], default=0)
    return [np.pad(t, [(0, most - len(t)), (0, 0), (0, 0)]) for t in tables]


def _tears_down(ops: list[Op], tasks: list[_Task], starts: list[np.ndarray]) -> bool:
    """Whether positions may be TORN or written by the PE, or a task waits for teardown."""
    writes = any(op.position is not None for op in ops)
    waits = any(task.kind == "teardown" for task in tasks)
    return writes or waits or any((s == TORN).any() for s in starts)


def _stack(rows: list[np.ndarray], shape: tuple[int, ...], axis: int) -> np.ndarray:
    if rows:
        return np.stack(rows, axis)
    return np.zeros((*shape[:axis], 0, *shape[axis:]), np.uint8)


def _encode_filter(rule: Filter | None, place: str) -> np.ndarray:
    if rule is None:
        return np.zeros(4, np.int32)
    if rule.kind == "counter":
        return np.array([FilterKind.COUNTER, rule.high, rule.limit, rule.start], np.int32)
    if rule.kind == "range":
        return np.array([FilterKind.RANGE, rule.low, rule.high, 0], np.int32)
    raise RouteError(
        f"{place}: filter kind {rule.kind!r}; there are 'counter' and 'range' (no public text gives"
        " the rule of CSL's sparse counter)"
    )
