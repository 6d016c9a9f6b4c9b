"""The collectives written as PE programs: routes by region, operation lists by class of PE.

Every builder lays its rows along x; ``height`` rows run side by side. Array ``"x"`` holds each
PE's vector, and the result at the root. Reductions follow Luczynski et al., HPDC'24
(arXiv:2404.15888) and the CSL of SpMM_Cerebras; the quadrant all-reduce follows the BiCGStab
paper of Rocki et al., SC'20.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from wafer.fabric.library.routes import bind, chain_op, chain_routes, line_routes, march_routes
from wafer.fabric.program.layout import Layout
from wafer.fabric.program.ops import Op, fabin, fabout, fadds, fmovs, mem
from wafer.fabric.program.tables import Filter, Program
from wafer.spec import WSE2, WaferSpec

__all__ = [
    "allreduce_program",
    "broadcast_program",
    "chain_program",
    "gather_program",
    "quadrant_allreduce_program",
    "scatter_program",
    "shift_program",
    "star_program",
    "tree_program",
    "two_phase_program",
]


def _layout(
    width: int, height: int, words: int, spec: WaferSpec, *, overheads: bool = False
) -> Layout:
    layout = Layout(width, height, spec, overheads=overheads)
    layout.array("x", words)
    return layout


def broadcast_program(
    width: int, height: int, words: int, root: int = 0, spec: WaferSpec = WSE2
) -> Program:
    """One multicast color from column ``root``: ``words + distance + 5`` cycles at each PE."""
    layout = _layout(width, height, words, spec)
    color, x = layout.color(), layout.x
    line_routes(layout, color, x, root)
    layout.task("main", [fmovs(fabout(color), mem("x"), words)], x == root, active=True)
    layout.task("main", [fmovs(mem("x"), fabin(color), words)], x != root, active=True)
    return layout.build()


def chain_program(
    width: int, height: int, words: int, spec: WaferSpec = WSE2, *, overheads: bool = False
) -> Program:
    """Systolic chain to column 0 on two colors: ``words + 6 (width - 1)`` cycles."""
    return two_phase_program(width, height, words, width, spec=spec, overheads=overheads)


def two_phase_program(
    width: int,
    height: int,
    words: int,
    group: int,
    *,
    spec: WaferSpec = WSE2,
    overheads: bool = False,
) -> Program:
    """Chains inside groups of ``group`` columns, then a chain over the groups' first columns.

    The last leader streams its group's sum on, element by element, as the CSL of SpMM_Cerebras
    does; the others store it first.
    """
    layout = _layout(width, height, words, spec, overheads=overheads)
    bind(layout, _two_phase(layout, words, group), layout.x)
    return layout.build()


def _two_phase(layout: Layout, words: int, group: int) -> Callable[[int], list[Op]]:
    """Route the chains inside groups and that of their first columns; a column's operations."""
    x, width, leaders = layout.x, layout.width, -(-layout.width // group)
    first, second = [layout.color(), layout.color()], list[int]()
    chain_routes(layout, first, x % group, (np.minimum(x - x % group + group, width) - 1) % group)
    if leaders > 1:
        second = [layout.color(), layout.color()]
        chain_routes(layout, second, x // group, leaders - 1, nodes=x % group == 0)
    chained = functools.partial(chain_op, operand=mem("x"), words=words)

    def ops(column: int) -> list[Op]:
        number, rank = divmod(column, group)
        tail = rank == group - 1 or column == width - 1
        if rank:
            return [chained(first, rank, last=tail)]
        if number and number == leaders - 1:
            op = chained(second, number, last=True)
            # its own group's sum streams on
            return [op if tail else dataclasses.replace(op, kind="add", src1=fabin(first[1]))]
        sums = [] if tail else [chained(first, 0, last=False)]
        return sums + ([chained(second, number, last=False)] if second else [])

    return ops


def allreduce_program(
    width: int, height: int, words: int, group: int, spec: WaferSpec = WSE2
) -> Program:
    """All-reduce a vector over the grid on eight colors.

    Two-phase reduce along the rows, chain up column 0, multicast down it and along the rows
    (the X-Y scheme of Luczynski et al., HPDC'24).
    """
    layout = _layout(width, height, words, spec)
    x, y = layout.x, layout.y
    sums = _two_phase(layout, words, group)
    up, down, back = [layout.color(), layout.color()], layout.color(), layout.color()
    chain_routes(layout, up, y, height - 1, x == 0, towards="N")
    line_routes(layout, down, y, 0, x == 0)
    line_routes(layout, back, x, 0)

    vector = mem("x")
    move = lambda dst, src: fmovs(dst, src, words)

    def ops(column: int, row: int) -> list[Op]:
        if column:
            return [*sums(column), move(vector, fabin(back))]
        total = chain_op(up, row, last=row == height - 1, operand=vector, words=words)
        tell = move(vector, fabin(down)) if row else move(fabout(down), vector)
        return [*sums(0), total, tell, move(fabout(back), vector)]

    bind(layout, ops, x, np.where(x == 0, y, 0))
    return layout.build()


def tree_program(
    width: int, height: int, words: int, spec: WaferSpec = WSE2, *, overheads: bool = False
) -> Program:
    """Binary tree to column 0, one color per round; the last receive streams into the send.

    With overheads every receive pays ``op_reload``: in the CSL they are turns of a loop.
    """
    layout = _layout(width, height, words, spec, overheads=overheads)
    rounds, x, vector = max(1, (width - 1).bit_length()), layout.x, mem("x")
    colors = [layout.color() for _ in range(rounds)]
    for r, color in enumerate(colors):
        reach = 1 << r
        rank = x % (2 * reach)
        layout.route(color, "RAMP", "W", rank == reach)
        layout.route(color, "E", "RAMP", (rank == 0) & (x + reach < width))
        passes = (rank > 0) & (rank < reach) & (x - rank + reach < width)
        layout.route(color, "E", "W", passes)

    def ops(column: int) -> list[Op]:
        level = ((column & -column).bit_length() - 1) if column else rounds
        heard = [r for r in range(level) if column + (1 << r) < width]
        ops = [fadds(vector, vector, fabin(colors[r]), words) for r in heard]
        if column:
            out = fabout(colors[level])
            last = dataclasses.replace(ops[-1], dst=out) if ops else fmovs(out, vector, words)
            ops = [*ops[:-1], last]
        if overheads and heard:
            waits = [spec.op_reload + spec.task_start * (i == 0) for i in range(len(ops))]
            replace = dataclasses.replace
            ops = [replace(op, launch=wait) for op, wait in zip(ops, waits, strict=True)]
        return ops

    bind(layout, ops, x)
    return layout.build()


def star_program(width: int, height: int, spec: WaferSpec = WSE2) -> Program:
    """Every PE sends one word at once; they march in step and column 0 adds them in order.

    Cycles: ``width + 5``.
    """
    layout = _layout(width, height, 1, spec)
    color, x = layout.color(), layout.x
    march_routes(layout, color, x, 0, width - 1)
    total = fadds(mem("x", 0, 0), mem("x", 0, 0), fabin(color), width - 1)
    layout.task("main", [total], x == 0, active=True)
    layout.task("main", [fmovs(fabout(color), mem("x"))], x > 0, active=True)
    return layout.build()


def scatter_program(width: int, height: int, words: int, spec: WaferSpec = WSE2) -> Program:
    """Column 0 multicasts all chunks; a counter filter lets each CE see its own.

    Column 0 holds ``width * words`` words in ``"x"``; every PE ends with its chunk in ``"own"``.
    """
    layout = _layout(width, height, width * words, spec)
    layout.array("own", words)
    color, x = layout.color(), layout.x
    layout.route(color, "RAMP", "E", x == 0)
    total = (width - 1) * words
    for column in range(1, width):
        keep = Filter.share((column - 1) * words, words, total)
        ports = ("RAMP", "E") if column < width - 1 else ("RAMP",)
        layout.route(color, "W", ports, x == column, filter=keep)
    send = [fmovs(fabout(color), mem("x", words), total), fmovs(mem("own"), mem("x"), words)]
    layout.task("main", send, x == 0, active=True)
    layout.task("main", [fmovs(mem("own"), fabin(color), words)], x > 0, active=True)
    return layout.build()


def gather_program(width: int, height: int, words: int, spec: WaferSpec = WSE2) -> Program:
    """Each PE sends its chunk, then its switch lets the ones behind it pass: nearest first."""
    layout = _layout(width, height, width * words, spec)
    layout.array("own", words)
    color, x = layout.color(), layout.x
    layout.route(color, "E", "RAMP", x == 0)
    middle = (x > 0) & (x < width - 1)
    layout.route(color, "RAMP", "W", middle, switches=[{"rx": "E"}])
    layout.route(color, "RAMP", "W", x == width - 1)
    out = fabout(color, advance_switch=True)
    layout.task("main", [fmovs(out, mem("own"), words)], x > 0, active=True)
    take = [
        fmovs(mem("x", words), fabin(color), (width - 1) * words),
        fmovs(mem("x"), mem("own"), words),
    ]
    layout.task("main", take, x == 0, active=True)
    return layout.build()


def shift_program(
    width: int, height: int, words: int, hops: int = 1, spec: WaferSpec = WSE2
) -> Program:
    """Every PE's vector moves ``hops`` columns east; ``hops + 1`` colors keep senders apart.

    The receive runs in a microthread, so that full queues never stop both neighbours.
    """
    layout = _layout(width, height, words, spec)
    layout.array("got", words)
    x, period = layout.x, hops + 1
    colors = [layout.color() for _ in range(period)]
    for k, color in enumerate(colors):
        rank = (x - k) % period  # columns behind the sender
        layout.route(color, "RAMP", "E", (rank == 0) & (x + hops < width))
        layout.route(color, "W", "RAMP", (rank == hops) & (x >= hops))
        passes = (rank > 0) & (rank < hops) & (x >= rank) & (x - rank + hops < width)
        layout.route(color, "W", "E", passes)

    def ops(column: int) -> list[Op]:
        receive = fmovs(mem("got"), fabin(colors[(column - hops) % period]), words, thread=0)
        send = fmovs(fabout(colors[column % period]), mem("x"), words)
        return [receive] * (column >= hops) + [send] * (column + hops < width)

    bind(layout, ops, x)
    return layout.build()


def quadrant_allreduce_program(width: int, height: int, spec: WaferSpec = WSE2) -> Program:
    """All-reduce one word per PE: star-reduce each quadrant to the centre, multicast back.

    Rows run to the two centre columns, those to the two centre rows, three hops join the four
    sums, and one multicast tree returns the total: about ``width + height`` cycles.
    """
    layout = _layout(width, height, 1, spec)
    x, y = layout.x, layout.y
    cx, cy = width // 2, height // 2
    left, right, top, bottom = x == cx - 1, x == cx, y == cy - 1, y == cy
    rows, columns = layout.color(), layout.color()
    for color, along, centre, size, mask in (
        (rows, x, cx, width, True),
        (columns, y, cy, height, left | right),
    ):
        march_routes(layout, color, along, centre - 1, 0, where=mask)
        march_routes(layout, color, along, centre, size - 1, where=mask)
    join_x, join_y, back = layout.color(), layout.color(), layout.color()
    centre = (left | right) & (top | bottom)
    layout.route(join_x, "RAMP", "W", centre & right)
    layout.route(join_x, "E", "RAMP", centre & left)
    layout.route(join_y, "RAMP", "N", left & bottom)
    layout.route(join_y, "S", "RAMP", left & top)
    line_routes(layout, back, x, cx - 1)
    across = ["W"] * (cx > 1) + ["E"]
    line_routes(layout, back, y, cy - 1, left, also=across)

    word = mem("x", 0, 0)
    add = lambda color, n: [fadds(word, word, fabin(color), n)] if n else []
    send = lambda color: fmovs(fabout(color), word)
    receive = fmovs(word, fabin(back))

    def ops(column: int, row: int) -> list[Op]:
        """Of a PE west (1) or east (2) of the centre, north (1) or south (2) of it, or neither."""
        if not column:
            return [send(rows), receive]
        sums = add(rows, (cx - 1, width - cx - 1)[column - 1])
        if not row:
            return [*sums, send(columns), receive]
        sums += add(columns, (cy - 1, height - cy - 1)[row - 1])
        if column == 2:
            return [*sums, send(join_x), receive]
        sums += add(join_x, 1)
        return [*sums, send(join_y), receive] if row == 2 else [*sums, *add(join_y, 1), send(back)]

    bind(layout, ops, left + 2 * right, (left | right) * (top + 2 * bottom))
    return layout.build()
