"""Cycle counts beside published ones: ``python tests/csl_cycles.py`` with folders as options.

Own programs stand for kernels of one PE; the folders are check-outs of the public repositories
Jorineg/cerebras, pr0f3ss/SpMM_Cerebras, Wang-oss-tech/csl-experiments,
siddharthbc/CSR-graph-coloring and Cerebras/csl-examples, and a copy of FABRICA's kernels.
``docs/results/csl.md`` explains the rows: those that the model's numbers are fitted on, and those
that ``held_out`` keeps from the fit. ``--save`` keeps both. The last line is JSON. Ends with 1
where fewer of the latter than ``STATED`` are as near as ``sim.log`` says.
"""

import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from helpers import fabrica, spmm

import wafer.csl
from wafer.csl import Image, Machine, Rectangle, Status
from wafer.machine.costs import uncertainty

sys.path.append(str(Path(__file__).parent / "bench"))

import harness

MOST = 20_000_000  # cycles of one call
Case = TypeVar("Case")
STATED = 0.95  # share of the checking rows that are as near as sim.log says


class Row(NamedTuple):
    """A published figure: its program, the case, cycles there and here, scalar ones of these."""

    program: str
    case: str
    published: float
    ours: float
    scalar: float

    @property
    def error(self) -> float:
        """In percent of what is published."""
        return 100 * (self.ours / self.published - 1)

    @property
    def stated(self) -> float:
        """How far off ours may be by what ``sim.log`` says, in percent."""
        return 100 * uncertainty(self.scalar)


def held_out(rows: list[Row]) -> list[Row]:
    """Every third row of each source, in alphabetical order: no number is fitted on them."""
    source = lambda row: row.program.split(",")[0]
    rows = sorted(rows, key=lambda row: row[:2])
    return [row for _, some in itertools.groupby(rows, source) for row in [*some][2::3]]


LAYOUT = """layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{});
  @export_name("spent", [*]u32, true);
  @export_name("go", fn()void);
}
"""
TIMED = """const tsc = @import_module("<time>");
var start = @zeros([3]u16);
var stop = @zeros([3]u16);
var spent = @zeros([1]u32);
var spent_pointer: [*]u32 = &spent;
fn word(stamp: *[3]u16) u32 {{ return @as(u32, stamp.*[1]) << 16 | @as(u32, stamp.*[0]); }}
{data}
fn go() void {{
  {before}
  tsc.enable_tsc();
  tsc.get_timestamp(&start);
  {timed}
  tsc.get_timestamp(&stop);
  spent[0] = word(&stop) - word(&start);
}}
comptime {{
  @export_symbol(spent_pointer, "spent");
  @export_symbol(go);
}}
"""
ROWS = """var a = @zeros([5124]f32);
var b = @zeros([5136]f32);
const a_row = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{5124}} -> a[i] }});
const b_row = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{5124}} -> b[i + {shift}] }});
const to = @get_dsr(dsr_src0, 1);
const from = @get_dsr(dsr_src1, 0);
"""
LOAD_ROWS = "@load_to_dsr(to, b_row); @load_to_dsr(from, a_row);"
PRODUCT = """const n: i16 = {n};
const k: i16 = {k};
const m: i16 = {m};
var a = @zeros([n * k]f32);
var b = @zeros([k * m]f32);
var c = @zeros([n * m]f32);
"""
GEMM = [(8, 8, 32, 9_756), (32, 32, 32, 88_795)]
# Columns of row-major matrices, by registers whose base moves: what the naive GEMM does.
BY_REGISTERS = """
  var column = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> a[i * k] });
  var sums = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> c[i * m] });
  const from = @get_dsr(dsr_src1, 0);
  const to = @get_dsr(dsr_src0, 1);
  @load_to_dsr(from, column);
  @load_to_dsr(to, sums);
  for (@range(i16, k)) |p| {
    @set_dsr_base_addr(from, @ptrcast([*]f32, &a[p]));
    for (@range(i16, m)) |q| {
      @set_dsr_base_addr(to, @ptrcast([*]f32, &c[q]));
      const factor = b[p * m + q];
      @fmacs(to, to, from, factor);
    }
  }
"""


class RunError(Exception):
    """A program that does not come to its end here."""


def run_to_end(machine: Machine) -> float:
    """Run; the share of scalar instructions."""
    if machine.run(MOST) not in {Status.QUIET, Status.READY}:
        raise RunError(machine.fault)
    return machine.scalar_share


def spent(
    timed: str, data: str, before: str = "", arch: str = "wse2", timing: str = "simulator"
) -> tuple[int, float]:
    """Cycles between two stamps around some statements, on one PE, and the scalar share."""
    with tempfile.TemporaryDirectory() as folder:
        layout = Path(folder, "layout.csl")
        layout.write_text(LAYOUT, encoding="utf-8")
        text = TIMED.format(data=data, before=before, timed=timed)
        layout.with_name("pe.csl").write_text(text, encoding="utf-8")
        image = wafer.csl.compile(layout, arch=arch, timing=timing)
    machine = Machine(image)
    machine.launch(Rectangle(0, 0, 1, 1), "go")
    scalar = run_to_end(machine)
    symbols = image.programs[0].symbols
    return int(machine.read(0, 0, symbols["spent"].address, 4).view("<u4")[0]), scalar


def own_rows() -> Iterator[Row]:
    """Kernels on one PE."""
    kernel = "one @fmacs of 5,124 f32"
    for case, shift, published in (("other banks", 1, 5130), ("the same bank", 0, 10254)):
        ours = spent("@fmacs(to, to, from, 2.0);", ROWS.format(shift=shift), LOAD_ROWS)
        yield Row(kernel, case, published, *ours)
    for n, k, m, published in GEMM:
        ours = spent(BY_REGISTERS, PRODUCT.format(n=n, k=k, m=m))
        yield Row("GEMM of columns, one PE", f"{n} x {k} x {m}", published, *ours)


# Statements of FABRICA's micro-programs on WSE-3 -> cycles of an element there, on silicon.
ELEMENTS = {
    "copy of f16": ("@fmovh(B, A);", "f16", 1 / 8, 1 / 4.82),
    "copy of f32": ("@fmovs(B, A);", "f32", 1 / 4, 1 / 2.44),
    "product and sum of f16": ("@fmach(B, B, A, 2.0);", "f16", 1 / 4, 1 / 2.92),
    "sum of two rows of f16": ("@faddh(B, B, A);", "f16", 1 / 3.96, None),
    "sum of f16 into a scalar": ("@faddh(&s, s, A);", "f16", 2, None),
    "product, and sum into a scalar": ("@fmulh(B, B, A); @faddh(&s, s, B);", "f16", 2.25, None),
    "copy of each second f16": ("@fmovh(B, by2);", "f16", 1 / 4, None),
    "copy of each fourth f16": ("@fmovh(B, by4);", "f16", 1 / 2, None),
    "copy of each eighth f16": ("@fmovh(B, by8);", "f16", 1, None),
    "round of @map": ("@map(twice, A, B);", "f16", 2840 / 256, None),
    "unrolled sum of f32": (
        "var q: f32 = 0.0; for (@range(i16, {n})) |k| {{ q += a[k]; }} s = q;",
        "f32",
        2.01,
        None,
    ),
}
ELEMENT_ROWS = """var a = @zeros([{n} * 8]{kind});
var b = @zeros([{n}]{kind});
var s: {kind} = 0.0;
const A = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> a[i] }});
const B = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> b[i] }});
fn twice(x: {kind}) {kind} {{ return x + x; }}
const by2 = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> a[2 * i] }});
const by4 = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> a[4 * i] }});
const by8 = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> a[8 * i] }});
"""
STATEMENTS = {  # -> cycles
    "a sum of values in memory": ("h = f + g;", 4),
    "a product and sum of values in memory": ("h = f * g + e;", 6),
    "a chain of eight products": ("h = f * f * f * f * f * f * f * f * f;", 1 + 1 + 2 * 7 + 1),
    "a quotient and a remainder of 16 bits": ("w = u / v; u = u % v;", 36 + 6),
    "exp of f32": ("z = math.exp_f32(x);", 82 + 2),
    "a quotient of f32": ("z = x / y;", 109 + 3),
}
VALUES = """const math = @import_module("<math>");
var e: f16 = 3.0; var f: f16 = 1.0; var g: f16 = 2.0; var h: f16 = 0.0;
var u: u16 = 7; var v: u16 = 2; var w: u16 = 0;
var x: f32 = 1.5; var y: f32 = 0.5; var z: f32 = 0.0;
"""


def micro_rows(timing: str = "simulator") -> Iterator[Row]:
    """Micro-programs of FABRICA on WSE-3; loads and stores of a statement's values are counted."""
    for case, (timed, kind, *figures) in ELEMENTS.items():
        published = figures[timing == "silicon"]
        if published is None:
            continue
        short, long = (
            spent(timed.format(n=n), ELEMENT_ROWS.format(n=n, kind=kind), "", "wse3", timing)
            for n in (128, 256)
        )
        yield Row("an element", case, published, (long[0] - short[0]) / 128, long[1])
    if timing == "silicon":
        return
    nothing, _ = spent("", VALUES, arch="wse3")
    for case, (timed, published) in STATEMENTS.items():
        cycles, scalar = spent(timed, VALUES, arch="wse3")
        yield Row("statements", case, published, cycles - nothing, scalar)


def measured(
    measure: Callable[[Path, Case], tuple[float, float]], folder: Path, case: Case
) -> tuple[float, float]:
    """Cycles and the scalar share; NaN for the cycles of a program that fails or is wrong."""
    try:
        return measure(folder, case)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return float("nan"), 1.0


def fabrica_rows(folder: Path) -> Iterator[Row]:
    """Programs of FABRICA."""
    for case, published in fabrica.ROWS:
        params = ", ".join(f"{name} {value}" for name, value in case.params.items())
        ours = measured(fabrica.measure, folder / "kernels", case)
        yield Row(f"FABRICA, {case.folder}", params, published, *ours)


def example_rows(folder: Path) -> Iterator[Row]:
    """Programs of Cerebras/csl-examples, with FABRICA's figures."""
    for case, published in fabrica.SCRIPTS.items():
        name = f"{case[0]}, depth {case[3]}"
        ours = measured(fabrica.measure_script, folder / "benchmarks", case)
        yield Row("FABRICA", name, published, *ours)


def per_iteration(
    compiled: Callable[[int], Image], name: str, arguments: Callable[[int], tuple[int, ...]]
) -> tuple[float, float]:
    """Cycles that two more iterations take, halved, as the repository's script counts them.

    And the scalar share of the longer run.
    """
    ends, scalar = [], 0.0
    for iterations in (2, 4):
        image = compiled(iterations)
        machine = Machine(image)
        height, width = image.tiles.shape
        machine.launch(Rectangle(0, 0, width, height), name, arguments(iterations))
        scalar = run_to_end(machine)
        ends.append(machine.cycle)
    return (ends[1] - ends[0]) / 2, scalar


TILES = 3  # a side: cycles of an iteration hardly depend on it
ARCHS = ("wse2", "wse3")


def published_rows(path: Path) -> Iterator[list[int]]:
    """The numbers of each line of a published table, sides of a size one by one."""
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().replace(",", "") for cell in line.strip().strip("|").split("|")]
        numbers = [part for cell in cells for part in cell.split("x")]
        if len(numbers) > 2 and all(part.replace(".", "", 1).isdigit() for part in numbers):
            yield [round(float(part)) for part in numbers]


def untiled_rows(folder: Path) -> Iterator[Row]:
    """One value per PE, of Jorineg/cerebras."""
    layout = folder / "non-tiled-tencil" / "layout.csl"
    for side, _, *figures in published_rows(layout.with_name("experiment_results.md")):
        for arch, published in zip(ARCHS, figures, strict=True):
            compiled = lambda steps, side=side, arch=arch: wafer.csl.compile(
                layout, {"w": side, "h": side, "steps": steps}, arch=arch
            )
            ours = per_iteration(compiled, "compute", lambda steps: ())
            case = f"{side} x {side}, {arch}"
            yield Row("stencil, one value per PE", case, published, *ours)


def tiled_rows(folder: Path) -> Iterator[Row]:
    """Tiles of values on each PE, of Jorineg/cerebras."""
    layout = folder / "tiled-stencil" / "layout.csl"
    for line in published_rows(layout.with_name("experiments_results.md")):
        across, down, width, height, radius, *figures = line
        for arch, published in zip(ARCHS, figures, strict=True):
            params = {"tile_width": width, "tile_height": height, "radius": radius}
            params |= {"w": TILES * width + 2 * radius, "h": TILES * height + 2 * radius}
            image = wafer.csl.compile(layout, params, arch=arch)
            try:
                ours = per_iteration(lambda _, image=image: image, "start", lambda steps: (steps,))
            except RunError:  # a microthread is begun anew before it has ended
                ours = float("nan"), 1.0
            case = f"tiles of {width} x {height}, radius {radius}, {across} x {down}, {arch}"
            yield Row("stencil, tiled", case, published, *ours)


def spmm_rows(folder: Path) -> Iterator[Row]:
    """The sparse products of pr0f3ss/SpMM_Cerebras."""
    for case, published in spmm.ROWS:
        yield Row("SpMM", str(case), published, *spmm.measure(folder, case))


def summa_row(folder: Path) -> Iterator[Row]:
    """The task of a SUMMA whose broadcasts go on beside its products: all that it computes."""
    layout = folder / "gemm" / "summa_manual_multicasting_pipelined_doubleColor" / "layout.csl"
    image = wafer.csl.compile(layout, {"P": 4, "Mt": 14, "Kt": 14, "Nt": 14}, arch="wse2")
    runtime = wafer.csl.Runtime(image, record=wafer.csl.Recording(rectangle=(0, 0, 4, 4)))
    runtime.launch("main")
    longest = int((runtime.trace.end - runtime.trace.begin).max())
    yield Row("SUMMA", "4 x 4 PEs, tiles of 14", 45_783, longest, runtime.machine.scalar_share)


LINE = {"WIDTH": 6, "HEIGHT": 1, "C_BASE": 0}
TASKS = [  # program of one row, params, PE -> cycles from its start to the last word it waits for
    ("pipelined_lww_1d_spike", LINE, {1: 41, 2: 69, 3: 100, 4: 131, 5: 162}),
    ("pipelined_lww_1d_seg_spike", LINE | {"WIDTH": 10, "S": 5, "C_BRIDGE": 8}, {4: 146, 9: 289}),
    ("pipelined_lww_1d_seg2_spike", LINE | {"WIDTH": 15, "S": 5, "C_BRIDGE0": 8, "C_BRIDGE1": 9},
     {4: 173, 8: 257, 9: 401, 14: 454}),
    ("rotating_root_spike", {"WIDTH": 2, "BCAST_ID": 8}, {1: 28}),
]  # fmt: skip
REDUCTIONS = [(2, 735.1), (4, 874.1), (8, 1282.1)]  # side; cycles of a call
CALLS = 10


def task_rows(folder: Path) -> Iterator[Row]:
    """Tasks of siddharthbc/CSR-graph-coloring, and its calls of the vendor's all-reduce."""
    programs = folder / "spikes" / "experiments"
    for name, params, figures in TASKS:
        stamps, scalar = _stamps(programs / name, params, {"start": ()}, "tsc_start", "tsc_end")
        for x, published in figures.items():
            yield Row("tasks", f"{name}, PE {x}", published, stamps[0, x], scalar)
    calls = {"f_enable_timer": (), "f_allreduce_once": (), "f_allreduce_loop": (CALLS,)}
    for side, published in REDUCTIONS:
        params, names = (
            {"width": side, "height": side, "C0_ID": 8},
            ("tscStartBuffer", "tscEndBuffer"),
        )
        stamps, scalar = _stamps(programs / "allreduce_spike", params, calls, *names)
        yield Row("all-reduce", f"{side} x {side} PEs", published, stamps.max() / CALLS, scalar)


def _stamps(
    folder: Path, params: dict[str, int], calls: dict[str, tuple[int, ...]], begin: str, end: str
) -> tuple[np.ndarray, float]:
    """Cycles between two stamps of each PE after some calls, [height, width], and the share."""
    image = wafer.csl.compile(folder / "src" / "layout.csl", params, arch="wse3")
    machine, (height, width), scalar = Machine(image), image.tiles.shape, 0.0
    for name, arguments in calls.items():
        for x in range(width):  # a command goes from column to column, two cycles a hop
            machine.launch(Rectangle(x, 0, 1, height), name, arguments)
            machine.run(2)
        scalar = run_to_end(machine)
    out = np.zeros((height, width))
    for y, x in np.ndindex(height, width):
        places = image.programs[image.tiles[y, x]].symbols
        first, last = (
            machine.read(x, y, places[n].address, 4).view("<u4")[0] for n in (begin, end)
        )
        out[y, x] = int(last) - int(first)
    return out, scalar


def shares(rows: list[Row]) -> dict[str, float]:
    """Of rows: how many, the middle, 90 % and greatest error, and the share that is as stated."""
    errors = np.abs([row.error for row in rows])
    within = errors <= [row.stated for row in rows]
    return {
        "rows": len(rows),
        "median error, %": float(np.nanmedian(errors)),
        "90 % within, %": float(np.nanpercentile(errors, 90)),
        "worst error, %": float(np.nanmax(errors)),
        "within what is stated, %": 100 * float(within.mean()),
    }


def main() -> None:
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--stencils", type=Path, help="check-out of Jorineg/cerebras")
    parser.add_argument("--spmm", type=Path, help="check-out of pr0f3ss/SpMM_Cerebras, 6174dab")
    parser.add_argument("--summa", type=Path, help="check-out of Wang-oss-tech/csl-experiments")
    parser.add_argument("--tasks", type=Path, help="check-out of siddharthbc/CSR-graph-coloring")
    parser.add_argument("--fabrica", type=Path, help="copy of luozoupi/FABRICA-CUDA2CSL-…")
    parser.add_argument("--examples", type=Path, help="check-out of Cerebras/csl-examples")
    options = parser.parse_args()
    rows = list[Row]()
    untiled = untiled_rows(options.stencils) if options.stencils else ()
    tiled = tiled_rows(options.stencils) if options.stencils else ()
    products = spmm_rows(options.spmm) if options.spmm else ()
    steps = summa_row(options.summa) if options.summa else ()
    tasks = task_rows(options.tasks) if options.tasks else ()
    kernels = fabrica_rows(options.fabrica) if options.fabrica else ()
    examples = example_rows(options.examples) if options.examples else ()
    sources = own_rows(), micro_rows(), steps, untiled, tiled, products, tasks, kernels, examples
    for row in itertools.chain(*sources):
        rows.append(row)
        print(f"| {row.program} | {row.case} | {row.published:,.0f} | {row.ours:,.0f}"
              f" | {row.error:+.1f} % | {row.stated:.0f} % |",
              flush=True)  # fmt: skip
    checks = held_out(rows)
    parts = {"csl_seen": [row for row in rows if row not in checks], "csl_checks": checks}
    parts["csl_silicon"] = [*micro_rows("silicon")]
    stated = {}
    for table, some in parts.items():
        columns = {}
        for row in some:
            name = f"{row.program}, {row.case}"
            columns |= {f"{name} / ours": row.ours, f"{name} / published": row.published}
            columns[f"{name} / stated, %"] = row.stated
        if "--save" in sys.argv:
            harness.save(table, columns, lambda name: "", harness.ANY)
        stated |= {f"{table.removeprefix('csl_')} / {k}": v for k, v in shares(some).items()}
    harness.report(stated, "csl_stated", lambda name: "", harness.ANY)
    share = stated["checks / within what is stated, %"]
    if share < 100 * STATED:
        sys.exit(f"{share:.0f} % of the rows held out are as near as stated; expected {STATED:.0%}")


if __name__ == "__main__":
    main()
