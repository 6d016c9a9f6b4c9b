"""Cycles of one lookup by a published loop and by the example ``montecarlo``, both on one PE.

python tests/bench/montecarlo_loop.py FOLDER [--save]

FOLDER is a check-out of hpc-science/mc_on_accelerators.
"""

import pathlib
import sys
import tempfile

import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).parents[k]) for k in (0, 1, 2)]

import harness
from helpers.examples import runtime, script

import wafer.csl

PE = """
param memcpy_params: comptime_struct;
param n_starting_particles_per_pe: i16;
param n_nuclides: i16;
param n_gridpoints_per_nuclide: i16;
param n_xs: i16;
param use_rng_interp: bool;
param use_dsd_interp: bool;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
const random = @import_module("<random>");
const par_sz: i16 = 1 + n_xs;
var current_n_particles_in = [1]u16{ n_starting_particles_per_pe };
var nuclide_energy_grids = @zeros([n_nuclides * n_gridpoints_per_nuclide]f32);
var nuclide_xs_data = @zeros([n_nuclides * n_gridpoints_per_nuclide * n_xs]f32);
var densities = @zeros([n_nuclides]f32);
var particle_in = @zeros([n_starting_particles_per_pe * par_sz]f32);
var grids: [*]f32 = &nuclide_energy_grids;
var particles: [*]f32 = &particle_in;
comptime {
  @export_symbol(grids);
  @export_symbol(particles);
  @export_symbol(go);
}
fn go() void {
  calculate_xs();
  sys_mod.unblock_cmd_stream();
}
"""
LAYOUT = """
param chance: u16;
param columns: u16;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{
    .memcpy_params = memcpy.get_params(0), .n_starting_particles_per_pe = 20, .n_nuclides = 5,
    .n_gridpoints_per_nuclide = 161, .n_xs = 5, .use_rng_interp = chance == 1,
    .use_dsd_interp = columns == 1 });
  @export_name("grids", [*]f32, true);
  @export_name("particles", [*]f32, true);
  @export_name("go", fn() void);
}
"""


def published(folder, problem):
    """Cycles per lookup: linear, stochastic, and with sums as one operation."""
    source = pathlib.Path(folder, "csl/full_implementation/device_code.csl").read_text("utf-8")
    search = source[source.index("fn iterative_binary_search") : source.index("// Sequential sea")]
    loops = source[source.index("fn calculate_xs") : source.index("  // Ends simulation by")]
    particles = np.zeros((20, 6), np.float32)
    particles[:, 0] = problem[3].ravel()
    with tempfile.TemporaryDirectory() as name:
        pathlib.Path(name, "layout.csl").write_text(LAYOUT, "utf-8")
        pathlib.Path(name, "pe.csl").write_text(PE + search + loops, "utf-8")
        for chance, columns in ((0, 0), (1, 0), (1, 1)):
            params = {"chance": chance, "columns": columns}
            runner = wafer.csl.Runtime(wafer.csl.compile(f"{name}/layout.csl", params=params))
            for symbol, words in (("grids", problem[0]), ("particles", particles)):
                runner.memcpy_h2d(runner.get_id(symbol), words.ravel(), 0, 0, 1, 1, words.size)
            start = runner.cycles
            runner.launch("go")
            yield (runner.cycles - start) / 100


def ours(problem):
    """Cycles per lookup: linear, stochastic."""
    program = script("montecarlo")
    for stochastic in (0, 1):
        params = program.sizes(*problem[:2], problem[3]) | {"stochastic": stochastic}
        _, _, _, (_, balanced, known), _ = program.run(
            runtime("montecarlo", **params), params, *problem
        )
        yield (known - balanced) / 100


if __name__ == "__main__":
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("folder", help="a check-out of hpc-science/mc_on_accelerators")
    options = parser.parse_args()
    problem = script("montecarlo").problem(1, 1, 20, 5, 161)
    linear, stochastic = ours(problem)
    theirs = published(options.folder, problem)
    kinds = ("linear", "stochastic", "stochastic, sums as one operation")
    rows = {}
    for kind, own, other in zip(kinds, (linear, stochastic, stochastic), theirs, strict=True):
        case = f"Monte Carlo, a nuclide's lookup, {kind}, cycles: both simulated"
        rows |= {f"{case} / ours": own, f"{case} / published": other}
    harness.report(rows, "examples_published", lambda name: "", harness.ANY)
