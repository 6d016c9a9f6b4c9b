"""CSL where the C++ machine is not built: the JAX machine, which says what it does not do."""

import logging

import numpy as np
import pytest
from helpers.csl_program import compiled

import wafer.csl
from wafer.errors import CompileError
from wafer.machine import engine
from wafer.machine.reference.machine import ReferenceMachine
from wafer.vsl.native.library import how_to_build

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 });
layout {
  @set_rectangle(2, 1);
  for (@range(i16, 2)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(x) });
  }
  @export_name("y", [*]f32, true);
  @export_name("scale", fn(f32)void);
}
"""
PE = """
param memcpy_params: comptime_struct;
const memcpy = @import_module("<memcpy/memcpy>", memcpy_params);
var y = @zeros([4]f32);
var pointer: [*]f32 = &y;
const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> y[i] });
fn scale(by: f32) void { @fmuls(all, all, by); memcpy.unblock_cmd_stream(); }
comptime { @export_symbol(pointer, "y"); @export_symbol(scale); }
"""


@pytest.fixture
def unbuilt(monkeypatch):
    monkeypatch.setattr(engine, "available", lambda: False)


def program(folder):
    (folder / "layout.csl").write_text(LAYOUT, encoding="utf-8")
    (folder / "pe.csl").write_text(PE, encoding="utf-8")
    return wafer.csl.compile(folder / "layout.csl")


def scaled(image):
    """What two calls give on two PEs, and the cycles that they took."""
    runtime = wafer.csl.Runtime(image)
    data = np.arange(8, dtype=np.float32)
    y = runtime.get_id("y")
    runtime.memcpy_h2d(y, data, 0, 0, 2, 1, 4)
    runtime.launch("scale", np.float32(3))
    runtime.launch("scale", np.float32(0.5))
    out = np.zeros(8, np.float32)
    runtime.memcpy_d2h(out, y, 0, 0, 2, 1, 4)
    runtime.stop()
    return runtime, out


@pytest.mark.slow  # compiles the step of the whole wafer
@pytest.mark.native
def test_a_host_gets_the_same_from_both_machines(tmp_path, monkeypatch):
    image = program(tmp_path)
    built, expected = scaled(image)
    assert expected.tolist() == [1.5 * k for k in range(8)]
    monkeypatch.setattr(engine, "available", lambda: False)
    runtime, out = scaled(image)
    assert isinstance(runtime.machine, ReferenceMachine)
    assert out.tolist() == expected.tolist()
    assert runtime.cycles == built.cycles
    with pytest.raises(CompileError, match="JAX machine does not count what PEs do"):
        runtime.energy()


@pytest.mark.slow
def test_calls_and_copies_of_the_jax_machine_are_checked(tmp_path, unbuilt):
    machine = engine.machine_for(program(tmp_path))
    one, both = wafer.csl.Rectangle(0, 0, 1, 1), wafer.csl.Rectangle(0, 0, 2, 1)
    size = len(machine.image.programs[0].memory)
    assert machine.read(0, 0, size - 4, 8).tolist() == [
        *machine.read(0, 0, size - 4, 4),
        0,
        0,
        0,
        0,
    ]
    with pytest.raises(CompileError, match=r"outside of what its program declares"):
        machine.write(0, 0, size - 4, np.zeros(8, np.uint8))
    with pytest.raises(CompileError, match=r"PE \(2, 0\) is outside of the 2 x 1 rectangle"):
        machine.read(2, 0, 0, 1)
    with pytest.raises(CompileError, match="exports scale, not a function 'scales'"):
        machine.launch(one, "scales")
    assert machine.commands_waiting(both) == 0
    for _ in range(8):
        machine.launch(one, "scale", [0])
    assert machine.commands_waiting(both) == 1
    with pytest.raises(CompileError, match="after 8 calls that it has not"):
        machine.launch(one, "scale", [0])
    assert machine.run(0) is wafer.csl.Status.LIMIT


def test_what_only_the_built_machine_does_is_refused_with_the_remedy(tmp_path, unbuilt):
    text = """
    const math = @import_module("<math>");
    fn go() void { y[0] = math.exp(y[1]); }
    """
    image = compiled(tmp_path, text, kind="f32")
    with pytest.raises(
        CompileError, match="calls exp, which the JAX reference does not"
    ) as refused:
        engine.machine_for(image)
    assert how_to_build() in str(refused.value)
    with pytest.raises(CompileError, match="records nothing") as refused:
        engine.machine_for(image, wafer.csl.Recording())
    assert how_to_build() in str(refused.value)


def test_the_missing_machine_is_said_once(monkeypatch, caplog):
    monkeypatch.setenv("WAFER_NATIVE", "0")
    library = wafer.machine.engine._LIBRARY
    monkeypatch.setattr("wafer.vsl.native.library._REPORTED", set())
    other = type(library)(package=library.package, instead="another")
    with caplog.at_level(logging.WARNING):
        assert not other.available()
        assert not other.available()
    (line,) = caplog.messages
    assert "the machine for CSL (switched off by WAFER_NATIVE=0); JAX serves instead" in line
