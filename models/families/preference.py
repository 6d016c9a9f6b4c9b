"""Direct preference optimization (Rafailov et al. 2023): learn which of two answers is better.

A row of the batch holds a pair in two halves, the chosen answer and the rejected one, each with
its prompt; ``batch.extras['reference_logps']`` [B, 2] holds how likely the model was to write
them before training. Those numbers are computed once (``wafer score``), so that training keeps
one model in memory, not two.
"""

from typing import Literal, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field, NonNegativeFloat, model_validator

from wafer.models.base import Aux, Batch
from wafer.models.losses import cross_entropy
from wafer.models.sections import Section


class DpoConfig(Section):
    """``dpo``: the loss of pairs instead of next tokens."""

    beta: float = Field(default=0.1, gt=0)  #: how strongly the model is held to the reference
    #: probability that a pair is labelled the wrong way round (sigmoid)
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    #: of the margin: ``sigmoid``, ``hinge`` (Zhao et al. 2023), ``ipo`` (Azar et al. 2023;
    #: log-probabilities are means over tokens), ``dpop`` (Pal et al. 2024)
    loss_type: Literal["sigmoid", "hinge", "ipo", "dpop"] = "sigmoid"
    #: factor of what the chosen answer lost against the reference (dpop)
    dpop_penalty_weight: NonNegativeFloat = 5.0
    reference_free: bool = False  #: the reference finds all answers equally likely
    disable_dropout: bool = True  #: the model has no dropout

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.label_smoothing and self.loss_type != "sigmoid":
            raise ValueError(f"label_smoothing: loss_type {self.loss_type} has none; drop one")
        if self.reference_free and self.loss_type == "dpop":
            raise ValueError("reference_free: loss_type dpop compares with a reference; drop one")
        return self


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

    The margin is how much more than the reference the model prefers the chosen answer, in nats;
    a pair's loss is -log sigmoid(beta * margin), or what ``loss_type`` says.

    Returns:
        Sums over pairs; metrics ``accuracy`` (pairs with a positive margin), ``margin``.
    """
    gained = pair_log_probabilities(logits, batch)
    if not cfg.reference_free:
        gained -= batch.extras["reference_logps"]
    counts = jnp.count_nonzero(batch.weights.reshape(*gained.shape, -1), axis=-1)
    if cfg.loss_type == "ipo":
        gained /= jnp.maximum(counts, 1)
    margin = gained[:, 0] - gained[:, 1]
    loss = _pair_loss(cfg, margin, jnp.maximum(-gained[:, 0], 0.0))
    valid = jnp.all(counts > 0, axis=-1)  # rows that fill up a batch are not
    count = valid.sum().astype(jnp.float32)
    total = lambda x: jnp.sum(jnp.where(valid, x, 0.0))
    metrics = {
        "token_sum": count,
        "accuracy_sum": total(margin > 0),
        "margin_sum": total(margin),
    }
    return Aux(total(loss), count, metrics)


def _pair_loss(
    cfg: DpoConfig, margin: Float[Array, " B"], lost: Float[Array, " B"]
) -> Float[Array, " B"]:
    """Compute each pair's loss from its margin and what the chosen answer lost, in nats."""
    if cfg.loss_type == "hinge":
        return jnp.maximum(1 - cfg.beta * margin, 0.0)
    if cfg.loss_type == "ipo":
        return jnp.square(margin - 1 / (2 * cfg.beta))
    if cfg.loss_type == "dpop":
        margin -= cfg.dpop_penalty_weight * lost
    right, wrong = (jax.nn.log_sigmoid(sign * cfg.beta * margin) for sign in (1, -1))
    return -(1 - cfg.label_smoothing) * right - cfg.label_smoothing * wrong
