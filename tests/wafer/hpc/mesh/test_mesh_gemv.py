"""Vectors times matrices on PEs, and sums along lines of them."""

import pathlib

import numpy as np
import pytest

import wafer.csl
from wafer.errors import WaferError
from wafer.hpc import host
from wafer.hpc.mesh import gemv, pictures, tree

FOLDER = pathlib.Path(gemv.__file__).parents[1]
SINGLE, HALF = (np.float32, 1e-5), (np.float16, 0.03)
# Mesh, shape of the matrix, group (0: the best one), chain; type and largest error.
CASES = [
    ((1, 1), (1, 1), 0, False, HALF),
    ((2, 3), (5, 20), 0, False, SINGLE),
    ((4, 2), (11, 7), 0, True, HALF),
    ((7, 1), (20, 17), 3, False, SINGLE),
    ((9, 1), (18, 40), 4, False, HALF),
    ((1, 9), (6, 70), 1, False, SINGLE),
]


def medium(shape):
    rng = np.random.default_rng(sum(shape))
    return rng.standard_normal(shape[0]), rng.standard_normal(shape)


@pytest.mark.parametrize(("mesh", "shape", "group", "chain", "precision"), CASES)
def test_product_and_cycles(mesh, shape, group, chain, precision):
    dtype, limit = precision
    x, matrix = medium(shape)
    y, spent = gemv.run(x, matrix, mesh, group=group, chain=chain, dtype=dtype)
    np.testing.assert_allclose(y, x @ matrix, atol=limit, rtol=0)
    closed = gemv.cycles(mesh, shape, group=group, chain=chain, dtype=dtype)
    assert closed == pytest.approx(spent, rel=0.05)


def test_by_hand():
    y, _ = gemv.run(np.array([1, 2]), np.array([[1, 10], [3, -1]]), (2, 2))
    assert y.tolist() == [7, 8]


def test_many_times_in_a_row():
    """Nobody mixes words of one product with those of the next."""
    x, matrix = medium((10, 12))
    once, first = gemv.run(x, matrix, (5, 2), group=2)
    often, spent = gemv.run(x, matrix, (5, 2), group=2, times=4)
    np.testing.assert_array_equal(once, often)
    assert 3 * first < spent < 4 * first


@pytest.mark.parametrize("size", [33, pytest.param(64, marks=pytest.mark.slow)])
def test_the_tree_is_faster_than_the_chain(size):
    """On sizes from which no constant was read."""
    x, matrix = medium((size, 8))
    spent = {}
    for name, how in {"tree": {}, "level": {"group": size}, "chain": {"chain": True}}.items():
        _, spent[name] = gemv.run(x, matrix, (size, 1), **how)
        closed = gemv.cycles((size, 1), (size, 8), **how)
        assert closed == pytest.approx(spent[name], rel=0.03)
    assert spent["tree"] <= spent["level"] < 0.8 * spent["chain"]


def test_a_picture_of_the_ways(tmp_path):
    path = tmp_path / "sums.png"
    figure = pictures.sums([2, 10, 100], 8, {64: (490, 315, 247)}, str(path))
    lines = figure.axes[0].get_lines()
    assert path.stat().st_size > 1000
    assert [np.size(line.get_xdata()) for line in lines] == [3, 1] * 3


def test_best_groups_are_near_the_root_of_the_size():
    for size in (100, 400, 720):
        assert size**0.5 / 2 < tree.best_group(size, 8) < size**0.5 * 2
    assert tree.cycles(1, 8) == 0


LAYOUT = """
param width: u16;
param height: u16;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = width, .height = height });
const rows = @import_module("FOLDER/tree_layout.csl", .{ .size = width, .group = 2,
  .colors = 0, .sides = [2]direction{ WEST, EAST } });
const lines = @import_module("FOLDER/tree_layout.csl", .{ .size = height, .group = 3,
  .colors = 7, .sides = [2]direction{ NORTH, SOUTH } });
layout {
  @set_rectangle(width, height);
  for (@range(u16, height)) |y| {
    for (@range(u16, width)) |x| {
      rows.route(x, y, x);
      lines.route(x, y, y);
      @set_tile_code(x, y, "pe.csl", .{ .memcpy_params = memcpy.get_params(x),
        .x = rows.get_params(x), .y = lines.get_params(y) });
    }
  }
  @export_name("values", [*]f32, true);
  @export_name("go", fn() void);
}
"""
CODE = """
param memcpy_params: comptime_struct;
param x: comptime_struct;
param y: comptime_struct;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
const row = @import_module("FOLDER/tree.csl", .{ .where = x, .queues = [2]u16{ 2, 3 } });
const line = @import_module("FOLDER/tree.csl", .{ .where = y, .queues = [2]u16{ 4, 5 } });
var values = @zeros([5]f32);
var values_ptr: [*]f32 = &values;
const three = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> values[i] });
const two = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> values[i + 3] });
fn go() void {
  row.sum(three, 3);
  line.max(two, 2);
  line.sum(three, 3);
  row.max(two, 2);
  sys_mod.unblock_cmd_stream();
}
comptime {
  @export_symbol(values_ptr, "values");
  @export_symbol(go);
}
"""


@pytest.mark.parametrize(("height", "width"), [(1, 5), (4, 1), (5, 6)])
def test_sums_and_maxima_along_both_axes(tmp_path, height, width):
    for name, text in {"layout.csl": LAYOUT, "pe.csl": CODE}.items():
        (tmp_path / name).write_text(text.replace("FOLDER", str(FOLDER)))
    params = {"width": width, "height": height}
    runtime = wafer.csl.Runtime(wafer.csl.compile(tmp_path / "layout.csl", params=params))
    values = np.random.default_rng(0).integers(-9, 9, (height, width, 5)).astype(np.float32)
    host.write(runtime, "values", values)
    runtime.launch("go")
    after = host.read(runtime, "values", 5, np.float32)
    np.testing.assert_array_equal(after[..., :3] - values[..., :3].sum((0, 1)), 0)
    np.testing.assert_array_equal(after[..., 3:] - values[..., 3:].max((0, 1)), 0)


def test_errors():
    x, matrix = medium((4, 4))
    cases = [
        ((x[:3], matrix, (1, 1)), {}, r"x: shape \(3,\), matrix: shape \(4, 4\); expected"),
        ((x, matrix, (0, 1)), {}, r"mesh: \(0, 1\); expected rows and columns of PEs"),
        ((x, matrix, (2, 1)), {"group": 3}, r"group: 3; expected 1 to 2"),
        ((x, matrix, (2, 1)), {"dtype": np.int32}, r"dtype: int32; expected float32 or float16"),
        ((x, matrix * 1e6, (2, 1)), {"dtype": "float16"}, r"matrix: holds values that are not fin"),
    ]
    for arguments, options, message in cases:
        with pytest.raises(WaferError, match=message):
            gemv.run(*arguments, **options)
