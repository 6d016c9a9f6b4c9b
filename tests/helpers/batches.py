"""Batches of given tokens, whose labels they are, and a short training on one."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from helpers.hf_parity import CHEAP

from wafer import models, vsl


def _batch(ids, layout, extras):
    flat = jnp.asarray(np.reshape(ids, -1), jnp.int32)
    array = lambda x: x if isinstance(x, vsl.Layout) else jnp.asarray(x)
    extras = {name: array(value) for name, value in extras.items()}
    return models.Batch(flat, flat, layout.valid.astype(jnp.float32), layout, extras)


def rows(ids, lengths=None, **extras):
    """Padded rows [B, S], or one row [S]."""
    count, size = np.atleast_2d(ids).shape
    lengths = [size] * count if lengths is None else lengths
    return _batch(ids, vsl.padded_layout(jnp.asarray(lengths), size), extras)


def packed(ids, lengths, **extras):
    """A stream [T] of sequences."""
    return _batch(ids, vsl.layout_from_lengths(jnp.asarray(lengths), len(ids)), extras)


def trained(model, params, batch, tx, steps):
    """Weights after steps of an optimizer; each step's loss, and the last one's metrics."""

    def step(carry, _):
        params, state = carry
        (loss, aux), grads = jax.value_and_grad(model.loss, has_aux=True)(params, batch)
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), (loss, aux.metrics)

    run = lambda params: jax.lax.scan(step, (params, tx.init(params)), None, length=steps)
    (params, _), (losses, metrics) = jax.jit(run, compiler_options=CHEAP)(params)
    last = jax.tree.map(lambda x: x[-1], metrics)
    return params, losses, models.metric_values(last)
