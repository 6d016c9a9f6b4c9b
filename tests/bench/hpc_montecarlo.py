"""Cycles of ``wafer.hpc.montecarlo``: docs/results/examples.md.

python tests/bench/hpc_montecarlo.py [--quick]

--picture FILE draws one run, --random N compares the closed form on as many random cases, and
--published FOLDER runs the lookups of a check-out of hpc-science/mc_on_accelerators on one PE.
"""

import pathlib
import sys
import tempfile

import harness
import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).parents[2]), str(pathlib.Path(__file__).parent)]

import wafer.csl
from wafer.hpc import montecarlo
from wafer.hpc.montecarlo import pictures

# Height, width, particles of a PE, nuclides of a PE, points of a nuclide in all.
CASES = ((1, 1, 100, 1, 161), (8, 1, 20, 1, 800), (1, 9, 10, 1, 160), (6, 5, 20, 5, 900))


def lookups(height, width, particles, nuclides, points):
    """Random particles, and nuclides with four resonances each."""
    rng = np.random.default_rng(height * width)
    steps = rng.random((nuclides * width, points), np.float32) * 0.9
    grids = (np.arange(points, dtype=np.float32) + steps) / np.float32(points)
    grids[:, 0], grids[:, -1] = 0, 1
    energies = rng.random((height, width, particles), np.float32)
    away = grids[..., None] - rng.random((len(grids), 1, 4), np.float32)
    sections = (1 / (1 + (away / 0.01) ** 2)).sum(-1)[..., None] * rng.random(5, np.float32)
    return montecarlo.Nuclides(grids, sections, rng.random(len(grids), np.float32)), energies


def rows(cases):
    """Pairs: the case, and its simulated cycles with those of the closed form."""
    for shape in cases:
        material, energies = lookups(*shape)
        for kind in (False, True):
            tally = montecarlo.run(material, energies, stochastic=kind)
            closed = montecarlo.cycles(material, energies, stochastic=kind)
            name = "{} x {} PEs, {} particles, {} nuclides, {} points".format(*shape)
            yield f"{name}{', stochastic' * kind}", (tally.cycles, closed)
    material, energies = lookups(*cases[-1])
    unbalanced = montecarlo.run(material, energies, rounds=0).cycles
    yield (
        "the last case, not balanced",
        (
            unbalanced,
            montecarlo.cycles(material, energies, rounds=0),
        ),
    )


def errors(count):
    """Errors of the closed form on random cases."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        shape = tuple(rng.integers((1, 1, 1, 1, 2), (9, 9, 25, 5, 120)).tolist())
        material, energies = lookups(*shape)
        for kind in (False, True):
            spent = montecarlo.run(material, energies, stochastic=kind).cycles
            yield shape, kind, montecarlo.cycles(material, energies, stochastic=kind) / spent - 1


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


def published(folder):
    """Cycles per lookup of the published loops, as they are, and of ours."""
    source = pathlib.Path(folder, "csl/full_implementation/device_code.csl").read_text("utf-8")
    search = source[source.index("fn iterative_binary_search") : source.index("// Sequential sea")]
    loops = source[source.index("fn calculate_xs") : source.index("  // Ends simulation by")]
    material, energies = lookups(1, 1, 20, 5, 161)
    particles = np.zeros((1, 1, 20, 6), np.float32)
    particles[..., 0] = energies
    with tempfile.TemporaryDirectory() as name:
        pathlib.Path(name, "layout.csl").write_text(LAYOUT, "utf-8")
        pathlib.Path(name, "pe.csl").write_text(PE + search + loops, "utf-8")
        for chance, columns in ((0, 0), (1, 0), (1, 1)):
            params = {"chance": chance, "columns": columns}
            at = wafer.csl.Runtime(wafer.csl.compile(f"{name}/layout.csl", params=params))
            for symbol, values in (("grids", material.grids), ("particles", particles)):
                words = np.asarray(values, np.float32).reshape(1, 1, -1)
                at.memcpy_h2d(at.get_id(symbol), words, 0, 0, 1, 1, words.size)
            start = at.cycles
            at.launch("go")
            how = "stochastic" * chance + ", sums as one operation" * columns or "linear"
            yield f"the published loop, {how}", (at.cycles - start) / 100
    for kind in (False, True):
        _, balanced, known = montecarlo.run(material, energies, stochastic=kind).phases
        yield f"ours, {'stochastic' if kind else 'linear'}", (known - balanced) / 100


def main():
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--picture", help="draw one run to this file")
    parser.add_argument("--published", help="a check-out of hpc-science/mc_on_accelerators")
    parser.add_argument("--random", type=int, default=0, help="so many random cases")
    options = parser.parse_args()
    if options.picture:
        material, energies = lookups(*CASES[-1])
        sorted_loads, _ = montecarlo.loads(material, energies)
        figure = pictures.draw(montecarlo.run(material, energies), sorted_loads)
        figure.savefig(options.picture, dpi=90)
    for shape, kind, error in errors(options.random):
        print(shape, "stochastic" if kind else "linear", f"{error:+.1%}")
    if options.published:
        loops = dict(published(options.published))
        harness.report(loops, "hpc_montecarlo_loops", lambda name: "cycles", harness.ANY)
        return
    cases = CASES[: 2 if options.quick else None]
    harness.cycles({name: {"simulated": a, "closed form": b} for name, (a, b) in rows(cases)})


if __name__ == "__main__":
    main()
