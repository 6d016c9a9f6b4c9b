"""Looks up macroscopic cross sections of particles, as Monte Carlo particle transport does."""

import argparse
import json
from pathlib import Path

import numpy as np

BEYOND = np.float32(3e38)  # an energy above all others: fills grids that end early


def edges(grids, bands):
    """[bands - 1] energies between bands that share the points of all grids evenly."""
    points = np.sort(grids, axis=None)
    return points[np.arange(1, bands) * points.size // bands]


def spans(grids, bands):
    """[bands, nuclides, 2]: first and last point of each band, with one more on either side."""
    between, out = edges(grids, bands), np.zeros((bands, len(grids), 2), int)
    out[-1, :, 1] = grids.shape[1] - 1
    for n, grid in enumerate(grids):
        out[1:, n, 0] = np.searchsorted(grid, between, side="right") - 1
        out[:-1, n, 1] = np.searchsorted(grid, between, side="left")
    return out


def loads(grids, energies, rounds):
    """[1 + rounds, height, width]: particles of PEs when sorted, and after rounds of balancing."""
    bands = np.arange(len(energies)).reshape(-1, 1, 1, 1)
    of_bands = np.searchsorted(edges(grids, len(bands)), energies, side="right") == bands
    history = [of_bands.sum(axis=(1, 3))]
    for _ in range(rounds):
        away = history[-1] // 2
        history.append(history[-1] - away + np.roll(away, 1, axis=1))
    return np.array(history)


def sizes(grids, sections, energies, rounds=None):
    """The layout's parameters; rounds of balancing as in the paper where they are not given."""
    height, width, particles = energies.shape
    rounds = 0 if width == 1 else 2 * width if rounds is None else rounds
    return {
        "width": width,
        "height": height,
        "particles": particles,
        "room": int(loads(grids, energies, rounds).max()),
        "rounds": rounds,
        "nuclides": len(grids) // width,
        "points": int(np.ptp(spans(grids, height), axis=2).max()) + 1,
        "channels": sections.shape[2],
    }


def run(runner, params, grids, sections, densities, energies):
    """Energies as they grow, their cross sections, loads of PEs, ends of phases, and the cycles.

    ``grids`` [nuclides, points] grow, begin alike, at 0 or more, and end alike; ``sections``
    [nuclides, points, channels] and ``densities`` [nuclides] belong to them, and ``energies``
    [height, width, particles], of particles that start on a PE, are within them. All are float32.
    ``params`` are those of ``sizes``. Loads [height, width] are particles after balancing; phases
    are sorting, balancing, looking up.
    """
    names = ("height", "width", "room", "points", "channels")
    height, width, room, points, channels = (params[name] for name in names)
    grid = np.full((height, len(grids), points), BEYOND, np.float32)
    table = np.zeros((*grid.shape, channels), np.float32)
    for (band, n), (first, last) in zip(
        np.ndindex(grid.shape[:2]), spans(grids, height).reshape(-1, 2), strict=True
    ):
        grid[band, n, : last - first + 1] = grids[n, first : last + 1]
        table[band, n, : last - first + 1] = sections[n, first : last + 1]
    limits = np.concatenate([[0], edges(grids, height), [BEYOND]])
    limits = np.column_stack([limits[:-1], limits[1:]])
    for name, values in (
        ("start", energies),
        ("limits", np.repeat(limits, width, axis=0)),
        ("grid", grid),  # a PE's nuclides are neighbours, as PEs of a row are
        ("sections", table),
        ("densities", np.tile(densities, height)),
    ):
        words = values.astype(np.float32).ravel()
        items = words.size // (height * width)
        runner.memcpy_h2d(runner.get_id(name), words, 0, 0, width, height, items)
    begin = runner.cycles
    runner.launch("look_up")
    cycles = runner.cycles - begin
    half = 1 + room * (1 + channels)
    both = np.zeros((height * width, 2, half), np.float32)
    runner.memcpy_d2h(both, runner.get_id("result"), 0, 0, width, height, 2 * half)
    stamps = np.zeros((height * width, 4), np.uint32)
    runner.memcpy_d2h(stamps, runner.get_id("stamps"), 0, 0, width, height, 4)
    values = both[:, 1 - width % 2]  # where the last of as many steps as PEs in a row came
    counts = values[:, 0].astype(int)
    found = np.concatenate(
        [of[1:].reshape(room, -1)[:count] for of, count in zip(values, counts, strict=True)]
    )
    found = found[np.argsort(found[:, 0], kind="stable")]
    # A PE ends with what its eastern neighbour began with.
    balanced = np.roll(counts.reshape(height, width), 1, axis=1)
    phases = (stamps[:, 1:].astype(int) - stamps[:, :1].min()).max(axis=0)
    return found[:, 0], found[:, 1:], balanced, phases.tolist(), cycles


def reference(grids, sections, densities, energies):
    """[particles, channels], by growing energy: sums over nuclides of what NumPy interpolates."""
    energies, total = np.sort(energies, axis=None), 0
    for grid, table, density in zip(grids, sections, densities, strict=True):
        of_nuclide = [np.interp(energies, grid, column) for column in table.T]
        total = total + float(density) * np.stack(of_nuclide, axis=1)
    return total


def problem(height, width, particles, nuclides, points, channels=5):
    """Nuclides of a PE with four resonances each, and random particles."""
    rng = np.random.default_rng(height * width)
    steps = rng.random((nuclides * width, points), np.float32) * 0.9
    grids = (np.arange(points, dtype=np.float32) + steps) / np.float32(points)
    grids[:, 0], grids[:, -1] = 0, 1
    energies = rng.random((height, width, particles), np.float32)
    away = grids[..., None] - rng.random((len(grids), 1, 4), np.float32)
    sections = (1 / (1 + (away / 0.01) ** 2)).sum(-1)[..., None] * rng.random(channels, np.float32)
    return grids, sections, rng.random(len(grids), np.float32), energies


def main():
    from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="out", help="folder of the compiled program")
    parser.add_argument("--cmaddr", help="IP:port of a system")
    parser.add_argument("--points", type=int, default=60, help="of a nuclide's grid, in all bands")
    args = parser.parse_args()
    params = json.loads(Path(args.name, "out.json").read_text())["params"]
    params = {name: int(value) for name, value in params.items()}
    shape = [params[name] for name in ("height", "width", "particles", "nuclides")]
    material = problem(*shape, args.points, params["channels"])
    needed = sizes(*material[:2], material[3], params["rounds"])
    assert params.items() >= needed.items(), f"the layout needs {needed}"
    runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
    runner.load()
    runner.run()
    energies, sections, balanced, phases, cycles = run(runner, params, *material)
    runner.stop()
    np.testing.assert_array_equal(energies, np.sort(material[3], axis=None))
    np.testing.assert_array_equal(balanced, loads(material[0], material[3], params["rounds"])[-1])
    expected = reference(*material)
    if params["stochastic"]:
        np.testing.assert_allclose(sections.sum(axis=0), expected.sum(axis=0), rtol=0.1)
    else:
        np.testing.assert_allclose(sections, expected, rtol=1e-5)
    print(f"{len(energies)} particles, {cycles} cycles; {phases} until sorted, balanced, looked up")
    print("SUCCESS!")


if __name__ == "__main__":
    main()
