"""System modules on one PE: functions and random numbers by NumPy, times by bounds, traces."""

from pathlib import Path

import numpy as np
import pytest
from helpers.csl_program import ran
from helpers.csl_rules import CSL_RULES
from scipy import stats

import wafer.csl
from wafer.vendor.sdk.debug_util import decode_trace
from wafer.vendor.sdk.sdk_utils import make_u48

pytestmark = pytest.mark.native

PROGRAMS = Path(__file__).parent / "programs" / "library"
ONE = CSL_RULES / "one.csl"


@pytest.fixture(params=["wse2", "wse3"])
def run(request, tmp_path):
    """Runs a program of one PE; gives its runtime, after ``go``."""

    def run(name, text=None):
        path = tmp_path / f"{name}.csl" if text else PROGRAMS / f"{name}.csl"
        if text:
            path.write_text(text + "comptime { @export_symbol(go); }", encoding="utf-8")
        params, folders = {"file": path.name}, (str(path.parent),)
        image = wafer.csl.compile(ONE, params, arch=request.param, import_paths=folders)
        return wafer.csl.Runtime(image, ran(image, cycles=1_000_000))

    return run


UNARY = {name: getattr(np, name) for name in ("sqrt", "exp", "log", "sin", "cos", "tanh", "floor")}
UNARY |= {"ceil": np.ceil, "abs": np.abs, "inv": np.reciprocal}
UNARY |= {"invsqrt": lambda x: 1 / np.sqrt(x)}


@pytest.mark.parametrize(("dtype", "numpy"), [("f16", np.float16), ("f32", np.float32)])
def test_math_by_type_and_by_name(run, dtype, numpy):
    x = numpy([0.25, 0.7, 1.0, 2.5, 9.0])
    values = ", ".join(map(str, x.tolist()))
    size = len(UNARY)
    lines = [
        f"out[{k} * 10 + i] = math.{f}(x[i]); out[{k} * 10 + 5 + i] = math.{f}_{dtype}(x[i]);"
        for k, f in enumerate(UNARY)
    ]
    runtime = run(
        "math",
        f'const math = @import_module("<math>");\n var x = [5]{dtype}{{ {values} }};\n'
        f"var out = @zeros([{10 * size}]{dtype});\n"
        "fn go() void { for (@range(u16, 5)) |i| {\n" + "\n".join(lines) + "\n} }\n",
    )
    outputs = runtime.read_symbol(0, 0, "out").reshape(size, 2, 5)
    tolerance = {"f16": 2e-3, "f32": 4e-7}[dtype]
    for row, function in zip(outputs, UNARY.values(), strict=True):
        np.testing.assert_array_equal(row[0], row[1])
        np.testing.assert_allclose(row[0], function(x.astype(np.float64)), tolerance, tolerance)
    np.testing.assert_array_equal(outputs[0, 0], np.sqrt(x))  # rounded correctly


def test_time_and_place(run):
    runtime = run("time_and_place")
    assert runtime.read_symbol(0, 0, "at").tolist() == [0, 0]
    between = [make_u48(runtime.read_symbol(0, 0, name)) for name in ("first", "one")]
    assert 100 < between[1] - between[0] < runtime.machine.cycle
    assert 5 <= make_u48(runtime.read_symbol(0, 0, "took")) < 60  # ten elements


def test_random(run):
    runtime = run("random")
    uniform, normal = (runtime.read_symbol(0, 0, name) for name in ("uniform", "normal"))
    assert -1 <= uniform.min() < uniform.max() < 3
    assert stats.kstest(uniform, "uniform", args=(-1, 4)).pvalue > 0.05
    assert stats.kstest(normal, "norm").pvalue > 0.05
    assert len(set(uniform.tolist())) > 490
    assert len(set(runtime.read_symbol(0, 0, "again").tolist())) == 1


def test_traces(run):
    """By functions for each type, and by one for any value; what does not fit is left out."""
    runtime = run("traces")
    read = lambda key: decode_trace(runtime.read_symbol(0, 0, f"<debug>.{key}", dtype=np.uint16))
    assert read("events")[:-1] == ["begin", 70000, -5, 1.5, 1]
    assert read("small") == [1, 2]
    assert read("any") == [7, -3, 0.5, 1, -70000]


def test_the_counter_by_its_registers(run):
    """As <time> reads it: started, at 0, later by the cycles of ten elements, stopped."""
    runtime = run("counter")
    running, high, stopped, later, words = runtime.read_symbol(0, 0, "seen").tolist()
    assert 1005 <= running < 1060
    assert running < stopped == later < 1080
    assert (high, words) == (0, 3)
