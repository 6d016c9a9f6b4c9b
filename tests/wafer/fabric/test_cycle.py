"""Hand-counted cases of 1 to 4 PEs for every rule of the machine, as a ``Layout`` meets it.

An element issued at cycle t next door is usable at t + 6
(2 up, 1 hop, 2 down, 1 to compute); d hops away at t + 5 + d.
"""

import numpy as np
import pytest
from helpers.fabric_rules import CASES, VALUES

from wafer import fabric
from wafer.energy import Counts
from wafer.machine.base import Status


@pytest.fixture(scope="module")
def runs():
    """Final state of every case."""
    return {
        name: (program, fabric.run(program, VALUES.get(name, values), 400))
        for name, (program, values) in CASES.items()
    }


def get(runs, name, array="a"):
    program, state = runs[name]
    fabric.check_finished(state)
    return np.asarray(fabric.read(program, state, array)), int(fabric.cycles(state)), state


def test_two_elements_per_cycle_in_memory_and_overheads(runs):
    values, cycles, state = get(runs, "straight_code")
    assert cycles == 3 + 2  # of 5 and of 4
    assert int(state.busy[0, 0]) == 5
    np.testing.assert_array_equal(values[0, 0, :4], [2, 4, 6, 8])
    # 61 to start the task, 15 to launch the second operation
    assert get(runs, "launch_overheads")[1] == 61 + 3 + 15 + 3


def test_sixteen_bit_operands_take_four_elements_per_cycle(runs):
    values, cycles, _ = get(runs, "sixteen_bit_simd", "h")
    assert cycles == 3
    np.testing.assert_array_equal(values[0, 0], np.arange(10) + 0.5)


def test_strides_and_arithmetic(runs):
    values, _, _ = get(runs, "strides")
    np.testing.assert_array_equal(values[0, 0, 16:22], [1, 2, 5, 6, 9, 10])
    np.testing.assert_array_equal(values[0, 0, 24:28], [4, 3, 2, 1])
    values, _, _ = get(runs, "arithmetic")
    np.testing.assert_array_equal(values[0, 0, 8:16], [1, 6, 1 + 2 * 4, 2 + 3 * 4, 2.5, 2.5, 3, 4])
    assert values[0, 0, 20] == np.float32(1)  # 1 + 2^-24 rounds to even


def test_integers_of_32_bits_wrap(runs):
    values, cycles, _ = get(runs, "integers", "out")
    u = np.array([7, 2**31, 2**32 - 1, 3], np.uint32)
    want = [u + 3, u - 3, 3 * u, np.maximum(u, 3), u + 2 * u]
    np.testing.assert_array_equal(values[0, 0], np.concatenate(want))
    assert cycles == 5 * 4  # CSL has none of them: an element a cycle


def test_latency_of_a_hop_and_of_a_multicast(runs):
    values, cycles, state = get(runs, "one_hop")
    assert cycles == 4 + 1 + 5
    np.testing.assert_array_equal(values[0, 1, 16:20], [1, 2, 3, 4])
    np.testing.assert_array_equal(state.links[:, 0, 0], [0, 4, 0, 0, 0])
    np.testing.assert_array_equal(state.links[:, 0, 1], [0, 0, 0, 0, 4])
    values, _, state = get(runs, "multicast")
    np.testing.assert_array_equal(state.end[0], [3, 3 + 1 + 5, 3 + 2 + 5, 3 + 3 + 5])
    np.testing.assert_array_equal(values[0, 1:, 16:19], [[1, 2, 3]] * 3)


@pytest.mark.native
def test_counts_of_what_is_done(runs):
    """Words of 16 bits that are read and written; four wavelets over a link."""
    assert runs["one_hop"][1].machine.counts == Counts(reads=8, writes=8, hops=4)
    counts = runs["arithmetic"][1].machine.counts
    assert counts == Counts(adds32=8, multiplies32=3, reads=30, writes=18)


def test_back_pressure_holds_eleven_words(runs):
    _, cycles, _ = get(runs, "back_pressure")
    assert cycles == 30 + 20
    # 2 in the output queue, 2 in the ramp up, 2 + 2 in the routers, 1 down, 2 in the input queue
    _, stuck = runs["never_received"]
    assert int(stuck.busy[0, 0]) == 11
    with pytest.raises(fabric.DeadlockError, match=r"PE \(0, 0\): .* waits .*\(fmovs"):
        fabric.check_finished(stuck)
    assert stuck.status is Status.QUIET


@pytest.mark.native  # the JAX machine tells no reason
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("never_received", r"waits for room in output queue 0 \(fmovs"),
        ("never_sent", r"PE \(1, 0\): main .* color 7 \(fmovs"),
        ("torn_from_the_start", r"PE \(1, 0\): main .* waits for data of"),
    ],
)
def test_deadlock_tells_what_is_waited_for(runs, name, text):
    with pytest.raises(fabric.DeadlockError, match=text):
        fabric.check_finished(runs[name][1])


def test_deadlock_is_found_at_once(runs):
    _, state = runs["never_sent"]
    assert state.machine.cycle <= 2  # no time-out


def test_colors_share_a_link_word_by_word(runs):
    values, cycles, state = get(runs, "shared_link")
    assert cycles == 2 * 8 + 6
    assert int(state.links[1, 0, 1]) == 16
    np.testing.assert_array_equal(values[0, 2, :16], [*range(1, 9)] * 2)


def test_same_cycle_arrival_is_a_fault(runs):
    values, _, _ = get(runs, "merge_apart")
    np.testing.assert_array_equal(values[0, 2, :2], [2, 1])
    _, state = runs["merge_collides"]
    with pytest.raises(fabric.FaultError, match=r"cycle 3, PE \(1, 0\): two .* color 5"):
        fabric.check_finished(state)


def test_switches_topics_06_and_07(runs):
    result, _, _ = get(runs, "topic_06_switches", "result")
    result = result[..., 0] - 1
    # The first ADV leaves west by position 1; the data that follow go E, S, N and W.
    assert (result[1, 2], result[2, 1], result[0, 1], result[1, 0]) == (0, 2, 4, 6)
    result, _, _ = get(runs, "topic_07_control_tasks", "result")
    data = result[..., 0] & 0xFFFF
    assert (data[1, 0], data[1, 2], data[2, 1], data[0, 1]) == (10, 12, 14, 16)
    assert ((result[..., 0] >> 16) & 63)[1, 0] == 40


def test_switch_stays_at_its_last_position_without_ring(runs):
    result, _, _ = get(runs, "switch_saturates", "result")
    assert (result[0, 1, 0], result[1, 0, 0], result[1, 2, 0]) == (1, 2, 3)
    np.testing.assert_array_equal(result[2, 1, :3], [4, 5, 6])


def test_filters(runs):
    result, _, _ = get(runs, "topic_08_range_filter", "result")
    np.testing.assert_array_equal(
        result[0, 1:, :3] & 0xFFFF, [[103, 104, 105], [106, 107, 108], [109, 110, 111]]
    )
    values, _, _ = get(runs, "counter_filter")
    np.testing.assert_array_equal(values[0, 1, 16:20], [1, 2, 5, 6])


def test_color_swap_topic_14(runs):
    result, _, _ = get(runs, "topic_14_color_swap", "sum")
    np.testing.assert_array_equal(result[0, :, 0], [222, 111, 222, 111])


def test_teardown_turns_a_color_round(runs):
    values, _, state = get(runs, "teardown")
    np.testing.assert_array_equal(values[0, 1:, 8:10], [[1, 2], [1, 2]])
    np.testing.assert_array_equal(values[0, :2, 16:19], [[4, 5, 6], [4, 5, 6]])
    _, state = runs["torn_from_the_start"]
    with pytest.raises(fabric.DeadlockError, match=r"PE \(1, 0\): .*\(fmovs"):
        fabric.check_finished(state)
    assert int(state.links.sum()) == 0


def test_sixteen_bit_payloads_round_like_numpy(runs):
    values, _, _ = get(runs, "sixteen_bit_payloads", "h")
    own = np.arange(8).astype(np.float16)
    np.testing.assert_array_equal(values[0, 1], own * (own + np.float16(0.01)))


def test_tasks(runs):
    values, cycles, _ = get(runs, "data_task")
    assert (values[0, 1, 20], values[0, 1, 21]) == (15 + 21, 5)  # a[20] starts as 21
    # the first word starts the task in cycle 5; two operations per wavelet, and a cycle to end it
    assert cycles == 6 + 3 * 5 - 1
    assert get(runs, "activation_order")[0][0, 0, 0] == 312
    assert get(runs, "block_and_unblock")[0][0, 0, 0] == 132


def test_microthread_runs_beside_its_task(runs):
    values, cycles, _ = get(runs, "microthread_overlaps")
    # 1 to start the thread, 20 of work, 8 words, and the task that they activate
    assert cycles == 1 + 20 + 8 + 8
    np.testing.assert_array_equal(values[0, 1, 8:16], 2 * np.arange(1, 9))


def test_a_switch_orders_two_senders(runs):
    values, _, _ = get(runs, "switched_merge")
    np.testing.assert_array_equal(values[0, 2, 16:23], [9, 10, 11, 1, 2, 3, 4])
