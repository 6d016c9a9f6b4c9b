"""Neither results nor cycles depend on the number of the host's threads."""

from pathlib import Path

import numpy as np
import pytest
from helpers.assembly import assemble, build, color_register

from wafer.machine.engine import Machine, Status, available, free_cores

pytestmark = pytest.mark.skipif(not available(), reason="the machine is not built")

EXCHANGE = (Path(__file__).parent / "programs" / "exchange.asm").read_text(encoding="utf-8")
SIZE = 6


def exchange():
    programs, routes = [], {}
    for parity in range(4):
        px, py = parity & 1, parity >> 1
        colors = {"east": px, "west": 1 - px, "south": 2 + py, "north": 3 - py}
        programs.append(assemble(EXCHANGE.format(**colors)))
    tiles = [[x % 2 + 2 * (y % 2) for x in range(SIZE)] for y in range(SIZE)]
    last = SIZE - 1
    for y in range(SIZE):
        for x in range(SIZE):
            px, py = x % 2, y % 2
            # The last column and row send to themselves, the first ones get what they send.
            routes[x, y, px] = color_register("R", "E" if x < last else "R")
            routes[x, y, 1 - px] = color_register("W" if x else "R", "R")
            routes[x, y, 2 + py] = color_register("R", "S" if y < last else "R")
            routes[x, y, 3 - py] = color_register("N" if y else "R", "R")
    return build(programs, tiles, routes=routes)


def test_any_number_of_threads_gives_the_same_cycles_memory_wavelets_and_prints():
    image = exchange()
    outcomes = []
    for threads in (1, 2, 3, 5):
        machine = Machine(image, threads=threads)
        status = machine.run(100_000)
        assert status == Status.QUIET, machine.fault
        memory = [machine.read(x, y, 0, 96).tobytes() for y in range(SIZE) for x in range(SIZE)]
        waits = [str(line) for line in machine.waiting()]
        counts = machine.links.tolist(), machine.profile
        outcomes.append((machine.cycle, memory, counts, machine.prints, waits))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    sums = np.frombuffer(outcomes[0][1][SIZE + 1][48:], np.float32)
    assert sums.tolist() == [2 * k for k in range(1, 13)]  # from the west k, from the north -(-k)
    assert len(outcomes[0][3]) == (SIZE - 1) ** 2  # the first row and column get one of the two


def test_a_run_in_pieces_is_the_same_run():
    image = exchange()
    whole, pieces = Machine(image), Machine(image)
    whole.run(100_000)
    while pieces.run(7) == Status.LIMIT:
        pass
    assert pieces.cycle == whole.cycle
    assert pieces.prints == whole.prints
    assert pieces.profile == whole.profile
    assert np.array_equal(pieces.links, whole.links)


def test_a_busy_computer_gets_fewer_threads(tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    load = tmp_path / "loadavg"
    for running, free in ((1, 8), (3, 6), (8, 1), (99, 1), (0, 8)):
        load.write_text(f"9.12 8.60 8.53 {running}/281 6727\n")
        assert free_cores(load) == free
    assert free_cores(tmp_path / "none") == 8
