"""Collectives against the machine (bits and cycles), the plane, and published tables."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.collective_cases import CASES, GROUP, ONE, B, H, P, X, random

from wafer import fabric
from wafer.fabric import count_cycles
from wafer.fabric.library import collectives as co, lowering as lo, timing
from wafer.spec import WSE2

# One 512 x 1 row, fp32, result at PE 0; cycles on the vendor's simulator (SpMM_Cerebras, commits
# 05f8fdb and 2892da6, SDK 0.6, WSE-2).
SIZES = [2**k for k in range(14)]
CHAIN = [3128, 3129, 3131, 3135, 3143, 3159, 3191, 3255, 3383, 3639, 4151, 5175, 7223, 11319]
TREE = [742, 748, 760, 784, 832, 931, 1155, 1646, 2681, 4977, 9585, 18801, 37233, 74097]
TWO_PHASE = [819, 821, 825, 833, 849, 881, 945, 1073, 1329, 1841, 2865, 4913, 9009, 17201]
GROUPS = {2: 10055, 4: 9421, 8: 9117, 16: 8989, 32: 8973, 64: 9061, 128: 9297, 256: 9800}
ROW = np.zeros((1, 512), np.int32)


@pytest.fixture(scope="module")
def runs():
    return {
        name: (program, fabric.simulate(program, {"own" if name == "gather" else "x": x}))
        for name, (program, _, x) in CASES.items()
    }


@pytest.mark.parametrize("name", [n for n, (_, fn, _) in CASES.items() if fn])
def test_values_bit_for_bit_and_clocks(runs, name):
    program, state = runs[name]
    _, fn, x = CASES[name]
    want, clock = fn(jnp.asarray(x), co.start_clock(H, P))
    got = np.asarray(fabric.read(program, state, "got" if "shift" in name else "x"))
    if name in {"chain", "two_phase", "tree"}:
        got, want = got[:, 0], np.asarray(want)[:, 0]
        assert int(clock[0, 0]) == int(state.end[0, 0])
    np.testing.assert_array_equal(got, want)
    late = int(clock.max()) - int(fabric.cycles(state))
    assert late in ({0, 1} if name == "shift3" else {0})


def test_scatter_gather_star_and_quadrant(runs):
    program, state = runs["scatter"]
    chunks = CASES["scatter"][2][:, 0].reshape(H, P, 3)
    np.testing.assert_array_equal(fabric.read(program, state, "own"), chunks)
    clock = timing.scatter_time(co.start_clock(H, P), 3)
    np.testing.assert_array_equal(state.end, clock)
    got, bulk = co.scatter(jnp.broadcast_to(chunks[:, None], (H, P, P, 3)), co.start_clock(H, P))
    np.testing.assert_array_equal(got, chunks)
    np.testing.assert_array_equal(bulk, clock)

    program, state = runs["gather"]
    np.testing.assert_array_equal(fabric.read(program, state, "x")[:, 0], X.reshape(H, -1))
    got, clock = co.gather(jnp.asarray(X), co.start_clock(H, P))
    np.testing.assert_array_equal(got[:, 0], X)
    assert int(clock[0, 0]) == int(state.end[0, 0]) == (P - 1) * B + 6 - 1 + 1 + B // 2

    program, state = runs["star"]
    total = ONE[:, 0, 0]
    for column in range(1, P):
        total = total + ONE[:, column, 0]
    np.testing.assert_array_equal(fabric.read(program, state, "x")[:, 0, 0], total)
    assert int(state.end[0, 0]) == P + 5

    program, state = runs["quadrant"]
    values = np.asarray(fabric.read(program, state, "x"))[..., 0]
    assert np.unique(values).size == 1
    np.testing.assert_allclose(values[0, 0], ONE.sum(dtype=np.float64), rtol=1e-6)


@pytest.mark.slow
def test_allreduce_on_eight_colors():
    program = lo.allreduce_program(4, 3, 2, 2)
    rows = np.broadcast_to(X[:, :4, :2].sum(0), (3, 4, 2))  # [H, W, n], each row the same
    state = fabric.simulate(program, {"x": rows})
    values = np.asarray(fabric.read(program, state, "x"))
    np.testing.assert_allclose(
        values, np.broadcast_to(3 * X[:, :4, :2].sum((0, 1)), values.shape), rtol=1e-4
    )
    assert len(program.colors) == 8
    assert count_cycles(program) == int(fabric.cycles(state))


PLANAR = ["broadcast", "chain", "two_phase", "tree", "star", "quadrant", "overheads"]


@pytest.mark.native
@pytest.mark.parametrize("name", PLANAR)
def test_the_plane_agrees_with_the_machine(runs, name):
    program, state = runs[name]
    assert count_cycles(program) == int(fabric.cycles(state))


@pytest.mark.native
def test_clocks_follow_the_ramp_of_the_spec():
    """Closed forms against the plane where the ramp takes 3 cycles, which no machine's does."""
    spec, x, clock = dataclasses.replace(WSE2, ramp_latency=3), jnp.asarray(X), co.start_clock(H, P)
    pairs = {
        "chain": lo.chain_program(P, H, B, spec=spec),
        "two_phase": lo.two_phase_program(P, H, B, GROUP, spec=spec),
        "tree": lo.tree_program(P, H, B, spec=spec),
    }
    for name, program in pairs.items():
        _, ends = co.reduce(x, clock, algorithm=name, group=GROUP, spec=spec)
        assert int(ends.max()) == count_cycles(program)
    _, ends = co.broadcast(x, clock, root=2, spec=spec)
    assert int(ends.max()) == count_cycles(lo.broadcast_program(P, H, B, 2, spec=spec)) == B + 4 + 7
    assert int(co.gather(x, clock, spec=spec)[1][0, 0]) == (P - 1) * B + 8 + B // 2


def test_closed_forms_with_overheads(runs):
    clock = co.start_clock(H, P) + WSE2.task_start
    two = timing.two_phase_time(clock, B, GROUP, launch=WSE2.op_launch)
    assert int(two[0, 0]) == int(fabric.cycles(runs["overheads"][1]))
    tree = timing.tree_time(clock, B, launch=WSE2.op_reload)
    assert int(tree[0, 0]) == int(fabric.cycles(runs["tree_overheads"][1]))


def test_published_reduce_tables():
    """V1: three fitted constants; chain and two-phase within 1 %, tree within 1 % too."""
    start = ROW + WSE2.task_start
    chain = [int(timing.chain_time(start, n)[0, 0]) for n in SIZES]
    assert chain == CHAIN  # exact at all fourteen lengths
    two = [int(timing.two_phase_time(start, n, 16, launch=WSE2.op_reload)[0, 0]) for n in SIZES]
    tree = [int(timing.tree_time(start, n, launch=WSE2.op_reload)[0, 0]) for n in SIZES]
    np.testing.assert_allclose(tree, TREE, rtol=0.01)
    groups = [
        int(timing.two_phase_time(start, 4096, s, launch=WSE2.op_launch)[0, 0]) for s in GROUPS
    ]
    np.testing.assert_allclose(groups, list(GROUPS.values()), rtol=0.001)
    assert two == TWO_PHASE
    # held out: B = 64 in groups of 28; the file has 925 and 928
    held = int(timing.two_phase_time(start, 64, 28, launch=WSE2.op_launch)[0, 0])
    assert 925 <= held <= 928


def test_axes_regions_and_auto():
    x = jnp.asarray(random((4, 5, 3)))
    clock = co.start_clock(4, 5)
    total, ends = co.all_reduce(x, clock, axes="xy")
    np.testing.assert_allclose(total[2, 3], x.sum((0, 1)), rtol=1e-5)
    assert int(ends.min()) > 0
    column, along_y = co.reduce(x, clock, axis="y", algorithm="chain")
    row, along_x = co.reduce(x.swapaxes(0, 1), clock.T, algorithm="chain")
    np.testing.assert_array_equal(column, row.swapaxes(0, 1))
    np.testing.assert_array_equal(along_y, along_x.T)
    north, _ = co.shift(x, clock, "N")
    np.testing.assert_array_equal(north[:-1], x[1:])
    mask = jnp.arange(5) < 2
    mask = jnp.broadcast_to(mask, (4, 5))
    kept, times = co.on(mask, co.local(jnp.negative, clock, x, cycles=9), (x, clock))
    np.testing.assert_array_equal(kept[:, 2:], x[:, 2:])
    np.testing.assert_array_equal(times, jnp.where(mask, 9, 0))
    # short vectors want few hops, long ones full bandwidth
    assert timing.best_algorithm(512, 1) == "tree"
    assert timing.best_algorithm(512, 64) == "two_phase"
    assert timing.best_algorithm(512, 8192) == "chain"


def test_transposes():
    """The gradient of a broadcast is a reduce, of a shift the opposite shift."""
    x, g = jnp.asarray(random((2, 4, 3))), jnp.asarray(random((2, 4, 3), 1))
    clock = co.start_clock(2, 4)
    pull = lambda fn: jax.vjp(lambda v: fn(v)[0], x)[1](g)[0]
    np.testing.assert_allclose(pull(lambda v: co.broadcast(v, clock))[:, 0], g.sum(1), rtol=1e-6)
    np.testing.assert_array_equal(
        pull(lambda v: co.shift(v, clock, "E")), co.shift(g, clock, "W")[0]
    )
    summed = pull(lambda v: co.reduce(v, clock, algorithm="tree"))
    np.testing.assert_array_equal(summed, jnp.broadcast_to(g[:, :1], g.shape))


def test_errors_name_what_is_allowed():
    x, clock = jnp.zeros((2, 3, 4)), co.start_clock(2, 3)
    for message, call in {
        "axis 'z'": lambda: co.broadcast(x, clock, axis="z"),
        "'ring'; there are auto, chain": lambda: co.reduce(x, clock, algorithm="ring"),
        "one chunk for each of the 3 PEs": lambda: co.scatter(x, clock),
        "towards 'NE'": lambda: co.shift(x, clock, "NE"),
        "microthreads.*use fabric.simulate": lambda: count_cycles(CASES["shift"][0]),
    }.items():
        with pytest.raises(fabric.FabricError, match=message):
            call()
