"""The numbers of the fabric's tables: the same in Python and C++, and usable as numbers."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer.fabric.program import codes
from wafer.fabric.program.codes import FIELDS, Column, Field, Opcode

HEADERS = pathlib.Path(codes.__file__).parents[1] / "native"
TEXT = (HEADERS / "codes.h").read_text(encoding="utf-8")


def cpp_name(name):
    """SAME_CYCLE_ARRIVAL -> kSameCycleArrival."""
    return "k" + name.title().replace("_", "")


def columns(struct):
    """Names of a struct's members in order."""
    (body,) = re.findall(rf"struct {struct} \{{(.*?)\}};", TEXT, re.DOTALL)
    body = re.sub("//.*", "", body).replace("src[3]", "src0, src1, scalar")
    lines = [line.split(None, 1) for line in body.split(";") if line.strip()]
    return [(kind, name) for kind, names in lines for name in names.split(", ")]


@pytest.mark.parametrize(
    ("name", "enum"),
    [
        ("Opcode", codes.Opcode),
        ("Dtype", codes.Dtype),
        ("Kind", codes.Kind),
        ("Command", codes.Command),
        ("FilterKind", codes.FilterKind),
        ("FaultKind", codes.Fault),
    ],
)
def test_cpp_has_the_same_codes(name, enum):
    (listed,) = re.findall(rf"enum {name} \{{ (.*?) \}};", TEXT)
    assert listed.split(", ") == [cpp_name(member) for member in enum.__members__]
    assert list(enum) == list(range(len(enum)))


def test_cpp_has_the_same_columns():
    fields = [name for _, name in columns("Operand")]
    assert fields == [field.name.lower() for field in Field]
    at = 0
    for kind, name in columns("Op"):
        assert Column[name.upper()] == at
        at += len(Field) if kind == "Operand" else 1
    assert at == FIELDS
    assert f"kFields = {FIELDS};" in (HEADERS / "machine.h").read_text(encoding="utf-8")
    assert f"kRampPort = {codes.Port.RAMP}, kTorn = {codes.TORN};" in TEXT


@pytest.mark.parametrize("compiled", [False, True])
def test_codes_work_as_numbers(compiled):
    def use(table):
        opcode = table[:, Column.OPCODE]
        chosen = jnp.where(opcode == Opcode.ADD, Opcode.MAC, opcode)
        return chosen, jax.lax.switch(chosen[0], [lambda code=code: code + 0 for code in Opcode])

    table = np.zeros((2, FIELDS), np.int32)
    table[0, Column.OPCODE] = Opcode.ADD
    chosen, branch = (jax.jit(use) if compiled else use)(jnp.asarray(table))
    assert chosen.tolist() == [Opcode.MAC, Opcode.WORK]
    assert chosen.dtype == jnp.int32
    assert branch == Opcode.MAC
