"""What sits on an encoder: its outputs by name, and the loss of each head.

Outputs: 'hidden' [T, D], 'pooled' [B, D], 'logits' [T, V], [T, C] or [B, C], 'nsp' [B, 2],
'start' and 'end' [T], 'relevance' [B]. Letters: T slots, B sequences, V vocabulary, C classes, M
gathered positions.
"""

from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from wafer import vsl
from wafer.models.base import Aux, Batch
from wafer.models.families.encoder_config import EncoderConfig
from wafer.models.layers.basic import Dense, Norm, activation, leaf, vocabulary_scores, zeros_init
from wafer.models.layers.initializers import make_initializer
from wafer.models.losses import token_aux
from wafer.vsl import Layout

Outputs = dict[str, Array]


class Heads(nn.Module):
    """All heads; the configuration says which exist."""

    cfg: EncoderConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "T D"],
        first: Int[Array, " B"],
        drop: Callable[..., Array],
        *,
        table: Float[vsl.AnyArray, "V D"] | vsl.Weight | None = None,
        gather: Int[Array, " M"] | None = None,
    ) -> Outputs:
        """Compute the outputs.

        Args:
            x: the last layer's output.
            first: slot of each sequence's first token.
            drop: (x [B, D] or [T, D], per-sequence?) -> x with units dropped.
            table: token embedding, for the tied head; None for one with weights of its own.
            gather: positions to score ('logits' is [M, .] then), or None for all.
        """
        cfg = self.cfg
        init = make_initializer(cfg.init_of("base" if cfg.is_mup else "ffn"))
        out: Outputs = {}
        if cfg.use_final_layer_norm:
            x = Norm(cfg.norm_type, cfg.layer_norm_epsilon, name="norm_f")(x)
        picked = x if gather is None else x[gather]
        if cfg.has_mlm:
            h = Dense(cfg.hidden_size, True, init, name="mlm_dense")(picked)
            h = activation(cfg.mlm_nonlinearity)(h)
            h = Norm(cfg.norm_type, cfg.layer_norm_epsilon, name="mlm_norm")(h)
            bias = leaf(self, "lm_head_bias", zeros_init, (cfg.vocab_size,))
            own = make_initializer(cfg.init_of("head"))
            scores = vocabulary_scores(h, table, cfg.vocab_size, own, bias=False)
            out["logits"] = (scores + bias.astype(h.dtype)) * cfg.logits_scale
        if cfg.pools:
            pooled = Dense(cfg.hidden_size, True, init, name="pooler")(x[first])
            out["pooled"] = activation(cfg.pooler_nonlinearity)(pooled)
        if cfg.has_nsp:
            out["nsp"] = Dense(2, True, init, name="nsp")(out["pooled"]) * cfg.logits_scale
        self._task(x, picked, first, drop, out)
        if cfg.head == "none":
            out["hidden"] = x
        return out

    def _task(
        self, x: Array, picked: Array, first: Array, drop: Callable[..., Array], out: Outputs
    ) -> None:
        cfg = self.cfg
        init = make_initializer(cfg.init_of("ffn"))
        if cfg.head == "classification":
            classify = Dense(cfg.num_labels, True, init, name="classifier")
            out["logits"] = classify(drop(out["pooled"], rows=True))
        elif cfg.head == "token_classification":
            out["logits"] = Dense(cfg.num_labels, True, init, name="classifier")(drop(x))
        elif cfg.head == "summarization":
            out["logits"] = Dense(1, True, init, name="classifier")(picked)[:, 0]
        elif cfg.head in {"qa", "reader"}:
            span = Dense(2, True, init, name="span")(x)
            out["start"], out["end"] = span[:, 0], span[:, 1]
        if cfg.head == "reader":
            out["relevance"] = Dense(1, True, init, name="relevance")(x[first])[:, 0]
        elif cfg.head == "embedding":
            out["pooled"] = x[first]
            if cfg.projection_dim:
                dense = Dense(cfg.projection_dim, True, init, name="projection")
                out["pooled"] = dense(x[first])


def segment_log_softmax(scores: Float[Array, " T"], layout: Layout) -> Float[Array, " T"]:
    """Normalise scores within each sequence of a stream; -inf elsewhere."""
    scores = jnp.where(layout.valid, scores.astype(jnp.float32), -jnp.inf)
    top = jax.lax.stop_gradient(vsl.segment_max(scores, layout))
    shifted = scores - vsl.expand(top, layout)
    total = jnp.maximum(vsl.segment_sum(jnp.exp(shifted), layout), 1e-30)
    return jnp.where(layout.valid, shifted - vsl.expand(jnp.log(total), layout), -jnp.inf)


def _sequence_aux(logits: Array, labels: Array, layout: Layout, name: str = "") -> Aux:
    return token_aux(logits, labels, (layout.lengths > 0).astype(jnp.float32), name=name)


def _pretraining_aux(cfg: EncoderConfig, out: Mapping[str, Array], batch: Batch) -> Aux:
    extras = batch.extras
    gathered = "masked_positions" in extras
    labels = extras["masked_labels"] if gathered else batch.labels
    weights = extras["masked_weights"] if gathered else batch.weights
    smoothing = cfg.label_smoothing
    aux = token_aux(out["logits"], labels, weights, name="mlm/", label_smoothing=smoothing)
    rows = batch.layout.row_count.astype(jnp.float32)
    if cfg.mlm_by_sequences:
        weight = 1.0 if cfg.mlm_loss_weight is None else cfg.mlm_loss_weight
        aux = aux._replace(loss_sum=aux.loss_sum * weight, weight=rows)
    if not cfg.has_nsp or "next_sentence_label" not in extras:
        return aux
    nsp = _sequence_aux(out["nsp"], extras["next_sentence_label"], batch.layout, "nsp/")
    # Both means add; the sum is brought to the common denominator.
    added = cfg.nsp_loss_weight * nsp.loss_sum / jnp.maximum(nsp.weight, 1e-9) * aux.weight
    return Aux(aux.loss_sum + added, aux.weight, {**aux.metrics, **nsp.metrics})


def _span_aux(out: Mapping[str, Array], batch: Batch) -> Aux:
    layout, extras = batch.layout, batch.extras
    real = (layout.lengths > 0).astype(jnp.float32)
    total = jnp.zeros((), jnp.float32)
    right = jnp.ones_like(real)
    for side in ("start", "end"):
        target = extras[f"{side}_positions"]
        # Answers cut off by the maximum length have targets outside and do not count.
        inside = (target >= 0) & (target < layout.lengths)
        slot = layout.offsets + jnp.where(inside, target, 0)
        scores = segment_log_softmax(out[side], layout)
        total += jnp.sum(jnp.where(inside & (real > 0), -scores[slot], 0.0)) / 2
        best = vsl.segment_max(scores, layout)
        right *= (scores[slot] >= best) & inside
    metrics = {
        "nll_sum": total,
        "token_sum": real.sum(),
        "exact_span_sum": jnp.sum(right * real),
    }
    return Aux(total, real.sum(), metrics)


def _summary_aux(out: Mapping[str, Array], batch: Batch) -> Aux:
    """Binary cross-entropy of each sentence's [CLS] (Liu 2019, BERTSUM)."""
    labels, weights = batch.extras["masked_labels"], batch.extras["masked_weights"]
    scores = out["logits"].astype(jnp.float32)
    per = jnp.maximum(scores, 0) - scores * labels + jnp.log1p(jnp.exp(-jnp.abs(scores)))
    loss = jnp.sum(per * weights)
    right = jnp.sum(((scores > 0) == (labels > 0)) * weights)
    metrics = {"nll_sum": loss, "token_sum": weights.sum(), "accuracy_sum": right}
    return Aux(loss, weights.sum(), metrics)


def encoder_aux(cfg: EncoderConfig, out: Mapping[str, Array], batch: Batch) -> Aux:
    """Score a batch by the configured head.

    Reads from ``batch.extras``: 'next_sentence_label' [B], 'class_labels' [B], 'start_positions'
    and 'end_positions' [B] (positions inside the sequence), 'masked_positions', 'masked_labels',
    'masked_weights' [M] (slots gathered before the head); token labels are ``batch.labels``.
    """
    if cfg.has_mlm:
        return _pretraining_aux(cfg, out, batch)
    aux = _labels_aux(cfg, out, batch)
    if cfg.loss_weight is None:
        return aux
    rows = batch.layout.row_count.astype(jnp.float32)
    if cfg.include_padding_in_loss and batch.layout.rows is not None:
        rows *= batch.layout.rows[1]
    return Aux(aux.loss_sum * cfg.loss_weight, rows, aux.metrics)


def _labels_aux(cfg: EncoderConfig, out: Mapping[str, Array], batch: Batch) -> Aux:
    """Score labels of sequences, tokens, sentences or answers."""
    if cfg.head == "classification":
        return _sequence_aux(out["logits"], batch.extras["class_labels"], batch.layout)
    if cfg.head == "token_classification":
        return token_aux(out["logits"], batch.labels, batch.weights)
    if cfg.head == "summarization":
        return _summary_aux(out, batch)
    if cfg.head in {"qa", "reader"}:
        return _span_aux(out, batch)
    raise ValueError(f"{cfg.name}: an encoder with head {cfg.head!r} has no loss of its own")


def contrastive_aux(
    questions: Float[Array, "B D"],
    contexts: Float[Array, "C D"],
    labels: Int[Array, " B"],
    real_questions: Bool[Array, " B"] | None = None,
    real_contexts: Bool[Array, " C"] | None = None,
) -> Aux:
    """Score DPR's in-batch negatives: each question against every context of the batch.

    Args:
        questions: embeddings.
        contexts: embeddings.
        labels: index of each question's own context.
        real_questions: False for empty rows, which do not count.
        real_contexts: False for empty rows, which nothing is compared with.
    """
    scores = questions.astype(jnp.float32) @ contexts.astype(jnp.float32).T
    if real_contexts is not None:
        scores = jnp.where(real_contexts[None], scores, -1e30)
    real = jnp.ones(len(labels)) if real_questions is None else real_questions
    return token_aux(scores, labels, real.astype(jnp.float32))
