"""One PE's file, run: the layout around it, and what its array `y` holds after `go`."""

import numpy as np

import wafer.csl

LAYOUT = """param n: i16 = 0;
layout {{
  @set_rectangle({width}, 1);
  for (@range(i16, {width})) |x| {{
    @set_tile_code(x, 0, "pe.csl", .{{ .x = x }});
  }}
  {routes}
  @export_name("y", [*]{kind}, true);
  @export_name("go", fn()void);
}}
"""
PE = """param x: i16;
var y = @zeros([{count}]{kind});
var y_ptr: [*]{kind} = &y;
{text}
comptime {{
  @export_symbol(y_ptr, "y");
  @export_symbol(go);
}}
"""


def compiled(folder, text, *, kind="i32", count=4, width=1, routes="", arch="wse2"):
    """The image of a file with a function `go`, on a row of PEs."""
    layout = LAYOUT.format(width=width, routes=routes, kind=kind)
    (folder / "layout.csl").write_text(layout, encoding="utf-8")
    content = PE.format(count=count, kind=kind, text=text)
    (folder / "pe.csl").write_text(content, encoding="utf-8")
    return wafer.csl.compile(folder / "layout.csl", arch=arch)


def ran(image, function="go", cycles=100_000, threads=None, **options):
    """The machine after a call of a function on all PEs."""
    machine = wafer.csl.Machine(image, threads, **options)
    height, width = image.tiles.shape
    machine.launch(wafer.csl.Rectangle(0, 0, width, height), function)
    machine.run(cycles)
    assert not machine.fault, machine.fault
    return machine


def results(folder, text, **options):
    """[width, count] what `y` holds on each PE after `go`."""
    image = compiled(folder, text, **options)
    machine = ran(image)
    kind = {"i16": "<i2", "u16": "<u2", "f16": "<f2", "f32": "<f4", "u32": "<u4", "i32": "<i4"}
    size = options.get("count", 4) * np.dtype(kind[options.get("kind", "i32")]).itemsize
    rows = []
    for x in range(image.tiles.shape[1]):
        exports = image.programs[image.tiles[0, x]].exports
        pointer = machine.read(x, 0, exports["y"].address, 2).view("<u2")[0]
        rows.append(machine.read(x, 0, int(pointer), size).view(kind[options.get("kind", "i32")]))
    return np.stack(rows)
