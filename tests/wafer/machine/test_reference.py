"""The machine in JAX against the one in C++: cycles, memory, links and faults."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.assembly import assemble, build, color_register
from helpers.csl_operations import fused, triples
from helpers.csl_program import compiled
from helpers.csl_rules import CSL_RULES, compiled_rule, csl_rules
from helpers.machine_rules import RULES, image_of, rules
from hypothesis import given, settings, strategies as st

import wafer.csl
from wafer.machine import reference
from wafer.machine.codes import DsdOp, Op, Type
from wafer.machine.reference import scalar
from wafer.machine.reference.machine import ReferenceMachine

LIMIT = 20_000


@pytest.fixture(autouse=True)
def registers_of_64_bits():
    with jax.enable_x64(True):
        yield


def agree(image, calls="", every=LIMIT):
    """Run both, compare them every so many cycles and at the end; the JAX machine."""
    both = wafer.csl.Machine(image), ReferenceMachine(image)
    height, width = image.tiles.shape
    ended = False
    if calls:
        for machine in both:
            machine.launch(wafer.csl.Rectangle(0, 0, width, height), calls)
    while not ended:
        ends = {machine.run(every) for machine in both}
        assert len(ends) == 1
        assert len({(machine.cycle, machine.fault) for machine in both}) == 1
        arrays = [(machine.links, *machine.worked) for machine in both]
        memories = [
            [machine.read(x, y, 0, len(image.programs[tile].memory)) for machine in both]
            for (y, x), tile in np.ndenumerate(image.tiles)
        ]
        for pair in (*zip(*arrays, strict=True), *memories):
            np.testing.assert_array_equal(*pair)
        ended = ends != {wafer.csl.Status.LIMIT}
    return both[1]


@pytest.mark.slow
@pytest.mark.native
def test_inputs_side_by_side(tmp_path):
    """vmap: four inputs through one program are each as by themselves."""
    text = """
    var scaled = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> y[i] });
    fn go() void { @fmacs(scaled, scaled, scaled, 0.5); y[0] = y[0] * y[1] - 1.0; }
    """
    image = compiled(tmp_path, text, kind="f32")
    tables, state = reference.start(image)
    address = image.programs[0].symbols["y"].address
    values = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)

    def result(data):
        loaded = reference.store(state, 0, address, data)
        ended = reference.run(tables, reference.launch(image, loaded, "go"), LIMIT)
        return reference.load(ended, 0, address, 16), ended.cycle

    results, cycles = jax.jit(jax.vmap(result))(jnp.asarray(values).view(jnp.uint8))
    for data, memory, cycle in zip(values, np.asarray(results), cycles, strict=True):
        machine = wafer.csl.Machine(image)
        machine.write(0, 0, address, data)
        machine.launch(wafer.csl.Rectangle(0, 0, 1, 1), "go")
        machine.run()
        assert memory.tobytes() == machine.read(0, 0, address, 16).tobytes()
        assert int(cycle) == machine.cycle


@pytest.mark.slow  # compiles the step of the whole wafer
@pytest.mark.native
@pytest.mark.parametrize(
    "rule", list(rules(RULES / "both")), ids=lambda rule: f"{rule.path.stem}-{rule.arch}"
)
def test_assembled_rules_agree(rule):
    assert rule.of("fault") in agree(image_of(rule), every=1).fault


# Rules of CSL -> cycles between comparisons.
CSL = {
    "descriptors/dropped_until_controls": 97,
    "descriptors/lengths_of_a_fifo": 97,
    "faults/division": LIMIT,
    "faults/float_exception": LIMIT,
    "faults/float_exception_of_an_operation": LIMIT,
    "filters/changed": 97,
    "library/queue_status": 97,
    "library/relayed_control": 97,
    "library/rxtx_switch_positions": 1,
    "machines/chain_of_sums": 7,
    "machines/functions_of_wavelets": 1,
    "machines/rows_of_tiles": 1,
    "machines/words_that_leave": LIMIT,
    "messages/all_to_all": 7,
    "messages/data_task": 1,
    "messages/two_senders": 1,
    "modules/random_generators": LIMIT,
    "routes/swap": LIMIT,  # where words come in, from a neighbor
    "routes/swap_of_the_ramp": LIMIT,  # and from the PE
    "switches/pops_moved": 97,
    "switches/teardown": 97,
    "tasks/fifo": 97,
    "wse3/both_sides": 97,
    "wse3/cycles": LIMIT,
    "wse3/flush": 97,
    "wse3/rotating_tasks": 97,
}


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.parametrize("name", CSL)
def test_rules_of_csl_agree(name):
    rule = next(rule for rule in csl_rules() if rule.path == CSL_RULES / f"{name}.csl")
    agree(compiled_rule(rule), "go", CSL[name])


# What a task does beside its microthreads, in words of 32 bits from byte 0 on.
_BESIDE = {
    "send": "fabric r0 0 {n}\nmemory r1 {at} {n}\noperate MOV32 at=r0 dest=FABRIC src0=MEMORY"
    " {how}",
    "take": "memory r0 {at} {n}\nfabric r1 1 {n}\noperate MOV32 at=r0 dest=MEMORY src0=FABRIC"
    " {how}",
    "add": "memory r0 {at} {n}\nmemory r1 {to} {n}\ncopy r2 r1\n"
    "operate ADD32 at=r0 dest=MEMORY src0=MEMORY src1=MEMORY",
    "store": "const r4 {at}\nconst r5 {n}\nstore.u32 r4 r5 0",
    "load": "const r4 {at}\nload.u32 r5 r4 0\nstore.u32 r4 r5 8",
    "move": "const r4 {at}\nconst r5 {to}\nmove r4 r5 12",
    "count": "const r6 1\nconst r7 {n}\nagain{k}:\nsub.u16 r7 r7 r6\njump_if again{k} r7",
    "work": "wait.1 -1 0 {n}",
    "free": "wait.0 {thread} 0 {n}",
}
_HOW = "asynchronous={apart} thread={thread} priority={priority} action=1 target=9"
_STEP = st.tuples(
    st.sampled_from([*_BESIDE, "send", "take"]),
    st.fixed_dictionaries({
        "n": st.integers(1, 6),
        "at": st.integers(0, 15).map(lambda place: 4 * place),
        "to": st.integers(0, 15).map(lambda place: 4 * place),
        "apart": st.sampled_from([1, 1, 1, 0]),
        "thread": st.sampled_from([-1, 3, 4]),
        "priority": st.integers(-1, 2),
    }),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.native
@settings(max_examples=40, deadline=None)
@given(
    tasks=st.lists(st.lists(_STEP, min_size=2, max_size=9), min_size=2, max_size=2),
    arch=st.sampled_from(["wse2", "wse3"]),
)
def test_random_tasks_beside_their_microthreads_agree(tasks, arch):
    """Memory that both use, several priorities, microthreads that are waited for, deadlocks."""
    programs = []
    for own, steps in enumerate(tasks):
        text = [
            f".queue in 2 color={1 - own}\n.queue out 3 color={own}\n.active 8",
            f".fabric sends=1 queue=3 color={own}\n.fabric queue=2 color={1 - own}",
            f".data m u32 {' '.join(map(str, range(1, 25)))}\nlocal 8:",
        ]
        for k, (step, numbers) in enumerate(steps):
            text.append(_BESIDE[step].format(k=k, how=_HOW.format(**numbers), **numbers))
        text.append("return\nlocal 9:\nconst r4 0\nload.u32 r5 r4 60\nstore.u32 r4 r5 64\nreturn")
        programs.append(assemble("\n".join(text)))
    routes = {(own, 0, own): color_register("R", "EW"[own]) for own in range(2)}
    routes |= {(1 - own, 0, own): color_register("WE"[own], "R") for own in range(2)}
    agree(build(programs, [[0, 1]], arch, routes), every=61)


def test_scalars():
    """By hand: wrapping, division toward zero, shifts, casts that end at the range's end."""
    numbers = lambda *values: jnp.array(values, jnp.int64)
    kinds = numbers(Type.I8, Type.I16, Type.I16, Type.U16, Type.I32)
    ops = numbers(Op.ADD, Op.DIV, Op.REM, Op.SHL, Op.SHR)
    results = scalar.arithmetic(ops, kinds, numbers(127, -7, -7, 3, -8), numbers(1, 2, 2, 15, 40))
    assert results.tolist() == [-128, -3, -1, 0x8000, -1]
    bits = np.float32([300.5, -1.5, np.nan, 7.9]).view(np.uint32).astype(np.int64)
    to = numbers(Type.I8, Type.U16, Type.I32, Type.I64)
    kind = jnp.full(4, Type.F32, jnp.int64)
    assert scalar.cast(to, kind, jnp.asarray(bits)).tolist() == [127, 0, 0, 7]


_NAN, _INFINITY, _ONE = 0x7FC00000, 0x7F800000, 0x3F800000
_ELEMENTS = {  # by hand: bits of singles below 2^-126 count units of 2^-149
    "sum": (DsdOp.FADDS, 0x7FFFFF, 1, 0, 0x800000),
    "difference": (DsdOp.FSUBS, 0x800000, 1, 0, 0x7FFFFF),
    "half of 3 units, to even": (DsdOp.FMULS, 3, 0x3F000000, 0, 2),
    "half of a unit, to even": (DsdOp.FMULS, 0x80000001, 0x3F000000, 0, 0x80000000),
    "a unit in infinity": (DsdOp.FMULS, 1, _INFINITY, 0, _INFINITY),
    "product that is added": (DsdOp.FMACS, 1, 2, _ONE, 3),
    "larger unit": (DsdOp.FMAXS, 1, 2, 0, 2),
    "larger than a NaN": (DsdOp.FMAXS, _NAN, _ONE, 0, _NAN),
    "larger zero": (DsdOp.FMAXS, 0x80000000, 0, 0, 0),
    "larger zero of halves": (DsdOp.FMAXH, 0, 0x8000, 0, 0),
    "larger than a NaN of halves": (DsdOp.FMAXH, 0x3C00, 0x7E00, 0, 0x7E00),
}


@pytest.mark.parametrize("case", _ELEMENTS)
def test_elements_without_a_full_significand_and_of_zeros_and_nan(case):
    op, *sources, wanted = _ELEMENTS[case]
    numbers = [jnp.array([number]) for number in (op, *sources, 0)]
    assert jax.jit(scalar.element)(*numbers)[0].tolist() == [wanted]


def test_scalars_without_a_full_significand():
    """A unit is larger than zero and true; 3 units by 2 are 2, to even."""
    kind, unit, zero = jnp.array([Type.F32]), jnp.array([1]), jnp.array([0])
    assert jax.jit(scalar.compare)(jnp.array([Op.GT]), kind, unit, zero).tolist() == [1]
    assert jax.jit(scalar.cast)(jnp.array([Type.BOOL]), kind, unit).tolist() == [1]
    quotient = jax.jit(scalar.arithmetic)(
        jnp.array([Op.DIV]), kind, jnp.array([3]), jnp.array([0x40000000])
    )
    assert quotient.tolist() == [2]


def test_a_product_is_rounded_before_it_is_added():
    """(1 + 2^-12)^2 = 1 + 2^-11 + 2^-24; the last bit is lost unless they are fused."""
    x = np.float32(1 + 2.0**-12).view(np.uint32).astype(np.int64)
    minus = np.float32(-(1 + 2.0**-11)).view(np.uint32).astype(np.int64)
    a, b = jnp.array([minus]), jnp.array([x])
    bits, _ = jax.jit(scalar.element)(jnp.array([DsdOp.FMACS]), a, b, b, jnp.array([0]))
    assert np.asarray(bits).astype(np.uint32).view(np.float32).tolist() == [0.0]


def test_a_fused_product_is_rounded_once():
    bits = triples(4000).view(np.uint16).astype(np.int64)
    zeros = jnp.zeros(len(bits), jnp.int64)
    rows = jnp.asarray(bits)
    out, _ = jax.jit(scalar.element)(zeros + DsdOp.FMACH, rows[:, 0], rows[:, 1], rows[:, 2], zeros)
    want = [fused(*row) for row in bits.astype(np.uint16).view(np.float16)]
    np.testing.assert_array_equal(out, want)
