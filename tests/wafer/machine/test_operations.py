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


def test_the_length_is_the_first_sources_then_the_seconds_then_the_destinations():
    machine = run(
        """
        .data x f32 1 2 3 4 5 6
        .space a 24
        .space b 24
        .space c 24
        .space d 24
        .active 8
        local 8:
          memory r0 a 6          # longer than the source
          memory r1 x 2
          operate FMOVS dest=MEMORY src0=MEMORY at=r0
          memory r0 b 1          # shorter than the source: it goes on behind its end
          memory r1 x 3
          operate FMOVS dest=MEMORY src0=MEMORY at=r0
          memory r0 c 4          # a scalar has no length
          const r1 f32:9
          operate FMOVS dest=MEMORY src0=SCALAR at=r0
          memory r0 d 6          # nor has the first source; the second has
          const r1 f32:10
          memory r2 x 3
          operate FADDS dest=MEMORY src0=SCALAR src1=MEMORY at=r0
          return
        """
    )
    floats = lambda at: machine.read(0, 0, at, 24).view(np.float32).tolist()
    assert floats(24) == [1, 2, 0, 0, 0, 0]
    assert floats(48) == [1, 2, 3, 0, 0, 0]
    assert floats(72) == [9, 9, 9, 9, 0, 0]
    assert floats(96) == [11, 12, 13, 0, 0, 0]


def test_a_pointer_is_read_and_written_anew_for_each_element():
    machine = run(
        """
        .data sum f32 100
        .data x f32 1 2 3 4
        .data most f32 -5
        .active 8
        local 8:
          const r0 sum
          const r1 sum
          memory r2 x 4
          operate FADDS dest=POINTER src0=POINTER src1=MEMORY at=r0 into=r9
          const r0 most
          const r1 most
          operate FMAXS dest=POINTER src0=POINTER src1=MEMORY at=r0
          return
        """
    )
    assert machine.read(0, 0, 0, 4).view(np.float32) == [110]
    assert machine.read(0, 0, 20, 4).view(np.float32) == [4]


def test_a_shape_goes_through_its_last_dimension_first():
    machine = run(
        """
        .data x i16 0 1 2 3 4 5 6 7 8 9 10 11
        .space y 12
        .shape n0=1 n1=1 n2=3 n3=2 s2=4 s3=1    # the left half of three rows of four
        .active 8
        local 8:
          memory r0 y 6
          const r1 0
          const r2 0
          dsd_set.shape r1 r1 r2
          operate MOV16 dest=MEMORY src0=SHAPED at=r0
          return
        """
    )
    assert machine.read(0, 0, 24, 12).view(np.int16).tolist() == [0, 1, 4, 5, 8, 9]


def test_an_index_moves_the_descriptors_that_ask_for_it():
    machine = run(
        """
        .data x f16 0 1 2 3 4 5 6 7
        .space y 4
        .active 8
        local 8:
          memory r0 y 2
          memory r1 x 2 2 1       # every second, from where the index says
          const r2 3
          operate FMOVH dest=MEMORY src0=MEMORY index=1 at=r0
          return
        """
    )
    assert machine.read(0, 0, 16, 4).view(np.float16).tolist() == [3, 5]


def test_a_carry_goes_from_element_to_element():
    machine = run(
        """
        .data x u16 0xffff 0xffff 1
        .data y u16 1 0 2
        .active 8
        local 8:
          memory r0 x 3
          memory r1 x 3
          memory r2 y 3
          operate ADDC16 dest=MEMORY src0=MEMORY src1=MEMORY at=r0
          return
        """
    )
    assert machine.read(0, 0, 0, 6).view(np.uint16).tolist() == [0, 0, 4]


def test_scales_and_significands():
    machine = run(
        """
        .data x f32 6.0 -0.375 0.0
        .data by i16 -2 3 7
        .space y 12
        .space z 12
        .active 8
        local 8:
          memory r0 y 3
          memory r1 x 3
          memory r2 by 3
          operate FSCALES dest=MEMORY src0=MEMORY src1=MEMORY at=r0
          memory r0 z 3
          operate FNORMS dest=MEMORY src0=MEMORY at=r0
          return
        """
    )
    assert machine.read(0, 0, 20, 24).view(np.float32).tolist() == [1.5, -3, 0, 1.5, -1.5, 0]


def test_a_dsr_keeps_its_descriptor_and_advances_only_if_asked():
    machine = run(
        """
        .data x f32 1 2 3 4 5 6
        .space y 24
        .active 8
        local 8:
          memory r0 y 2
          load_dsr file=0 id=1 kind=MEMORY saves_address=1 at=r0
          memory r0 x 2
          load_dsr file=1 id=1 kind=MEMORY at=r0
          const r10 0x001         # dest 1
          const r11 0x101         # src0 1
          operate FMOVS dest=DSR src0=DSR at=r10
          operate FMOVS dest=DSR src0=DSR at=r10
          const r5 16
          dsr_base.1 0 1 r5       # src0 1 begins at x[4]
          operate FMOVS dest=DSR src0=DSR at=r10
          return
        """
    )
    assert machine.read(0, 0, 24, 24).view(np.float32).tolist() == [1, 2, 1, 2, 5, 6]


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
