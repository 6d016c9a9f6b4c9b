"""The numbers in a program's tables, by name."""

import enum

__all__ = [
    "FIELDS",
    "TORN",
    "Column",
    "Command",
    "Dtype",
    "Field",
    "FilterKind",
    "Kind",
    "Opcode",
    "Port",
]


class Opcode(enum.IntEnum):
    """What an operation computes; MAC is ``src0 + src1 * scalar``."""

    WORK = 0
    MOV = 1
    ADD = 2
    SUB = 3
    MUL = 4
    MAC = 5
    MAX = 6


class Dtype(enum.IntEnum):
    """Type of an operation's elements."""

    FLOAT32 = 0
    FLOAT16 = 1
    UINT32 = 2


class Column(enum.IntEnum):
    """Columns of the code table, one row per operation.

    DST, SRC0, SRC1 and SCALAR are the first of the columns that :class:`Field` names. THREAD is -1
    for none; ACTIVATE, BLOCK and UNBLOCK are bits of tasks; POSITION_COLOR is 0 or a color index
    + 1; the ranks are those of the task and of the microthread doing the operation.
    """

    OPCODE = 0
    N = 1
    DTYPE = 2
    THREAD = 3
    LAUNCH = 4
    LAST = 5
    STEPS = 6
    ACTIVATE = 7
    BLOCK = 8
    UNBLOCK = 9
    DST = 10
    SRC0 = 16
    SRC1 = 22
    SCALAR = 28
    POSITION_COLOR = 34
    POSITION = 35
    MAIN_RANK = 36
    THREAD_RANK = 37


class Field(enum.IntEnum):
    """Columns of an operand, counted from its first. BASE is an address, a color index or bits."""

    KIND = 0
    BASE = 1
    STRIDE = 2
    INNER = 3
    OUTER = 4
    FLAGS = 5


class Kind(enum.IntEnum):
    """Where an operand is."""

    NONE = 0
    MEM = 1
    FABRIC = 2
    CONST = 3
    ARG = 4


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


FIELDS = len(Column) + 4 * (len(Field) - 1)
# Switch position of a color in teardown: it is taken from nowhere and leaves nowhere.
TORN = 255
