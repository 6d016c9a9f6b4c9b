"""Straight-line programs of random operations on random descriptors, bit by bit against NumPy.

Elements are read, computed and written one after another, so operands may overlap. An operation
that would read or give a NaN is left out: the bits of a NaN are nobody's promise.
"""

import random

import numpy as np
import pytest
from helpers.csl_operations import RULES, after
from helpers.csl_program import ran

import wafer.csl

HALVES = 256  # 16-bit elements of the memory that all descriptors share
BUILTIN = "@get_dsd({kind}, .{{ .tensor_access = |{names}|{{{extents}}} -> m[{sum}] }})"


def descriptor(rng, size, extents):
    """Text of a descriptor of elements of some bytes, and their addresses, in order."""
    strides = [rng.randint(-2, 3) for _ in extents]
    low = sum(min(0, (n - 1) * s) for n, s in zip(extents, strides, strict=True)) * size // 2
    high = sum(max(0, (n - 1) * s) for n, s in zip(extents, strides, strict=True)) * size // 2
    offset = rng.randint(-low, HALVES - size // 2 - high)
    names = "ijkl"[: len(extents)]
    terms = [f"{stride} * {name}" for name, stride in zip(names, strides, strict=True)]
    text = BUILTIN.format(
        kind="mem1d_dsd" if len(extents) == 1 else "mem4d_dsd",
        names=", ".join(names),
        extents=", ".join(map(str, extents)),
        sum=" + ".join([*terms, str(offset)]),
    )
    grid = np.indices(extents).reshape(len(extents), -1)
    return text, (2 * offset + size * (np.array(strides) @ grid)).tolist()


def scalar(rng, kind):
    """Text of a known number of a type, and the number."""
    if np.dtype(kind).kind == "f":
        value = kind(rng.randint(-40, 40) / 8)
        return f"@as(f{8 * value.itemsize}, {float(value)})", value
    value = rng.randrange(1 << 8 * np.dtype(kind).itemsize)
    return f"@as(u{8 * np.dtype(kind).itemsize}, {value})", np.array([value]).astype(kind)[0]


def shape(rng, count):
    """Extents whose product is a count, in one to four dimensions."""
    extents = [count]
    for _ in range(rng.randrange(4)):
        divisor = rng.choice([n for n in range(1, extents[-1] + 1) if extents[-1] % n == 0])
        extents[-1:] = [divisor, extents[-1] // divisor]
    return extents


def operation(rng, memory):
    """Text of an operation and the memory after it; None where a NaN would come in."""
    name = rng.choice(list(RULES))
    types, _ = RULES[name]
    count, places, texts = rng.choice([1, 2, 3, 4, 6, 8, 12]), [], []
    whole = rng.randrange(1, len(types))  # this operand is no scalar
    for number, kind in enumerate(types):
        free = number and number != whole and len(types) != 4
        if number == 3 or (free and rng.random() < 0.4):
            text, place = scalar(rng, kind)
        else:
            text, place = descriptor(rng, np.dtype(kind).itemsize, shape(rng, count))
        texts.append(text)
        places.append(place)
    content, nan = after(name, memory, places, count)
    return None if nan else (f"  @{name.lower()}({', '.join(texts)});\n", content)


def check(folder, seed, arch, operations=12):
    """Compile and run the program of a seed, and compare the memory."""
    rng = random.Random(seed)
    values = np.random.default_rng(seed).standard_normal(HALVES) * 4
    memory = values.astype(np.float16).view(np.uint8).copy()
    text = f"var m = [{HALVES}]u16 {{ {', '.join(map(str, memory.view(np.uint16)))} }};\n"
    text += "fn go() void {\n"
    while operations:
        drawn = operation(rng, memory)
        if drawn is not None:
            line, memory = drawn
            text, operations = text + line, operations - 1
    text += "}\ncomptime {\n  @export_symbol(go);\n}\nlayout {\n  @set_rectangle(1, 1);\n"
    text += f'  @set_tile_code(0, 0, "program_{seed}.csl");\n  @export_name("go", fn() void);\n}}\n'
    path = folder / f"program_{seed}.csl"
    path.write_text(text, encoding="utf-8")
    image = wafer.csl.compile(path, arch=arch)
    content = ran(image).read(0, 0, image.programs[0].symbols["m"].address, 2 * HALVES)
    np.testing.assert_array_equal(content, memory, err_msg=text)


@pytest.mark.native
def test_some_programs(tmp_path):
    for seed in range(4):
        check(tmp_path, seed, ("wse2", "wse3")[seed % 2])


@pytest.mark.slow
@pytest.mark.native
def test_many_programs(tmp_path):
    for seed in range(1000, 1060):
        check(tmp_path, seed, ("wse2", "wse3")[seed % 2])
