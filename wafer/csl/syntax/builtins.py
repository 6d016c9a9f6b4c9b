"""The names that CSL defines itself: builtins with the arguments they take, types, directions."""

import re

_MANY = 99

# Fewest and most arguments, and the builtins that take so many.
_ROWS = (
    (0, 0, "get_rectangle fp16 random16"),
    (1, 1, "activate block unblock assert zeros rpc queue_flush"),
    (1, 1, "get_int get_color_id get_filter_id get_color get_input_queue get_output_queue"),
    (1, 1, "get_ut_id get_config get_local_task_id get_data_task_id get_control_task_id"),
    (1, 1, "type_of is_arch element_type element_count rank dimensions strlen get_array"),
    (1, 1, "is_comptime range_start range_stop range_step get_string_from_byte"),
    (1, 1, "set_active_prng get_config_unchecked get_symbol_id get_tensor_ptr get_xdsr get_sr"),
    (0, 0, "has_exported_tensors"),
    (0, 1, "set_control_task_table"),
    (1, 2, "comptime_assert import_module export_symbol allocate_fifo initialize_queue"),
    (1, _MANY, "comptime_print strcat"),
    (2, 2, "as bitcast ptrcast constants get_dsd get_dsr has_field field is_same_type"),
    (2, 2, "import_comptime_value concat_structs set_rectangle set_local_color_config"),
    (2, 2, "set_teardown_handler get_symbol_value"),
    (2, 2, "bind_task bind_local_task bind_data_task bind_control_task set_empty_queue_handler"),
    (2, 2, "set_dsd_length set_dsd_base_addr set_dsd_stride set_dsr_base_addr dfilt"),
    (2, 2, "set_fifo_read_length set_fifo_write_length"),
    (2, 4, "intrinsic"),
    (2, 3, "load_to_dsr export_name set_config set_config_unchecked"),
    (2, 4, "range set_tile_code"),
    (2, _MANY, "map"),
    (3, 3, "increment_dsd_offset"),
    (4, 4, "set_color_config bind_rotating_tasks"),
    (4, 5, "load_to_dsr_xdsr_sr"),
    # Operations on descriptors: operands, and a struct of options that may be left out.
    (2, 3, "fmovs fmovh mov16 mov32 fnegs fnegh fabss fabsh fs2h fh2s fs2xp16 fh2xp16"),
    (2, 3, "xp162fs xp162fh clz ctz popcnt fnorms fnormh"),
    (3, 4, "fadds fsubs fmuls fmaxs faddh fsubh fmulh fmaxh faddhs fscales"),
    (3, 4, "fscaleh add16 addc16 sub16 and16 or16 xor16 sll16 slr16 sar16"),
    (4, 5, "fmacs fmach fmachs"),
)

# Builtin -> fewest and most arguments.
ARGUMENTS = {f"@{name}": (low, high) for low, high, names in _ROWS for name in names.split()}

_INTEGER = re.compile(r"[iu](0|[1-9]\d*)")
_NAMES = frozenset(
    name
    for names in (
        "bool f16 f32 bf16 cb16 void type anytype anyopaque direction color",
        "comptime_int comptime_float comptime_string comptime_struct imported_module range",
        "local_task_id data_task_id control_task_id input_queue output_queue ut_id",
        "dsr_dest dsr_src0 dsr_src1 xdsr sr",
        "mem1d_dsd mem4d_dsd circbuf_dsd fabin_dsd fabout_dsd fifo",
        "NORTH SOUTH EAST WEST RAMP undefined",
    )
    for name in names.split()
)


def is_integer_name(name: str) -> bool:
    """Whether a name is that of an integer type, of any width."""
    return _INTEGER.fullmatch(name) is not None


def predefined(name: str) -> bool:
    """Whether a name means something before any declaration."""
    return name in _NAMES or is_integer_name(name)
