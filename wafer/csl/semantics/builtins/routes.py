"""Color configurations: routes, switches and filters as the words of the router's registers."""

from typing import NamedTuple

from wafer.csl.semantics.builtins.arguments import Fields
from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator, described
from wafer.csl.semantics.core.values import Value
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import Position, suggestion
from wafer.machine.arch import ARCHITECTURES, PORTS
from wafer.machine.codes import NO_POSITION, NO_SWITCH, switch_position
from wafer.machine.image import COLORS, COLUMNS

_SIDES = len(PORTS)  # bits of tx, then of rx
_SIDE = (1 << _SIDES) - 1
_POP = {"no_pop": 0, "always_pop": 1, "pop_on_advance": 2, "pop_on_advance_nop": 3}
_POSITIONS = ("pos1", "pos2", "pos3")
_KINDS = {"counter": 1, "sparse_counter": 2, "range": 3}
_FILTER = {
    "count_data": "counts_data",
    "count_control": "counts_control",
    "init_counter": "start",
    "max_counter": "most",
    "limit1": "limit1",
    "limit2": "limit2",
    "filter_control": "controls_filtered",
    "min_idx": "low",
    "max_idx": "high",
}
SWITCHED_WSE3 = ARCHITECTURES["wse3"].switched_colors


class ColorConfig(NamedTuple):
    """A color at one PE: its two registers, its filter's columns, and where that is said."""

    color: int
    switch: int
    filter: tuple[int, ...]
    at: Position


def check_routable(ev: Evaluator, color: Value, at: Position) -> None:
    """Refuse a known color that routers do not have."""
    if not isinstance(color.data, int) or color.data < 0:
        ev.fail(at, f"expected a color, found {described(color)}")
    if color.data >= COLORS:
        ev.fail(at, f"color {color.data} has no routes; those from 0 to {COLORS - 1} do")


def _sides(ev: Evaluator, value: Value, at: Position) -> int:
    """A mask of one or several directions."""
    if value.type == types.DIRECTION:
        return 1 << value.data
    if value.type == types.ANONYMOUS and isinstance(value.data, list):
        parts = value.data
    elif isinstance(value.type, types.Array):
        parts = [Value(value.type.element, part) for part in value.data]
    elif value.type == types.ANONYMOUS and not value.data:
        parts = []
    else:
        ev.fail(at, f"expected directions, found {described(value)}")
    mask = 0
    for part in parts:
        if part.type != types.DIRECTION:
            ev.fail(at, f"expected a direction, found {described(part)}")
        mask |= 1 << part.data
    return mask


def _pop_mode(ev: Evaluator, given: Fields, at: Position) -> int:
    chosen = given.chosen("pop_mode")
    for name in chosen:
        if name not in _POP:
            ev.fail(at, f"there is no pop mode '{name}'", suggestion(name, _POP))
    if len(chosen) > 1:
        ev.fail(at, f".pop_mode is one, found {', '.join(chosen)}")
    return _POP[chosen[0]] if chosen else 0


def _routes(ev: Evaluator, value: Value, at: Position) -> int:
    """Bits 0-13 of the color register: sides out and in, swaps, pop mode."""
    if isinstance(value.data, int):
        return value.data & 0x3FF
    given, word = Fields(ev, value, at), 0
    for side, shift in (("tx", 0), ("rx", _SIDES)):
        if (sides := given.take(side)) is not None:
            word |= _sides(ev, sides, at) << shift
    word |= given.flag("color_swap_x") << 10 | given.flag("color_swap_y") << 11
    word |= _pop_mode(ev, given, at) << 12
    given.end(".routes has no field")
    return word


def _position(ev: Evaluator, position: str, value: Value, at: Position) -> int:
    """The position as the switch register has it."""
    if isinstance(value.data, int) and value.type != types.DIRECTION:
        bits = (("tx", value.data & _SIDE), ("rx", value.data >> _SIDES & _SIDE))
        masks = {name: mask for name, mask in bits if mask}
        invalid = not masks
    else:
        given = Fields(ev, value, at)
        invalid = given.flag("invalid")
        masks = {name: _sides(ev, side, at) for name, side in given.left.items()}
    if invalid:
        return NO_POSITION
    both = ARCHITECTURES[ev.unit.arch].switch_both_sides
    if masks.keys() == {"rx", "tx"} and not both:
        ev.fail(
            at,
            f".{position} changes both .rx and .tx, and WSE-2's switch register has room for one",
            "a position keeps what those before it changed: use two, and two SWITCH_ADV",
        )
    if not masks or masks.keys() - {"rx", "tx"}:
        ev.fail(at, f".{position} changes .rx or .tx, found {', '.join(masks) or 'neither'}")
    for name, mask in masks.items():
        if mask.bit_count() != 1 and (mask or name == "rx" or len(masks) == 1):
            ev.fail(at, f".{position} names one direction, found {mask.bit_count()}")
    return switch_position(masks, both=both)


def _switches(ev: Evaluator, given: Fields, at: Position) -> tuple[int, int]:
    """The switch register, and the pop mode."""
    word = 0
    for number, name in enumerate(_POSITIONS):
        change = given.take(name)
        code = NO_POSITION if change is None else _position(ev, name, change, at)
        word |= code << 4 * number
    word |= given.flag("ring_mode") << 12
    if (start := given.take("current_switch_pos")) is not None:
        word |= _number(ev, "current_switch_pos", start, at, 2) << 13
    mode = _pop_mode(ev, given, at)
    given.end(".switches has no field")
    return word, mode


def _number(ev: Evaluator, name: str, value: Value, at: Position, bits: int = 16) -> int:
    if not isinstance(value.data, int):
        ev.fail(at, f".{name} is a number, found {described(value)}")
    if not 0 <= value.data < 1 << bits:
        ev.fail(at, f".{name} is a number of {bits} bits, found {value.data}")
    return int(value.data)


def _filter(ev: Evaluator, value: Value, at: Position) -> tuple[int, ...]:
    given = Fields(ev, value, at)
    kinds = given.chosen("kind")
    if len(kinds) != 1 or kinds[0] not in _KINDS:
        ev.fail(at, f"a filter's .kind is one of {', '.join(_KINDS)}")
    given.take("fast_mode")
    columns = dict.fromkeys(COLUMNS["filters"], 0) | {"kind": _KINDS[kinds[0]], "limit2": -1}
    for name, part in given.left.items():
        if name not in _FILTER:
            ev.fail(at, f".filter has no field '{name}'", suggestion(name, _FILTER))
        columns[_FILTER[name]] = _number(ev, name, part, at)
    return tuple(columns.values())


_ROUTES = {"rx", "tx", "color_swap_x", "color_swap_y"}
_SWITCHES = {*_POSITIONS, "ring_mode", "current_switch_pos", "pop_mode"}


def _nest(given: Fields) -> None:
    """Move the fields of SDK 0.4, which are all side by side, into .routes and .switches."""
    for name, fields in (("routes", _ROUTES), ("switches", _SWITCHES)):
        if flat := given.left.keys() & fields:
            parts = {field: given.left.pop(field) for field in flat}
            given.left[name] = Value(types.ANONYMOUS, parts)


def color_config(ev: Evaluator, node: tree.Builtin) -> tuple[int, ColorConfig]:
    """A color and what it does at a PE, ``.{ .routes, .switches, .filter, .teardown }``.

    Args:
        ev: that evaluates the call.
        node: the call, whose last arguments these are.
    """
    known, value = (ev.known(argument) for argument in node.arguments[-2:])
    at, color = node.at, known.data
    if known.type != types.COLOR:
        ev.fail(at, f"expected a color, found {described(known)}", "@get_color(number)")
    check_routable(ev, known, at)
    given, word, switch = Fields(ev, value, at), 0, NO_SWITCH
    _nest(given)
    if (routes := given.take("routes")) is not None:
        word = _routes(ev, routes, at)
    if "switches" in given.left:
        parts = given.inner("switches")
        if ev.unit.arch == "wse3" and parts.left and color not in SWITCHED_WSE3:
            possible = ", ".join(map(str, sorted(SWITCHED_WSE3)))
            ev.fail(at, f"color {color} has no switches on WSE-3", f"those with: {possible}")
        switch, mode = _switches(ev, parts, at)
        word |= mode << 12
    word |= given.flag("teardown") << 14
    asked = given.take("filter")
    rule = (0,) * len(COLUMNS["filters"]) if asked is None else _filter(ev, asked, at)
    given.end("a color's configuration has no field")
    return color, ColorConfig(word, switch, rule, at)
