"""Speed of the machine that executes CSL, and of the compiler.

    python tests/bench/csl.py [--quick] [--corpus FOLDER] [--wafer]

Three programs on 64x64 PEs: instructions of a task, operations in memory, and wavelets that every
PE takes from the west and sends to the east; ``pe_cycles_per_s`` is the slowest of the three.
``compile_s`` is a layout with other params on each of 10x10 PEs. ``--corpus`` names a checkout of
public CSL programs whose scripts are run by ``tests/csl_corpus.py``; ``--wafer`` runs a small
program on 750x994 PEs. Compile time is apart.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "bench")]

import harness

import wafer.csl

SIZE = 64
LAYOUT = """
const even = @get_color(0);
const odd = @get_color(1);
layout {{
  @set_rectangle({width}, {height});
  for (@range(i16, {height})) |y| {{
    for (@range(i16, {width})) |x| {{
      @set_tile_code(x, y, "pe.csl", .{{ {params} }});
      {routes}
    }}
  }}
  @export_name("go", fn()void);
}}
"""
ROUTES = """
      const sends = if (x % 2 == 0) even else odd;
      const takes = if (x % 2 == 0) odd else even;
      if (x < {last}) {{
        @set_color_config(x, y, sends, .{{ .routes = .{{ .rx = .{{RAMP}}, .tx = .{{EAST}} }} }});
      }}
      if (x > 0) {{
        @set_color_config(x, y, takes, .{{ .routes = .{{ .rx = .{{WEST}}, .tx = .{{RAMP}} }} }});
      }}
"""
EXPORT = "comptime { @export_symbol(go); }\n"
SCALAR = """
var table = @zeros([16]i16);
fn go() void {
  var k: i16 = 0;
  while (k < 3000) : (k += 1) table[k & 15] += k;
}
"""
SMALL = """
var table = @zeros([16]i16);
fn go() void {
  var k: i16 = 0;
  while (k < 100) : (k += 1) table[k & 15] += k;
}
"""
MEMORY = """
var a = @zeros([200]f32);
var b = @zeros([200]f32);
const da = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{200} -> a[i] });
const db = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{200} -> b[i] });
fn go() void {
  var k: i16 = 0;
  while (k < 100) : (k += 1) @fmacs(da, da, db, 0.5);
}
"""
WAVELETS = """
param parity: i16;
param place: i16;  // 0: the first column, 1: between, 2: the last one
const sends = @get_color(parity);
const takes = @get_color(1 - parity);
const from = @get_input_queue(2);
const to = @get_output_queue(2);
var word: f32 = 1.0;
const many = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{ WORDS } -> words[i] });
var words = @zeros([WORDS]f32);
const out = @get_dsd(fabout_dsd, .{ .extent = WORDS, .fabric_color = sends, .output_queue = to });
const in = @get_dsd(fabin_dsd, .{ .extent = WORDS, .fabric_color = takes, .input_queue = from });
fn go() void {
  if (place == 0) {
    @fmovs(out, many, .{ .async = true });
  } else if (place == 1) {
    @fmovs(out, in, .{ .async = true });
  } else {
    @fmovs(many, in, .{ .async = true });
  }
}
""".replace("var word: f32 = 1.0;\n", "").replace("WORDS", "4000")
DISTINCT = """
param x: i16;
param y: i16;
var own = @zeros([100 + x + 10 * y]f32);
fn weight(k: i16) f32 { return @as(f32, k * x + y); }
fn go() void {
  for (@range(i16, 100 + x + 10 * y)) |k| {
    if (k % 3 == 0) { own[k] = weight(k); } else { own[k] += weight(k + 1) * 2.0; }
  }
}
"""
EDGES = ".parity = x % 2, .place = if (x == 0) 0 else if (x == {last}) 2 else 1"


def compiled(text: str, *, size=(SIZE, SIZE), params: str = "", routes: str = ""):
    """The image of one file on a rectangle of PEs, and the seconds that it took."""
    with tempfile.TemporaryDirectory() as folder:
        here = pathlib.Path(folder)
        width, height = size
        layout = LAYOUT.format(
            width=width,
            height=height,
            params=params.format(last=width - 1),
            routes=routes.format(last=width - 1),
        )
        (here / "layout.csl").write_text(layout, encoding="utf-8")
        (here / "pe.csl").write_text(text + EXPORT, encoding="utf-8")
        begin = time.perf_counter()
        image = wafer.csl.compile(here / "layout.csl", arch="wse2")
        return image, time.perf_counter() - begin


def run(image):
    """Run `go` on all PEs: the machine after it, and the seconds."""
    height, width = image.tiles.shape
    machine = wafer.csl.Machine(image)
    machine.launch(wafer.csl.Rectangle(0, 0, width, height), "go")
    begin = time.perf_counter()
    machine.run(100_000)
    seconds = time.perf_counter() - begin
    assert not machine.fault, machine.fault
    return machine, seconds


def rate(image, repeats: int) -> float:
    """PE-cycles per second, the median of some runs."""
    runs = [run(image) for _ in range(repeats)]
    rates = sorted(machine.cycle * image.tiles.size / seconds for machine, seconds in runs)
    return rates[len(rates) // 2]


def bytes_per_pe(image) -> float:
    """Resident memory that a machine and its run add, most at any time."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(image)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (after - before) * 1024 / image.tiles.size


def programs_passed(folder: str) -> int:
    command = [sys.executable, str(ROOT / "tests" / "csl_corpus.py"), folder, "--run"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path}
    )
    return json.loads(ran.stdout.strip().splitlines()[-1])["scripts_passed"]


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--corpus", help="folder of CSL programs with their scripts")
    parser.add_argument("--wafer", action="store_true", help="memory of 750x994 PEs")
    options = parser.parse_args()
    repeats = 1 if options.quick else 3
    images = {
        "scalar": compiled(SCALAR)[0],
        "memory": compiled(MEMORY)[0],
        "wavelets": compiled(WAVELETS, params=EDGES, routes=ROUTES)[0],
    }
    size = (750, 994) if options.wafer else (300, 300)
    rows = {"bytes_per_pe": bytes_per_pe(compiled(SMALL, size=size)[0])}
    print(f"small program on {size[0]} x {size[1]}: {rows['bytes_per_pe']:.0f} bytes per PE")
    for name, image in images.items():
        rows[f"pe_cycles_per_s_{name}"] = rate(image, repeats)
        print(f"{name:9} {rows[f'pe_cycles_per_s_{name}'] / 1e6:6.1f} M PE-cycles/s", flush=True)
    rows["pe_cycles_per_s"] = min(rows[f"pe_cycles_per_s_{name}"] for name in images)
    times = [
        compiled(DISTINCT, size=(10, 10), params=".x = x, .y = y")[1]
        for _ in range(min(repeats, 3))
    ]
    rows["compile_s"] = sorted(times)[len(times) // 2]
    print(f"compile   {rows['compile_s']:.2f} s for 100 programs")
    if options.corpus:
        rows["programs_passed"] = programs_passed(options.corpus)
    print(harness.environment())
    harness.report(rows)


if __name__ == "__main__":
    main()
