"""The numbers in a program's tables, by name."""

import enum

__all__ = ["TORN", "Command", "FilterKind", "Port"]


class Port(enum.IntFlag):
    """Ports of a router, as a mask, in the order of ``arch.PORTS``."""

    W = 1
    E = 2
    S = 4
    N = 8
    RAMP = 16


class Command(enum.IntEnum):
    """What a control wavelet tells the switches that it passes."""

    NOP = 0
    SWITCH_ADV = 1
    SWITCH_RST = 2
    TEARDOWN = 3


class FilterKind(enum.IntEnum):
    """Rule by which wavelets of a color reach the CE."""

    UNFILTERED = 0
    COUNTER = 1
    RANGE = 2


# Switch position of a color in teardown: it is taken from nowhere and leaves nowhere.
TORN = 255
