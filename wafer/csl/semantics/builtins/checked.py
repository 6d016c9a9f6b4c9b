"""What is wrong with an operation's descriptors and is known before it runs."""

import math
from collections.abc import Sequence

from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator
from wafer.csl.semantics.core.unit import Descriptor
from wafer.csl.semantics.core.values import Reference, Value
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import Position
from wafer.machine.image import COLUMNS

NEVER_ENDS = 0x7FFF  # the length of a descriptor that ends by control wavelets alone

_SENDS, _QUEUE, _COLOR = (COLUMNS["fabrics"].index(name) for name in ("sends", "queue", "color"))


def check_fabric(ev: Evaluator, value: Value, at: Position) -> None:
    """Compare a known descriptor of the fabric with the queue that it names."""
    if str(value.type) not in ("fabin_dsd", "fabout_dsd") or not isinstance(value.data, Descriptor):
        return
    row = ev.unit.tables["fabrics"][value.data.address]
    sends, queue, color = row[_SENDS], row[_QUEUE], row[_COLOR]
    if queue < 0 or (sends and ev.unit.arch != "wse3"):
        return
    name = "output_queue" if sends else "input_queue"
    bound = ev.unit.queues.get(queue + 8 * sends, (-1, -1))[0]
    if 0 <= color != bound >= 0:
        hint = f"leave .fabric_color out, or initialize another queue with color {color}"
        ev.fail(at, f"{name} {queue} has color {bound}, and its descriptor says {color}", hint)


def check_bounds(
    ev: Evaluator, values: list[Value], widths: Sequence[int], nodes: Sequence[tree.Node]
) -> None:
    """Refuse an operation that a known descriptor has no elements for, or not within its variable.

    Args:
        ev: of the operation.
        values: its operands, the destination first.
        widths: bytes of an element of each.
        nodes: where they are named.
    """
    length = _length(ev, values)
    for value, width, node in zip(values, widths, nodes, strict=False):
        if length and _shape_size(ev, value) == 0:
            ev.fail(
                node.at,
                f"a mem4d_dsd has an extent of 0 beside operands of {length} elements",
                "make each of its extents at least 1",
            )
        known = isinstance(value.data, Descriptor) and value.data.address
        if not length or not isinstance(known, Reference):
            continue
        cell, base, size = known.cell, known.offset(), types.size_of(known.cell.type)
        ends = [width * (count - 1) * step for count, step in _dimensions(ev, value, length)]
        first = base + sum(min(end, 0) for end in ends)
        last = base + sum(max(end, 0) for end in ends) + width - 1
        if not 0 <= first <= last < size:
            ev.fail(
                node.at,
                f"{length} elements of {width} bytes reach beyond '{cell.name}' of type"
                f" {cell.type}: bytes {first} to {last} of {size}",
                "make its extent, or that of the first source, smaller",
            )


def _shape_size(ev: Evaluator, value: Value) -> int | None:
    """Elements of a known mem4d_dsd; None for other operands."""
    if str(value.type) != "mem4d_dsd" or not isinstance(value.data, Descriptor):
        return None
    return math.prod(ev.unit.tables["shapes"][value.data.length][:4])


def _dimensions(ev: Evaluator, value: Value, length: int) -> list[tuple[int, int]]:
    """Counts and steps, in elements, of a known descriptor in an operation of some length."""
    if str(value.type) != "mem4d_dsd":
        return [(length, value.data.stride)]
    row = ev.unit.tables["shapes"][value.data.length]
    counts, steps = row[:4], row[4:]
    inner = [math.prod(counts[k + 1 :]) for k in range(4)]
    return [(min(n, -(-length // m)), s) for n, m, s in zip(counts, inner, steps, strict=True)]


def _length(ev: Evaluator, values: list[Value]) -> int | None:
    """Elements of an operation: of the first source that has a length, else of the destination."""
    for value in (*values[1:3], values[0]):
        if str(value.type).startswith("dsr_"):
            return None
        if types.is_descriptor(value.type):
            if not isinstance(value.data, Descriptor) or str(value.type) == "fifo":
                return None
            size = _shape_size(ev, value)
            length = value.data.length if size is None else size
            if length:
                return None if length == NEVER_ENDS else length
    return None
