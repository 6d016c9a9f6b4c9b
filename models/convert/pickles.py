"""Read the pickle of a state dict without Python's unpickler, which would run it.

The few instructions that a state dict needs are interpreted here over plain values: no function,
class or object of ours or of Python's is within the file's reach. Anything else is refused.
``pickle.Unpickler`` with ``find_class`` is not enough: on CPython 3.11 a key of nested tuples ends
the process, and a memo index of four bytes allocates gigabytes.
"""

import pickletools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

_DTYPES = {
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "DoubleStorage": np.dtype(np.float64),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}


class _Name(NamedTuple):
    """Something of a module that the pickle names; never the thing itself."""

    module: str
    name: str


class Storage(NamedTuple):
    """Elements that tensors lie in."""

    key: str  #: name of its file
    dtype: np.dtype  #: of an element
    size: int  #: elements


class Tensor(NamedTuple):
    """A tensor as the pickle tells of it: natural numbers, and not yet checked any further."""

    storage: Storage  #: where it lies
    offset: int  #: of its first element
    shape: tuple[int, ...]  #: of it
    strides: tuple[int, ...]  #: in elements


_REBUILD = _Name("torch._utils", "_rebuild_tensor_v2")
_ORDERED = _Name("collections", "OrderedDict")
_KNOWN = {_REBUILD, _ORDERED} | {_Name("torch", name) for name in _DTYPES}


def _name(module: Any, name: Any) -> _Name:
    reference = _Name(module, name)
    if not isinstance(module, str) or not isinstance(name, str) or reference not in _KNOWN:
        raise ValueError(
            f"refused to load {_short(module)}.{_short(name)}: a weights file may name tensors "
            "only; convert it to safetensors where you trust it"
        )
    return reference


def _short(value: Any) -> str:
    return value[:60] if isinstance(value, str) else type(value).__name__


def _naturals(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(v) is int and v >= 0 for v in values)


def _storage(pid: Any) -> Storage:
    """('storage', its type, its key, a device, number of elements)."""
    if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage":
        raise ValueError("refused a persistent object that is no storage")
    kind, key, size = pid[1], pid[2], pid[4]
    if not isinstance(kind, _Name) or kind.name not in _DTYPES or not isinstance(key, str):
        raise ValueError("a storage without a known type of elements")
    if not _naturals((size,)):
        raise ValueError(f"storage {_short(key)}: its number of elements is no such number")
    return Storage(key, _DTYPES[kind.name], size)


def _call(function: Any, args: Any) -> Any:
    """What the two calls that a state dict makes give."""
    if function == _ORDERED and isinstance(args, tuple) and not args:
        return {}
    if function != _REBUILD or not isinstance(args, tuple) or len(args) < 4:
        raise ValueError("refused to call anything but the builders of tensors and dicts")
    storage, offset, shape, strides = args[:4]  # then requires_grad, hooks, metadata
    if not isinstance(storage, Storage) or not all(map(_naturals, ((offset,), shape, strides))):
        raise ValueError("a tensor whose storage, offset, shape or strides are no such thing")
    return Tensor(storage, offset, shape, strides)


class _Machine:
    """The instructions of a pickle that a state dict is written with."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def take(self, count: int) -> list[Any]:
        """The last values, off the stack; a mark holds back those below it."""
        start = len(self.stack) - count
        if start < (self._marks[-1] if self._marks else 0):
            raise IndexError
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def mark(self) -> None:
        self._marks.append(len(self.stack))

    def since_mark(self) -> list[Any]:
        values = self.take(len(self.stack) - self._marks[-1])
        self._marks.pop()
        return values

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def keep(self, key: int | None = None) -> None:
        self._memo[len(self._memo) if key is None else key] = self.stack[-1]

    def recall(self, key: int) -> None:
        self.push(self._memo[key])

    def set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(values) % 2:
            raise TypeError
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str | int):  # the hash of a tuple in a tuple in ... has no floor
                raise ValueError(f"a key that is no text but a {type(key).__name__}")
            target[key] = value

    def extend(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise TypeError
        self.stack[-1].extend(values)

    def build(self) -> None:
        """Leave out the attributes of a dict (``_metadata``); nothing else can have any."""
        self.take(1)
        if not isinstance(self.stack[-1], dict):
            raise ValueError("refused to set the state of anything but a dict")


_PUSHED = (
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
)
_Step = Callable[[_Machine, Any], Any]
_STEPS: Mapping[str, _Step] = {
    **dict.fromkeys(_PUSHED, lambda m, x: m.push(x)),
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda m, x: None),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), lambda m, x: m.keep(x)),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda m, x: m.recall(x)),
    "NONE": lambda m, x: m.push(None),
    "NEWTRUE": lambda m, x: m.push(True),
    "NEWFALSE": lambda m, x: m.push(False),
    "EMPTY_TUPLE": lambda m, x: m.push(()),
    "EMPTY_LIST": lambda m, x: m.push([]),
    "EMPTY_DICT": lambda m, x: m.push({}),
    "MARK": lambda m, x: m.mark(),
    "TUPLE": lambda m, x: m.push(tuple(m.since_mark())),
    "TUPLE1": lambda m, x: m.push(tuple(m.take(1))),
    "TUPLE2": lambda m, x: m.push(tuple(m.take(2))),
    "TUPLE3": lambda m, x: m.push(tuple(m.take(3))),
    "APPEND": lambda m, x: m.extend(m.take(1)),
    "APPENDS": lambda m, x: m.extend(m.since_mark()),
    "SETITEM": lambda m, x: m.set_items(m.take(2)),
    "SETITEMS": lambda m, x: m.set_items(m.since_mark()),
    "GLOBAL": lambda m, x: m.push(_name(*x.split(" ", 1))),
    "STACK_GLOBAL": lambda m, x: m.push(_name(*m.take(2))),
    "BINPERSID": lambda m, x: m.push(_storage(*m.take(1))),
    "REDUCE": lambda m, x: m.push(_call(*m.take(2))),
    "BUILD": lambda m, x: m.build(),
}


def read_pickle(program: bytes) -> Any:
    """Interpret the pickle of a state dict.

    Returns:
        What it builds of dicts, lists, tuples, numbers, text and ``Tensor``.

    Raises:
        ValueError: it is damaged, or does what no state dict needs.
    """
    machine = _Machine()
    for code, argument, at in pickletools.genops(program):
        step = _STEPS.get(code.name)
        if step is None:
            raise ValueError(f"refused the instruction {code.name} (byte {at})")
        try:
            step(machine, argument)
        except (IndexError, KeyError, TypeError):
            raise ValueError(f"damaged at the instruction {code.name} (byte {at})") from None
    if len(machine.stack) != 1:
        raise ValueError("damaged: it does not end with one value")
    return machine.stack[0]
