"""Operations on descriptors in memory: values bit by bit against NumPy, and their cycles."""

import numpy as np
import pytest
from helpers.assembly import assemble, build, memory_descriptor
from helpers.csl_operations import RULES, after, fused, triples
from hypothesis import example, given, settings, strategies as st

from wafer.machine.engine import Machine, Status, available

pytestmark = pytest.mark.skipif(not available(), reason="the machine is not built")

BYTES = 512


def some_memory(seed):
    """Bytes that are finite numbers as f16 and, mostly, as f32; no NaN, whose bits may differ."""
    values = np.random.default_rng(seed).standard_normal(BYTES // 2) * 4
    return values.astype(np.float16).view(np.uint8).copy()


@settings(max_examples=150)
@given(
    op=st.sampled_from(list(RULES)),
    arch=st.sampled_from(["wse2", "wse3"]),
    places=st.lists(st.tuples(st.integers(0, 60), st.integers(-2, 3)), min_size=4, max_size=4),
    length=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
@example("FMACH", "wse2", [(0, 0), (5, 0), (0, 0), (0, 0)], 8, 0)  # to minus infinity, and on
def test_overlapping_and_strided_operands_go_element_by_element(op, arch, places, length, seed):
    types, _ = RULES[op]
    memory = some_memory(seed)
    operands = [(128 + 2 * at, stride) for at, stride in places[: min(len(types), 3)]]
    addresses = [
        [at + k * stride * np.dtype(kind).itemsize for k in range(length)]
        for kind, (at, stride) in zip(types, operands, strict=False)
    ]
    words = [memory_descriptor(at, length, stride) for at, stride in operands]
    kinds = "dest=MEMORY src0=MEMORY" + (" src1=MEMORY" if len(types) > 2 else "")
    if len(types) == 4:  # the multiplier is in a register
        bits = memory[480 : 480 + np.dtype(types[3]).itemsize]
        addresses.append(bits.view(types[3])[0])
        words.append(int.from_bytes(bits.tobytes(), "little"))
        kinds += " scalar=SCALAR"
    lines = [f"const r{10 + k} {word}" for k, word in enumerate(words)]
    text = [".active 8", "local 8:", *lines, f"operate {op} {kinds} at=r10", "return"]
    program = assemble("\n".join(text))._replace(memory=memory)
    machine = Machine(build([program], arch=arch))
    assert machine.run(100_000) == Status.QUIET, machine.fault
    got = machine.read(0, 0, 0, BYTES)
    want, _ = after(op, memory, addresses, length)
    for kind in (np.float16, np.float32):  # a NaN is a NaN
        both = np.isnan(got.view(kind)) & np.isnan(want.view(kind))
        got.view(kind)[both] = want.view(kind)[both]
    np.testing.assert_array_equal(got, want)


def test_a_fused_product_is_rounded_once():
    """Against integers; 2050 + (1 - 2^-14) is below the tie that single precision makes of it."""
    sums = triples(400)
    assert (fused(*sums[0]), fused(*sums[1])) == (np.float16(2050).view(np.uint16), 0x0010)
    want = [fused(*row) for row in sums]
    with np.errstate(over="ignore"):
        assert want == [int(RULES["FMACH"][1](*row).view(np.uint16)) for row in sums]
    lines = [".active 8", f".space x {6 * len(sums)}", "local 8:"]
    for k, s in enumerate(sums[:, 2].view(np.uint16)):
        words = [memory_descriptor(6 * k + start, 1, 1) for start in (4, 0, 2)]
        lines += [f"const r{k} {word}" for k, word in enumerate([*words, s])]
        lines.append("operate FMACH dest=MEMORY src0=MEMORY src1=MEMORY scalar=SCALAR at=r0")
    program = assemble("\n".join([*lines, "return"]))
    machine = Machine(build([program._replace(memory=sums.view(np.uint8).ravel().copy())]))
    assert machine.run(100_000) == Status.QUIET, machine.fault
    got = machine.read(0, 0, 0, 6 * len(sums)).view(np.uint16).reshape(-1, 3)[:, 2]
    assert got.tolist() == want


def test_the_profile_gives_each_line_its_cycles():
    text = """
        .active 8
        .space x 408
        local 8:
          memory r0 x 50
          memory r1 x 50
          memory r2 4 50           # in other banks than r1
          operate FMULS dest=MEMORY src0=MEMORY src1=MEMORY at=r0
          return
        """
    machine = Machine(build([assemble(text)]))
    assert machine.run(100_000) == Status.QUIET, machine.fault
    # Constants and the return cost nothing; the issue, three descriptors, 50 elements.
    assert machine.profile == {("test.csl", 8): 1 + 3 * 3 + 50}
