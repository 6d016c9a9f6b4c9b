"""Figures of the hardware: one table, which both front ends and the machine follow."""

import pathlib
import re

import numpy as np
import pytest

import wafer
from wafer.fabric.program.ops import Const, Mem, Op, fabin, mem, steps_of
from wafer.fabric.program.tables import Port
from wafer.machine.arch import ARCHITECTURES, PORTS
from wafer.machine.codes import DsdOp
from wafer.spec import SPECS

ROOM = pathlib.Path(wafer.__file__).parent


def constants(header):
    """Names of a header's integers, and what they are."""
    text = (ROOM / header).read_text(encoding="utf-8")
    return {name: int(value) for name, value in re.findall(r"\b(k\w+) = (\d+)[,;]", text)}


@pytest.mark.parametrize("known", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_headers_have_the_same_figures(known):
    own = constants("machine/native/program.h")
    assert own["kColors"] == known.colors
    assert own["kPorts"] == len(PORTS)
    assert own["kQueues"] == len(known.input_depths) == len(known.output_depths)
    assert own["kThreads"] == known.threads
    assert [*Port.__members__] == [*PORTS]
    assert [*Port] == [1 << bit for bit in range(len(PORTS))]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_an_operation_is_as_wide_in_a_layout_as_in_csl(arch):
    """The same builtin over rows of memory takes as many elements per cycle in both."""
    widths, spec = {op: ARCHITECTURES[arch].width(op.name.lower()) for op in DsdOp}, SPECS[arch]
    for kind in ("mov", "add", "sub", "mul", "mac", "max"):
        for dtype, suffix in (("float32", "S"), ("float16", "H")):
            op = Op(kind, mem("a"), mem("a"), mem("a"), Const(1.0), n=64, dtype=dtype)
            assert steps_of(op, spec) == 64 // widths[DsdOp[f"F{kind.upper()}{suffix}"]]
    assert widths[DsdOp.FADDS] == (2 if arch == "wse2" else 4)
    assert widths[DsdOp.FMACS] == 1


@pytest.mark.parametrize(
    ("operands", "wanted"),
    [
        ((mem("a"), fabin(0)), 12),  # a wavelet a cycle
        ((mem("a"), Mem("a", stride=7)), 6),
        ((mem("a"), Mem("a", stride=8)), 12),
        ((mem("a"), Mem("a", stride=0)), 3),
        ((mem("a", inner=6), mem("a")), 4),  # a step ends with a row
        ((mem("a", inner=3), mem("a")), 4),
    ],
)
def test_strides_rows_and_the_fabric_limit_an_operation(operands, wanted):
    assert steps_of(Op("mov", *operands, n=12, dtype="float16"), SPECS["wse2"]) == wanted


def test_grid_with_and_without_host_io():
    """A program with memcpy has 7 columns and 2 rows less: 750 x 994 of 757 x 996."""
    assert ARCHITECTURES["wse2"].program == (750, 994)
    assert ARCHITECTURES["wse3"].program == (755, 1174)
    assert np.prod(ARCHITECTURES["wse2"].program) == 745_500
