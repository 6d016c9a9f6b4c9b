"""Port maps of SDK 0.4 to 0.9: which element of an array goes to which PE, and in which order.

``{ A[i=0:7, j=0:3] -> [ PE[j//2, i//4] -> index[i mod 4, j % 2] ] }``: ranges include both ends, a
number alone is an axis of one element. The elements of a PE go by ascending index.
"""

import ast
import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wafer.csl.host.errors import HostError
from wafer.vendor.sdk.sdk_utils import input_array_to_u32

_FORM = re.compile(
    r"\{\s*\w+\s*((?:\[[^\]]*\]\s*)+)->\s*\[?\s*PE\s*\[([^\]]*)\]\s*->\s*index\s*\[([^\]]*)\]\s*\]?\s*\}"
)
_SIGNS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
Moved = tuple[int, int, int, int, int, np.ndarray]  # x, y, columns, rows, items of a PE, words


class PortMap(NamedTuple):
    """A map that was read."""

    shape: tuple[int, ...]  #: of the array
    rectangle: tuple[int, int, int, int]  #: first column, first row, columns, rows
    order: np.ndarray  #: [elements] of each word, [row][column][item], in the flat array

    @property
    def items(self) -> int:
        """Of each PE."""
        _, _, width, height = self.rectangle
        return self.order.size // (width * height)


def _evaluated(text: str, names: dict[str, np.ndarray]) -> Any:
    """An expression of integers and names."""

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=int() as number):
                return number
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
                return _SIGNS[type(sign)](value(left), value(right))
        raise HostError(f"port map: '{text.strip()}' is no expression of {', '.join(names)}")

    try:
        return value(ast.parse(re.sub(r"\bmod\b", "%", text.strip()), mode="eval").body)
    except SyntaxError:
        raise HostError(f"port map: '{text.strip()}' is no expression") from None


def _ranges(text: str) -> list[tuple[str, int, int]]:
    """Name, first and last of each axis."""
    out = []
    for part in re.sub(r"\]\s*\[", ",", text.strip())[1:-1].split(","):
        name, equals, ends = part.rpartition("=")
        first, colon, last = ends.partition(":")
        low = _evaluated(first, {})
        out.append((name.strip() if equals else "", low, _evaluated(last, {}) if colon else low))
    return out


def port_map(text: str) -> PortMap:
    """Read a map.

    Raises:
        HostError: of another form, or PEs that get unequal numbers of elements.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise HostError(
            f"port map '{text}': expected {{ NAME[i=0:7] -> [ PE[x, y] -> index[i] ] }}"
        )
    ranges = _ranges(match[1])
    shape = tuple(last - first + 1 for _, first, last in ranges)
    grids = np.indices(shape).reshape(len(shape), -1)
    names = {name: grids[k] + first for k, (name, first, _) in enumerate(ranges) if name}
    whole = lambda part: np.broadcast_to(_evaluated(part, names), grids.shape[1:])
    places = [whole(part) for part in match[2].split(",")]
    indices = [whole(part) for part in match[3].split(",")]
    if len(places) != 2:
        raise HostError(f"port map '{text}': PE[x, y] has two coordinates")
    x, y = places
    order = np.lexsort((*reversed(indices), x, y))
    width, height = int(np.ptp(x)) + 1, int(np.ptp(y)) + 1
    counts = np.bincount((y - y.min()) * width + x - x.min(), minlength=width * height)
    if len(set(counts.tolist())) != 1:
        raise HostError(f"port map '{text}': PEs get {counts.min()} to {counts.max()} elements")
    return PortMap(shape, (int(x.min()), int(y.min()), width, height), order)


def convert_input_tensor(text: str, array: np.ndarray) -> Moved:
    """What ``memcpy_h2d`` takes for an array: x, y, columns, rows, items of a PE, words.

    Args:
        text: of the map.
        array: of 16- or 32-bit items, as many as the map's.

    Raises:
        HostError: another map, or an array of another size.
    """
    ports = port_map(text)
    if array.size != ports.order.size:
        raise HostError(f"an array of {array.size} items for a port map of {ports.order.size}")
    words = input_array_to_u32(np.asarray(array).reshape(-1)[ports.order])
    return *ports.rectangle, ports.items, words


def prepare_output_tensor(text: str, dtype: npt.DTypeLike) -> Moved:
    """What ``memcpy_d2h`` takes for an array: as ``convert_input_tensor``, with zeros.

    Args:
        text: of the map.
        dtype: of the array's items; ``format_output_tensor`` needs it.
    """
    ports = port_map(text)
    return *ports.rectangle, ports.items, np.zeros(ports.order.size, np.uint32)


def format_output_tensor(text: str, dtype: npt.DTypeLike, data: np.ndarray) -> np.ndarray:
    """The array that words from PEs make, in the shape of the map's ranges.

    Args:
        text: of the map.
        dtype: of 16 or 32 bits.
        data: words as ``memcpy_d2h`` gave them.
    """
    ports = port_map(text)
    out = np.empty(ports.order.size, dtype)
    out[ports.order] = output_array_from_u32(data, dtype)
    return out.reshape(ports.shape)


def output_array_from_u32(words: np.ndarray, dtype: npt.DTypeLike) -> np.ndarray:
    """The lower bits of words, as items of a type; a copy."""
    flat = np.ascontiguousarray(words).reshape(-1).view(np.uint32)
    dtype = np.dtype(dtype)
    return flat.view(dtype)[:: 4 // dtype.itemsize].copy()
