"""The C++ engine against the JAX reference: every array of the state, on every program there is."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import collective_cases as collectives_cases, fabric_rules as rule_cases
from helpers.fabric_stack import init_stacked, run_stacked, stack, unstack

from wafer import fabric
from wafer.fabric import library as kernels, native
from wafer.fabric.engines import cycle, native as engine, planar, planes
from wafer.fabric.engines.ce import dispatch
from wafer.fabric.engines.state import empty_state
from wafer.fabric.library import kernel_programs, lowering
from wafer.fabric.library.collectives import start_clock
from wafer.fabric.trace import QUICK_COMPILE
from wafer.spec import WaferSpec

pytestmark = pytest.mark.native

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def rules():
    cases = rule_cases.CASES
    values = [rule_cases.VALUES.get(name, v) for name, (_, v) in cases.items()]
    return list(cases), [program for program, _ in cases.values()], values


def shown(state):
    """Arrays by name; payloads of empty slots are of no meaning."""
    out = {}
    for name, value in state._asdict().items():
        if name in {"router", "up", "down", "queue"}:
            flag = np.asarray(value.flag)
            out[name + " flags"] = flag
            out[name] = np.where(flag != 0, np.asarray(value.data), 0)
        else:
            out[name] = np.asarray(value)
    return out


def assert_same(state, reference, what, skip=()):
    want = shown(reference)
    for name, got in shown(state).items():
        if name in skip:
            continue
        expected = want[name][: len(got)] if name in {"pc", "left", "wait"} else want[name]
        np.testing.assert_array_equal(got, expected, err_msg=f"{what}: {name}")


def compare(names, programs, values):
    fast = fabric.run_many(programs, values, 400)
    slow = run_stacked(programs, values, 400)
    for name, one, other in zip(names, fast, slow, strict=True):
        assert_same(one, other, name)


@pytest.mark.slow
def test_every_rule_leaves_the_same_state():
    """Deadlocks and faults included."""
    compare(*rules())


@pytest.mark.slow
def test_every_collective_leaves_the_same_state():
    cases = collectives_cases.CASES
    values = [{"own" if name == "gather" else "x": x} for name, (_, _, x) in cases.items()]
    compare(list(cases), [program for program, _, _ in cases.values()], values)


@pytest.mark.slow
def test_every_cycle_of_every_rule():
    """V9: the states of both engines after each of 60 cycles."""
    names, programs, values = rules()
    together = stack(programs)
    memory = np.zeros((len(programs), 3, 4, together.meta.words), np.uint32)
    for i, (program, value) in enumerate(zip(programs, values, strict=True)):
        own = np.moveaxis(cycle.memory_words(program, value, np), 0, -1)
        memory[i, : own.shape[0], : own.shape[1], : own.shape[2]] = own
    states = init_stacked(together, jnp.asarray(memory))
    step = jax.jit(jax.vmap(fabric.step), compiler_options=QUICK_COMPILE)
    alone = [fabric.init(p, v) for p, v in zip(programs, values, strict=True)]
    alive = set(range(len(programs)))
    for passed in range(60):
        states = step(together, states)
        every = unstack(programs, states)
        for i in sorted(alive):
            alone[i] = fabric.run(programs[i], alone[i], passed + 1)
            # the stacked programs number their tasks anew
            assert_same(alone[i], every[i], f"{names[i]}, {passed}", skip=("active", "blocked"))
            if not bool(alone[i].progress) or int(alone[i].fault[0]):
                alive.discard(i)


@pytest.mark.parametrize("ramp", [1, 3])
def test_other_ramps_and_queues(ramp):
    """The general cells: ``words + (2 T_R + 2)(P - 1)`` cycles, queues of six words."""
    spec = WaferSpec(ramp_latency=ramp, default_queue=0)
    program = lowering.chain_program(5, 1, 4, spec)
    state = fabric.simulate(program, {"x": np.ones(4, np.float32)})
    assert int(fabric.cycles(state)) == 4 + (2 * ramp + 2) * 4
    np.testing.assert_array_equal(fabric.read(program, state, "x")[0, 0], 5)


@pytest.mark.slow
def test_a_fault_in_one_row_stops_all_rows():
    """Rows that exchange nothing run apart, yet end in the cycle of the first fault."""
    layout = fabric.Layout(3, 2, overheads=False)
    layout.array("a", 8)
    c, x, y = layout.color(5), layout.x, layout.y
    layout.route(c, "RAMP", "E", x == 0)
    layout.route(c, ("RAMP", "W"), "E", x == 1)
    layout.route(c, "W", "RAMP", x == 2)
    send = rule_cases.fmovs(rule_cases.fabout(c), rule_cases.mem("a"), 8)
    layout.task("main", [send], (x == 0) | ((x == 1) & (y == 1)), active=True)
    layout.task(
        "main", [rule_cases.fmovs(rule_cases.mem("a"), rule_cases.fabin(c), 8)], x == 2, active=True
    )
    program = layout.build()
    with pytest.raises(fabric.FaultError, match=r"PE \(1, 1\): two wavelets of color 5"):
        fabric.simulate(program)
    (state,) = fabric.run_many([program], [None])
    (want,) = fabric.run_many([program], [None], implementation="jax")
    assert_same(state, want, "fault")


@pytest.mark.slow
def test_same_bits_and_cycles_under_jit_vmap_and_threads():
    """Determinism: alone, in batches of two and three, and rows shared out among threads."""
    program = lowering.two_phase_program(40, 60, 5, 6)
    x = normal(3, 60, 40, 5)
    alone = [fabric.simulate(program, {"x": v}) for v in x]
    memory = [cycle.memory_words(program, {"x": v}, np) for v in x]
    start = jax.vmap(lambda m: empty_state(program, m))(jnp.asarray(np.stack(memory)))
    run = jax.jit(jax.vmap(lambda s: engine.run(program, s, 4000, start=True)))
    if not native.available():
        run = jax.vmap(lambda s: fabric.run(program, dispatch(program, s)[0], 4000))
    for size in (2, 3):
        together = run(jax.tree.map(lambda leaf, size=size: leaf[:size], start))
        for i in range(size):
            assert_same(alone[i], jax.tree.map(lambda leaf, i=i: leaf[i], together), f"{i}/{size}")
    assert int(fabric.cycles(alone[0])) == int(fabric.cycles(alone[2]))


def unpacked(words, shape):
    bits = (np.asarray(words)[..., None, :] >> np.arange(32, dtype=np.uint32)[:, None]) & 1
    return bits.reshape(*words.shape[:-2], -1, words.shape[-1])[..., : shape.height, :]


@pytest.mark.parametrize("name", ["two_phase"])
def test_every_cycle_of_the_plane(name):
    """V9: routers, ramps and queues of the bit-sliced plane hold the same words in every cycle."""
    program = collectives_cases.CASES[name][0]
    shape, packed = planes.prepare(program)
    masks = planar.plane_program(program)[0]
    turned = (masks.height, masks.width) != (shape.height, shape.width)
    state = planes._start(shape, packed)
    step = jax.jit(lambda s: planes._step(shape, packed, s))
    reference = fabric.init(program, {"x": collectives_cases.X})
    for passed in range(45):
        state, reference = step(state), fabric.run(program, reference, passed + 1)
        for c in range(len(shape.depths)):
            levels = {
                "router": state.router[c],
                "up": state.up[c],
                "down": state.down[c],
                "queue": state.queue[c],
            }
            for lane, held in levels.items():
                want = np.asarray(getattr(reference, lane).flag[c] != 0)[: len(held)]
                got = np.stack([unpacked(words, shape) for words in held])
                got = got.swapaxes(-1, -2) if turned else got
                np.testing.assert_array_equal(got, want, err_msg=f"{lane} {c}, cycle {passed}")


def test_gemv_runs_as_its_formula_says():
    a, x = normal(3, 4, 5, 6), np.broadcast_to(normal(1, 4, 6), (3, 4, 6))
    program = kernel_programs.gemv_program(3, 4, 5, 6)
    state = fabric.simulate(program, {"a": a.reshape(3, 4, 30), "x": x})
    want, clock = kernels.gemv(a, x, start_clock(3, 4), algorithm="chain")
    got = np.asarray(fabric.read(program, state, "y"))
    np.testing.assert_allclose(got[:, 0], want[:, 0], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(state.end[:, 0], clock[:, 0])


def test_sparse_matvec_runs_as_its_formula_says():
    h, w, m, n, most = 3, 2, 4, 5, 7
    counts = RNG.integers(0, most + 1, (h, w))
    rows, cols = RNG.integers(0, m, (h, w, most)), RNG.integers(0, n, (h, w, most))
    values, x = normal(h, w, most), np.broadcast_to(normal(1, w, n), (h, w, n))
    program = kernel_programs.sparse_matvec_program(rows, cols, counts, (m, n))
    state = fabric.simulate(program, {"v": values, "x": x})
    want, clock = kernels.sparse_matvec((values, rows, cols, counts), x, m, start_clock(h, w))
    got = np.asarray(fabric.read(program, state, "y"))
    np.testing.assert_allclose(got[:, 0], want[:, 0], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(state.end[:, 0], clock[:, 0])


def test_seven_points_run_as_their_formula_says():
    h, w, z = 4, 5, 6
    c, u = normal(7, h, w, z), normal(h, w, z)
    program = kernel_programs.seven_point_program(h, w, z)
    arrays = {f"c{i}": c[i] for i in range(7)}
    state = fabric.simulate(program, arrays | {"u": np.pad(u, ((0, 0), (0, 0), (1, 1)))})
    want, clock = kernels.seven_point(c, u, start_clock(h, w))
    np.testing.assert_allclose(fabric.read(program, state, "out"), want, rtol=1e-5, atol=1e-5)
    # the program waits for the last halo with an operation of its own
    assert int(fabric.cycles(state)) == int(clock.max()) + 1


def test_summa_of_the_csl_example_cycle_by_cycle():
    """V7: 4 x 4 PEs, tiles of 14, 45,783 cycles on the vendor's simulator."""
    a, b = normal(4, 4, 14, 14), normal(4, 4, 14, 14)
    program = kernel_programs.summa_program(4, 14, 14, 14)
    arrays = {"a": a.swapaxes(2, 3).reshape(4, 4, -1), "b": b.reshape(4, 4, -1)}
    state = fabric.simulate(program, arrays)
    want, clock = kernels.summa(a, b, start_clock(4, 4))
    got = np.asarray(fabric.read(program, state, "c")).reshape(4, 4, 14, 14).swapaxes(2, 3)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert int(fabric.cycles(state)) == 46_078
    assert abs(46_078 / 45_783 - 1) < 0.01
    assert abs(46_078 / int(clock.max()) - 1) < 0.005
    with pytest.raises(fabric.FabricError, match="5 x 5 PEs; a color per step allows 2 to 4"):
        kernel_programs.summa_program(5, 2, 2, 2)


def test_engines_are_chosen_by_name(monkeypatch):
    program = lowering.chain_program(3, 1, 2)
    with pytest.raises(fabric.FabricError, match="'cuda'; there are auto, jax and native"):
        fabric.simulate(program, implementation="cuda")
    monkeypatch.setattr(engine, "available", lambda: False)
    with pytest.raises(fabric.FabricError, match=r"native engine is not built .*or build it: `"):
        fabric.simulate(program, implementation="native")


def first(array, value):
    """The array with another first element."""
    out = np.array(array)
    out.reshape(-1)[0] = value
    return out


@pytest.mark.parametrize(
    ("table", "damage", "message"),
    [
        ("tx", lambda a: first(a, 64), r"a mask of ports \(tx\) is 64; it must lie in 0 to 31"),
        ("entry", lambda a: first(a, 99), "a task's first operation is 99; it must lie in -1 to"),
        ("depth", lambda a: a * 0, "a queue's depth is 0; it must lie in 1 to 6"),
        ("code", lambda a: first(a, 7), "operation 0: opcode is 7; it must lie in 0 to 6"),
        ("code", lambda a: a[:, :-1], "elements; the header says"),
        ("ring", lambda a: a[..., 1:], "ring: .* elements; the header says"),
        ("rx", lambda a: a.astype(np.int32), "rx has a wrong element type"),
    ],
)
def test_programs_that_lead_out_of_their_arrays(table, damage, message):
    program, values = rule_cases.CASES["one_hop"]
    wrong = dataclasses.replace(program, **{table: damage(np.asarray(getattr(program, table)))})
    memory = cycle.memory_words(program, rule_cases.VALUES.get("one_hop", values), np)
    state = empty_state(program, jnp.asarray(memory))
    with pytest.raises(Exception, match=f"fabric engine: .*{message}"):
        engine.run(wrong, state, 400, start=True)
    with pytest.raises(Exception, match="a thread's operation is 99; it must lie in"):
        engine.run(program, state._replace(pc=state.pc + 100), 400)


def test_timing_programs_that_lead_out_of_their_arrays():
    program, _ = rule_cases.CASES["one_hop"]
    header, words = native.prepare_words(*planar.plane_program(program))
    for at, value, message in (
        (0, 0, "rows is 0; it must lie in 1 to"),
        (2, 25, "the number of colors is 25; it must lie in 0 to 24"),
        (len(header) - 1, 9, r"color \(second\) is 9"),
    ):
        wrong = header.copy()
        wrong[at] = value
        with pytest.raises(Exception, match=f"timing plane: .*{message}"):
            native.run_words(wrong, words)
    with pytest.raises(Exception, match=r"the masks: .* elements; the header says"):
        native.run_words(header, words[1:])
