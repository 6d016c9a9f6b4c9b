"""Every knob of the one decoder: a layer's knobs plus embedding, head and loss.

GPT-2, GPT-J, NeoX, BLOOM, Falcon, LLaMA, ... are settings of this class; ``models.names`` holds
the defaults behind each name.
"""

from typing import Literal, Self

from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from wafer.models.families.preference import DpoConfig
from wafer.models.layers.block_config import BlockConfig, Part
from wafer.models.schema import Dropout


class DecoderConfig(BlockConfig):
    """A causal decoder. ``with_lm_head`` False, a key of ours, is the headless model."""

    # embedding and head
    embedding_layer_norm: bool = False  #: a norm after the embedding
    share_embedding_weights: bool = True  #: the head's weights are the embedding's
    use_bias_in_output: bool = False  #: bias of the head
    with_lm_head: bool = True  #: whether there is a head
    final_logit_softcapping: PositiveFloat | None = None  #: logits are capped by tanh at this value
    # muP scales of the ends; the layers' are in BlockConfig
    embeddings_scale: PositiveFloat = 1.0  #: factor of the embeddings
    output_logits_scale: PositiveFloat | None = None  #: factor of the logits
    output_logits_alpha: PositiveFloat | None = None  #: factor of the logits, beside muP's own
    scale_output_logits_by_d: bool = True  #: muP divides logits by the width instead of its root
    # loss
    #: what the summed loss is divided by
    loss_scaling: Literal["num_tokens", "batch_size"] = "num_tokens"
    loss_weight: NonNegativeFloat = 1.0  #: factor of the loss
    label_smoothing: Dropout = 0.0  #: share of a label that is spread over all classes
    dpo: DpoConfig | None = None  #: direct preference optimization

    @property
    def tasks(self) -> tuple[str, ...]:
        """Next tokens, or pairs of answers under ``dpo``."""
        if self.dpo is not None:
            return ("dpo",)
        return ("lm",) if self.with_lm_head else ()

    def dropout(self, part: Part) -> float:
        """Return the dropout rate of a part: 0 where ``dpo`` switches dropout off."""
        off = self.dpo is not None and self.dpo.disable_dropout
        return 0.0 if off else super().dropout(part)

    @property
    def logits_scale(self) -> float:
        """Factor on the logits from the explicit or the derived muP knobs."""
        if self.output_logits_scale is not None:
            return self.output_logits_scale
        alpha = 1.0 if self.output_logits_alpha is None else self.output_logits_alpha
        multiplier = self.mup_hidden_multiplier
        return alpha / (multiplier if self.scale_output_logits_by_d else multiplier**0.5)

    @model_validator(mode="after")
    def _ends_fit(self) -> Self:
        if not self.share_embedding_weights and not self.with_lm_head:
            raise ValueError("with_lm_head: a model without head has no untied lm_head weights")
        if self.loss_weight != 1 and self.loss_scaling == "num_tokens":
            raise ValueError("loss_weight: read with loss_scaling: batch_size only; add that")
        if self.is_mup and self.output_logits_scale is not None:
            raise ValueError(
                "output_logits_scale: muP base sizes derive it; use output_logits_alpha instead"
            )
        return self
