"""System modules: CSL that passes our own checks, with the names that programs use."""

import json
import re
import tomllib
from pathlib import Path

import pytest

import wafer.csl
<<<<<<< HEAD
from wafer.csl import Source, check, format_text, parse
from wafer.csl.semantics.files import LIBRARY
=======
from wafer.csl import Position, Source, check, format_text, parse
from wafer.csl.host.vendor import debug_util
from wafer.csl.semantics.files import LIBRARY, Files
>>>>>>> cslm
from wafer.csl.syntax import tree
from wafer.machine.codes import CONFIG, Intrinsic, Type
from wafer.vendor.sdk import debug_util

FILES = sorted(LIBRARY.rglob("*.csl"))


def module_name(path):
    return path.relative_to(LIBRARY).with_suffix("").as_posix().removeprefix("values/")


MODULES = {module_name(path): path for path in FILES}
# What programs import, with what they use of it.
<<<<<<< HEAD
NAMES = Path(__file__).parent / "programs" / "used_names.json"
USED = json.loads(NAMES.read_text(encoding="utf-8"))
=======
USED = {
    "memcpy/get_params": "width height MEMCPYH2D_1 MEMCPYD2H_1 get_params",
    "memcpy/memcpy": "unblock_cmd_stream MEMCPYH2D_1 MEMCPYH2D_2 MEMCPYD2H_1"
    " get_streaming_fabout_dsd",
    "memcpy/memcpy_switches": "ctrl switch_cmd_11 teardown_cmd_1",
    "memcpy_multi/get_params": "width height get_params",
    "memcpy_multi/memcpy": "unblock_cmd_stream MEMCPYH2D_4 MEMCPYD2H_4 LAUNCH data_type",
    "time": "tsc_size_words enable_tsc disable_tsc reset_tsc_counter get_timestamp",
    "math": "sqrt sqrt_f16 sqrt_f32 abs inv invsqrt_f32 NEGATIVE_INF_f32 exp_f16 floor_f16 log sin"
    " cos pow min max ceil isNaN sign NaN_f16 NaN_f32 POSITIVE_INF NEGATIVE_INF NaN max_f32 min_f32"
    " sign_f32 isNaN_f32 isInf_f16 isFinite_f32 isSignaling_f16 signbit_f32 fscale_f32 sig_f16",
    "random": "random_f32 random_f16 random_normal_f32 set_seed set_global_prng_seed"
    " random_pow_u32",
    "complex": "complex complex_32 complex_64 get_complex get_complex_32 get_complex_64"
    " add_complex subtract_complex_32 multiply_complex_64",
    "malloc": "buffer_num_words asserts_enabled malloc malloc_i16 malloc_u16 malloc_f16 malloc_i32"
    " malloc_u32 malloc_f32 has_enough_space has_enough_words has_enough_double_words free",
    "layout": "get_x_coord get_y_coord",
    "control": "MAX_CMDS opcode encode_single_payload encode_control_task_payload encode_payload",
    "dsd_ops": "mov convert add sub mul fmac neg abs scale max",
    "tile_config": "color_config switch_config teardown queue_flush input_queue_config"
    " output_queue_config output_queue_status main_thread_priority target addresses reg_type"
    " double_reg_type target_name word_size FIFO_MIN_ALIGNMENT get_fabric_coord",
    "tile_config/color_config": "get_color_config_addr reset_routes",
    "tile_config/switch_config": "clear_current_position set_invalid_for_all_switch_positions"
    " set_rx_switch_pos1 set_tx_switch_pos3 set_switch_pos set_pop_mode set_ring_mode"
    " set_current_switch_position get_switch_config_addr get_color_config_addr",
    "tile_config/teardown": "exit get_task_id get_pending is_pending",
    "tile_config/target": "addresses word_size tsc_size_words",
    "tile_config/main_thread_priority": "level update_main_thread_priority",
    "tile_config/output_queue_status": "status get is_empty all_empty none_empty",
    "tile_config/queue_flush": "exit",
    "tile_config/task_priority": "level update_task_priority set_task_priority clear_task_priority",
    "tile_config/input_queue_config": "encode_input_queue",
    "tile_config/output_queue_config": "encode_output_queue",
    "data_utils": "lo16 hi16 lo32 hi32",
    "timer": "timerCount timerType start stop elapsed",
    "string": "comptime_int_to_string fmt",
    "types": "is_unsigned_int is_signed_int is_float16 is_float is_enabled_float is_signed"
    " is_numeric is_dsd is_dsr has_dsd_type has_dsr_type byte_size_of bit_size_of word_size_of",
    "directions": "rotate_clockwise rotate_counterclockwise flip_vertical flip_horizontal flip"
    " dirToTxBits dirToRxBits TX_RAMP RX_RAMP",
    "collectives_2d/common": "c2d_params pendings",
    "collectives_2d/params": "get_params",
    "collectives_2d/pe": "dim_params queues dest_dsr_ids src0_dsr_ids src1_dsr_ids init pe_id"
    " broadcast scatter gather reduce_fadds",
    "debug": "key buffer_size trace trace_string trace_timestamp trace_i16 trace_u16 trace_u32"
    " trace_f32",
    "simprint": "enable print_string print_u16_decimal print_u32_decimal fmt fmt_no_nl"
    " fmt_with_coords",
    "empty": "",
    "kernels/fft/fft3d_layout": "width memcpy FFT_kernel",
    "kernels/fft/fft3d_pe": "csfftExecC2C csfftExecR2C csfftExecC2R",
    "kernels/tally/layout": "kernel_height kernel_width phase2_tally colors output_color"
    " get_params",
    "kernels/tally/pe": "tally_params output_queues input_queues callback bump_tally"
    " signal_completion local_tally",
}
>>>>>>> cslm


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_checked_and_laid_out(path):
    source = Source.open(path)
    check(source)
    assert format_text(source) == source.text
    assert max(map(len, source.text.splitlines())) <= 100
    assert source.text.startswith("// "), "say what the module is for"


def test_names_that_programs_use():
    assert MODULES.keys() == USED.keys()
    old = Files((), Path()).found("<memcpy_multi/memcpy_switches>", "", Position("", 1, 1))
    assert old == MODULES["memcpy/memcpy_switches"]
    for name, used in USED.items():
        file = parse(MODULES[name].read_text(encoding="utf-8"))
        declared = {d.name for d in file.declarations if hasattr(d, "name")}
        assert set(used.split()) <= declared, name


def builtins(path):
    for node, _ in tree.walk(parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, tree.Builtin):
            yield node


def test_imports_and_intrinsics_are_there():
    """Modules import modules that there are, and name the machine's intrinsics."""
    for path in FILES:
        for node in builtins(path):
            text = [a.value for a in node.arguments if isinstance(a, tree.String)]
            if node.name == "@import_module":
                assert text[0].strip("<>") in MODULES
            if node.name == "@intrinsic":
                assert text[0] in Intrinsic.__members__


def constants(name):
    text = MODULES[name].read_text(encoding="utf-8")
    return {k: int(v, 0) for k, v in re.findall(r"const (\w+): u16 = (0x\w+|\d+);", text)}


def test_numbers_are_the_machines():
    """Register addresses, and the kinds of records that the host reads."""
    assert constants("tile_config/color_config")["COLORS"] == CONFIG["color"]
    assert constants("tile_config/switch_config")["SWITCHES"] == CONFIG["switch"]
    assert constants("tile_config/input_queue_config")["QUEUES"] == CONFIG["input_queue"]
    assert constants("tile_config/output_queue_config")["QUEUES"] == CONFIG["output_queue"]
    text = MODULES["tile_config/target"].read_text(encoding="utf-8")
    bytes_of = {name: int(at, 0) for name, at in re.findall(r"(\w+) = (0x\w+)", text)}
    assert bytes_of["COLOR_CONFIG"] == 2 * CONFIG["color"]
    assert bytes_of["TIMESTAMP_COUNTER"] == 2 * CONFIG["timestamp"]
    assert bytes_of["PERF_COUNTER_CONTROL"] == 2 * CONFIG["timer"]
    collectives = constants("collectives_2d/pe")
    assert collectives["COLOR_REGISTERS"] == CONFIG["color"]
    assert collectives["SWITCH_REGISTERS"] == CONFIG["switch"]
    records = constants("debug")
    assert records["BYTES"] == debug_util._BYTES
    assert records["TIMESTAMP"] == debug_util._TIMESTAMP
    text = MODULES["debug"].read_text(encoding="utf-8")
    kinds = re.findall(r"fn trace_(\w+)\(value: \w+\) void \{\s*trace_words?\((\d+),", text)
    assert {kind: int(number) for kind, number in kinds} == {
        kind.name.lower(): kind.value for kind in Type if kind not in (Type.I64, Type.U64)
    }


def test_the_library_is_shipped():
    from helpers.paths import ROOT

    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    shipped = tomllib.loads(text)["tool"]["setuptools"]["package-data"]["wafer.csl"]
    assert "library/**/*.csl" in shipped
    assert LIBRARY.is_relative_to(wafer.csl.__path__[0])
