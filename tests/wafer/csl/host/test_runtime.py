"""The host's commands against a machine of plain Python."""

import numpy as np
import pytest
from helpers.csl_host import COUNT, IN, OUT, POINTER, A, FakeMachine, image

from wafer.csl.host.errors import DeadlockError, FaultError, HostError
from wafer.csl.host.order import MemcpyOrder
from wafer.csl.host.region import MemcpyDataType
from wafer.csl.host.runtime import Runtime
from wafer.csl.syntax.source import CslWarning

ROW, COL = MemcpyOrder.ROW_MAJOR, MemcpyOrder.COL_MAJOR
SHORT, LONG = MemcpyDataType.MEMCPY_16BIT, MemcpyDataType.MEMCPY_32BIT


@pytest.fixture
def program():
    return image()


@pytest.fixture
def machine(program):
    return FakeMachine(program)


@pytest.fixture
def runtime(program, machine):
    return Runtime(program, machine)


def halves(machine, x, y, address=A, count=8):
    return machine.memory[x, y][address : address + 2 * count].view("<u2").tolist()


@pytest.mark.parametrize("order", [ROW, COL])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32])
def test_copy_there_and_back(runtime, machine, order, dtype):
    """All bit patterns survive, whatever the type says: also those of NaN."""
    data = np.arange(2 * 3 * 3, dtype=np.uint32) + 0x7F800001
    a = runtime.get_id("a")
    runtime.memcpy_h2d(a, data.view(dtype), 0, 0, 3, 2, 3, order=order, data_type=LONG)
    expected = data.reshape((2, 3, 3), order="C" if order == ROW else "F")
    for (x, y), memory in machine.memory.items():
        np.testing.assert_array_equal(memory[A : A + 12].view("<u4"), expected[y, x])
    back = np.zeros((18, 1), dtype)
    runtime.memcpy_d2h(back, a, 0, 0, 3, 2, 3, order=order, data_type=LONG)
    np.testing.assert_array_equal(back.ravel().view(np.uint32), data)


def test_sixteen_bits(runtime, machine):
    """Lower halves go there, next to each other; what comes back has zeros above."""
    a = runtime.get_id("a")
    items = np.array([0xABCD0001, 0xFFFF0002], np.uint32)
    runtime.memcpy_h2d(a, items, 2, 1, 1, 1, 2, data_type=SHORT)
    assert halves(machine, 2, 1, count=3) == [1, 2, 0]
    assert halves(machine, 0, 0, count=3) == [0, 0, 0]
    back = np.full(2, -1, np.int32)
    runtime.memcpy_d2h(back, a, 2, 1, 1, 1, 2, data_type=SHORT)
    assert back.tolist() == [1, 2]


def test_what_would_go_beyond_the_variable_is_refused(runtime, machine):
    """`array` has 16 bytes, and `count` lies behind it; reading on is what programs do."""
    a, before = runtime.get_id("a"), machine.memory[0, 0].copy()
    message = r"the copy to 'a' of PEs \(0, 0\) to \(2, 1\): 9 items of 16 bits for each PE; "
    message += r"'array' of type \[8\]u16 on PE \(0, 0\) has room for 8"
    with pytest.raises(HostError, match=message):
        runtime.memcpy_h2d_colbcast(a, np.ones(27, np.uint32), 0, 0, 3, 2, 9, data_type=SHORT)
    with pytest.raises(HostError, match=r"5 items of 32 bits for each PE; .* has room for 4"):
        runtime.memcpy_h2d(a, np.ones(5, np.uint32), 0, 0, 1, 1, 5)
    with pytest.raises(HostError, match=r"3 items .* has room for 2"):
        runtime.memcpy_h2d_stride(a, np.ones(3, np.uint32), 0, 0, 1, 1, 3, 3)
    np.testing.assert_array_equal(machine.memory[0, 0], before)
    machine.memory[0, 0][COUNT] = 7
    back = np.zeros(9, np.uint32)
    with pytest.warns(CslWarning, match="has room for 8, and the rest is read from what lies behi"):
        runtime.memcpy_d2h(back, a, 0, 0, 1, 1, 9, data_type=SHORT)
    assert back[8] == 7
    with pytest.raises(HostError, match="400 items of 16 bits for each PE"):
        runtime.memcpy_d2h(np.zeros(400, np.uint32), a, 0, 0, 1, 1, 400, data_type=SHORT)


def test_the_pointer_is_read_when_the_copy_happens(runtime, machine):
    machine.memory[1, 0][POINTER] = A + 4
    runtime.memcpy_h2d(
        runtime.get_id("a"), np.array([7], np.uint32), 1, 0, 1, 1, 1, data_type=SHORT
    )
    assert halves(machine, 1, 0, count=4) == [0, 0, 7, 0]


@pytest.mark.parametrize("order", [ROW, COL])
def test_broadcasts(runtime, machine, order):
    a = runtime.get_id("a")
    data = np.arange(4, dtype=np.uint32)
    runtime.memcpy_h2d_rowbcast(a, data, 0, 0, 3, 2, 2, order=order, data_type=SHORT)
    rows = data.reshape((2, 2), order="C" if order == ROW else "F")
    assert halves(machine, 0, 1, count=2) == halves(machine, 2, 1, count=2) == rows[1].tolist()
    data = np.arange(6, dtype=np.uint32)
    runtime.memcpy_h2d_colbcast(a, data, 0, 0, 3, 2, 2, order=order, data_type=SHORT)
    columns = data.reshape((3, 2), order="C" if order == ROW else "F")
    assert halves(machine, 2, 0, count=2) == halves(machine, 2, 1, count=2) == columns[2].tolist()


def test_stride(runtime, machine):
    data = np.array([1, 2, 3], np.uint32)
    runtime.memcpy_h2d_stride(runtime.get_id("a"), data, 0, 0, 1, 1, 3, 2, data_type=SHORT)
    assert halves(machine, 0, 0, count=6) == [1, 0, 2, 0, 3, 0]


def test_calls(runtime, machine):
    """The words are what registers hold, on every PE; a blocking call has happened."""
    runtime.launch("work", np.int16(-1), np.float32(2.0))
    assert {(at, words) for at, _, words in machine.history} == {
        (at, (-1, 0x40000000)) for at in machine.memory
    }
    runtime.call("work", [0xFFFF, 0x40000000])
    assert machine.history[6][2] == (-1, 0x40000000)
    assert machine.memory[2, 1][COUNT] == 2
    assert runtime.read_symbol(2, 1, "count").tolist() == [2]
    assert runtime.read_symbol(2, 1, "array", np.uint32).shape == (4,)


def test_calls_only_where_the_function_is():
    program = image(tiles=[[0, -1], [-1, 0]])
    machine = FakeMachine(program)
    Runtime(program, machine).launch("work", 1, 1.0)
    assert sorted(at for at, *_ in machine.history) == [(0, 0), (1, 1)]
    with pytest.raises(HostError, match=r"PE \(1, 0\) does not export 'a'"):
        Runtime(program, machine).memcpy_h2d(0, np.zeros(4, np.uint32), 0, 0, 2, 2, 1)


def test_commands_keep_their_order(runtime, machine):
    """A copy that does not block waits for the call before it; so does the call after it."""
    a = runtime.get_id("a")
    first = runtime.launch("work", 1, 1.0, nonblock=True)
    data = np.full(6, 9, np.uint32)
    copy = runtime.memcpy_h2d(a, data, 0, 0, 3, 2, 1, data_type=SHORT, nonblock=True)
    data[:] = 0  # the host's array may be used again
    second = runtime.launch("work", 2, 1.0, nonblock=True)
    assert machine.cycle == 0
    assert not any(map(runtime.is_task_done, (first, copy, second)))
    runtime.task_wait(copy)
    assert halves(machine, 2, 1, count=1) == [9]
    assert {words[0] for _, _, words in machine.history} == {1}
    runtime.task_wait(second)
    assert all(map(runtime.is_task_done, (first, copy, second)))
    assert [words[0] for _, _, words in machine.history] == [1] * 6 + [2] * 6


def test_streams(runtime):
    """Each item is a wavelet of 32 bits, also of 16-bit data; what is left stays for later."""
    data = np.array([0x00010002, 3, 4, 5], np.uint32)
    runtime.memcpy_h2d(IN, data, 1, 0, 2, 1, 2, streaming=True, data_type=SHORT, nonblock=True)
    out = np.zeros(2, np.int32)
    runtime.memcpy_d2h(out, OUT, 1, 0, 2, 1, 1, streaming=True, data_type=SHORT)
    assert out.tolist() == [0x00020004, 8]
    runtime.memcpy_d2h(out, OUT, 1, 0, 2, 1, 1, streaming=True)
    assert out.tolist() == [6, 10]


def test_readers_of_one_stream_are_served_in_order(runtime):
    source = np.array([1, 2, 3], np.uint32)
    runtime.memcpy_h2d(IN, source, 0, 0, 1, 1, 3, streaming=True, nonblock=True)
    first, second = np.zeros(1, np.uint32), np.zeros(2, np.uint32)
    early = runtime.memcpy_d2h(first, OUT, 0, 0, 1, 1, 1, streaming=True, nonblock=True)
    late = runtime.memcpy_d2h(second, OUT, 0, 0, 1, 1, 2, streaming=True, nonblock=True)
    assert not runtime.is_task_done(early)
    source[:] = 0  # the host's array may be used again
    runtime.task_wait(late)
    assert early.finished
    assert (first.tolist(), second.tolist()) == ([2], [4, 6])


def test_a_copy_goes_before_a_later_stream(runtime, machine):
    """Also one that does not block: programs copy a matrix, then stream the vectors."""
    data = np.array([5], np.uint32)
    copy = runtime.memcpy_h2d(0, data, 0, 0, 1, 1, 1, nonblock=True)
    assert not runtime.is_task_done(copy)
    stream = runtime.memcpy_h2d(IN, data, 0, 0, 1, 1, 1, streaming=True, nonblock=True)
    assert not copy.finished
    assert not machine.streams_in
    runtime.task_wait(stream)
    assert copy.finished
    assert machine.streams_out[0, 0] == [10]


def test_a_copy_waits_until_streams_are_used_up(runtime, machine):
    """Nothing else says when the program has worked them off."""
    runtime.memcpy_h2d(IN, np.arange(5, dtype=np.uint32), 0, 0, 1, 1, 5, streaming=True)
    runtime.memcpy_d2h(np.zeros(1, np.uint32), 0, 0, 0, 1, 1, 1)
    assert machine.streams_out[0, 0] == [0, 2, 4, 6, 8]


def test_a_busy_program_holds_a_copy_back_for_a_while_only(runtime, machine):
    machine.spins = True
    runtime.memcpy_h2d(0, np.array([5], np.uint32), 0, 0, 1, 1, 1)
    assert 20_000 <= machine.cycle <= 60_000


def test_a_call_that_frees_nothing(runtime, machine):
    """It is no error of its own. The next copy names what waits."""
    runtime.launch("never")
    copy = runtime.memcpy_h2d(0, np.zeros(1, np.uint32), 0, 0, 1, 1, 1, nonblock=True)
    with pytest.raises(DeadlockError) as error:
        runtime.task_wait(copy)
    assert str(error.value) == (
        "cycle 0: nothing can move any more, but the host waits for the copy to 'a' of PEs (0, 0)"
        " to (0, 0)\n  the calls before it have not freed the command stream: every exported"
        " function must lead to unblock_cmd_stream() on its PE"
        + "".join(f"\n  PE {at}: 'never' waits" for at in machine.memory)
    )


def test_a_stream_that_ends_early(runtime):
    runtime.memcpy_h2d(IN, np.array([1], np.uint32), 0, 0, 1, 1, 1, streaming=True)
    with pytest.raises(DeadlockError, match=r"(?s)2 word\(s\) of each PE .* color 4.*sent 1 of 2"):
        runtime.memcpy_d2h(np.zeros(2, np.uint32), OUT, 0, 0, 1, 1, 2, streaming=True)


def test_a_program_that_never_ends(runtime, machine):
    machine.spins = True
    with pytest.raises(DeadlockError, match=r"in 200000000 cycles, .* at pe\.csl:9:"):
        runtime.memcpy_d2h(np.zeros(1, np.uint32), OUT, 0, 0, 1, 1, 1, streaming=True)


def test_a_fault(runtime, machine):
    machine.fault, machine.cycle = "PE (1, 0): pe.csl:7: no more than 3", 12
    with pytest.raises(FaultError, match=r"cycle 12: PE \(1, 0\): pe.csl:7: no more than 3"):
        runtime.launch("work", 1, 1.0)


def test_stop(program, machine, tmp_path):
    """Programs may still wait; commands may not. Printed lines go to the log."""
    log = tmp_path / "sim.log"
    runtime = Runtime(program, machine, log=log)
    runtime.launch("never", nonblock=True)
    machine.prints.append(Line())
    runtime.stop()
    assert log.read_text(encoding="utf-8") == "@968 P6.2: hello\n"
    runtime.memcpy_h2d(0, np.zeros(1, np.uint32), 0, 0, 1, 1, 1, nonblock=True)
    with pytest.raises(DeadlockError):
        runtime.stop()


class Line:
    cycle, x, y, text = 968, 2, 1, "hello"


H2D = {
    r"PEs \(0, 0\) to \(2, 2\) are not all inside the program's 3 x 2": (0, 0, 0, 3, 3, 1),
    r"the host's array has 6 item\(s\); 2 for each PE in .* are 12": (0, 0, 0, 3, 2, 2),
    r"expected first column, first row, columns, rows, items of each PE": (0, 0, 0, 3, 2),
    r"'work' is a fn.*launch it instead of copying": (1, 0, 0, 3, 2, 1),
    "no symbol 7: get_id gives 0 to 2": (7, 0, 0, 3, 2, 1),
}
WRONG = {
    **{
        message: lambda runtime, words=words: copy(runtime, *words)
        for message, words in H2D.items()
    },
    "no option 'streamed'": lambda runtime: copy(runtime, 0, 0, 0, 3, 2, 1, streamed=True),
    "color 0 is no MEMCPYH2D .* MEMCPYH2D_1 = 3": (
        lambda runtime: copy(runtime, 0, 0, 0, 3, 2, 1, streaming=True)
    ),
    r"no exported symbol 'wrok'; did you mean 'work'\?": lambda runtime: runtime.launch("wrok"),
    r"no exported symbol 'q9'\. The layout exports ": lambda runtime: runtime.get_id("q9"),
    r"'a' is a .*not a function": lambda runtime: runtime.launch("a"),
    r"array is float16; memcpy takes .* 32-bit items": (
        lambda runtime: runtime.memcpy_h2d(0, np.zeros(6, np.float16), 0, 0, 1, 1, 1)
    ),
    r"shape .* is not contiguous": (
        lambda runtime: runtime.memcpy_d2h(np.zeros((6, 2), np.uint32)[:, 0], 0, 0, 0, 1, 1, 1)
    ),
    r"pe.csl has no variable 'arrray'; did you mean 'array'": (
        lambda runtime: runtime.read_symbol(0, 0, "arrray")
    ),
}


def copy(runtime, symbol, *words, **options):
    runtime.memcpy_h2d(symbol, np.zeros(6, np.uint32), *words, **options)


@pytest.mark.parametrize("message", WRONG)
def test_wrong_regions_names_and_arrays(runtime, message):
    with pytest.raises(HostError, match=message):
        WRONG[message](runtime)
