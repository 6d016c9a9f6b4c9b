"""Products of a decoding step: every form, type and number of rows against a dense product."""

import dataclasses
import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import models
from wafer.models.generation.decode import decode_step
from wafer.models.layers.caches import init_cache
from wafer.models.paths import map_named, named_leaves
from wafer.sparsity import decoding
from wafer.sparsity.kernels import DecodeTable, DecodeWeight

DTYPES = [jnp.float32, jnp.bfloat16, jnp.int8]
SHAPES = [(1, 1), (5, 3), (16, 4), (17, 9), (45, 6), (96, 33), (600, 130)]


def pruned(inputs, outputs, kept, dtype):
    """A matrix that ``dtype`` holds exactly: NaN where pruned, a full and an empty row and column.

    The last rule that names a position wins.
    """
    rng = np.random.default_rng(inputs * 1000 + outputs)
    dense = rng.standard_normal((inputs, outputs)).astype(np.float32)
    if dtype == jnp.int8:
        dense = rng.integers(-127, 128, dense.shape).astype(np.float32)
        dense[0] = 127
        dense *= np.float32(0.5) ** (np.arange(outputs) % 5)
    dense = np.array(dense if dtype == jnp.int8 else jnp.asarray(dense, dtype), np.float32)
    keep = rng.random(dense.shape) < kept
    keep[:, 0], keep[0] = True, True
    keep[:, -1:] = outputs == 1
    keep[-1:] = inputs == 1
    return np.where(keep, dense, np.nan)


def close(y, x, dense):
    """Equal to the float64 product, to the rounding of float32 sums."""
    expected = np.asarray(x, np.float64) @ np.nan_to_num(dense).astype(np.float64)
    size = np.abs(np.asarray(x, np.float64)) @ np.abs(np.nan_to_num(dense))
    assert y.shape == expected.shape
    assert np.all(np.abs(np.asarray(y) - expected) <= 2e-6 * size + 1e-7)


@jax.jit
def project_all(weight, streams):
    """One program for all numbers of rows: compiling is most of the time."""
    return [weight.project(x) for x in streams]


whole = jax.jit(DecodeWeight.dense)


def every_number_of_rows(weight, inputs, dense):
    """Products of 1 to 17 rows and of 40: each width of the kernel's tiles, and their tails.

    Rows for int8 are integers of 16 bits over 1,024, the first one the largest: none is rounded.
    """
    streams = []
    for rows in (*range(1, 18), 40):
        rng = np.random.default_rng(rows)
        if weight.values.dtype == jnp.int8:
            whole = rng.integers(-32767, 32768, (rows, inputs))
            whole[:, 0] = 32767
            streams.append((whole / 1024).astype(np.float32))
        else:
            streams.append(rng.standard_normal((rows, inputs), np.float32))
    for x, y in zip(streams, project_all(weight, streams), strict=True):
        close(y, x, dense)


@pytest.mark.native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_masked_is_the_dense_product(inputs, outputs, dtype):
    for kept in (0.0, 0.1, 0.25, 0.5, 1.0):
        dense = pruned(inputs, outputs, kept, dtype)
        weight = DecodeWeight.from_dense(dense, dtype)
        assert weight.values.dtype == dtype
        assert weight.shape == dense.shape
        np.testing.assert_array_equal(whole(weight), np.nan_to_num(dense))
        every_number_of_rows(weight, inputs, dense)


@pytest.mark.native
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("inputs", [130, 600, 5000])
def test_slices_are_the_dense_product(inputs, dtype, monkeypatch):
    """Columns of many lengths, crowded at an end or far apart; the last slice is not full."""
    monkeypatch.setattr("wafer.sparsity.kernels.decode._MOST_BYTES", 9)
    dense = pruned(inputs, 93, 0.13, dtype)
    dense[0], dense[:, 0] = np.nan, np.nan
    dense[inputs // 2 :, 1:30] = np.nan
    dense[: -inputs // 3, 30:40] = np.nan
    dense[1::3, 40:50] = np.nan
    weight = DecodeWeight.from_dense(dense, dtype)
    assert weight.order is not None
    np.testing.assert_array_equal(whole(weight), np.nan_to_num(dense))
    every_number_of_rows(weight, inputs, dense)


@pytest.mark.native
@pytest.mark.parametrize("dtype", DTYPES)
def test_several_products_are_those_of_each(dtype):
    """Masks and slices of several widths, with a bias, without one, and without outputs."""
    x = np.random.default_rng(0).standard_normal((3, 45), np.float32)
    dense = [pruned(45, *size, dtype) for size in ((6, 0.5), (33, 0.5), (1, 1.0), (130, 0.3))]
    dense = [*dense, np.add.outer(np.arange(45), np.arange(32)) % 12 == 0, np.zeros((45, 0))]
    weights = [DecodeWeight.from_dense(array, dtype) for array in dense]
    slices = {weight.order is not None for weight in weights}
    assert slices == ({False} if dtype == jnp.int8 else {False, True})
    biases = [jnp.arange(6.0), None, None, jnp.ones(130), jnp.ones(32), None]

    @jax.jit
    def both(weights):
        return weights[0].project_all(x, weights, biases), [w.project(x) for w in weights]

    for y, alone, bias, array in zip(*both(weights), biases, dense, strict=True):
        np.testing.assert_array_equal(y, alone if bias is None else alone + bias)
        if dtype != jnp.int8:
            close(alone, x, array)
    other = DecodeWeight.from_dense(np.ones((44, 2)), dtype)
    with pytest.raises(ValueError, match="its last axis must be 44"):
        weights[0].project_all(x, [*weights, other], [None] * 7)


@pytest.mark.native
def test_a_layer_multiplies_query_key_and_value_at_once():
    """Of a gated layer that is pruned: one native call for them, and one for up and gate."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_heads": 2, "filter_size": 48}
    model = models.build({"name": "llama", "vocab_size": 61, "max_position_embeddings": 8, **sizes})
    params = map_named(
        lambda name, leaf: (
            leaf * (np.arange(leaf.size).reshape(leaf.shape) % 3 == 0)
            if name.endswith("/kernel")
            else leaf
        ),
        model.init(jax.random.key(0)),
    )
    converted = decoding.convert(model, named_leaves(params)).params
    cache = init_cache(model.config, 1, 8, 1)
    one = jnp.ones((1,), jnp.int32)
    step = functools.partial(decode_step, model.config)
    text = str(jax.make_jaxpr(step)(converted, one[None], one, cache))
    # query key value, attention, out, up gate, down, head
    assert text.count("ffi_call[") == 6


@pytest.mark.native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 5), (64, 257), (20, 7)])
def test_table_is_the_dense_product(inputs, outputs, dtype):
    dense = np.nan_to_num(pruned(inputs, outputs, 1.0, dtype))
    table = DecodeTable.from_dense(dense.T, dtype)
    every_number_of_rows(table, inputs, dense)
    np.testing.assert_array_equal(table.lookup(jnp.array([2, outputs]))[0], dense.T[2])
    assert not np.any(table.lookup(jnp.array([outputs])))


def test_a_product_by_hand():
    weight = DecodeWeight.from_dense(np.array([[1.0, np.nan], [5.0, 6.0], [2.0, 3.0]]))
    assert weight.masks.tolist() == [[0b111, 0, 0, 0], [0b110, 0, 0, 0]]
    assert weight.pointers.tolist() == [0, 3, 5]
    assert weight.values.tolist() == [1, 5, 2, 6, 3] + 32 * [0]
    assert weight.project(jnp.array([1.0, 10.0, 100.0])).tolist() == [251, 360]
    half = weight.project(jnp.ones((2, 1, 3), jnp.bfloat16))
    assert half.dtype == jnp.bfloat16
    assert half.shape == (2, 1, 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_slices_where_few_are_kept(dtype):
    """Of 128 inputs of 16 outputs; masks take 16 bytes an output, slices a byte a value."""
    for kept in (28, 29):  # 0.225 of 128 are 28.8
        dense = np.zeros((128, 16))
        dense[:kept] = 1
        weight = DecodeWeight.from_dense(dense, dtype)
        sliced = kept == 28 and dtype != jnp.int8
        assert (weight.order is not None) == (weight.places is not None) == sliced
        assert (weight.masks is None) == sliced
        assert weight.kept == 16 * kept
        size = jnp.dtype(dtype).itemsize
        if sliced:
            assert weight.nbytes == 16 * kept * (size + 1) + 2 * 4 + 16 * 4
        else:
            past, scales = (64, 64) if dtype == jnp.int8 else (32, 0)
            assert weight.nbytes == (16 * kept + past) * size + 16 * 16 + 17 * 4 + scales


def test_slices_that_would_be_mostly_empty_are_masks():
    """One of 16 outputs has all values, or there are three outputs."""
    dense = np.zeros((640, 16))
    dense[:, 3] = 1
    assert DecodeWeight.from_dense(dense).order is None
    every_tenth = np.arange(640)[:, None] % 10 == np.zeros(48)
    assert DecodeWeight.from_dense(every_tenth[:, :3]).order is None
    assert DecodeWeight.from_dense(every_tenth).order is not None


def test_int8_by_hand():
    """Scales are 254 / 127 and 1 / 127; 0.001 rounds to no value."""
    dense = np.array([[254, 1], [np.nan, -0.25], [100, 0.001]])
    weight = DecodeWeight.from_dense(dense, jnp.int8)
    assert weight.values.tolist() == [127, 50, 127, -32] + 64 * [0]
    assert weight.masks.tolist() == [[0b101, 0, 0, 0], [0b011, 0, 0, 0]]
    assert weight.scales.tolist() == [2, pytest.approx(1 / 127)]
    y = weight.project(jnp.array([[32767.0, 2, -32767], [0, 0, 0]]))
    expected = [[2 * (127 - 50) * 32767, (127 * 32767 - 64) / 127], [0, 0]]
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    table = DecodeTable.from_dense(dense.T, jnp.int8)
    np.testing.assert_array_equal(table.lookup(jnp.array([0, 2])), [[254, 0, 100], [0, 0, 0]])


@pytest.mark.parametrize("there", [pytest.param(True, marks=pytest.mark.native), False])
def test_the_error_of_int8_is_bounded(there, monkeypatch):
    """A weight is off by half a scale at most, an activation by half of the row's factor."""
    if not there:
        monkeypatch.setattr("wafer.sparsity.kernels.native.usable", lambda: False)
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((300, 40)) < 0.2, rng.standard_normal((300, 40)), 0)
    x = rng.standard_normal((3, 300), np.float32) * [[1], [1e-3], [100]]
    weight = DecodeWeight.from_dense(dense, jnp.int8)
    stored = np.asarray(weight.dense(), np.float64)
    scales = np.abs(dense).max(0) / 127
    assert np.all(np.abs(stored - dense) <= 0.5001 * scales)
    assert 0.4 * scales.max() < np.abs(stored - dense).max()
    y = np.asarray(weight.project(jnp.asarray(x, jnp.float32)))
    factor = np.abs(x).max(1, keepdims=True) / 32767
    size = np.abs(stored).sum(0)
    assert np.all(
        np.abs(y - x @ stored) <= 0.501 * factor * size + 2e-6 * np.abs(x) @ np.abs(stored)
    )
    assert np.isnan(weight.project(jnp.full((1, 300), jnp.inf))).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_slices_by_hand(dtype):
    """Outputs by their number of values; the third group's first input is 599 = 16 * 37 + 7."""
    dense = np.zeros((600, 17))
    dense[255, 0], dense[599, 0], dense[[3, 140, 130], 2] = 1, 2, [3, 7, 4]
    dense[131, 16] = 5
    weight = DecodeWeight.from_dense(dense, dtype)
    assert weight.order.tolist() == [2, 0, 16, 1, *range(3, 16)]
    assert weight.pointers.tolist() == [0, 3, 3]
    values, places = np.zeros((3, 16, 4)), np.zeros((3, 16, 4))
    values[0, 0, 0], places[0, 0, 0] = 3, 3
    values[1, :3, :2], places[1, :3, :2] = [[4, 7], [1, 0], [5, 0]], [[2, 12], [127, 0], [3, 0]]
    places[1, 3, 3] = 128  # from 16 * 8 on: bit 3
    values[2, 1, 0], places[2, 1, 0] = 2, 7
    places[2, [0, 2, 5], 3] = 128  # from 16 * 37 on: bits 0, 2 and 5
    np.testing.assert_array_equal(weight.places, places)
    if dtype == jnp.bfloat16:  # pairs of an output lie side by side
        values = values.reshape(3, 16, 2, 2)
    np.testing.assert_array_equal(weight.values, values.swapaxes(1, 2))
    assert weight.kept == 6
    np.testing.assert_array_equal(weight.dense(), dense)
    y = weight.project(jnp.arange(600.0))
    assert y.tolist() == [255 + 2 * 599, 0, 9 + 7 * 140 + 4 * 130, *13 * [0], 5 * 131]


def test_without_the_library_the_same(monkeypatch):
    dense = pruned(33, 20, 0.3, jnp.float32)
    x = np.random.default_rng(0).standard_normal((3, 33), np.float32)
    monkeypatch.setattr("wafer.sparsity.kernels.native.usable", lambda: False)
    weight = DecodeWeight.from_dense(dense)
    one, two = weight.project_all(jnp.asarray(x), [weight, weight], [None, jnp.arange(20.0)])
    close(one, x, dense)
    np.testing.assert_array_equal(two, one + jnp.arange(20.0))
    close(DecodeTable.from_dense(dense.T).project(jnp.asarray(x)), x, dense)


def test_the_wrong_shape_or_dtype_is_refused():
    weight = DecodeWeight.from_dense(np.ones((4, 2)))
    with pytest.raises(ValueError, match=r"x has shape \(3, 5\); its last axis must be 4"):
        weight.project(jnp.ones((3, 5)))
    with pytest.raises(ValueError, match="expected a matrix"):
        DecodeWeight.from_dense(np.ones(4))
    with pytest.raises(ValueError, match="float16; choose float32, bfloat16, int8"):
        DecodeTable.from_dense(np.ones((4, 2)), jnp.float16)
    with pytest.raises(ValueError, match="an infinite weight has no int8"):
        DecodeTable.from_dense(np.full((4, 2), np.inf), jnp.int8)


@pytest.mark.native
def test_values_that_do_not_fit_the_pointers_are_refused():
    weight = DecodeWeight.from_dense(np.ones((4, 2)))
    short = dataclasses.replace(weight, values=weight.values[:-1])
    with pytest.raises(jax.errors.JaxRuntimeError, match="values that do not fit the pointers"):
        short.project(jnp.ones((1, 4))).block_until_ready()
    weight = DecodeWeight.from_dense(np.ones((4, 2)), jnp.int8)
    for wrong in ({"scales": weight.scales[:-1]}, {"values": weight.values[:-1]}):
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"scales|do not fit the pointers"):
            dataclasses.replace(weight, **wrong).project(jnp.ones((1, 4))).block_until_ready()
    weight = DecodeWeight.from_dense(np.add.outer(np.arange(64), np.arange(64)) % 16 == 0)
    for wrong in (
        {"places": weight.places[:-1]},
        {"values": weight.values[:-1], "places": weight.places[:-1]},
        {"order": weight.order + 1},
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"do not fit|order of other outputs"):
            dataclasses.replace(weight, **wrong).project(jnp.ones((1, 64))).block_until_ready()


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.parametrize("target", ["avx2", "baseline"])
def test_other_instruction_sets(target):
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", "dense_product", __file__]
    env = os.environ | {"WAFER_NATIVE": target}
    process = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout
