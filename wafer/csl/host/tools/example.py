"""A small program with its host script: four PEs in a row, each adds what comes from the west."""

from pathlib import Path

from wafer.models.files import made_folder

_LAYOUT = """// Four PEs in a row; color 4 goes from each to the next one.
param width: u16 = 4;

const memcpy = @import_module("<memcpy/get_params>", .{ .width = width, .height = 1 });
const sums = [2]color{@get_color(4), @get_color(5)};

layout {
  @set_rectangle(width, 1);
  for (@range(u16, width)) |x| {
    const from = sums[(x + 1) % 2];
    const to = sums[x % 2];
    @set_tile_code(x, 0, "pe.csl", .{
      .memcpy_params = memcpy.get_params(x), .first = x == 0, .last = x + 1 == width,
      .from = from, .to = to,
    });
    if (x > 0) {
      @set_color_config(x, 0, from, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
    }
    if (x + 1 < width) {
      @set_color_config(x, 0, to, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
    }
  }
  @export_name("x", [*]f32, true);
  @export_name("add", fn() void);
}
"""
_PE = """// Adds the vector from the west to this PE's own, and passes the sum on to the east.
param memcpy_params: comptime_struct;
param first: bool;
param last: bool;
param from: color;
param to: color;

const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
const in_queue = @get_input_queue(2);
const out_queue = @get_output_queue(3);

var x = @zeros([8]f32);
var x_ptr: [*]f32 = &x;
const own = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> x[i] });
const in = @get_dsd(fabin_dsd, .{ .extent = 8, .input_queue = in_queue });
const out = @get_dsd(fabout_dsd, if (@is_arch("wse3")) .{ .extent = 8, .output_queue = out_queue }
    else .{ .extent = 8, .fabric_color = to, .output_queue = out_queue });

const done_id = @get_local_task_id(9);
const added_id = @get_local_task_id(10);

fn add() void {
  if (first) {
    @activate(added_id);
  } else {
    @fadds(own, own, in, .{ .async = true, .activate = added_id });
  }
}

task added() void {
  if (last) {
    @activate(done_id);
  } else {
    @fmovs(out, own, .{ .async = true, .activate = done_id });
  }
}

task done() void {
  sys_mod.unblock_cmd_stream();
}

comptime {
  @bind_local_task(added, added_id);
  @bind_local_task(done, done_id);
  if (!first) {
    @initialize_queue(in_queue, .{ .color = from });
  }
  if (@is_arch("wse3") and !last) {
    @initialize_queue(out_queue, .{ .color = to });
  }
  @export_symbol(x_ptr, "x");
  @export_symbol(add);
}
"""
_RUN = '''"""Gives each PE a vector, adds them along the row, and compares with NumPy."""

import numpy as np
from cerebras.sdk.runtime.sdkruntimepybind import MemcpyDataType, MemcpyOrder, SdkRuntime

how = {"streaming": False, "order": MemcpyOrder.ROW_MAJOR,
       "data_type": MemcpyDataType.MEMCPY_32BIT, "nonblock": False}
vectors = np.arange(32, dtype=np.float32).reshape(4, 8)
runner = SdkRuntime("out")
runner.load()
runner.run()
x = runner.get_id("x")
runner.memcpy_h2d(x, vectors.ravel(), 0, 0, 4, 1, 8, **how)
runner.launch("add", nonblock=False)
sums = np.zeros(32, np.float32)
runner.memcpy_d2h(sums, x, 0, 0, 4, 1, 8, **how)
runner.stop()
np.testing.assert_array_equal(sums.reshape(4, 8), vectors.cumsum(0))
print(sums.reshape(4, 8))
print("SUCCESS!")
'''
_FILES = {"layout.csl": _LAYOUT, "pe.csl": _PE, "run.py": _RUN}


def write_example(folder: Path) -> list[Path]:
    """Write the program's files.

    Returns:
        The files.

    Raises:
        FileExistsError: one of them is there.
    """
    files = [folder / name for name in _FILES]
    with made_folder(folder):
        for path, text in zip(files, _FILES.values(), strict=True):
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    return files
