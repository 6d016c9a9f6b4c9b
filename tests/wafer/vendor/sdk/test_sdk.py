"""The modules that public programs import: helpers, debugging, and the runtime on a folder."""

import re

import numpy as np
import pytest
from helpers.csl_host import A, FakeMachine, image

from wafer.csl.host import runtime
from wafer.csl.host.artifacts import save
from wafer.csl.host.errors import HostError
from wafer.machine.image import Symbol
from wafer.vendor.sdk import sdk, sdk_utils
from wafer.vendor.sdk.debug_util import debug_util, decode_trace
from wafer.vendor.sdk.shims.cerebras.sdk import sdk_utils as shim


def test_memcpy_view_is_of_the_lower_bits():
    items = np.array([0x00010002, 0xFFFFFFFF], np.uint32)
    view = sdk_utils.memcpy_view(items, np.dtype(np.int16))
    assert view.tolist() == [2, -1]
    view[0] = 7
    assert items[0] == 0x00010007
    assert sdk_utils.memcpy_view(items, np.float32).shape == (2,)
    assert sdk_utils.memcpy_view(items.reshape(2, 1), np.uint8).tolist() == [[7], [255]]
    with pytest.raises(HostError, match="expected 32-bit items"):
        sdk_utils.memcpy_view(np.zeros(2, np.uint16), np.uint16)


def test_input_array_to_u32():
    values = np.array([[1, -1], [2, 3]], np.int16)
    assert sdk_utils.input_array_to_u32(values, None, 2).tolist() == [1, 0xFFFF, 2, 3]
    with_index = [1, 0x1FFFF, 2, 0x10003]
    assert sdk_utils.input_array_to_u32(values, 1, 2).tolist() == with_index
    assert sdk_utils.input_array_to_u32(np.float32([1.0])).tolist() == [0x3F800000]
    with pytest.raises(HostError, match="expected items of 16 or 32 bits"):
        sdk_utils.input_array_to_u32(np.zeros(1))


def test_what_the_vendors_helpers_have_beside_ours_says_where_it_is():
    assert shim.make_u48 is sdk_utils.make_u48
    with pytest.raises(ImportError, match=r"check_rpc_api is not here; .*out_rpc\.json"):
        shim.check_rpc_api  # noqa: B018


def test_time_stamps():
    words = [0xFFFF, 1, 0, 2, 2, 1]
    assert sdk_utils.make_u48(words) == 0x1FFFF
    assert sdk_utils.sub_ts(words) == 0x100020002 - 0x1FFFF
    packed = np.array(words, "<u2").view(np.float32)
    assert sdk_utils.calculate_cycles(packed) == sdk_utils.sub_ts(words)
    assert sdk_utils.calculate_cycles(np.array(words, np.uint32)) == sdk_utils.sub_ts(words)
    with pytest.raises(HostError, match="found 4"):
        sdk_utils.calculate_cycles(np.zeros(4, np.uint32))


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1, 1), (-1, 0xFFFFFFFF), (1.0, 0x3F800000), (np.int16(-1), 0xFFFF), (np.float16(1), 0x3C00)],
)
def test_cast_uint32(value, bits):
    assert sdk_utils.cast_uint32(value) == bits
    assert sdk_utils.float_to_hex(1.0) == "0x3f800000"


def trace(*records):
    words = [word for record in records for word in record]
    return np.array([len(words), *words, 0, 0], "<u2")


def test_decode_trace():
    """Records by hand, as library/debug.csl writes them: 'abc', 65538, 1.5, -2, a stamp, true."""
    buffer = trace(
        (32 | 2 << 8, 0x6261, 0x63),
        (6 | 2 << 8, 2, 1),
        (9 | 2 << 8, 0, 0x3FC0),
        (1 | 1 << 8, 0xFFFE),
        (33 | 3 << 8, 1, 0, 1),
        (10 | 1 << 8, 1),
    )
    assert decode_trace(buffer) == ["abc", 65538, 1.5, -2, 0x100000001, 1]
    buffer[0] |= 0x8000  # more did not fit
    assert len(decode_trace(buffer)) == 6
    assert decode_trace(trace()) == []


def test_runtime_and_debugging(tmp_path, monkeypatch):
    """A script's way: compile, run, copy, stop, then look at memory by the fabric's coordinates."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runtime, "machine_for", FakeMachine)
    program = image()
    symbols = program.programs[0].symbols | {"<debug>.t": Symbol(A, 12, "[6]u16")}
    program = program._replace(programs=(program.programs[0]._replace(symbols=symbols),))
    save("out", program, {})
    runner = sdk.SdkRuntime("out", cmaddr=None, suppress_simfab_trace=True, simulator=True)
    debugger = debug_util("out")  # reads nothing yet
    with pytest.raises(
        HostError, match=r"does not run yet; call runner.load\(\) and runner.run\(\)"
    ):
        runner.launch("never")
    with pytest.raises(HostError, match=r"not loaded; call runner.load\(\) first"):
        runner.run()
    runner.load()
    runner.run()
    words = trace((6 | 2 << 8, 5, 0)).astype(np.uint32)
    short = sdk.MemcpyDataType.MEMCPY_16BIT
    runner.memcpy_h2d(runner.get_id("a"), words, 1, 1, 1, 1, 6, data_type=short)
    runner.dump_core("now.npz")  # debug_util works before the end, too
    assert debug_util("out").get_symbol(5, 2, "array", np.uint16)[1] == 6 | 2 << 8
    assert np.load("now.npz")["0"].shape == (6, 64)
    with pytest.raises(
        HostError, match=r"no stream 'p' of a Python layout; there are none; .*get_id"
    ):
        runner.send("p", words)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    runner.stop()
    log = (tmp_path / "elsewhere" / "sim.log").read_text(encoding="utf-8")
    assert re.fullmatch(
        r"@\d+ end; \d+% of the PEs' cycles are scalar instructions: .* may be \d+% off\n"
        r"@\d+ timing: simulator\n"
        r"@\d+ energy [\d.e-]+ uJ, \d+ flops, by constants of other chips\n",
        log,
    )
    monkeypatch.chdir(tmp_path)
    assert debugger.get_symbol(5, 2, "array", np.uint16)[:3].tolist() == [3, 6 | 2 << 8, 5]
    assert debugger.read_trace(5, 2, "t") == [5]
    assert debugger.get_symbol_rect(((4, 1), (3, 2)), "array", np.uint16).shape == (3, 2, 8)
    with pytest.raises(HostError, match="outside of the program, which has columns 4 to 6"):
        debugger.get_symbol(0, 0, "array", np.uint16)
    with pytest.raises(HostError, match="the program was stopped"):
        runner.memcpy_d2h(words, runner.get_id("a"), 1, 1, 1, 1, 6, data_type=short)
    with pytest.raises(HostError, match="only the simulator"):
        sdk.SdkRuntime("out", cmaddr="10.0.0.1:9000")
    with pytest.raises(HostError, match="simulator=False: there is no system"):
        sdk.SdkRuntime("out", simulator=False)
    with pytest.raises(TypeError, match="supress_simfab_trace"):
        sdk.SdkRuntime("out", supress_simfab_trace=True)
