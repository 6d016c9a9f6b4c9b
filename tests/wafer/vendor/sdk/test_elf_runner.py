"""The host of SDK 0.4 to 0.8: ports at the rectangle's sides, sentinels, memory by name."""

import numpy as np
import pytest

from wafer.cli import main
from wafer.csl.host.errors import HostError
from wafer.vendor.sdk.elf_runner import CSELFRunner, ELFMemory

pytestmark = pytest.mark.native

PROGRAM = """
const into = @get_color(3);
const out = @get_color(4);
const end = @get_color(43);
const send = @get_dsd(fabout_dsd, .{ .fabric_color = out, .extent = 1 });
var factor: i16 = 1;
var count: u16 = 0;
task take(value: i16, place: u16) void {
  count += place;
  @mov16(send, value * factor);
}
task ended() void { @mov16(send, -1); }
comptime {
  @bind_task(take, into);
  @bind_task(ended, end);
}
layout {
  @set_rectangle(1, 2);
  for (@range(comptime_int, 2)) |y| {
    @set_tile_code(0, y);
    @set_color_config(0, y, into, .{ .rx = .{ WEST }, .tx = .{ RAMP } });
    @set_color_config(0, y, out, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
  }
}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "code.csl").write_text(PROGRAM, encoding="utf-8")
    options = ["--fabric-dims=3,4", "--fabric-offsets=1,1"]
    output = str(tmp_path / "out")
    assert main(["csl", "compile", str(tmp_path / "code.csl"), *options, "-o", output]) == 0
    return tmp_path / "out"


def test_arrays_enter_by_a_side_and_leave_by_another(folder):
    """Two items for each of two PEs, then a sentinel; a factor is set from outside before."""
    runner = CSELFRunner([str(folder / "bin" / "out_1_1.elf")])
    runner.set_symbol_rect("factor", np.array([[[2], [3]]], np.int16), offset=(1, 1))
    items = np.array([1, 2, 3, 4], np.int16)
    runner.add_input_tensor(3, "{ a[i=0:3] -> [PE[-1, i//2] -> index[i % 2]] }", items, sentinel=43)
    runner.add_output_tensor(4, "{ b[j=0:1, i=0:2] -> [PE[1, j] -> index[i]] }", np.int16)
    runner.connect_and_run()
    assert runner.out_tensor_dict["b"].tolist() == [[2, 4, -1], [9, 12, -1]]
    assert runner.get_symbol(1, 2, "count", np.uint16).tolist() == [1]  # places 0 and 1
    rectangle = runner.get_symbol_rect(((1, 1), (1, 2)), "factor", np.int16)
    assert rectangle.tolist() == [[[2], [3]]]
    assert list(ELFMemory(str(folder / "bin" / "out_1_1.elf")).iter_coordinates()) == [
        (1, 1),
        (1, 2),
    ]


def test_rows_by_side(folder):
    runner = CSELFRunner([str(folder / "bin" / "out_1_1.elf")])
    runner.add_input_array("a", 3, "W", np.array([[7], [8]], np.int16))
    runner.add_output_array("b", 4, "E", np.zeros((2, 1), np.int16))
    runner.connect_and_run()
    assert runner.out_tensor_dict["b"].tolist() == [[7], [8]]


def test_what_does_not_come_or_fit_is_told(folder):
    runner = CSELFRunner([str(folder / "bin" / "out_1_1.elf")])
    runner.add_output_tensor(4, "{ b[i=0:0] -> [PE[1, 0] -> index[i]] }", np.int16)
    with pytest.raises(HostError, match=r"'b': 0 of 1 words have left PE \(0, 0\) by side E"):
        runner.connect_and_run()
    with pytest.raises(HostError, match="has 2 bytes, and the array 4"):
        runner.set_symbol(1, 1, "factor", np.int32(1))
    with pytest.raises(HostError, match="no port: it lies inside"):
        runner.add_output_tensor(4, "{ b[i=0:0] -> [PE[0, 0] -> index[i]] }", np.int16)


def test_unknown_keywords(folder):
    with pytest.raises(TypeError, match=r"^CSELFRunner\(\) got .* 'cmadr'; did you mean 'cmaddr'"):
        CSELFRunner([str(folder / "bin" / "out_0_0.elf")], cmadr=None)
