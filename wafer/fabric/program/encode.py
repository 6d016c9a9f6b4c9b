"""Operations as rows of integers: the code table that every engine reads."""

import numpy as np

from wafer.fabric.errors import FabricError, RouteError
from wafer.fabric.program.codes import FIELDS, Column, Dtype, Field, Kind, Opcode
from wafer.fabric.program.ops import Const, FabIn, FabOut, Mem, Op, Operand, WaveletArg
from wafer.machine.arch import ARCHITECTURES
from wafer.spec import WaferSpec

__all__ = ["encode_op", "steps_of"]

# The levels of a task's own thread (``<tile_config>/main_thread_priority``) and of microthreads
# (``.priority`` of an asynchronous operation), on one scale. Of equals the lowest id goes first.
_MAIN = {"medium_low": 1, "medium": 2, "medium_high": 3, "high": 4}
_THREAD = {"low": 0, "medium": 2, "high": 4}
# (kind, element type) -> the builtin that it is.
_BUILTINS = {
    (kind, dtype): f"f{kind}{suffix}"
    for kind in ("mov", "add", "sub", "mul", "mac", "max")
    for dtype, suffix in (("float32", "s"), ("float16", "h"))
} | {("mov", "uint32"): "mov32"}
_ACTIONS = {name.lower(): Column[name] for name in ("ACTIVATE", "BLOCK", "UNBLOCK")}


def _const_bits(value: float, dtype: str) -> int:
    if dtype == "uint32":
        return int(np.uint32(int(value)).view(np.int32))
    if dtype == "float32":
        return int(np.float32(value).view(np.int32))
    return int(np.float16(value).view(np.uint16))


def _operand(
    operand: Operand | None, op: Op, colors: tuple[int, ...], arrays: dict[str, tuple]
) -> tuple[int, ...]:
    match operand:
        case Mem(array, offset, stride, inner, outer):
            if array not in arrays:
                raise FabricError(f"{op.kind}: no array {array!r}; declared: {list(arrays)}")
            base, words, _ = arrays[array]
            i = np.arange(op.n)
            used = offset + (
                stride * i if not inner else stride * (i % inner) + outer * (i // inner)
            )
            if used.min() < 0 or used.max() >= words:
                raise FabricError(
                    f"{op.kind} over {array!r}: words {used.min()}..{used.max()} of {words}"
                )
            return Kind.MEM, base + offset, stride, inner, outer, 0
        case FabIn(color) | FabOut(color):
            if color not in colors:
                raise RouteError(f"{op.kind}: color {color} is not declared")
            out = isinstance(operand, FabOut)
            flags = operand.control + 2 * operand.advance_switch if out else 0
            return Kind.FABRIC, colors.index(color), 0, 0, 0, flags
        case Const(value):
            return Kind.CONST, _const_bits(value, op.dtype), 0, 0, 0, 0
        case WaveletArg():
            return Kind.ARG, 0, 0, 0, 0, 0
        case _:
            return Kind.NONE, 0, 0, 0, 0, 0


def steps_of(op: Op, spec: WaferSpec) -> int:
    """Return the steps of an operation, a cycle each.

    A step takes as many elements as the builtin's operands in memory allow, and ends with a row;
    with an operand on the fabric it takes one.
    """
    if any(isinstance(o, FabIn | FabOut | WaveletArg) for o in op.operands):
        return op.n
    arrays = [o for o in op.operands if isinstance(o, Mem)]
    strides = tuple(o.stride for o in arrays)
    builtin = _BUILTINS.get((op.kind, op.dtype), "")
    width = min(ARCHITECTURES[spec.name].width(builtin, strides), spec.simd_16bit)
    row = min([o.inner for o in arrays if o.inner], default=op.n)
    steps = lambda n: -(-n // width)
    return op.n // row * steps(row) + steps(op.n % row)


def encode_op(
    op: Op,
    *,
    last: bool,
    launch: int,
    colors: tuple[int, ...],
    arrays: dict[str, tuple],
    tasks: dict[str, int],
    spec: WaferSpec,
    main: str = "high",
) -> np.ndarray:
    """Encode one operation.

    Args:
        op: the operation.
        last: whether its task ends after it.
        launch: overhead in cycles where the operation names none.
        colors: declared color ids in table order.
        arrays: name -> (first word, words, dtype).
        tasks: name -> task id.
        spec: the machine.
        main: priority of the task's own thread.

    Returns:
        [FIELDS] int32.

    Raises:
        FabricError: unknown kind, array, task, thread or priority, or an address outside its array.
    """
    opcode = Opcode.__members__.get(op.kind.upper())
    dtype = Dtype.__members__.get(op.dtype.upper())
    if opcode is None or dtype is None or op.n < 1:
        raise FabricError(f"operation {op.kind!r} on {op.dtype}, n={op.n}: unknown or empty")
    if op.thread is not None and not 0 <= op.thread < spec.microthreads:
        raise FabricError(f"{op.kind}: microthread {op.thread}; a PE has {spec.microthreads}")
    if isinstance(op.dst, FabOut) and op.dst.control and op.dtype != "uint32":
        raise FabricError(f"{op.kind} on {op.dtype}: control wavelets are uint32; use mov32")
    if op.priority not in _THREAD or main not in _MAIN:
        raise FabricError(
            f"{op.kind}: priority {op.priority!r} of a microthread is one of {list(_THREAD)},"
            f" {main!r} of the task one of {list(_MAIN)}"
        )
    row = np.zeros(FIELDS, np.int32)
    row[Column.MAIN_RANK], row[Column.THREAD_RANK] = _MAIN[main], _THREAD[op.priority]
    row[Column.OPCODE], row[Column.N], row[Column.DTYPE] = opcode, op.n, dtype
    row[Column.THREAD] = -1 if op.thread is None else op.thread
    row[Column.LAUNCH] = launch if op.launch is None else op.launch
    row[Column.LAST], row[Column.STEPS] = last, steps_of(op, spec)
    for action, task in op.on_done:
        if task not in tasks or action not in _ACTIONS:
            raise FabricError(f"{op.kind}: {action} {task!r}: bound tasks are {list(tasks)}")
        row[_ACTIONS[action]] |= np.int32(1 << tasks[task])
    if op.position is not None:
        color, position = op.position
        if color not in colors:
            raise RouteError(f"{op.kind}: color {color} is not declared")
        row[Column.POSITION_COLOR] = colors.index(color) + 1
        row[Column.POSITION] = position
    columns = (Column.DST, Column.SRC0, Column.SRC1, Column.SCALAR)
    for column, operand in zip(columns, op.operands, strict=True):
        row[column : column + len(Field)] = _operand(operand, op, colors, arrays)
    return row
