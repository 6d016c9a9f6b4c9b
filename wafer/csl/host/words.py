"""Numbers as the machine's words: arguments of calls, items of copies, types of symbols."""

import re
from collections.abc import Sequence

import ml_dtypes  # noqa: F401 -- NumPy knows bfloat16 then
import numpy as np

from wafer.csl.host.errors import HostError, warn_host

_FUNCTION = re.compile(r"fn\s*\((.*)\)\s*\w+\s*$")
_DTYPES = {
    **{f"{sign}{bits}": f"{kind}{bits // 8}" for sign, kind in (("i", "<i"), ("u", "<u"))
       for bits in (8, 16, 32, 64)},
    "f16": "<f2",
    "bf16": "bfloat16",
    "cb16": "<u2",
    "f32": "<f4",
    "bool": "<u2",
}  # fmt: skip


def argument_types(function: str) -> tuple[str, ...] | None:
    """Types of the arguments of ``fn(i16, f32)void``; None for what is no function."""
    match = _FUNCTION.match(function)
    if match is None:
        return None
    return tuple(part.strip() for part in match.group(1).split(",") if part.strip())


def dtype_of(kind: str) -> np.dtype | None:
    """The NumPy type of a symbol's elements: of ``f32``, ``[*]u16``, ``[4, 2]i16``."""
    name = _DTYPES.get(re.sub(r"^(\[[^]]*\]|\*|const\s+|\s)+", "", kind))
    return None if name is None else np.dtype(name)


def arguments(name: str, function: str, values: Sequence[object]) -> list[int]:
    """Arguments as registers hold them: integers with their sign, floats as bit patterns.

    Raises:
        HostError: not the arguments that the function takes.
    """
    kinds = _checked(name, function, values)
    return [_word(name, kind, value) for kind, value in zip(kinds, values, strict=True)]


def raw_arguments(name: str, function: str, words: Sequence[int]) -> list[int]:
    """As ``arguments``, of 32-bit words whose lower bits are the values.

    Raises:
        HostError: not as many as the function takes.
    """
    out = []
    for kind, word in zip(_checked(name, function, words), words, strict=True):
        dtype = np.dtype(_DTYPES[kind])
        bits = (int(word) & (1 << 64) - 1).to_bytes(8, "little")[: dtype.itemsize]
        value = np.frombuffer(bits, dtype)
        if dtype.kind == "f" and 0 < abs(value[0]) < np.finfo(dtype).smallest_normal:
            text = (
                f"call('{name}', …): the word {int(word)} is {value[0]} as the {kind} that it takes"
            )
            warn_host(f"{text}; give the bits of the number, or call launch with np.float32(…)")
        out.append(_register(value))
    return out


def _checked(name: str, function: str, values: Sequence[object]) -> tuple[str, ...]:
    kinds = argument_types(function)
    if kinds is None:
        raise HostError(f"'{name}' is a {function}, not a function; copy to or from it instead")
    if len(kinds) != len(values):
        raise HostError(
            f"'{name}' is a {function}: it takes {len(kinds)} argument(s), found {len(values)}"
        )
    return kinds


def _word(name: str, kind: str, value: object) -> int:
    dtype = np.dtype(_DTYPES[kind])
    given = np.asarray(value)
    if given.ndim or given.dtype.kind not in "biuf":
        raise HostError(f"'{name}' takes a {kind}, found {value!r}")
    if isinstance(value, np.generic) and (given.dtype.kind == "f") != (dtype.kind in "fV"):
        bits = given.reshape(1).view(f"u{given.itemsize}").astype(f"u{dtype.itemsize}").view(dtype)
        raise HostError(
            f"'{name}' takes a {kind}, found {value!r}, whose bits are {bits[0]} as {kind}; give"
            f" np.{dtype.name}({value.item()})"
        )
    with np.errstate(over="ignore"):
        exact = given.astype(dtype)
    if dtype.kind in "iu" and exact != given:
        raise HostError(f"'{name}' takes a {kind}, which cannot be {value!r}")
    return _register(exact.reshape(1))


def _register(value: np.ndarray) -> int:
    return int(value[0] if value.dtype.kind in "iu" else value.view(f"<u{value.itemsize}")[0])


def low_bits(items: np.ndarray, bits: int) -> np.ndarray:
    """The lower 16 or 32 bits of uint32 items, as bytes."""
    return items.astype(f"<u{bits // 8}").view(np.uint8)
