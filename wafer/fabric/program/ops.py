"""DSD vector operations, as a PE program lists them: CSL's builtins on descriptors.

An operation in memory takes as many elements per cycle as ``wafer.machine.arch`` says of its
builtin, one with an operand on the fabric takes one.
``fadds(fabout(c), mem("a"), fabin(d), n=64)`` reads as CSL's
``@fadds(fabout_dsd, mem1d_dsd, fabin_dsd)``.
"""

import dataclasses
import inspect
from collections.abc import Callable

from wafer.machine.arch import ARCHITECTURES
from wafer.spec import WaferSpec

__all__ = [
    "Const",
    "FabIn",
    "FabOut",
    "Mem",
    "Op",
    "Operand",
    "WaveletArg",
    "activate",
    "block",
    "control_wavelet",
    "exit_teardown",
    "fabin",
    "fabout",
    "faddh",
    "fadds",
    "fmach",
    "fmacs",
    "fmaxs",
    "fmovh",
    "fmovs",
    "fmulh",
    "fmuls",
    "fsubh",
    "fsubs",
    "mem",
    "mov32",
    "unblock",
    "work",
]


@dataclasses.dataclass(frozen=True)
class Mem:
    """``mem1d_dsd``: words ``offset + stride * i`` of an array; two loops with ``inner``."""

    array: str  #: name of the array
    offset: int = 0  #: first word
    stride: int = 1  #: words from one element to the next
    #: length of the inner loop; 0 means one loop. With ``inner`` the address of element i is
    #: ``offset + stride * (i % inner) + outer * (i // inner)``: two of ``mem4d_dsd``'s loops, or a
    #: circular buffer with ``outer=0``
    inner: int = 0
    outer: int = 0  #: words from one inner loop to the next


@dataclasses.dataclass(frozen=True)
class FabIn:
    """``fabin_dsd``: the input queue of a color; an empty queue suspends the operation."""

    color: int


@dataclasses.dataclass(frozen=True)
class FabOut:
    """``fabout_dsd``: inject into a color; a full ramp suspends the operation."""

    color: int  #: index the layout gave the color
    control: bool = False  #: send control wavelets
    #: the last wavelet also advances this PE's own switch once it has left
    advance_switch: bool = False


@dataclasses.dataclass(frozen=True)
class Const:
    """An immediate: a float for arithmetic, an int for raw wavelets."""

    value: float | int


@dataclasses.dataclass(frozen=True)
class WaveletArg:
    """The argument of the running data or control task: the wavelet that activated it."""


Operand = Mem | FabIn | FabOut | Const | WaveletArg


@dataclasses.dataclass(frozen=True)
class Op:
    """One entry of a task's operation list."""

    kind: str  #: "mov", "add", "sub", "mul", "mac", "max" or "work"
    dst: Operand | None = None  #: memory or fabric output; None for "work"
    src0: Operand | None = None  #: first source
    src1: Operand | None = None  #: second source
    scalar: Operand | None = None  #: third source of "mac": ``dst = src0 + src1 * scalar``
    n: int = 1  #: elements
    dtype: str = "float32"  #: element type: "float32", "float16" or "uint32"
    #: None runs in the task (synchronous); 0..7 starts that microthread, once it has ended its last
    #: operation. Without an operand on the fabric the task does it then, as in CSL
    thread: int | None = None
    #: ``(action, task name)`` pairs carried out when the last element is through
    on_done: tuple[tuple[str, str], ...] = ()
    launch: int | None = None  #: cycles before the first element; None takes the layout's overhead
    #: ``(color, position)``: the PE writes that switch position into its router when the last
    #: element is through
    position: tuple[int, int] | None = None
    #: of its microthread against others and ``Layout.main_thread_priority``: "low", "medium" or
    #: "high"; of equals the task goes first, then the lowest id
    priority: str = "low"

    @property
    def operands(self) -> tuple[Operand | None, ...]:
        """Destination and sources."""
        return self.dst, self.src0, self.src1, self.scalar

    def then(self, action: str, task: str) -> "Op":
        """Add ``activate``, ``block`` or ``unblock`` of a task at completion."""
        return dataclasses.replace(self, on_done=(*self.on_done, (action, task)))


mem, fabin, fabout = Mem, FabIn, FabOut
_COMMANDS = ("NOP", "SWITCH_ADV", "SWITCH_RST", "TEARDOWN")  # to a switch, in order of their codes


def control_wavelet(command: str, *, task: int = 0, data: int = 0, to_ce: bool = False) -> Const:
    """Encode a control wavelet's payload, as ``<control>.encode_single_payload`` does.

    Args:
        command: "NOP", "SWITCH_ADV", "SWITCH_RST" or "TEARDOWN".
        task: control task id 0..63 that it activates at the CE.
        data: 16-bit argument of that task.
        to_ce: clear the CE-filter bit, so that the wavelet is handed to the CE.

    Returns:
        The 32-bit payload as an immediate.
    """
    if not 0 <= task < 64 or not 0 <= data < 65536:
        raise ValueError(f"control_wavelet: task={task} must be 0..63 and data={data} 0..65535")
    if command not in _COMMANDS:
        raise ValueError(f"control_wavelet: {command!r} is none of {_COMMANDS}")
    field = _COMMANDS.index(command) | (0 if to_ce else 4)
    return Const(field << 22 | task << 16 | data)


def work(cycles: int, *, thread: int | None = None) -> Op:
    """Keep the CE busy for ``cycles``: scalar code that the model does not walk through."""
    return Op("work", n=cycles, thread=thread)


def exit_teardown(color: int, position: int = 0) -> Op:
    """Write a color's routes anew and let it go on, as ``tile_config.teardown.exit``.

    Args:
        color: the color.
        position: 0 for the routes it started with, 1.. for its switch positions, and after the
            last of the router's four the ``reroutes`` that its route lists.
    """
    return Op("work", position=(color, position))


def activate(task: str) -> Op:
    """Activate a task of this PE; one cycle."""
    return Op("work", n=1, on_done=(("activate", task),))


def block(task: str) -> Op:
    """Block a task of this PE: it keeps its activation, and does not start; one cycle."""
    return Op("work", n=1, on_done=(("block", task),))


def unblock(task: str) -> Op:
    """Unblock a task of this PE; one cycle."""
    return Op("work", n=1, on_done=(("unblock", task),))


# element type -> what a builtin's name begins and ends with
_FORMS = {"float32": ("f", "s"), "float16": ("f", "h"), "uint32": ("", "32")}
TYPES = tuple(_FORMS)
_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_MEANINGS = {
    "mov": "dst[i] = src0[i]",
    "add": "dst[i] = src0[i] + src1[i]",
    "sub": "dst[i] = src0[i] - src1[i]",
    "mul": "dst[i] = src0[i] * src1[i]",
    "max": "dst[i] = max(src0[i], src1[i])",
    "mac": "dst[i] = src0[i] + src1[i] * scalar",
}


def _builtin(kind: str, dtype: str) -> Callable[..., Op]:
    """Make ``op(dst, src0, …, n=1, *, thread=None)``."""
    sources = [name for name in ("src0", "src1", "scalar") if name in _MEANINGS[kind]]
    names = [inspect.Parameter(name, _POSITIONAL) for name in ("dst", *sources)]
    names.append(inspect.Parameter("n", _POSITIONAL, default=1))
    names.append(inspect.Parameter("thread", inspect.Parameter.KEYWORD_ONLY, default=None))
    signature = inspect.Signature(names)

    def op(*args: Operand | int, **kwargs: Operand | int | None) -> Op:
        return Op(kind, dtype=dtype, **signature.bind(*args, **kwargs).arguments)

    op.__signature__ = signature
    op.__doc__ = f"{_MEANINGS[kind]} for i < n, in {dtype}."
    return op


mov32 = _builtin("mov", "uint32")
fmovs, fmovh = _builtin("mov", "float32"), _builtin("mov", "float16")
fadds, faddh = _builtin("add", "float32"), _builtin("add", "float16")
fsubs, fsubh = _builtin("sub", "float32"), _builtin("sub", "float16")
fmuls, fmulh = _builtin("mul", "float32"), _builtin("mul", "float16")
fmaxs = _builtin("max", "float32")
fmacs, fmach = _builtin("mac", "float32"), _builtin("mac", "float16")


def builtin_of(op: Op) -> str:
    """Return the name of the builtin that an operation is: 'fadds', 'faddh', 'add32', 'work'."""
    if op.kind == "work":
        return op.kind
    prefix, suffix = _FORMS[op.dtype]
    return f"{prefix}{op.kind}{suffix}"


def steps_of(op: Op, spec: WaferSpec) -> int:
    """Return the steps of an operation, a cycle each.

    A step takes as many elements as the builtin's operands in memory allow, and ends with a row;
    with an operand on the fabric it takes one.
    """
    if any(isinstance(o, FabIn | FabOut | WaveletArg) for o in op.operands):
        return op.n
    arrays = [o for o in op.operands if isinstance(o, Mem)]
    strides = tuple(o.stride for o in arrays)
    width = min(ARCHITECTURES[spec.name].width(builtin_of(op), strides), spec.simd_16bit)
    row = min([o.inner for o in arrays if o.inner], default=op.n)
    steps = lambda n: -(-n // width)
    return op.n // row * steps(row) + steps(op.n % row)


def op_text(op: Op) -> str:
    """Return an operation in CSL's words, "fadds(x, x, fabin(3), n=4)"."""
    if op.kind == "work":
        return f"work({op.n})"
    parts = ", ".join(_operand_text(o) for o in op.operands if o is not None)
    return f"{builtin_of(op)}({parts}, n={op.n})"


def _operand_text(operand: Operand) -> str:
    match operand:
        case Mem(array, offset):
            return f"{array}[{offset}]" if offset else array
        case FabIn(color):
            return f"fabin({color})"
        case FabOut(color):
            return f"fabout({color})"
        case Const():
            return "constant"
        case WaveletArg():
            return "wavelet"
