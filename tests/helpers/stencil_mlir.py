"""What a program of xDSL's stencil dialect computes, in NumPy: the kernels of wse-stencil.

Both spellings of the dialect are read, generic and short. One loop around ``stencil.apply``.
"""

import re

import numpy as np

_ACCESS = re.compile(r"stencil\.access\"?[( ]*(%\w+)\)?.*?\[\s*(-?\d+),\s*(-?\d+),\s*(-?\d+)\s*\]")
_NUMBER = re.compile(r"arith\.constant (\S+) : (\w+)")
_NAME = re.compile(r"%\w+")
_OPERATIONS = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "math.fpowi": lambda a, b: np.float32(np.float64(a) ** int(b)),
    "arith.addi": lambda a, b: a + b,
    "arith.sitofp": np.float32,
}


def _applied(
    lines: list[str], inputs: dict[str, np.ndarray], low: int, size: tuple[int, ...]
) -> np.ndarray:
    """The result of the body of an apply.

    Args:
        lines: of the body.
        inputs: its arguments -> fields.
        low: elements of a field before index 0.
        size: of the domain.
    """
    values = dict[str, object]()
    for line in lines:
        result, _, text = line.strip().partition(" = ")
        if "stencil.return" in line:
            return np.broadcast_to(values[_NAME.findall(line)[0]], size).astype(np.float32)
        if found := _ACCESS.search(text):
            starts = [low + int(offset) for offset in found.groups()[1:]]
            part = tuple(slice(s, s + n) for s, n in zip(starts, size, strict=True))
            values[result] = inputs[found[1]][part]
        elif found := _NUMBER.search(text):
            values[result] = np.float32(found[1]) if found[2] == "f32" else int(found[1])
        elif name := next((name for name in _OPERATIONS if name in text), None):
            operands = [values[each] for each in _NAME.findall(text)]
            values[result] = _OPERATIONS[name](*operands)
    raise ValueError(f"{lines[0].strip()}: the body has no stencil.return")


def run_stencil(text: str, fields: dict[str, np.ndarray], low: int, steps: int) -> None:
    """Run a function of the stencil dialect on fields, in place.

    Args:
        text: of the module.
        fields: argument of the function -> [X, Y, Z] float32.
        low: elements of a field before index 0, along each axis.
        steps: rounds of its loop.
    """
    lines, names = text.splitlines(), dict(fields)
    size = next(tuple(map(int, re.findall(r"\d+", bounds))) for bounds in _bounds(text))
    loop = re.search(r"iter_args\((.*?)\)", text)
    carried = re.findall(r"(%\w+) = (%\w+)", loop[1]) if loop else []
    names |= {inner: names[outer] for inner, outer in carried}
    for _ in range(steps if loop else 1):
        _step(lines, names, low, size)
        if loop:
            given = _NAME.findall(next(line for line in lines if "scf.yield" in line))
            fresh = [names[name] for name in given[: len(carried)]]
            names |= {inner: field for (inner, _), field in zip(carried, fresh, strict=True)}


def _bounds(text: str) -> list[str]:
    """The upper bounds of each store."""
    return re.findall(r"<\[0, 0, 0\], \[(.*?)\]>", text)


def _step(lines: list[str], names: dict[str, np.ndarray], low: int, size: tuple[int, ...]) -> None:
    for k, line in enumerate(lines):
        result, _, text = line.strip().partition(" = ")
        if "stencil.load" in text or "stencil.cast" in text:
            names[result] = names[_NAME.findall(text)[0]]
        elif "stencil.apply" in text:
            end = next(n for n in range(k, len(lines)) if "stencil.return" in lines[n])
            head = line if '"' not in text else lines[k + 1]
            pairs = re.findall(r"(%\w+) = (%\w+)", text)
            if not pairs:
                outer = _NAME.findall(re.search(r"\((.*?)\)", text)[1])
                pairs = list(zip(_NAME.findall(head), outer, strict=True))
            inputs = {inner: names[outer] for inner, outer in pairs}
            names[result] = _applied(lines[k + 1 : end + 1], inputs, low, size)
        elif "stencil.store" in line:
            value, field = _NAME.findall(line)[:2]
            part = tuple(slice(low, low + n) for n in size)
            names[field][part] = names[value]
