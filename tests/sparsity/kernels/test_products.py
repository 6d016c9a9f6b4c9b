"""Products of several sparse weights with the same activations, and their biases, at once."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer.models.layers.basic import Dense, dense_together
from wafer.sparsity import kernels

pytestmark = pytest.mark.native


def make(mask, seed=0):
    mask = np.asarray(mask, bool)
    values = np.random.default_rng(seed).normal(size=int(mask.sum()))
    pattern = kernels.pattern_from_mask(jnp.asarray(mask), len(values))
    return kernels.SparseWeight(
        values=jnp.asarray(values, jnp.float32), pattern=pattern, implementation="csr"
    )


def normal(seed, *shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def apart(x, weights, biases):
    ys = [kernels.sparse_dot(x, weight) for weight in weights]
    pairs = zip(ys, biases, strict=True)
    return [y if bias is None else y + bias.astype(y.dtype) for y, bias in pairs]


def together(x, weights, biases):
    return weights[0].project_all(x, weights, biases)


def of_values(weights, one):
    def run(x, values, biases):
        pairs = zip(weights, values, strict=True)
        return one(x, [dataclasses.replace(w, values=v) for w, v in pairs], biases)

    return run


def test_by_hand():
    one, two = make([[1, 0], [0, 1]]), make([[0], [1]])
    one = dataclasses.replace(one, values=jnp.array([2.0, 3.0]))
    two = dataclasses.replace(two, values=jnp.array([5.0]))
    x, bias = jnp.array([[1.0, 10.0], [0.0, 1.0]]), jnp.array([0.5, -1.0])
    run = of_values([one, two], together)
    ys, pull = jax.vjp(run, x, [one.values, two.values], [bias, None])
    np.testing.assert_array_equal(ys[0], [[2.5, 29.0], [0.5, 2.0]])
    np.testing.assert_array_equal(ys[1], [[50.0], [5.0]])
    dx, values, biases = pull([jnp.array([[1.0, 0.0], [2.0, 4.0]]), jnp.array([[1.0], [0.0]])])
    np.testing.assert_array_equal(dx, [[2.0, 5.0], [4.0, 12.0]])
    np.testing.assert_array_equal(values[0], [1.0, 4.0])
    np.testing.assert_array_equal(values[1], [10.0])
    np.testing.assert_array_equal(biases[0], [3.0, 4.0])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("blocks", [False, True], ids=["unstructured", "with blocks"])
def test_the_same_as_one_after_another(dtype, blocks):
    """Sums of y and of the values are the same; dx and the biases are added in another order."""
    rng = np.random.default_rng(0)
    masks = [rng.random((160, columns)) < 0.2 for columns in (40, 533, 9)]
    if blocks:
        masks[1] = np.kron(rng.random((10, 4)) < 0.3, np.ones((16, 16), bool))
    weights = [make(mask, seed) for seed, mask in enumerate(masks)]
    biases = [normal(7, 40), None, normal(8, 9)]
    x = normal(9, 2, 37, weights[0].shape[0], dtype=dtype)
    values = [weight.values for weight in weights]

    @jax.jit
    def run():
        results = []
        for one in (together, apart):
            ys, pull = jax.vjp(of_values(weights, one), x, values, biases)
            dys = [normal(i, *y.shape, dtype=dtype) for i, y in enumerate(ys)]
            results.append((ys, pull(dys)))
        return results

    (ys, (dx, d_values, d_biases)), (want, (want_dx, want_values, want_biases)) = run()
    half = dtype == jnp.bfloat16
    for got, one in zip(ys, want, strict=True):
        np.testing.assert_array_equal(got, one)
    for got, one in zip(d_values, want_values, strict=True):  # blocks take tiles of floats for all
        scale = np.abs(np.asarray(one)).max()
        np.testing.assert_allclose(got, one, rtol=0, atol=1e-6 * scale if blocks else 0)
    for got, one in ((dx, want_dx), (d_biases[0], want_biases[0]), (d_biases[2], want_biases[2])):
        wide = np.asarray(one, np.float32)
        atol = np.abs(wide).max() * (2e-2 if half else 1e-6)
        np.testing.assert_allclose(np.asarray(got, np.float32), wide, rtol=0, atol=atol)
    assert d_biases[1] is None


DERIVATIVES = {
    "jvp": lambda f, *a: jax.jvp(f, a, jax.tree.map(lambda leaf: leaf + 1, a))[1],
    "grad of values": lambda f, *a: jax.grad(f, 1)(*a),
    "hessian": lambda f, *a: jax.hessian(f, (0, 1, 2))(*a),
    "vmap of grad": lambda f, x, v, b: jax.vmap(jax.grad(f, (0, 1, 2)), (0, None, None))(
        jnp.stack([x, x + 1]), v, b
    ),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name):
    rng = np.random.default_rng(0)
    weights = [make(rng.random((4, columns)) < 0.6, columns) for columns in (3, 2)]
    given = normal(1, 2, 4), [w.values for w in weights], [normal(2, 3), normal(3, 2)]
    loss = lambda one: lambda *a: sum(jnp.sin(y).sum() for y in of_values(weights, one)(*a))
    run = lambda one: jax.jit(lambda: DERIVATIVES[name](loss(one), *given))()
    got, want = run(together), run(apart)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6, rtol=2e-6), got, want)


class Both(nn.Module):
    @nn.compact
    def __call__(self, x):
        return dense_together(x, [Dense(8, True, nn.initializers.ones, name=n) for n in "ab"])


def calls(*weights):
    """Native products of two layers, whose results are compared with dense ones."""
    x, bias = normal(0, 6, 64), normal(1, 8)
    tree = {n: {"kernel": weight, "bias": bias} for n, weight in zip("ab", weights, strict=True)}
    run = jax.jit(lambda tree: Both().apply({"params": tree}, x))
    for y, weight in zip(run(tree), weights, strict=True):
        dense = weight.dense() if isinstance(weight, kernels.SparseWeight) else weight
        np.testing.assert_allclose(y, x @ dense + bias, atol=1e-5)
    return run.lower(tree).as_text().count("@wafer_sparse_multiply(")


def test_layers_take_them():
    """One call for two sparse kernels, biases included; others are multiplied by themselves."""
    one, two = (make(np.random.default_rng(i).random((64, 8)) < 0.3, i) for i in range(2))
    assert calls(one, two) == 1
    assert calls(one, normal(3, 64, 8)) == 1
    assert calls(one, dataclasses.replace(two, implementation="masked")) == 1
    assert calls(normal(3, 64, 8), normal(4, 64, 8)) == 0


def test_a_weight_of_other_inputs():
    one, two = make(np.ones((4, 3))), make(np.ones((5, 3)))
    with pytest.raises(ValueError, match=r"x has shape \(2, 4\), the weight is 5 x 3"):
        one.project_all(jnp.ones((2, 4)), [one, two], [None, None])
