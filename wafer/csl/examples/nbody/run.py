"""Bodies that attract each other: direct sums of all pairs, and a leapfrog in time."""

import argparse
import json
from pathlib import Path

import numpy as np


def run(runner, places, velocities, masses, steps, dt, softening):
    """States at the start and after some steps, and the cycles until the last one is read.

    ``places`` and ``velocities`` are [bodies, 3], ``masses`` [bodies], times the constant of
    gravity. A distance r counts as the root of r^2 + softening^2, which may not be 0: PEs divide by
    distances of bodies from themselves. States have places, velocities and accelerations; of 0
    steps there is one alone.
    """
    height, width, count = runner.whole.height, runner.whole.width, len(masses)
    per_pe = -(-count // (height * width))
    for name, values in (("places", np.column_stack([places, masses])), ("velocities", velocities)):
        columns = np.zeros((height * width * per_pe, values.shape[1]), np.float32)
        columns[:count] = values
        columns = columns.reshape(height * width, per_pe, -1).swapaxes(1, 2)
        items = columns[0].size
        runner.memcpy_h2d(runner.get_id(name), columns.ravel(), 0, 0, width, height, items)
    start = runner.cycles
    runner.launch("attract", np.float32(softening**2))
    states = [[*_state(runner, per_pe, count)]]
    if steps:
        runner.launch("march", np.uint16(steps), np.float32(dt))
        states.append([*_state(runner, per_pe, count)])
    return states, runner.cycles - start


def _state(runner, per_pe, count):
    height, width = runner.whole.height, runner.whole.width
    block = (per_pe + 3) // 4 * 4  # accelerations begin behind two words, at multiples of four
    for name, ahead, size in (
        ("places", 0, per_pe),
        ("velocities", 0, per_pe),
        ("accelerations", 2, block),
    ):
        columns = np.zeros((height * width, ahead + 3 * size), np.float32)
        runner.memcpy_d2h(columns, runner.get_id(name), 0, 0, width, height, columns.shape[1])
        columns = columns[:, ahead:].reshape(-1, 3, size)[..., :per_pe]
        yield columns.swapaxes(1, 2).reshape(-1, 3)[:count]


def reference(places, velocities, masses, steps, dt, softening):
    """The same in double precision."""
    places, velocities = places.astype(float), velocities.astype(float)
    known = _accelerations(places, masses, softening)
    for _ in range(steps):
        velocities = velocities + known * dt / 2
        places = places + velocities * dt
        known = _accelerations(places, masses, softening)
        velocities = velocities + known * dt / 2
    return places, velocities, known


def _accelerations(places, masses, softening):
    away = places - places[:, None]
    squares = (away**2).sum(axis=2) + softening**2
    return ((masses / squares**1.5)[..., None] * away).sum(axis=1)


def energy(places, velocities, masses, softening):
    """Of motion and of attraction."""
    first, second = np.triu_indices(len(masses), 1)
    squares = ((places[first] - places[second]) ** 2).sum(axis=1) + softening**2
    bound = (masses[first] * masses[second] / np.sqrt(squares)).sum()
    return (masses[:, None] * velocities**2).sum() / 2 - bound


def cluster(count):
    """Bodies at random near the origin: places, velocities, masses."""
    rng = np.random.default_rng(count)
    places, velocities = rng.standard_normal((2, count, 3))
    return places, 0.3 * velocities, np.full(count, 1 / count)


def main():
    from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="out", help="folder of the compiled program")
    parser.add_argument("--cmaddr", help="IP:port of a system")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--bodies", type=int, help="in all (default: as many as fit)")
    args = parser.parse_args()
    params = json.loads(Path(args.name, "out.json").read_text())["params"]
    room = int(params["width"]) * int(params["height"]) * int(params["bodies"])
    bodies = cluster(args.bodies or room)
    runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
    runner.load()
    runner.run()
    steps, dt, softening = args.steps, 0.02, 0.1
    states, cycles = run(runner, *bodies, steps, dt, softening)
    runner.stop()
    masses, unit = bodies[2], 2**-24
    # A force sums all bodies; a place sums velocities of all steps, which sum forces of all before.
    loose = max(2e-5, unit * (len(masses) + steps**2 / 2))
    for state, count in zip(states, (0, steps), strict=True):
        expected = reference(*bodies, count, dt, softening)
        for got, want in zip(state, expected, strict=True):
            np.testing.assert_allclose(got, want, atol=loose * np.abs(want).max())
        momentum, of_step = masses @ bodies[1], unit * np.abs(bodies[1]).max()
        np.testing.assert_allclose(masses @ state[1], momentum, atol=max(1e-6, steps * of_step))
    before, after = (energy(*state[:2], masses, softening) for state in states)
    assert abs(after / energy(*expected[:2], masses, softening) - 1) < loose
    print(f"{len(masses)} bodies, {steps} steps: {cycles} cycles, energy {after / before - 1:+.1e}")
    print("SUCCESS!")


if __name__ == "__main__":
    main()
