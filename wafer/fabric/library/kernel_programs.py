"""Kernels written as PE programs, operation by operation, for the machine.

What :mod:`wafer.fabric.library` computes in bulk with a cycle formula, runs here cycle by cycle;
the tests hold one against the other. Every ``@fmacs`` in a CSL loop is charged the 44 cycles of
overhead that :mod:`wafer.fabric.library.kernels` charges.
"""

import itertools
from collections.abc import Callable

import numpy as np

from wafer.fabric.errors import FabricError
from wafer.fabric.library.kernels import CYCLES_PER_ENTRY, FMACS_LOOP
from wafer.fabric.library.routes import bind, chain_op, chain_routes, line_routes
from wafer.fabric.program.layout import Layout
from wafer.fabric.program.ops import Mem, Op, fabin, fabout, fmovs, mem, work
from wafer.fabric.program.tables import Program
from wafer.machine.arch import OPPOSITE, STEPS
from wafer.spec import WSE2, WaferSpec

__all__ = [
    "gemv_program",
    "scaled_sum",
    "seven_point_program",
    "sparse_matvec_program",
    "summa_program",
]


def scaled_sum(dst: Mem, a: Mem, scalar: Mem, n: int) -> Op:
    """``dst += a * scalar`` as a turn of a CSL loop.

    Args:
        dst: n words.
        a: likewise.
        scalar: one.
        n: how many.
    """
    return Op("mac", dst, dst, a, scalar, n=n, launch=1 + FMACS_LOOP)


def _matvec(layout: Layout, m: int, n: int, products: Callable[[int, int], list[Op]]) -> Program:
    """Broadcast x down the columns, each PE's products into y, chain y to column 0."""
    layout.array("x", n)
    layout.array("y", m)
    down = layout.color()
    line_routes(layout, down, layout.y, 0)
    chain, last = [layout.color(), layout.color()], layout.width - 1
    chain_routes(layout, chain, layout.x, last)

    def ops(row: int, column: int) -> list[Op]:
        share = fmovs(mem("x"), fabin(down), n) if row else fmovs(fabout(down), mem("x"), n)
        total = chain_op(chain, column, last=column == last, operand=mem("y"), words=m)
        return [share] * (layout.height > 1) + products(row, column) + [total] * (last > 0)

    bind(layout, ops, layout.y, layout.x)
    return layout.build()


def gemv_program(height: int, width: int, m: int, n: int, spec: WaferSpec = WSE2) -> Program:
    """Matrix-vector product of :func:`wafer.fabric.library.gemv` with the chain reduce.

    Arrays: ``"a"`` [m, n] row-major, ``"x"`` [n] read at row 0, ``"y"`` [m] with the product at
    column 0.
    """
    layout = Layout(width, height, spec, overheads=False)
    layout.array("a", m * n)
    ops = [scaled_sum(mem("y"), mem("a", j, n), mem("x", j, 0), m) for j in range(n)]
    return _matvec(layout, m, n, lambda row, column: ops)


def sparse_matvec_program(
    rows: np.ndarray,
    cols: np.ndarray,
    counts: np.ndarray,
    shape: tuple[int, int],
    spec: WaferSpec = WSE2,
) -> Program:
    """Sparse matrix-vector product of :func:`wafer.fabric.library.sparse_matvec`.

    Args:
        rows: [H, W, E] int, row of each stored entry in its tile; the pattern is compiled in.
        cols: [H, W, E] int, its column.
        counts: [H, W] int, entries that exist.
        shape: (m, n), rows and columns of a tile.
        spec: the machine.

    Returns:
        A program over arrays ``"v"`` [E], ``"x"`` and ``"y"``.
    """
    height, width, entries = rows.shape
    layout = Layout(width, height, spec, overheads=False)
    layout.array("v", entries)

    def products(row: int, column: int) -> list[Op]:
        kept = counts[row, column]
        pairs = zip(rows[row, column, :kept], cols[row, column, :kept], strict=True)
        return [
            Op(
                "mac",
                mem("y", int(r)),
                mem("y", int(r)),
                mem("v", e),
                mem("x", int(c)),
                launch=CYCLES_PER_ENTRY - 1,
            )
            for e, (r, c) in enumerate(pairs)
        ]

    return _matvec(layout, *shape, products)


def summa_program(size: int, m: int, k: int, n: int, spec: WaferSpec = WSE2) -> Program:
    """SUMMA of :func:`wafer.fabric.library.summa`: tiles of the next step arrive meanwhile.

    Each column of A and row of B has a color of its own. Arrays: ``"a"`` [k, m] (column-major
    A), ``"b"`` [k, n], ``"c"`` [n, m]; a second copy of a and b takes the odd steps' tiles.

    Raises:
        FabricError: more than four PEs a side (a CE has eight input queues).
    """
    if not 1 < size <= 4:
        raise FabricError(f"summa_program: {size} x {size} PEs; a color per step allows 2 to 4")
    layout = Layout(size, size, spec, overheads=False)
    words = {"a": m * k, "b": k * n}
    for name, copy in itertools.product("ab", ("", "0", "1")):
        layout.array(name + copy, words[name])
    layout.array("c", m * n)
    colors = {name: [layout.color() for _ in range(size)] for name in "ab"}
    for name, s in itertools.product("ab", range(size)):
        line_routes(layout, colors[name][s], layout.x if name == "a" else layout.y, s)

    def ops(row: int, column: int) -> list[Op]:
        send_step, ops = {"a": column, "b": row}, list[Op]()
        for s in range(size + 1):
            for thread, name in enumerate("ab"):
                if s == size:  # waits until the last tiles are here
                    ops.append(work(1, thread=thread))
                elif send_step[name] == s:
                    out = fabout(colors[name][s])
                    ops.append(fmovs(out, mem(name), words[name], thread=thread))
                else:
                    into = mem(f"{name}{s % 2}")
                    ops.append(fmovs(into, fabin(colors[name][s]), words[name], thread=thread))
            if not s:
                continue
            left, right = (
                name if send_step[name] == s - 1 else f"{name}{(s - 1) % 2}" for name in "ab"
            )
            ops += [
                scaled_sum(mem("c", j * m), mem(left, i * m), mem(right, i * n + j, 0), m)
                for j in range(n)
                for i in range(k)
            ]
        return ops

    bind(layout, ops, layout.y, layout.x)
    return layout.build()


_TRAVEL = "SWNE"  # directions in which halos travel, in the order of the coefficients


def seven_point_program(height: int, width: int, cells: int, spec: WaferSpec = WSE2) -> Program:
    """The 7-point operator of :func:`wafer.fabric.library.seven_point`.

    Arrays: ``"u"`` [cells + 2] with a zero at both ends, ``"c0"``..``"c6"`` coefficients,
    ``"out"`` [cells], and a halo per side.
    """
    layout = Layout(width, height, spec, overheads=False)
    layout.array("u", cells + 2)
    layout.array("out", cells)
    for i in range(7):
        layout.array(f"c{i}", cells)
    colors = {side: [layout.color(), layout.color()] for side in _TRAVEL}
    for side in _TRAVEL:
        layout.array(side, cells)
    x, y = layout.x, layout.y
    inside = lambda at, size: (at >= 0) & (at < size)
    for side in _TRAVEL:
        dx, dy = STEPS[side]
        for parity, color in enumerate(colors[side]):
            sends = inside(x + dx, width) & inside(y + dy, height)
            hears = inside(x - dx, width) & inside(y - dy, height)
            even = (x + y) % 2 == parity
            layout.route(color, "RAMP", side, sends & even)
            layout.route(color, OPPOSITE[side], "RAMP", hears & ~even)
    terms = [mem("u", 1), *map(mem, _TRAVEL), mem("u", 0), mem("u", 2)]
    combine = [
        Op("mac", mem("out"), mem("out"), mem(f"c{i}"), term, n=cells, launch=spec.op_launch)
        for i, term in enumerate(terms)
    ]

    def ops(row: int, column: int) -> list[Op]:
        ops = []
        for side in _TRAVEL:
            (dx, dy), parity = STEPS[side], (row + column) % 2
            if inside(column - dx, width) & inside(row - dy, height):
                into = fabin(colors[side][1 - parity])
                ops.append(fmovs(mem(side), into, cells, thread=0))
            if inside(column + dx, width) & inside(row + dy, height):
                ops.append(fmovs(fabout(colors[side][parity]), mem("u", 1), cells))
        return [*ops, work(1, thread=0), *combine]  # the work waits for the last halo

    bind(layout, ops, y, x)
    return layout.build()
