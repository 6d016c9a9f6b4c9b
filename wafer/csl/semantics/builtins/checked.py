"""What is wrong with an operation's descriptors and is known before it runs."""

from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator
from wafer.csl.semantics.core.unit import Descriptor
from wafer.csl.semantics.core.values import Reference, Value
from wafer.csl.syntax.source import Position
from wafer.machine.image import COLUMNS

__all__ = ["check_destination", "check_fabric"]

_WIDE = frozenset(
    {
        *("fadds", "fsubs", "fmuls", "fmaxs", "faddhs", "fmacs", "fmachs", "fmovs", "mov32"),
        *("fnegs", "fabss", "fh2s", "xp162fs", "fnorms", "fscales"),
    }
)
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
        hint = f"leave .fabric_color out, or initialize another queue with colour {color}"
        ev.fail(at, f"{name} {queue} has colour {bound}, and its descriptor says {color}", hint)


def check_destination(ev: Evaluator, name: str, values: list[Value], at: Position) -> None:
    """Refuse an operation that writes beyond the variable of its destination.

    Args:
        ev: of the operation.
        name: of the builtin, without @.
        values: its operands.
        at: where it is called.
    """
    target = values[0]
    if str(target.type) != "mem1d_dsd" or not isinstance(target.data, Descriptor):
        return
    address, length = target.data.address, _length(values)
    if not isinstance(address, Reference) or length is None:
        return
    width, size = 4 if name in _WIDE else 2, types.size_of(address.cell.type)
    first = address.offset()
    last = first + (length - 1) * target.data.stride * width
    if length and not 0 <= min(first, last) <= max(first, last) <= size - width:
        cell = address.cell
        ev.fail(
            at,
            f"{length} elements of {width} bytes reach beyond '{cell.name}' of type {cell.type}:"
            f" bytes {min(first, last)} to {max(first, last) + width - 1} of {size}",
            "make its extent, or that of the source, smaller",
        )


def _length(values: list[Value]) -> int | None:
    """Elements of an operation: of the first source that has a length, else of the destination."""
    for value in (*values[1:3], values[0]):
        if types.is_descriptor(value.type):
            one = isinstance(value.data, Descriptor) and str(value.type) != "fifo"
            known = one and str(value.type) != "mem4d_dsd"
            return value.data.length if known and value.data.length != 0x7FFF else None
        if str(value.type).startswith("dsr_"):
            return None
    return None
