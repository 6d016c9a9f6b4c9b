"""The numbers of the machine by name: instructions, types, operations on descriptors, registers.

``native/codes.h`` holds the same ones. An instruction is a row of five int32: op, type, a, b, c.
``r[k]`` is register k of the running function's frame, 64 bits: a signed integer sign-extended, an
unsigned one zero-extended, f16 and f32 their bit pattern, a bool 0 or 1, a pointer its byte
address, a handle (color, queue, task) its id, a descriptor the word that :class:`DescriptorField`
splits.
"""

import enum
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

DEEPEST_CALL = 64  # calls within each other
NEVER_ENDS = 0x7FFF  # the length of a fabric descriptor that ends by control wavelets alone


# Formats of 16-bit floats with bits of the fraction and the bias of the exponent. A program has one
# of them, which F16 and the operations of halves mean.
HALVES = {"f16": (10, 15), "bf16": (7, 127), "cb16": (9, 42)}

# Types of scalars; in memory a bool takes 16 bits, a descriptor 64.
Type = enum.IntEnum("Type", "I8 I16 I32 I64 U8 U16 U32 U64 F16 F32 BOOL", start=0)
BYTES = (1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 2)  # in memory, by Type


class Op(enum.IntEnum):
    """Instructions of the task that runs.

    Arithmetic wraps at the type's width, ``DIV`` and ``REM`` round toward zero, ``SHR`` of a signed
    type keeps the sign, a shift by the width or more gives 0 (or the sign), floats round to
    nearest even. ``CAST`` truncates integers, rounds to floats, truncates floats toward zero (out
    of range: to the nearest end; NaN: 0), tests numbers for ``!= 0`` to make a bool.
    """

    CONST = 0  # r[a] = c << 32 | b
    COPY = 1  # r[a] = r[b]
    ADD = 2  # r[a] = r[b] op r[c], in `type`; so to SHR
    SUB = 3
    MUL = 4
    DIV = 5
    REM = 6
    AND = 7
    OR = 8
    XOR = 9
    SHL = 10
    SHR = 11
    NEG = 12  # r[a] = -r[b]
    INVERT = 13  # r[a] = ~r[b]
    NOT = 14  # r[a] = r[b] == 0
    EQ = 15  # r[a] = r[b] == r[c], in `type`; so to GE
    NE = 16
    LT = 17
    LE = 18
    GT = 19
    GE = 20
    CAST = 21  # r[a] = r[b] of type c as `type`
    LOAD = 22  # r[a] = memory[r[b] + c]
    STORE = 23  # memory[r[a] + c] = r[b]
    MOVE = 24  # c bytes from memory[r[b]] to memory[r[a]], as if all were read first
    JUMP = 25  # to instruction a
    JUMP_IF = 26  # to instruction a if r[b]
    JUMP_UNLESS = 27  # to instruction a unless r[b]
    CALL = 28  # instruction a; its frame begins at r[b]: arguments in, its r[0] is the result
    CALL_AT = 29  # as CALL, to the instruction whose number is in r[a]
    RETURN = 30  # to the caller; from the outermost frame: the task ends
    ACTIVATE = 31  # the local task r[a]
    BLOCK = 32  # the Gate `type` with id r[a]
    UNBLOCK = 33
    DSD_SET = 34  # r[a] = r[b] with the DescriptorField field `type` replaced by r[c]
    DSD_GET = 35  # r[a] = the DescriptorField field `type` of r[b]
    LOAD_DSR = 36  # by row a of the program's `dsr_loads`, from r[b]
    DSR_GET = 37  # r[a] = the descriptor in DSR b of file `type` (0 dest, 1 src0, 2 src1)
    DSR_BASE = 38  # DSR b of file `type` gets the address r[c]
    OPERATE = 39  # row a of `operations` on operands from r[b] on; r[c] (c >= 0) = ended by length
    ELEMENT = 40  # r[a] = byte address of element r[c] of the memory descriptor r[b]; width: `type`
    RECEIVE = 41  # r[a] = next wavelet of the fabric descriptor r[b], as `type`; waits for it
    SEND = 42  # r[b] of `type` by the fabric descriptor r[a]; waits for room
    CONFIG_GET = 43  # r[a] = the configuration register at word address r[b]
    CONFIG_SET = 44  # the configuration register at word address r[a] = r[b]
    INTRINSIC = 45  # r[a] = Intrinsic `type` of r[b], r[c]
    FAULT = 46  # ends the simulation: row a of `messages`
    # `type` 1: c cycles of work. 0: c cycles in which the CE is free for operations of others, then
    # until microthread a (-1: none) has ended its own.
    WAIT = 47


CONDITIONAL = (Op.JUMP_IF, Op.JUMP_UNLESS)

# Instructions with an effect outside of the task: the cycles of those before are paid first.
_VISIBLE = """
ACTIVATE BLOCK UNBLOCK LOAD_DSR DSR_BASE OPERATE RECEIVE SEND CONFIG_GET CONFIG_SET INTRINSIC FAULT
WAIT
"""
VISIBLE = frozenset(Op[name] for name in _VISIBLE.split())


class Intrinsic(enum.IntEnum):
    """What no instruction says; pure ones cost like a call of a library function."""

    SQRT = 0  # of `c`'s Type; correctly rounded; so to ATAN
    EXP = 1
    LOG = 2
    SIN = 3
    COS = 4
    TANH = 5
    FLOOR = 6
    CEIL = 7
    RANDOM16 = 8  # r[a] = 16 bits of the PE's shift register
    SEED = 9  # of it: r[b]
    TIMER = 10  # 1 starts the time stamp counter, 0 stops it, 2 sets it to 0
    TIMESTAMP = 11  # r[a] = the counter, 48 bits
    COORDINATE = 12  # r[a] = column (r[b] = 0) or row (1) in the rectangle
    NEXT_COMMAND = 13  # unblocks the host's command stream on this PE
    PRINT = 14  # r[b] of Type c to the PE's line; BOOL: a character; '\n' writes the line out
    FIFO_LENGTH = 15  # of FIFO r[b] >> 1 for reads (bit 0 = 0) or writes (1): r[c]
    QUEUE_FLUSH = 16  # calls the empty-queue handler of output queue r[b] once it is empty
    TEARDOWN_EXIT = 17  # color r[b] carries traffic again


class Gate(enum.IntEnum):
    """What can be blocked, each a set of its own; WSE-2's colors are compiled as data tasks."""

    LOCAL = 0  # a local task
    DATA = 1  # a data task: its color (WSE-2) or input queue (WSE-3)
    COLOR = 2  # nothing waits for it
    INPUT_QUEUE = 3
    THREAD = 4  # a microthread


class Action(enum.IntEnum):
    """What the end of an operation does."""

    NONE = 0
    ACTIVATE = 1  # a local task
    UNBLOCK = 2  # 2 + a Gate


class DescriptorField(enum.IntEnum):
    """Fields of a descriptor's 64 bits, 16 each.

    In memory (one dimension): ADDRESS in bytes, LENGTH in elements, STRIDE in elements (signed),
    INDEX: bit 15 says that an element's place is the index of its wavelet, in words.
    In memory (more): ADDRESS, SHAPE, the row of ``shapes``. On the fabric: ROW of ``fabrics``,
    LENGTH.
    """

    ADDRESS = 0
    LENGTH = 1
    STRIDE = 2
    INDEX = 3
    ROW = 0
    SHAPE = 1


class Operand(enum.IntEnum):
    """Kinds of operands of an operation; the value is in the next register of the instruction's.

    In the order dest, src0, src1, scalar; NONE takes no register. An operation with an index
    (``operations.index >= 0``) has it in the register behind the last operand.
    """

    NONE = 0
    MEMORY = 1  # a descriptor of one dimension
    SHAPED = 2  # a descriptor of up to four
    FABRIC = 3  # a descriptor of the fabric, in or out
    FIFO = 4  # its row of `fifos`
    DSR = 5  # file << 8 | id
    SCALAR = 6  # of the operation's type
    POINTER = 7  # to one element, read and written anew for each


# Operations on descriptors, named as the builtins are, with what each element computes. The last
# letters are the element types: s f32, h f16, hs f16 read and f32 written; mov16 to popcnt have 16
# bits, mov32 32. MAC is ``d = src0 + src1 * scalar``: FMACH rounds once, FMACS twice; the
# product of FMACHS is exact. ADD32 to MAX32 are a `Layout`'s, of integers without a sign; CSL has
# none of them.
DsdOp = enum.IntEnum(
    "DsdOp",
    """
    FADDS FSUBS FMULS FMAXS FADDH FSUBH FMULH FMAXH FADDHS FMACS FMACH FMACHS FMOVS FMOVH MOV16
    MOV32 FNEGS FNEGH FABSS FABSH FS2H FH2S FS2XP16 FH2XP16 XP162FS XP162FH ADD16 ADDC16 SUB16 AND16
    OR16 XOR16 SLL16 SLR16 SAR16 CLZ CTZ POPCNT FNORMS FNORMH FSCALES FSCALEH DFILT
    ADD32 SUB32 MUL32 MAC32 MAX32
    """,
    start=0,
)

# Word addresses of configuration registers, one per color or queue; the layout of the first two
# is WSE-2's and serves for both machines. Pop modes: 0 never, 1 always, 2 on advance, 3 on advance
# or NOP. A position's code 5 says that it is not used.
CONFIG = {
    # tx W E S N RAMP (0-4), rx so (5-9), swap x y (10 11), pop (12-13), torn (14), steered (15)
    "color": 0x7F20,
    "switch": 0x7F40,  # position (14:13), ring (12), pos3, pos2, pos1 (side bit + code each)
    "thread": 0x7F58,  # of a microthread: medium priority (8), high priority (9)
    "input_queue": 0x7F60,  # color (4:0), bound (5), filter on (6)
    "output_queue": 0x7F68,  # color (4:0), bound (5)
    "timestamp": 0x7F70,  # the counter's three words, the lowest first
    "timer": 0x7F73,  # whether it runs
    "transform": 0x7F74,  # mask of the ids of control wavelets that are sent on
    "generator": 0x7F75,  # of random numbers: the one in use, modulo GENERATORS
    "input_status": 0x7F76,  # queues that are empty (0-7) and full (8-15); cannot be written
    "output_status": 0x7F77,
    "exceptions": 0x7F78,  # bits of FloatException that do not stop the PE; at first all
    "filter_counter": 0x7F80,  # of the color's filter: words counted so far
    "filter_limit": 0x7FA0,  # behind which it counts from 0 again
    "filter_most": 0x7FC0,  # up to which it lets words pass
    "beside": 0x7FE0,  # WSE-3: what leaves at positions that change both sides, `switch_position`
}


class FloatException(enum.IntEnum):
    """Bits of what a sum, difference, product or quotient of floats raises."""

    UNDERFLOW = 3
    OVERFLOW = 4
    INEXACT = 5
    INVALID = 6
    DIV_BY_0 = 7


GENERATORS = 8  # shift registers of random numbers on a PE
TORN = 1 << 14  # bit of a color register
# Bit of the color registers of MESSAGES. Their routers take the first word of a message for its
# header, column (0-10) and row (11-21) of the PE that it is for, and let it go first along the row.
# A port is the message's until the word that advances switches, the last one, has left by it.
STEERED = 1 << 15
MESSAGES = (14, 15, 16, 17, 18)  # from a PE and to it, then what goes W E S N between routers
NO_POSITION = 5  # of a switch
NO_SWITCH = NO_POSITION << 8 | NO_POSITION << 4 | NO_POSITION


def switch_position(sides: Mapping[str, int], *, both: bool) -> int:
    """Return position 1 as the switch register has it; each further one is 4 bits higher.

    Bits 0 to 2 are a port, bit 3 tells whether words enter by it. Bits 16 to 18 (WSE-3) are 1 + the
    port by which words leave, 6 for none; they count where words enter by the first port.

    Args:
        sides: that it changes, "rx", "tx" or both: mask of one port, of "tx" beside "rx" also 0.
        both: whether a position may change both sides (WSE-3).
    """
    own = "rx" if "rx" in sides else "tx"
    code = (own == "rx") << 3 | sides[own].bit_length() - 1
    return code | (sides["tx"].bit_length() or 6) << 16 if both and "tx" in sides else code


def ports_at_any_position(color: ArrayLike, switch: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return masks of the ports by which words may enter and leave, at any switch position.

    Args:
        color: color registers.
        switch: their switch registers.
    """
    word = np.asarray(color) & 0x3FF
    for k in (0, 4, 8):
        code, leaving = (np.asarray(switch) >> k + shift & 15 for shift in (0, 16))
        port, enters = np.where(code & 7 < NO_POSITION, 1 << (code & 7), 0), code & 8 != 0
        word = word | port << np.where(enters, 5, 0) | np.where(enters, 1 << leaving >> 1 & 31, 0)
    return word >> 5 & 31, word & 31
