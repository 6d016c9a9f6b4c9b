"""Derivatives of every order and direction, and vmap, against the dense product."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer.sparsity import kernels

MASK = np.random.default_rng(0).random((4, 3)) < 0.6
PATTERN = kernels.pattern_from_mask(jnp.asarray(MASK), int(MASK.sum()))
PLACES = np.flatnonzero(MASK.T)
X = jnp.asarray(np.random.default_rng(1).normal(size=(5, 4)), jnp.float32)
VALUES = jnp.asarray(np.random.default_rng(2).normal(size=len(PLACES)), jnp.float32)
IMPLEMENTATIONS = ["masked", "csr"]


def dense_product(x, values, probe=0):
    return x @ (jnp.zeros(MASK.size).at[PLACES].set(values).reshape(3, 4).T + probe)


def product(implementation):
    def run(x, values, probe=None):
        weight = kernels.SparseWeight(values=values, pattern=PATTERN, probe=probe)
        return kernels.sparse_dot(x, weight, implementation=implementation)

    return run


def assert_same(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-6, rtol=3e-6), got, want)


BOTH = (0, 1)
DERIVATIVES = {
    "jvp": lambda f: jax.jvp(f, (X, VALUES), (X + 1, 2 * VALUES))[1],
    "jvp of x": lambda f: jax.jvp(lambda x: f(x, VALUES), (X,), (X + 1,))[1],
    "jvp of values": lambda f: jax.jvp(lambda v: f(X, v), (VALUES,), (2 * VALUES,))[1],
    "grad": lambda f: jax.grad(f, BOTH)(X, VALUES),
    "grad of values": lambda f: jax.grad(f, 1)(X, VALUES),
    "hessian": lambda f: jax.hessian(f, BOTH)(X, VALUES),
    "jacrev of grad": lambda f: jax.jacrev(jax.grad(f, BOTH), BOTH)(X, VALUES),
    "jacrev of jacfwd": lambda f: jax.jacrev(jax.jacfwd(f, BOTH), BOTH)(X, VALUES),
    "jacfwd of jacfwd": lambda f: jax.jacfwd(jax.jacfwd(f, BOTH), BOTH)(X, VALUES),
    "third": lambda f: jax.jacfwd(jax.hessian(f, 1), 0)(X, VALUES),
}


def derivative(name, product):
    loss = lambda x, values: jnp.sum(jnp.tanh(product(x, values)) ** 2)
    return jax.jit(lambda: DERIVATIVES[name](loss))()


@functools.cache
def dense_derivative(name):
    return derivative(name, dense_product)


SLOW = {*DERIVATIVES} - {"jvp", "grad", "hessian", "jacfwd of jacfwd"}  # parts of these, and more


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in DERIVATIVES]
)
def test_derivatives_are_those_of_the_dense_product(name, implementation):
    assert_same(derivative(name, product(implementation)), dense_derivative(name))


AXES = {"tokens": (0, None), "values": (None, 0), "both": (1, 0)}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n != "both" else n for n in AXES]
)
def test_vmap_of_products_and_gradients(name, implementation):
    axes = AXES[name]
    x = X if axes[0] is None else jnp.stack([X, X + 1, 2 * X], axes[0])
    values = VALUES if axes[1] is None else jnp.stack([VALUES, VALUES - 1, 3 * VALUES])

    def value_and_gradients(one):
        loss = lambda x, values: jnp.sum(jnp.sin(one(x, values)))
        return jax.jit(jax.vmap(jax.value_and_grad(loss, BOTH), axes))(x, values)

    assert_same(value_and_gradients(product(implementation)), value_and_gradients(dense_product))


def test_a_batch_of_tokens_is_one_product():
    many = jnp.stack([X, X + 1])
    text = str(jax.make_jaxpr(jax.vmap(product("masked"), (0, None)))(many, VALUES))
    assert "scan" not in text
    assert "f32[10,3] = sparse_multiply" in text


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_probe_has_the_dense_gradient_and_its_derivatives(implementation):
    zeros = jnp.zeros(MASK.shape)
    loss = lambda one: lambda x, probe: jnp.sum(jnp.sin(one(x, VALUES, probe)))
    ours, dense = loss(product(implementation)), loss(dense_product)
    assert_same(jax.grad(ours, BOTH)(X, zeros), jax.grad(dense, BOTH)(X, zeros))
    mixed = lambda loss: jax.jacfwd(jax.grad(loss, 1), 0)(X, zeros)
    assert_same(mixed(ours), mixed(dense))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_spreading_and_gathering_are_each_others_transpose(dtype):
    values, dense = VALUES.astype(dtype), jnp.arange(12.0, dtype=dtype).reshape(4, 3)
    transposed = kernels.to_dense_t(values, PATTERN)
    np.testing.assert_array_equal(transposed, kernels.to_dense(values, PATTERN).T)
    spread = lambda values: kernels.to_dense(values, PATTERN, jnp.nan)
    tangent = jax.jvp(spread, (values,), (2 * values,))[1]
    np.testing.assert_array_equal(tangent, jnp.where(MASK, 2 * spread(values), 0))
    (back,) = jax.vjp(spread, values)[1](dense)
    np.testing.assert_array_equal(back, kernels.gather(dense, PATTERN))
    (back,) = jax.vjp(lambda dense: kernels.gather(dense, PATTERN), dense)[1](values)
    np.testing.assert_array_equal(back, kernels.to_dense(values, PATTERN))
