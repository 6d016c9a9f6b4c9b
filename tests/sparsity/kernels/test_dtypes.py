"""Dtypes of products with kept values: those of JAX's promotion, as of dense weights."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.sparse_loop import start

from wafer import sparsity
from wafer.sparsity.kernels import DecodeTable, DecodeWeight

XS = ["bool", "uint8", "int8", "int32", "float16", "bfloat16", "float32", "complex64"]
VALUES = ["float16", "bfloat16", "float32"]
PAIRS = list(itertools.product(XS, VALUES))
MASK = np.arange(12).reshape(4, 3) % 3 != 1
AXES = (((1,), (0,)), ((), ()))


def numbers(dtype, shape=(5, 4)):
    """Numbers of a dtype; products of these small integers are exact in every one."""
    whole = np.random.default_rng(0).integers(0, 3, shape)
    dtype = jnp.dtype(dtype)
    return jnp.asarray(whole + 1j * whole[::-1] if dtype.kind == "c" else whole, dtype)


def both_ways(compute, x, dtype):
    """A function that takes the product and returns y and gradients, by the public protocol."""
    params = {"w": numbers(dtype, MASK.shape) + 1}
    section = {"sparsity": 0.5, "compute": compute, "param_filter": "*"}
    sparsifier, sparse, params, _ = start(section, params)

    def run(product):
        """y, the gradient of x where it has one, and that of the weight, dense."""

        def loss(ready, x):
            y = product(x, sparsifier.attach(ready, sparse)["w"])
            wide = y.astype(jnp.promote_types(y.dtype, jnp.float32))
            return (wide.real + 2 * wide.imag).sum(), y

        at = (0, 1) if jnp.issubdtype(x.dtype, jnp.inexact) else (0,)
        ready = sparsifier.prepare(params, sparse)
        (grads, *dx), y = jax.grad(loss, at, has_aux=True)(ready, x)
        grads, _ = sparsifier.split(grads, sparse)
        return y, dx, sparsifier.expand(grads, (), sparse)[0]["w"]

    return run


def agree(x, values, product):
    got, want = (both_ways(way, x, values)(product) for way in ("csr", "masked"))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert np.abs(np.asarray(got[2], np.float32)).max() > 0
    return got[0]


@pytest.mark.parametrize(("x", "values"), PAIRS)
def test_csr_promotes_as_masks_do(x, values):
    x = numbers(x)
    y = agree(x, values, lambda x, w: x @ w)
    assert y.dtype == jnp.promote_types(x.dtype, values)


@pytest.mark.parametrize("preferred", [None, "bfloat16", "float32"])
@pytest.mark.parametrize(("x", "values"), [*zip(XS, VALUES * 3, strict=False), ("int8", "float32")])
def test_dot_general_has_the_dtypes_of_lax(x, values, preferred):
    def product(x, w):
        return sparsity.dot_general(x, w, AXES, preferred_element_type=preferred)

    if (x, preferred) == ("complex64", "bfloat16"):
        with pytest.raises(TypeError, match="preferred_element_type"):
            agree(numbers(x), values, product)
        return
    y = agree(numbers(x), values, product)
    assert preferred is None or y.dtype == preferred


def test_by_hand():
    pattern = sparsity.pattern_from_mask(np.eye(2, dtype=bool), 2)
    weight = sparsity.SparseWeight(values=jnp.array([0.5, -3.0]), pattern=pattern)
    for x, y in (([1, 3], [0.5, -9.0]), ([True, False], [0.5, 0]), ([1 + 2j, 1j], [0.5 + 1j, -3j])):
        np.testing.assert_array_equal(np.array(x) @ weight, y)
    bright = np.array([200, 100], np.uint8)
    np.testing.assert_array_equal(bright @ weight, [100.0, -300.0])
    gradient = jax.grad(lambda v: (bright @ sparsity.SparseWeight(values=v, pattern=pattern)).sum())
    np.testing.assert_array_equal(gradient(weight.values), [200.0, 100.0])


def test_a_sum_is_not_rounded_before_the_preferred_dtype():
    pattern = sparsity.pattern_from_mask(np.ones((2, 1), bool), 2)
    weight = sparsity.SparseWeight(values=jnp.array([1, 1], jnp.bfloat16), pattern=pattern)
    x = jnp.array([[256, 1]], jnp.bfloat16)
    assert sparsity.dot_general(x, weight, AXES, preferred_element_type=jnp.float32) == 257
    assert sparsity.dot_general(x, weight, AXES) == 256


@pytest.mark.parametrize("dtype", ["bfloat16", "uint8", "complex64"])
def test_transformations(dtype):
    x = numbers(dtype, (3, 5, 4))
    agree(x, "float32", jax.jit(lambda x, w: x @ w))
    agree(x, "float32", lambda x, w: jax.vmap(lambda x: x @ w)(x))
    section = {"algorithm": "rigl", "sparsity": 0.5, "param_filter": "*", "update": {"freq": 1}}
    dense = []
    for compute in ("csr", "masked"):
        params = {"w": numbers("float32", MASK.shape) + 1}
        sparsifier, sparse, params, _ = start(section | {"compute": compute}, params)
        ready = sparsifier.prepare(params, sparse, dense=True)
        loss = lambda ready: jnp.abs(x @ sparsifier.attach(ready, sparse)["w"]).sum()  # noqa: B023
        dense.append(sparsifier.split(jax.grad(loss)(ready), sparse)[1]["w"])
    np.testing.assert_allclose(*dense, rtol=1e-5)


def test_doubles_keep_their_digits():
    with jax.enable_x64(True):
        third = jnp.full((2, 4), 1 / 3, jnp.float64)
        for values in ("float32", "float64"):
            assert agree(third, values, lambda x, w: x @ w).dtype == jnp.float64


def test_products_without_promotion_refuse_other_numbers():
    pattern = sparsity.pattern_from_mask(np.eye(4, dtype=bool), 4)
    weight = sparsity.SparseWeight(values=jnp.ones(4), pattern=pattern)
    for dtype in ("uint8", "bool", "complex64"):
        x = numbers(dtype)
        decode = DecodeWeight.from_dense(np.eye(4)), DecodeTable.from_dense(np.eye(4))
        for project in (weight.project, *(one.project for one in decode)):
            with pytest.raises(TypeError, match=f"x is {dtype}; expected floats"):
                project(x)
    wrong = sparsity.SparseWeight(values=jnp.ones(4, jnp.complex64), pattern=pattern)
    for x in (numbers("float32"), numbers("complex64")):
        with pytest.raises(TypeError, match="values are complex64; expected floats"):
            x @ wrong
