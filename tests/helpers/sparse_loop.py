"""The loop of a sparse training as the guide has it."""

import jax
import jax.numpy as jnp
import optax

from wafer import sparsity


def start(section, weights, tx=None, seed=0, **options):
    """Configure, choose the first masks and prune: (sparsifier, state, weights, moments).

    Instead of a section it may be a sparsifier.
    """
    made = isinstance(section, sparsity.Sparsifier)
    rule = section if made else sparsity.configure(section, **options)
    sparse = rule.init(weights, jax.random.key(seed))
    return rule, sparse, *rule.prune(weights, tx.init(weights) if tx else (), sparse)


def step(rule, tx, loss, sparse, params, moments, due=True):
    """Take one step; ``loss`` reads the attached weights: (value, state, weights, moments)."""
    ready = rule.prepare(params, sparse, dense=due)
    value, grads = jax.value_and_grad(lambda ready: loss(rule.attach(ready, sparse)))(ready)
    grads, dense = rule.split(grads, sparse)
    updates, moments = tx.update(grads, moments, params)
    params = optax.apply_updates(params, updates)
    return value, *rule.update(sparse, params, dense, moments, topology=due)


def context(weight, grad, mask, level, drop, view):
    """What a rule reads at the first update of a weight."""
    numbers = jnp.float32(level), jnp.float32(drop), jnp.int32(1), jax.random.key(0)
    return sparsity.UpdateContext("w", jnp.where(mask, weight, 0), grad, mask, *numbers, view)
