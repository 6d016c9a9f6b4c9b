"""Ports, commands and the registers of a router, in numbers."""

import enum

from wafer.fabric.errors import RouteError

__all__ = ["NO_SWITCH", "TORN", "Command", "Port", "position_code", "switch_register"]

TORN = 1 << 14  # bit of a color register: in teardown
NO_SWITCH = 0x555  # a switch register whose positions behind the first are not used
# Ports of a router as a mask, in the order of ``arch.PORTS``; what a control wavelet tells the
# switches that it passes.
Port = enum.IntFlag("Port", "W E S N RAMP")
Command = enum.IntEnum("Command", "NOP SWITCH_ADV SWITCH_RST TEARDOWN", start=0)


def position_code(before: int, now: int, place: str) -> int:
    """Return the code of a switch position: its side's bit, and the port.

    Args:
        before: color register at the position before it.
        now: at it.
        place: PE and color, for messages.

    Raises:
        RouteError: a position that changes both sides, or names several ports.
    """
    changes = [(before ^ now) >> shift & 31 for shift in (0, 5)]
    if all(changes):
        raise RouteError(
            f"{place}: a switch position changes rx and tx; the switch register has room for one"
            " side: use two positions"
        )
    mask = now >> 5 & 31 if changes[1] else now & 31
    if mask.bit_count() != 1:
        raise RouteError(f"{place}: a switch position names {mask.bit_count()} ports; it has one")
    return mask.bit_length() - 1 | 8 * bool(changes[1])


def switch_register(codes: list[int], current: int = 0, *, ring: bool = False) -> int:
    """Return the switch register of its positions' codes behind the first."""
    word = NO_SWITCH >> 4 * len(codes) << 4 * len(codes)
    return current << 13 | ring << 12 | word | sum(code << 4 * k for k, code in enumerate(codes))
