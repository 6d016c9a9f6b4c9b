"""DPR: a question and a context encoder trained so that answers lie near their questions.

The batch's own stream holds B questions. ``batch.extras``: 'context_tokens' [S], 'context_layout'
(C >= B contexts), and where wanted 'segment_ids' [T], 'context_segment_ids' [S], 'positives' [B]
(index of each question's context; default i * C / B: every question's own context followed by
its hard negatives). Parameters are both towers', under ``question_`` and ``context_``. Karpukhin
et al. 2020.
"""

import functools
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree
from pydantic import Field, ValidationInfo, field_validator, model_validator

from wafer.models.alias import encoder_alias
from wafer.models.base import Aux, Batch, DropKey, Model, Stage, StageFn
from wafer.models.families.encoder import build_encoder
from wafer.models.families.encoder_config import EncoderConfig
from wafer.models.families.encoder_heads import contrastive_aux
from wafer.models.paths import Params
from wafer.models.schema import ModelConfig

TOWERS = ("question", "context")


class Towers(NamedTuple):
    """The carry: each tower's activations, at the end its embeddings [B, D] and [C, D]."""

    question: Any = None
    context: Any = None


class DprConfig(ModelConfig):
    """Two encoders and how their embeddings compare."""

    q_encoder: EncoderConfig  #: the question tower's section
    ctx_encoder: EncoderConfig  #: the context tower's section
    scale_similarity: bool = False  #: divide scores by the square root of the embedding size
    softmax_temperature: float = Field(default=1.0, gt=0)  #: divide scores by it

    @property
    def towers(self) -> tuple[EncoderConfig, EncoderConfig]:
        """Question tower, context tower."""
        return self.q_encoder, self.ctx_encoder

    @property
    def parts(self) -> tuple[EncoderConfig, EncoderConfig]:
        """Stacks whose attention costs are added: a question token and a context token."""
        return self.towers

    @property
    def vocab_size(self) -> int:
        """Both towers read the same tokens."""
        return self.q_encoder.vocab_size

    @property
    def max_position_embeddings(self) -> int:
        """Longest question or context that fits."""
        return min(tower.max_position_embeddings for tower in self.towers)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Contexts for questions."""
        return ("dpr",)

    @property
    def uses_dropout(self) -> bool:
        """Either tower's."""
        return any(tower.uses_dropout for tower in self.towers)

    @property
    def max_length(self) -> int:
        """Longest question or context that fits."""
        return self.max_position_embeddings

    @field_validator("q_encoder", "ctx_encoder", mode="before")
    @classmethod
    def _name(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, dict):
            return value
        name = "dpr-question-encoder" if info.field_name == "q_encoder" else "dpr-context-encoder"
        return {"name": name, "head": "embedding", **value}

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        sizes = [t.projection_dim or t.hidden_size for t in self.towers]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"ctx_encoder: embeddings of {sizes[1]} features cannot be compared with the "
                f"question's {sizes[0]}; make hidden_size (or projection_dim) equal"
            )
        if any(t.head != "embedding" for t in self.towers):
            raise ValueError("q_encoder, ctx_encoder: head must be 'embedding'")
        return self


def _contexts(batch: Batch) -> Batch:
    """Read the batch as the context tower does."""
    extras = batch.extras
    ids = {"segment_ids": extras["context_segment_ids"]} if "context_segment_ids" in extras else {}
    tokens = extras["context_tokens"]
    weights = jnp.zeros(tokens.shape, jnp.float32)
    return Batch(tokens, tokens, weights, extras["context_layout"], ids)


def _in_tower(side: str, kind: str, fn: StageFn) -> StageFn:
    def stage(params: Params, carry: PyTree, batch: Batch, key: DropKey) -> Towers:
        carry = Towers() if carry is None else carry
        seen = batch if side == "question" else _contexts(batch)
        out = fn(params, getattr(carry, side), seen, key)
        return carry._replace(**{side: out["pooled"] if kind == "head" else out})

    return stage


def _objective(cfg: DprConfig, carry: Towers, batch: Batch) -> Aux:
    questions, contexts = carry
    rows = questions.shape[0]
    if contexts.shape[0] < rows:
        raise ValueError(
            f"context_layout: {contexts.shape[0]} contexts for {rows} questions; every question "
            "needs its own"
        )
    positives = batch.extras.get("positives")
    if positives is None:
        positives = jnp.arange(rows) * (contexts.shape[0] // rows)
    scale = 1.0 / cfg.softmax_temperature
    if cfg.scale_similarity:
        scale *= questions.shape[1] ** -0.5
    return contrastive_aux(
        questions * scale,
        contexts,
        positives,
        batch.layout.lengths > 0,
        batch.extras["context_layout"].lengths > 0,
    )


def _init(towers: dict[str, Model], key: Array) -> Params:
    params: dict[str, Any] = {}
    for side, own in zip(towers, jax.random.split(key), strict=True):
        tower = towers[side].init(own)
        params |= {f"{side}_{name}": branch for name, branch in tower.items()}
    return params


def _alias(name: str) -> str:
    side, _, rest = name.partition("_")
    tower = "question_encoder" if side == "question" else "ctx_encoder"
    return encoder_alias(rest).replace("model.", f"model.{tower}.", 1)


def build_dpr(cfg: DprConfig) -> Model:
    """Assemble the bundle: 'question_embed', ..., 'question_head', then the context tower's."""
    towers = {side: build_encoder(t) for side, t in zip(TOWERS, cfg.towers, strict=True)}
    stages, kinds = [], {}
    for side, tower in towers.items():
        for kind, (roles, fn) in tower.kinds.items():
            kinds[f"{side}_{kind}"] = (roles, _in_tower(side, kind, fn))
        stages += [
            Stage(f"{side}_{s.name}", f"{side}_{s.kind}", tuple(f"{side}_{p}" for p in s.params))
            for s in tower.stages
        ]
    return Model(
        config=cfg,
        init=functools.partial(_init, towers),
        stages=tuple(stages),
        kinds=kinds,
        objective=functools.partial(_objective, cfg),
        alias=_alias,
    )
