"""Token losses as sums, so that shards and micro-batches add up."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from wafer import vsl
from wafer.models.base import Aux, Batch


def cross_entropy(
    logits: Float[Array, "*B V"], labels: Int[Array, "*B"], label_smoothing: float = 0.0
) -> Float[Array, "*B"]:
    """Compute -log softmax(logits)[label] in float32; a label out of range stands for the nearest.

    With ``label_smoothing`` e the target distribution is (1-e) one-hot + e uniform.
    """
    return _scored(logits, labels, label_smoothing).loss


def _scored(logits: Array, labels: Array, label_smoothing: float) -> vsl.Scored:
    scored = vsl.cross_entropy(logits, labels)
    if not label_smoothing:
        return scored
    logits = logits.astype(jnp.float32)
    near = jnp.clip(labels, 0, logits.shape[-1] - 1)
    own = jnp.take_along_axis(logits, near[..., None], axis=-1)[..., 0]
    return scored._replace(loss=scored.loss + label_smoothing * (own - logits.mean(-1)))


def divergence(
    student: Float[Array, "*B V"],
    teacher: Float[Array, "*B V"],
    live: Bool[Array, "*B"],
    temperature: float = 1.0,
) -> Float[Array, "*B"]:
    """Compute KL(teacher || student) of softmax(logits / temperature) in float32.

    Args:
        student: scores.
        teacher: scores of the same tokens.
        live: positions that count; elsewhere the result and its gradient are 0.
        temperature: T.
    """
    soft = lambda scores: jax.nn.log_softmax(
        jnp.where(live[..., None], scores.astype(jnp.float32), 0.0) / temperature
    )
    own, other = soft(student), soft(teacher)
    return jnp.where(live, jnp.sum(jnp.exp(other) * (other - own), axis=-1), 0.0)


def token_aux(
    logits: Float[Array, "*B V"],
    labels: Int[Array, "*B"],
    weights: Float[Array, "*B"],
    *,
    name: str = "",
    label_smoothing: float = 0.0,
) -> Aux:
    """Weighted cross-entropy with accuracy and perplexity sums.

    Args:
        logits: scores.
        labels: targets; read only where the weight is not 0.
        weights: weight of each target.
        name: prefix of the metric names.
        label_smoothing: see ``cross_entropy``.
    """
    weights = weights.astype(jnp.float32)
    scored = _scored(logits, labels, label_smoothing)
    loss_sum = jnp.sum(jnp.where(weights != 0, scored.loss * weights, 0.0))
    metrics = {
        f"{name}nll_sum": loss_sum,
        f"{name}token_sum": weights.sum(),
        f"{name}accuracy_sum": jnp.sum(scored.best * weights),
    }
    return Aux(loss_sum, weights.sum(), metrics)


def language_model_aux(cfg: Any, logits: Float[Array, "T V"], batch: Batch) -> Aux:
    """Score a language model by the loss knobs of its configuration.

    ``loss_scaling: num_tokens`` divides the sum by the weights' sum; ``batch_size`` by the number
    of rows, packed or not, then multiplies by ``loss_weight`` (1 / average length).

    Args:
        cfg: has ``loss_scaling``, ``loss_weight`` and ``label_smoothing``.
        logits: scores.
        batch: has the targets.
    """
    smoothing = cfg.label_smoothing
    aux = token_aux(logits, batch.labels, batch.weights, label_smoothing=smoothing)
    if cfg.loss_scaling == "num_tokens":
        return aux
    rows = batch.layout.row_count.astype(jnp.float32)
    return Aux(aux.loss_sum * cfg.loss_weight, rows, aux.metrics)


def balance_loss(routed: Float[Array, "T 2 E"], batch: Batch, layers: int) -> Float[Array, ""]:
    """Score how evenly experts are chosen: E^2 x the mean of share x probability.

    Share and probability of an expert are means over the layers and over a row's tokens by weight;
    the product is averaged over rows with weight. Of one row it is Hugging Face's loss.

    Args:
        routed: sums over layers: an expert's choices (0 or 1 a layer), its router probabilities.
        batch: whose rows and weights count.
        layers: number of layers in the sums.
    """
    layout = batch.layout
    row, count = layout.segments, layout.lengths.shape[0]
    if layout.rows is not None:
        count, length = layout.rows
        row = jnp.arange(layout.capacity) // length
    sum_rows = functools.partial(jax.ops.segment_sum, segment_ids=row, num_segments=count)
    weights = jnp.where(layout.valid, batch.weights, 0.0)
    total = sum_rows(weights)
    kept = jnp.where((weights != 0)[:, None, None], routed * weights[:, None, None], 0.0)
    means = sum_rows(kept) / (layers * jnp.maximum(total, 1e-9)[:, None, None])
    products = jnp.sum(means[:, 0] * means[:, 1], axis=-1)
    return routed.shape[-1] * products.sum() / jnp.maximum(jnp.sum(total > 0), 1)


def metric_values(metrics: Mapping[str, Array]) -> dict[str, float]:
    """Turn summed metrics into the numbers people read.

    Every ``X_sum`` is divided by the matching ``token_sum`` (same prefix); ``nll`` becomes
    perplexity. Prefix '' is the language-model head: ``accuracy`` and ``perplexity``.
    """
    out: dict[str, float] = {}
    for key, value in metrics.items():
        prefix, _, stem = key.removesuffix("_sum").rpartition("/")
        prefix = f"{prefix}/" if prefix else ""
        if stem == "token":
            continue
        mean = float(value) / max(float(metrics[f"{prefix}token_sum"]), 1e-9)
        if stem == "nll":
            out[f"{prefix}perplexity"] = float(jnp.exp(jnp.minimum(mean, 80.0)))
        else:
            out[f"{prefix}{stem}"] = mean
    return out
