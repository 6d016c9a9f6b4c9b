"""Colour configurations: routes, switches and filters as the words of the router's registers."""

from typing import NamedTuple

from wafer.csl.semantics.builtins.arguments import fields_of
from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator, described
from wafer.csl.semantics.core.values import Value
from wafer.csl.syntax.source import Position
from wafer.machine.arch import ARCHITECTURES, PORTS
from wafer.machine.image import COLUMNS

__all__ = ["NO_POSITION", "NO_SWITCH", "SWITCHED_WSE3", "ColorConfig", "color_config"]

_SIDES = len(PORTS)  # bits of tx, then of rx
_SIDE = (1 << _SIDES) - 1
_POP = {"no_pop": 0, "always_pop": 1, "pop_on_advance": 2, "pop_on_advance_nop": 3}
NO_POSITION = 5  # of a switch
NO_SWITCH = NO_POSITION << 8 | NO_POSITION << 4 | NO_POSITION
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
    """A colour at one PE: its two registers, its filter's columns, and where that is said."""

    color: int
    switch: int
    filter: tuple[int, ...]
    at: Position


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


def _taken(given: dict[str, Value], name: str) -> bool:
    return name in given and bool(given.pop(name).data)


def _pop_mode(ev: Evaluator, given: dict[str, Value], at: Position) -> int:
    if "pop_mode" not in given:
        return 0
    modes = fields_of(ev, given.pop("pop_mode"), at)
    chosen = [name for name, value in modes.items() if value.data]
    for name in chosen:
        if name not in _POP:
            ev.fail(at, f"there is no pop mode '{name}'", ev.meant(name, _POP))
    return _POP[chosen[0]] if chosen else 0


def _routes(ev: Evaluator, value: Value, at: Position) -> int:
    """Bits 0-13 of the colour register: sides out and in, swaps, pop mode."""
    if isinstance(value.data, int):
        return value.data & 0x3FF
    given = fields_of(ev, value, at)
    word = _sides(ev, given.pop("tx"), at) if "tx" in given else 0
    word |= _sides(ev, given.pop("rx"), at) << _SIDES if "rx" in given else 0
    word |= _taken(given, "color_swap_x") << 10 | _taken(given, "color_swap_y") << 11
    word |= _pop_mode(ev, given, at) << 12
    if given:
        ev.fail(at, f".routes has no field '{next(iter(given))}'")
    return word


def _position(ev: Evaluator, position: str, value: Value, at: Position) -> int:
    """Four bits: whether it is the side in, and which side."""
    if isinstance(value.data, int) and value.type != types.DIRECTION:
        bits = (("tx", value.data & _SIDE), ("rx", value.data >> _SIDES & _SIDE))
        masks = {name: mask for name, mask in bits if mask}
        invalid = not masks
    else:
        given = fields_of(ev, value, at)
        invalid = _taken(given, "invalid")
        masks = {name: _sides(ev, side, at) for name, side in given.items()}
    if invalid:
        return NO_POSITION
    if masks.keys() == {"rx", "tx"}:
        ev.fail(
            at,
            f".{position} changes both .rx and .tx, and the switch register has room for one side",
            "a position keeps what those before it changed: use two, and two SWITCH_ADV",
        )
    if len(masks) != 1 or next(iter(masks)) not in ("rx", "tx"):
        ev.fail(at, f".{position} changes .rx or .tx, found {', '.join(masks) or 'neither'}")
    name, mask = next(iter(masks.items()))
    if mask.bit_count() != 1:
        ev.fail(at, f".{position} names one direction, found {mask.bit_count()}")
    return (name == "rx") << 3 | mask.bit_length() - 1


def _switches(ev: Evaluator, given: dict[str, Value], at: Position) -> tuple[int, int]:
    """The switch register, and the pop mode."""
    word = 0
    for number, name in enumerate(_POSITIONS):
        code = _position(ev, name, given.pop(name), at) if name in given else NO_POSITION
        word |= code << 4 * number
    word |= _taken(given, "ring_mode") << 12
    if "current_switch_pos" in given:
        word |= _number(ev, "current_switch_pos", given.pop("current_switch_pos"), at) << 13
    mode = _pop_mode(ev, given, at)
    if given:
        ev.fail(at, f".switches has no field '{next(iter(given))}'")
    return word, mode


def _number(ev: Evaluator, name: str, value: Value, at: Position) -> int:
    if not isinstance(value.data, int):
        ev.fail(at, f".{name} is a number, found {described(value)}")
    return int(value.data)


def _filter(ev: Evaluator, value: Value, at: Position) -> tuple[int, ...]:
    given = fields_of(ev, value, at)
    flags = fields_of(ev, given.pop("kind"), at) if "kind" in given else {}
    kinds = [name for name, flag in flags.items() if flag.data]
    if len(kinds) != 1 or kinds[0] not in _KINDS:
        ev.fail(at, f"a filter's .kind is one of {', '.join(_KINDS)}")
    given.pop("fast_mode", None)
    columns = dict.fromkeys(COLUMNS["filters"], 0) | {"kind": _KINDS[kinds[0]], "limit2": -1}
    for name, part in given.items():
        if name not in _FILTER:
            ev.fail(at, f".filter has no field '{name}'", ev.meant(name, _FILTER))
        columns[_FILTER[name]] = _number(ev, name, part, at)
    return tuple(columns.values())


_ROUTES = {"rx", "tx", "color_swap_x", "color_swap_y"}
_SWITCHES = {*_POSITIONS, "ring_mode", "current_switch_pos", "pop_mode"}


def _nested(given: dict[str, Value]) -> dict[str, Value]:
    """The fields of SDK 0.4, which are all side by side, as .routes and .switches."""
    for name, fields in (("routes", _ROUTES), ("switches", _SWITCHES)):
        if flat := given.keys() & fields:
            given[name] = Value(types.ANONYMOUS, {field: given.pop(field) for field in flat})
    return given


def color_config(ev: Evaluator, color: int, value: Value, at: Position) -> ColorConfig:
    """What a colour does at a PE, from ``.{ .routes, .switches, .filter, .teardown }``."""
    given = _nested(fields_of(ev, value, at))
    word = _routes(ev, given.pop("routes"), at) if "routes" in given else 0
    switch = NO_SWITCH
    if "switches" in given:
        parts = fields_of(ev, given.pop("switches"), at)
        if ev.unit.arch == "wse3" and parts and color not in SWITCHED_WSE3:
            possible = ", ".join(map(str, sorted(SWITCHED_WSE3)))
            ev.fail(at, f"colour {color} has no switches on WSE-3", f"those with: {possible}")
        switch, mode = _switches(ev, parts, at)
        word |= mode << 12
    word |= _taken(given, "teardown") << 14
    nothing = (0,) * len(COLUMNS["filters"])
    rule = _filter(ev, given.pop("filter"), at) if "filter" in given else nothing
    if given:
        ev.fail(at, f"a colour's configuration has no field '{next(iter(given))}'")
    return ColorConfig(word, switch, rule, at)
