"""Direct preference optimisation (Rafailov et al. 2023): learn which of two answers is better.

A row of the batch holds a pair in two halves, the chosen answer and the rejected one, each with
its prompt; ``batch.extras['reference_logps']`` [B, 2] holds how likely the model was to write
them before training. Those numbers are computed once (``wafer score``), so that training keeps
one model in memory, not two.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field

from models.base import Aux, Batch
from models.losses import cross_entropy
from models.sections import Section

__all__ = ["DpoConfig", "pair_log_probabilities", "preference_aux"]


class DpoConfig(Section):
    """``dpo``: the loss of pairs instead of next tokens.

    Attributes:
        beta: how strongly the model is held to the reference.
        label_smoothing: probability that a pair is labelled the wrong way round.
    """

    beta: float = Field(default=0.1, gt=0)
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)


def pair_log_probabilities(logits: Float[Array, "T V"], batch: Batch) -> Float[Array, "B 2"]:
    """Sum log p(token) over the tokens with weight in both halves of each row, T = B * 2 * S."""
    rows = batch.layout.rows
    if rows is None or rows[1] % 2:
        raise ValueError("preference rows hold two answers of equal room; got another layout")
    logps = -cross_entropy(logits, batch.labels)
    kept = jnp.where(batch.weights != 0, logps, 0.0)
    return kept.reshape(rows[0], 2, -1).sum(-1)


def preference_aux(cfg: DpoConfig, logits: Float[Array, "T V"], batch: Batch) -> Aux:
    """Score pairs.

    Each pair's loss is -log sigmoid(beta * margin), the margin being how much more than the
    reference the model prefers the chosen answer, in nats.

    Returns:
        Sums over pairs; metrics ``accuracy`` (pairs with a positive margin), ``margin``.
    """
    gained = pair_log_probabilities(logits, batch) - batch.extras["reference_logps"]
    margin = gained[:, 0] - gained[:, 1]
    right = jax.nn.log_sigmoid(cfg.beta * margin)
    wrong = jax.nn.log_sigmoid(-cfg.beta * margin)
    loss = -(1 - cfg.label_smoothing) * right - cfg.label_smoothing * wrong
    halves = batch.weights.reshape(margin.shape[0], 2, -1)
    valid = jnp.all(jnp.any(halves != 0, axis=-1), axis=-1)  # rows that fill up a batch are not
    count = valid.sum().astype(jnp.float32)
    total = lambda x: jnp.sum(jnp.where(valid, x, 0.0))
    metrics = {
        "token_sum": count,
        "accuracy_sum": total(margin > 0),
        "margin_sum": total(margin),
    }
    return Aux(total(loss), count, metrics)
