"""What the view costs: recording, the size of a page, and the time until it shows its run.

    python tests/bench/view.py [--quick] [--pages FOLDER]

The three programs of ``csl.py``, loops of four lines and of branches and calls, and a stencil of
seven points (``wafer.fabric``), on 64x64 PEs: processor time of one host thread with recording
over that without, alternating; bytes of the page; milliseconds until headless Chromium shows it.
``--pages`` keeps the pages.
"""

import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "bench"), str(ROOT / "tests")]

import csl as programs
import harness
from helpers.browser import CHROMIUM, Browser

import wafer.csl
from wafer.csl import trace
from wafer.fabric.library.kernel_programs import seven_point_program
from wafer.fabric.program.emit import emit

LINES = """
var total: i32 = 0;
var other: i32 = 1;
fn go() void {
  for (@range(i32, 5000)) |k| {
    total += k * 3;
    other += total;
    total -= other >> 2;
    other = other ^ 5;
  }
}
"""
BRANCHES = """
var total: i32 = 0;
var other: i32 = 1;
fn help(k: i32) i32 {
  if (k & 4 == 0) { return k + 1; }
  return k - total;
}
fn go() void {
  for (@range(i32, 5000)) |k| {
    if (k % 3 == 0) {
      total += k * 3;
    } else {
      other += total;
      other = other ^ 5;
    }
    if (total & 8 != 0) { total -= help(k); }
  }
}
"""


def images():
    """Programs by name, with their function; the stencil begins by itself."""
    row = {"params": programs.EDGES, "routes": programs.ROUTES}
    return {
        "scalar": (programs.compiled(programs.SCALAR)[0], "go"),
        "lines": (programs.compiled(LINES)[0], "go"),
        "branches": (programs.compiled(BRANCHES)[0], "go"),
        "memory": (programs.compiled(programs.MEMORY)[0], "go"),
        "wavelets": (programs.compiled(programs.WAVELETS, **row)[0], "go"),
        "stencil": (emit(seven_point_program(64, 64, 900)), ""),
    }


def run(image, function, record):
    """The machine after a call on all PEs, at most 20,000 cycles."""
    height, width = image.tiles.shape
    machine = wafer.csl.Machine(image, 1, record)
    if function:
        machine.launch(wafer.csl.Rectangle(0, 0, width, height), function)
    machine.run(20_000)
    return machine


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--pages", type=pathlib.Path, help="folder for the pages")
    options = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        pages = options.pages or pathlib.Path(folder)
        browser = Browser(pathlib.Path(folder) / "profile") if CHROMIUM else None
        for name, (image, function) in images().items():
            calls = {
                "off": lambda: run(image, function, None).cycle,  # noqa: B023
                "on": lambda: run(image, function, trace.VIEW).cycle,  # noqa: B023
            }
            times = harness.interleave(calls, repeats=2 if options.quick else 5)
            machine = run(image, function, trace.VIEW)
            page = pages / f"{name}.html"
            trace.view(machine, name).save(page)
            rows[f"{name} / recording"] = times["on"].cpu / times["off"].cpu
            rows[f"{name} / page, MB"] = page.stat().st_size / 1e6
            if browser:
                rows[f"{name} / opens in, ms"] = min(browser.open(page) for _ in range(3))
            shown = {key: round(value, 2) for key, value in rows.items() if name in key}
            print(f"{machine.cycle} cycles", shown, flush=True)
        if browser:
            browser.close()
    print(harness.environment())
    harness.report(rows, units=lambda _: "")


if __name__ == "__main__":
    main()
