"""Operations on descriptors in memory: values bit by bit against NumPy, and their cycles."""

import numpy as np
import pytest
from helpers.assembly import assemble, build, memory_descriptor
from helpers.csl_operations import RULES
from hypothesis import given, settings, strategies as st

from wafer.machine.engine import Machine, Status, available

pytestmark = pytest.mark.skipif(not available(), reason="the machine is not built")

BYTES = 512


def run(text, memory=0, arch="wse2"):
    machine = Machine(build([assemble(text, memory=memory)], arch=arch))
    assert machine.run(100_000) == Status.QUIET, machine.fault
    return machine


def some_memory(seed):
    """Bytes that are finite numbers as f16 and, mostly, as f32; no NaN, whose bits may differ."""
    values = np.random.default_rng(seed).standard_normal(BYTES // 2) * 4
    return values.astype(np.float16).view(np.uint8).copy()


def element_by_element(op, memory, operands, length):
    """What the operation leaves: each element is read, computed and written before the next."""
    types, rule = RULES[op]
    out = memory.copy()
    for k in range(length):
        read = []
        for kind, (address, stride) in zip(types[1:], operands[1:], strict=True):
            size = np.dtype(kind).itemsize
            at = address if stride is None else address + k * stride * size
            read.append(out[at : at + size].view(kind)[0])
        address, stride = operands[0]
        size = np.dtype(types[0]).itemsize
        at = address + k * stride * size
        with np.errstate(all="ignore"):
            out[at : at + size] = np.array([rule(*read)], types[0]).view(np.uint8)
    return out


@settings(max_examples=150)
@given(
    op=st.sampled_from(list(RULES)),
    arch=st.sampled_from(["wse2", "wse3"]),
    places=st.lists(st.tuples(st.integers(0, 60), st.integers(-2, 3)), min_size=4, max_size=4),
    length=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_overlapping_and_strided_operands_go_element_by_element(op, arch, places, length, seed):
    types, _ = RULES[op]
    memory = some_memory(seed)
    operands = [(128 + 2 * at, stride) for at, stride in places[: len(types)]]
    scalar = len(types) == 4
    if scalar:  # the multiplier stands in a register
        operands[3] = (480, None)
    words = [memory_descriptor(at, length, stride) for at, stride in operands[:3]]
    lines = [f"const r{10 + k} {word}" for k, word in enumerate(words)]
    kinds = "dest=MEMORY src0=MEMORY" + (" src1=MEMORY" if len(types) > 2 else "")
    if scalar:
        size = np.dtype(types[3]).itemsize
        value = int.from_bytes(memory[480 : 480 + size].tobytes(), "little")
        lines += [f"const r13 {value}"]
        kinds += " scalar=SCALAR"
    text = [".active 8", "local 8:", *lines, f"operate {op} {kinds} at=r10", "return"]
    program = assemble("\n".join(text))._replace(memory=memory)
    machine = Machine(build([program], arch=arch))
    assert machine.run(100_000) == Status.QUIET, machine.fault
    got = machine.read(0, 0, 0, BYTES)
    want = element_by_element(op, memory, operands, length)
    for kind in (np.float16, np.float32):  # a NaN is a NaN
        both = np.isnan(got.view(kind)) & np.isnan(want.view(kind))
        step = np.dtype(kind).itemsize
        where = np.flatnonzero(both)
        for k in where:
            got[k * step : (k + 1) * step] = want[k * step : (k + 1) * step]
    np.testing.assert_array_equal(got, want)


def test_the_profile_gives_each_line_its_cycles():
    machine = run(
        """
        .active 8
        .space x 408
        local 8:
          memory r0 x 50
          memory r1 x 50
          memory r2 4 50           # in other banks than r1
          operate FMULS dest=MEMORY src0=MEMORY src1=MEMORY at=r0
          return
        """
    )
    # Constants and the return cost nothing; the issue, three descriptors, 50 elements.
    assert machine.profile == {("test.csl", 8): 1 + 3 * 3 + 50}
