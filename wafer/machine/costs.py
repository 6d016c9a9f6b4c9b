"""What instructions cost in cycles, per architecture; ``arch`` has how wide operations go.

The rules, which both the C++ machine and any other one follow; all numbers are in the tables here.

1. An instruction costs what ``op_costs`` says; an integer division by a constant what a compiler
   makes of it, a product or a shift. The test, the step and the jumps of a loop over a constant
   range cost nothing if all its rounds together take at most ``UNROLLED`` cycles, or as many times
   more, up to ``MOST_UNROLLED``, as unrolling makes it shorter: what its rounds compute from the
   counter and from registers that do not change costs nothing then. Around another loop it takes at
   most ``UNROLLED``, and nothing of its rounds costs nothing. A load from an address that is
   known before the program runs is paid once before a loop, or before the largest of several
   around it, if nothing in it writes there: no store, no operation to a descriptor or pointer, no
   store of a function that it calls; where a DSR leads is not looked for, since the publisher's
   compiler does not either. A function that only a loop calls is a part of it. In a loop that is
   not unrolled sums and products stay (SpMM in CSR costs as much per value as in COO, which has
   none that do not change), and so does what loads a descriptor (tiles of radius 2). A task begins
   ``switch_task`` cycles behind the end of the one before; a data task before which the PE did
   nothing ``data_task`` later, a teardown handler ``TEARDOWN`` later. An instruction in
   ``codes.VISIBLE`` acts when all cycles up to and with its own are over.
   WSE-3 alone (of WSE-2 nothing is published): a loop of while whose counter goes over a constant
   range is unrolled by LLVM's rule for instructions: if those of all its rounds are at most
   ``UNROLLED``, without what does not change; or, of ``ANALYZED`` rounds at most, those that do not
   follow from the counter, or as many times more as it gets shorter. What follows from the counter
   alone costs nothing then, jumps too. Jumps cost ``branch``, in the last round of a loop
   as if not taken; both parts of a small if cost their cycles each time, and its jumps nothing,
   unless they activate, block or unblock a task; a sum or product of floats comes ``float_wait``
   later to the next instruction, an index that is scaled ``index_wait`` later to its access; a
   value that straight code has computed, loaded or stored before costs nothing (``values``), a
   product by a power of 2 is a shift, and the test and the step of @map cost nothing.
2. An operation on descriptors costs its instruction and, for each operand, ``operands`` of its
   kind, a destination on the fabric none: a descriptor is loaded into a DSR first. One in memory
   that is not known before the program runs costs ``computed`` more; an operand that is a DSR is
   loaded already. ``@load_to_dsr`` of a descriptor that is known before the run costs 1, of another
   one ``computed_dsr``. The first step
   is in the cycle in which the instruction acts, if it can be; of an operation on the fabric that
   the task waits for, ``fabric_start`` later. The task goes on in the cycle behind the last one, of
   an asynchronous operation at once. An operation whose microthread runs another one is issued in
   the cycle behind that one's last step; the task waits until then.
3. A step takes ``widths`` elements of an operation whose operands are scalars and rows of the
   memory: all at addresses that 4 divides, with no index. A stride (of the innermost dimension, in
   elements) other than 0 and 1 limits it to ``stride_widths``, by the stride modulo 8: on WSE-3 of
   16 bits to the banks that it comes to, of eight. A step ends with the
   row of a descriptor of several dimensions. All else, and so every operation with a pointer, a
   FIFO or the fabric, takes one element, and one wavelet, a step.
4. A step takes as many cycles as operands meet at one bank. Two operands meet if both are rows of
   the memory, their strides in bytes are equal modulo a line of ``banks * bank_bytes``, and their
   first steps go to a bank in common, each to as many as its bytes fill from the bank of its first
   element on. Reads meet every line, a write and a read every two: all banks have one port, and a
   read of 32 bits takes two. The count is of the sources that meet, or of the destination and the
   sources that it meets. The destination takes part only if its stride is a multiple of a line but
   not 0: other writes come later and find a bank free.
5. In a cycle a PE executes an instruction of its task or one step of an operation: of those that
   can go on, the one of the highest priority. The task's instructions and its own operations are
   between low and medium (``Program.level``); a microthread that names no priority has medium. A
   step of a microthread delays the task by a cycle. Those of low priority step while the task waits
   and between a task's end and the next one's first instruction. An operation whose steps take
   several cycles needs as many of them, others may come between. What an instruction reads or
   writes in memory is in order with the steps.
6. A word stays in its output queue for ``output_wait`` cycles, then it goes to the ramp when there
   is room; one a cycle.

Fitted on published rows (``docs/results/csl.md``), of which every third one is held out
(``tests/csl_cycles.py``); those of WSE-3 together:

- ``operands`` of descriptors in memory and on the fabric: tiles of radius 2 and more; that the
  fabric's are of the source on WSE-3: a relay of FABRICA (16.1 cycles a stage, 19 if half of them
  were the destination's), which tiles cannot tell.
- ``switch_task``: tiles of radius 1. Time stamps (5) of WSE-3: data tasks of 31 cycles
  (``pipelined_lww_1d_spike``); ``data_task``: what its PEs take besides, 7 to 10 cycles. That
  tasks are not activated by predicated instructions: Game of Life.
- configuration registers (4) and ``computed_dsr`` (3) of WSE-3: all-reduce. On WSE-2 no published
  row loads a descriptor that is computed: 1 is left there. ``TEARDOWN``: the 16 cycles of that task
  in SUMMA's log, with one of a handler.
- ``branch``, ``index_wait``, ``float_wait``, ``sums``, divisions and exp of WSE-3: FABRICA's
  micro-programs, Dot-Product, Max-Reduction, GEMM and Cross-Entropy on one PE. The errors
  of its other programs of names a to m were seen, too; those of n to z are unopened.
- ``link_latency`` 2 of WSE-3: FABRICA; with it ``output_wait`` is 3.
- ``fabric_start``: one value per PE, 3 x 3 on WSE-3; checked by 5 x 5 to 20 x 20.
- ``output_wait``: one value per PE, 10 x 10 on WSE-3; checked by 5 x 5, 20 x 20 and WSE-3's tiles,
  of which it changes one by a cycle. A hop of 2 and 3 cycles cannot be told from one of 1 and 4.
- ``computed``: what the author of SUMMA counted in the publisher's log, 12 stores, 2 sums and 3
  waits for the three descriptors of a product; checked by the program's task (2 % too few).
- ``DSR_BASE``: GEMM and SpMM in COO on 2 x 2 PEs; checked by the other formats. (The rows of many
  PEs that it was fitted on before are of a CS-2, not of the simulator.)
- ``ANALYZED``, ``MOST_UNROLLED``: LLVM's; Laplacian of 4 x 4 (GEMM's loops of 16 are not
  unrolled), SpMM in ELLPACK with rows of 8, and FABRICA's sum of 256.
- ``UNROLLED`` and what the other instructions cost: assumed; GEMM and one value per PE check them.
- Loads before a loop: no number; one value per PE checks the rule. In tiles and sparse products
  nothing is moved.
"""

from typing import Any, NamedTuple

import numpy as np

from wafer.errors import CompileError
from wafer.machine.codes import Intrinsic, Op, Operand, Type

_KINDS = max(len(Intrinsic), len(Type))


PACE = 64  # parts of a cycle that steps are counted in


class JumpCosts(NamedTuple):
    """Cycles of jumps."""

    taken: int  #: one that is taken
    missed: int  #: one that is not
    loop: int  #: of a loop's round: the step, the test and the jump back
    predicated: int  #: most cycles of a part of an if whose instructions are predicated


class Arch(NamedTuple):
    """Costs of an architecture besides the figures in ``arch``."""

    switch_task: int  #: cycles from a task's end to the next one's first instruction
    data_task: int  #: those that a data task begins later where the PE did nothing before
    #: cycles that operands add to an operation's issue; of the fabric, sources
    operands: dict[Operand, int]
    computed: int  #: those that a descriptor in memory adds that is computed at run time
    computed_dsr: int  #: of loading such a descriptor, or one on the fabric, into a DSR by name
    #: those before the first step of an operation on the fabric that the task waits for
    fabric_start: int
    output_wait: int  #: those that a word stays in its output queue at least
    branch: JumpCosts | None  #: None: a jump costs what ``instructions`` says
    #: whether products by powers of 2 are shifts and a value in straight code is computed once
    optimizes: bool
    index_wait: int  #: of an access for the product that scales its index
    float_wait: int  #: those that a result of floats comes later to the next instruction
    #: parts of a cycle for each cycle of a step: on the fabric, of several elements with one source
    #: in the memory, with two
    pace: tuple[int, int, int]
    #: by an ``Op``, or one and its `type`, what it costs here in place of the table
    instructions: dict[Any, int]


_OPERANDS = {
    Operand.MEMORY: 3,
    Operand.SHAPED: 3,
    Operand.FABRIC: 0,
    Operand.FIFO: 2,
    Operand.POINTER: 1,
}
_REGISTER = 4  # cycles to read or write a configuration register
_REGISTERS = {
    Op.CONFIG_GET: _REGISTER,
    Op.CONFIG_SET: _REGISTER,
    (Op.INTRINSIC, Intrinsic.TIMER): _REGISTER,
    (Op.INTRINSIC, Intrinsic.TEARDOWN_EXIT): 2 * _REGISTER,
}
_SHORT = (Type.I8, Type.I16, Type.U8, Type.U16)
_WSE3 = _REGISTERS | {
    (Op.INTRINSIC, Intrinsic.TIMESTAMP): 5,
    Op.ELEMENT: 0,
    **{(op, kind): 18 for op in (Op.DIV, Op.REM) for kind in _SHORT},
    (Op.DIV, Type.F32): 109,
    (Op.INTRINSIC, Intrinsic.EXP): 82,
}
ARCHS = {
    "wse2": Arch(1, 0, _OPERANDS, 3, 1, 0, 0, None, False, 0, 0, (PACE, PACE, PACE), {}),
    "wse3": Arch(
        *(2, 5, _OPERANDS | {Operand.FABRIC: 6}, 3, 3, 1, 3),
        *(JumpCosts(6, 3, 10, 6), True, 2, 1, (PACE, PACE, PACE), _WSE3),
    ),
}

# What differs on silicon: 4.82 elements of f16 copied a cycle, 2.44 of f32, 2.92 products and sums
# of f16, a word on a link in 1.125 cycles (FABRICA, a CS-3).
_SILICON = {"wse3": {"pace": (72, 105, 88)}}
TIMINGS = ("simulator", "silicon")


def costs_for(arch: str, timing: str = "simulator") -> Arch:
    """Return the table of an architecture.

    Args:
        arch: 'wse2' or 'wse3'.
        timing: of ``TIMINGS``: what the publisher's simulator counts, or silicon.

    Raises:
        CompileError: nothing is known of this architecture's silicon.
    """
    if timing not in TIMINGS:
        raise CompileError(f"timing '{timing}'; expected one of {', '.join(TIMINGS)}")
    if timing == "simulator":
        return ARCHS[arch]
    if arch not in _SILICON:
        raise CompileError(f"timing 'silicon' of {arch} is not known; expected --arch wse3")
    return ARCHS[arch]._replace(**_SILICON[arch])


# Instructions that do not cost one cycle; by type where that decides. Instructions of the chip
# hold constants, cslc inlines functions: neither is counted.
_CYCLES = {Op.CONST: 0, Op.COPY: 0, Op.CALL: 0, Op.CALL_AT: 3, Op.DSR_BASE: 8, Op.RETURN: 0}
TEARDOWN = 15  # cycles before a teardown handler: a task finds out which color it is
UNROLLED = 150  # cycles of all rounds of a loop that is unrolled: the threshold of LLVM
ANALYZED = 10  # most rounds of a loop that LLVM counts as they are once it is unrolled
MOST_UNROLLED = 4  # how often that a loop may take that gets shorter when it is unrolled
_DIVISION = {Type.F16: 40, Type.F32: 50}  # f32: a comment in csl-extras; integers as long
_INTRINSICS = {
    **dict.fromkeys(range(Intrinsic.SQRT, Intrinsic.RANDOM16), 60),
    Intrinsic.FLOOR: 10,
    Intrinsic.CEIL: 10,
    Intrinsic.TIMESTAMP: 0,
    Intrinsic.NEXT_COMMAND: 5,
    Intrinsic.PRINT: 4,
}


def uncertainty(scalar_share: float) -> float:
    """Return how far off a program's cycles may be, as a fraction.

    Chosen on the published rows that the numbers were fitted on. Of those that were opened later at
    least 95 % must be as close (``tests/csl_cycles.py``, ``docs/results/csl.md``).

    Args:
        scalar_share: of its cycles, those of scalar instructions: ``Machine.scalar_share``.
    """
    return 0.02 + 0.25 * scalar_share


def op_costs(arch: Arch = ARCHS["wse2"]) -> np.ndarray:
    """[Ops, kinds] int32: cycles of an instruction by its `type`; integers go by 16 bits."""
    out = np.ones((len(Op), _KINDS), np.int32)
    for op, cycles in _CYCLES.items():
        out[op] = cycles
    for op in range(Op.ADD, Op.GE + 1):
        out[op, [Type.I32, Type.U32]] = 2
        out[op, [Type.I64, Type.U64]] = 4
    out[[Op.SHL, Op.SHR], Type.I64] = out[[Op.SHL, Op.SHR], Type.U64] = 1  # mostly by whole words
    out[Op.CAST, : Type.F16] = 0  # other words of the same registers
    for op in (Op.DIV, Op.REM):
        out[op, : len(Type)] = [_DIVISION.get(kind, 50) for kind in Type]
    for intrinsic, cycles in _INTRINSICS.items():
        out[Op.INTRINSIC, intrinsic] = cycles
    for place, cycles in arch.instructions.items():
        out[place] = cycles
    return out
