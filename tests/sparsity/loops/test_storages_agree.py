"""Masked storage, kept values and masks multiplied by hand give the same numbers in any loop."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.sparse_loop import start

from wafer import sparsity
from wafer.models.layers.basic import project

SHAPES = {"a": (6, 8), "b": (8, 4)}


def loss(params, batch):
    x, y = batch
    hidden = jnp.tanh(project(x, params["a"]) + params["bias"])
    return jnp.mean((project(hidden, params["b"]) - y) ** 2)


def inner_steps(f, ready, batches):
    """Gradient through two steps of gradient descent (MAML)."""

    def outer(ready):
        for batch in batches[:2]:
            ready = jax.tree.map(lambda a, g: a - 0.3 * g, ready, jax.grad(f)(ready, batch))
        return f(ready, batches[2])

    return jax.grad(outer)(ready)


def sharpness_aware(f, ready, batches):
    """Gradient at the weights moved along the gradient (SAM)."""
    first = jax.grad(f)(ready, batches[0])
    return jax.grad(f)(optax.tree.add_scale(ready, 0.5 / optax.tree.norm(first), first), batches[0])


def clipped_examples(f, ready, batches):
    """Mean of the gradients of single examples, each of a norm of at most 0.1."""

    def one(x, y):
        gradient = jax.grad(f)(ready, (x[None], y[None]))
        return optax.tree.scale(jnp.minimum(1, 0.1 / optax.tree.norm(gradient)), gradient)

    return jax.tree.map(lambda g: g.mean(0), jax.vmap(one)(*batches[0]))


def noisy(f, ready, batches):
    """Gradient at moved weights, and moved itself, by amounts that do not know the masks."""
    moved = jax.tree.map(lambda a: a + 0.1, ready)
    return jax.tree.map(lambda g: g + 0.3, jax.grad(f)(moved, batches[0]))


def hessian_product(f, ready, batches):
    """Product of the second derivatives with a vector, forward over reverse."""
    gradient = lambda r: jax.grad(f)(r, batches[0])
    return jax.jvp(gradient, (ready,), (jax.tree.map(jnp.ones_like, ready),))[1]


def hessian_diagonal(f, ready, batches):
    """Diagonal of the full second derivatives."""
    flat, join = jax.flatten_util.ravel_pytree(ready)
    return join(jnp.diag(jax.hessian(lambda v: f(join(v), batches[0]))(flat)))


LOOPS = [
    *(inner_steps, sharpness_aware, clipped_examples, noisy, hessian_product, hessian_diagonal)
]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_storages_agree_with_masks_by_hand(loop, seed):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
    dense = {name: draw(*shape) for name, shape in SHAPES.items()} | {"bias": draw(8)}
    batches = [(draw(5, 6), draw(5, 4)) for _ in range(3)]
    section = {"algorithm": "rigl", "sparsity": 0.75, "update": {"freq": 2}}
    got = []
    for compute in ("masked", "csr"):
        rule = sparsity.configure(section | {"param_filter": ["a", "b"], "compute": compute})
        sparse = rule.init(dense, jax.random.key(seed))
        ready = rule.prepare(rule.prune(dense, (), sparse)[0], sparse)
        f = lambda tree, batch, rule=rule, sparse=sparse: loss(rule.attach(tree, sparse), batch)
        gradients, _ = rule.split(loop(f, ready, batches), sparse)
        got.append(rule.expand(gradients, (), sparse)[0])
    masks = rule.masks(sparse) | {"bias": jnp.ones(8, bool)}
    cut = lambda tree: {name: jnp.where(mask, tree[name], 0) for name, mask in masks.items()}
    want = cut(loop(lambda tree, batch: loss(cut(tree), batch), dense, batches))
    close = functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-6)
    for tree in got:
        jax.tree.map(close, tree, want)


@pytest.mark.parametrize("compute", ["masked", "csr"])
def test_dense_gradients_come_when_they_are_asked_for(compute):
    params = {"a": jnp.arange(48.0).reshape(6, 8) - 20}
    section = {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 1}, "compute": compute}
    rule, sparse, params, _ = start(section | {"param_filter": "a"}, params)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 6)), jnp.float32)
    f = lambda ready: jnp.sum(project(x, rule.attach(ready, sparse)["a"]))
    want = jnp.broadcast_to(x.sum(0)[:, None], (6, 8))  # of a sum of products
    ready = rule.prepare(params, sparse, dense=True)
    ready["a"] = ready["a"]._replace(probe=jnp.full((6, 8), jnp.nan))  # its value is never read
    gradients, dense = rule.split(jax.grad(f)(ready), sparse)
    np.testing.assert_allclose(dense["a"], want, rtol=1e-5)
    kept = rule.expand(gradients, (), sparse)[0]["a"]
    np.testing.assert_allclose(kept, jnp.where(rule.masks(sparse)["a"], want, 0), rtol=1e-5)
    gradients, none = rule.split(jax.grad(f)(rule.prepare(params, sparse)), sparse)
    assert not none
