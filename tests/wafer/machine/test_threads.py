"""Neither results nor cycles depend on the number of the host's threads."""

import numpy as np
import pytest
from helpers.assembly import assemble, build, color_register

from wafer.machine.engine import Machine, Status, available

pytestmark = pytest.mark.skipif(not available(), reason="the machine is not built")

# Every PE sends its numbers to the east and to the south and adds what comes; {a} and {b} are the
# colors by parity of column and row. Its priorities, lengths and delays come from coordinates.
EXCHANGE = """
.data own f32 1 2 3 4 5 6 7 8 9 10 11 12
.space sum 48
.queue in 2 color={west}
.queue in 3 color={north}
.fabric queue=2
.fabric queue=3 priority=2
.fabric sends=1 queue=4 color={east}
.fabric sends=1 queue=5 color={south}
.active 8
local 8:
  const r0 0
  intrinsic.coordinate r1 r0
  const r0 1
  intrinsic.coordinate r2 r0
  add.i16 r3 r1 r2
again:                            # (x + y) turns of a loop
  sub.i16 r3 r3 r0
  const r4 0
  gt.i16 r5 r3 r4
  jump_if again r5
  fabric r10 2 12
  memory r11 own 12
  operate FMOVS dest=FABRIC src0=MEMORY asynchronous=1 at=r10
  fabric r10 3 12
  operate FNEGS dest=FABRIC src0=MEMORY asynchronous=1 at=r10
  memory r10 sum 12
  memory r11 sum 12
  fabric r12 0 12
  operate FADDS dest=MEMORY src0=MEMORY src1=FABRIC asynchronous=1 action=ACTIVATE target=9 at=r10
  return
local 9:
  memory r10 sum 12
  memory r11 sum 12
  fabric r12 1 12
  operate FSUBS dest=MEMORY src0=MEMORY src1=FABRIC asynchronous=1 action=ACTIVATE target=10 at=r10
  return
local 10:
  const r0 10
  intrinsic.coordinate r1 r0
  intrinsic.print -1 r1 u16
  intrinsic.print -1 r0 bool
  return
"""
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
