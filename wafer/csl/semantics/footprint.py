"""Memory of a PE that a program takes in the vendor's SDK: variables, code, stack, runtime.

Variables are counted, the runtime's share is read off published programs, and code is estimated
from our instructions, within ``ERROR``.

Sources:

- An instruction has 4 bytes on WSE-3, and a minimal program with memcpy leaves 44,976 of 49,152
  bytes for data: FABRICA, a study of WSE-3 (arXiv 2608.25124, docs/PERFORMANCE_MODEL.md 1 and 9,
  SDK 2.10). The runtime's share is what ours is short of the 4,176 bytes.
- On WSE-2 the share is what the object files of siddharthbc/CSR-graph-coloring
  (``csl_colorswap_2pe/bin``, SDK 1.4) hold besides the program's variables and functions: 3,300 and
  3,350 bytes. 128 are memcpy's stack, 512 the table of tasks, which is there without memcpy, too.
- An instruction of ours is 1.2 of theirs, give or take 40 %: between the study's MeshGEMM
  (WaferLLM, 4 x 4 PEs, tiles of 16: 8,336 bytes in all), where it is 0.86, and those object files
  (nearest stored text: ``pe_program_hw_broadcast.csl``), where it is 1.58, since functions are
  inlined at each call.
"""

import numpy as np

from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.unit import FIRST_ADDRESS, SRAM, Unit
from wafer.csl.syntax.source import Diagnostic
from wafer.machine.codes import Op, Operand, Type
from wafer.machine.costs import op_costs
from wafer.machine.image import COLUMNS, Footprint

ERROR = 0.4  # of the code, either way
_TASKS, _STACK = 512, 128  # bytes of the table of tasks, and of memcpy's stack
_SHARE = {"wse2": 3330, "wse3": 4160}  # bytes of both and of memcpy's code and data
_BYTES = 4 * 1.2  # of an instruction of ours
_FREE = (Op.CONST, Op.COPY, Op.CAST, Op.CALL, Op.RETURN)  # immediates, registers, inlined calls
_WIDE = {Type.I32: 2, Type.U32: 2, Type.I64: 4, Type.U64: 4}  # instructions, by words of 16 bits
_LOADED = (Operand.MEMORY, Operand.SHAPED, Operand.FABRIC, Operand.FIFO)
_CALLED = 12  # cycles from which on a function of floats is one of a library
_FLOATS = (Type.F16, Type.F32)
_FIRST = COLUMNS["operations"].index("dest")


def _has_memcpy(unit: Unit) -> bool:
    return any(module.name.startswith("<memcpy") for module in unit.modules)


def runtime_bytes(unit: Unit) -> int:
    """Return the runtime's share of a PE's memory, its stack included."""
    return _SHARE[unit.arch] if _has_memcpy(unit) else _TASKS


def _code_bytes(unit: Unit) -> int:
    """Return the estimated bytes of the code that is written.

    A function of a library is there once, as long as it takes cycles.
    """
    operations = unit.tables.arrays()["operations"]
    loads = np.isin(operations[:, _FIRST : _FIRST + 4], _LOADED).sum(1).tolist()
    costs, functions, count = op_costs(), dict[tuple[int, int], int](), 0
    for op, kind, a, *_ in unit.code.rows:
        if op == Op.OPERATE:
            count += 1 + loads[a]
        elif op not in _FREE:
            wide = Op.ADD <= op <= Op.GE or op in (Op.LOAD, Op.STORE)
            count += _WIDE.get(Type(kind), 1) if wide else 1
            if costs[op, kind] >= _CALLED and (op == Op.INTRINSIC or kind in _FLOATS):
                functions[op, kind] = int(costs[op, kind])
    return round(_BYTES * (count + sum(functions.values())))


def footprint(unit: Unit) -> Footprint:
    """Return what a program, as far as it is written, takes of a PE's memory."""
    stack = _STACK * _has_memcpy(unit)
    return Footprint(
        variables=unit.end - FIRST_ADDRESS,
        code=_code_bytes(unit),
        stack=stack,
        rest=runtime_bytes(unit) - stack,
    )


def check_memory(unit: Unit) -> tuple[list[Diagnostic], list[Diagnostic]]:
    """Return an error if a written program does not fit a PE's memory, a warning if it may not."""
    taken = footprint(unit)
    least, most = taken.total(-ERROR), taken.total(ERROR)
    if most <= SRAM:
        return [], []
    fits = least <= SRAM
    message = (
        f"memory: the program {'may not' if fits else 'does not'} fit a PE (variables"
        f" {taken.variables:,} bytes, code about {taken.code:,}, stack {taken.stack}, runtime"
        f" {taken.rest:,}: {least:,} to {most:,} in all); expected at most {SRAM:,}"
    )
    cells = sorted((-types.size_of(c.type), c.at, c.name) for c in unit.cells if c.at)[:3]
    sizes = [f"'{name}' ({at}) has {-size:,} bytes" for size, at, name in cells]
    hint = f"make variables smaller or use more PEs: {', '.join(sizes)}"
    found = [Diagnostic(cells[0][1] if cells else unit.code.at, message, hint)]
    return ([], found) if fits else (found, [])
