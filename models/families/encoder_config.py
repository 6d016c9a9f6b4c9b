"""Knobs of the one encoder: BERT with its heads, RoBERTa, EBERT, DPR's towers."""

from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    NonNegativeFloat,
    NonNegativeInt,
    PlainSerializer,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from wafer.models.layers.basic import activation
from wafer.models.layers.block_config import BlockConfig, only_of_decoders
from wafer.models.schema import Dropout

EncoderHead = Literal[
    "pretraining",
    "mlm",
    "none",
    "classification",
    "token_classification",
    "qa",
    "summarization",
    "embedding",
    "reader",
]

# Written as 0: null in a run file is as if not given.
_Segments = Annotated[
    NonNegativeInt | None,
    AfterValidator(lambda count: count or None),
    PlainSerializer(lambda count: count or 0, return_type=int),
]
_TASKS = {
    "pretraining": "mlm",
    "mlm": "mlm",
    "classification": "classification",
    "token_classification": "token_classification",
    "qa": "qa",
    "summarization": "summarization",
}


class EncoderConfig(BlockConfig):
    """A bidirectional encoder. Defaults are BERT-base.

    ``head`` (the model's name sets it) says what sits on top; ``projection_dim`` is
    DPR's, 0 for none. ``mlm_loss_scaling``: divide by masked tokens or sequences;
    None is sequences where ``mlm_loss_weight`` is given, else masked tokens. ``loss_weight``, for
    labels of tokens or sentences: divide by sequences and multiply by it; without it by labels.
    ``include_padding_in_loss``: padded slots of token classification compute and carry loss, and
    the loss is divided by slots instead of sequences; nothing attends to them. ``token_dropout``
    (ESM-2): ``mask_token_id`` embeds as 0, and what remains is scaled to 88 % of the tokens.
    """

    vocab_size: PositiveInt = 30522
    max_position_embeddings: PositiveInt = 512
    norm_first: bool = False
    layer_norm_epsilon: PositiveFloat = 1e-5
    # embedding
    num_segments: _Segments = 2  #: segment embeddings; 0 or null: none (a run file's null: 2)
    #: E, states of a second input per token (EBERT); null: none
    epigenetic_vocab_size: PositiveInt | None = None
    share_embedding_weights: bool = True  #: the head's weights are the embedding's
    use_embedding_layer_norm: bool = True  #: a norm after the embedding
    mask_padding_in_positional_embed: bool = False  #: padding takes no position
    token_dropout: bool = False  #: masked tokens embed as 0, the rest is scaled to 88 % (ESM-2)
    mask_token_id: NonNegativeInt | None = None  #: id that token_dropout hides
    use_final_layer_norm: bool = False  #: a norm after the last layer
    # muP scales of the ends; the layers' are in BlockConfig
    embeddings_scale: PositiveFloat = 1.0  #: factor of the embeddings
    output_logits_alpha: PositiveFloat = 1.0  #: factor of the logits, beside muP's own
    scale_output_logits_by_d: bool = True  #: muP divides logits by the width instead of its root
    # heads
    head: EncoderHead = "pretraining"  #: what sits on the encoder; the name sets it
    disable_nsp: bool = False  #: no next-sentence head
    use_pooler: bool = True  #: a dense layer over the first token
    pooler_nonlinearity: str = "tanh"  #: its activation
    mlm_nonlinearity: str = "gelu"  #: activation of the masked-language-model head
    num_labels: PositiveInt = 2  #: classes
    classifier_dropout: Dropout | None = None  #: before the classifier; null: dropout_rate
    projection_dim: NonNegativeInt = 0  #: features after the projection; 0: none
    # loss
    #: what the masked tokens' loss is divided by
    mlm_loss_scaling: Literal["num_masked", "precomputed_num_masked", "batch_size"] | None = None
    mlm_loss_weight: NonNegativeFloat | None = None  #: factor of the masked tokens' loss
    nsp_loss_weight: NonNegativeFloat = 1.0  #: factor of the next-sentence loss
    label_smoothing: Dropout = 0.0  #: share of a label that is spread over all classes
    loss_weight: NonNegativeFloat | None = None  #: factor of the loss
    #: padded slots compute and carry loss (token classification)
    include_padding_in_loss: bool | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """As the head; () for heads without a loss."""
        if self.head == "mlm" and self.epigenetic_vocab_size is not None:
            return ("epigenetic_mlm",)
        return (_TASKS[self.head],) if self.head in _TASKS else ()

    @property
    def uses_dropout(self) -> bool:
        """The layers', or the head's own."""
        return super().uses_dropout or (self.classifier_dropout or 0) > 0

    @property
    def causal(self) -> bool:
        """Encoders see both directions."""
        return False

    @property
    def logits_scale(self) -> float:
        """Factor on the logits of the pre-training heads, 1 without muP."""
        if not self.is_mup:
            return 1.0
        multiplier = self.mup_hidden_multiplier
        width = multiplier if self.scale_output_logits_by_d else multiplier**0.5
        return self.output_logits_alpha / width

    @property
    def mlm_by_sequences(self) -> bool:
        """Whether the masked tokens' loss is divided by sequences and multiplied by its weight."""
        if self.mlm_loss_scaling is None:
            return self.mlm_loss_weight is not None
        return self.mlm_loss_scaling == "batch_size"

    @property
    def has_mlm(self) -> bool:
        """Whether the masked-language-model head is there."""
        return self.head in {"pretraining", "mlm"}

    @property
    def ties_head(self) -> bool:
        """Whether the masked-language-model head scores by the token embedding."""
        return self.has_mlm and self.share_embedding_weights

    @property
    def has_nsp(self) -> bool:
        """Whether the next-sentence head is there."""
        return self.head == "pretraining" and not self.disable_nsp

    @property
    def pools(self) -> bool:
        """Whether the dense layer over the first token is there."""
        return (
            self.has_nsp
            or self.head == "classification"
            or (self.head == "none" and self.use_pooler)
        )

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        activation(self.pooler_nonlinearity)
        activation(self.mlm_nonlinearity)
        if self.epigenetic_vocab_size is not None and self.head not in {"mlm", "none"}:
            raise ValueError(
                f"epigenetic_vocab_size: head {self.head!r} has no rows with a second input; "
                "use head 'mlm' (the name ebert) or 'none'"
            )
        if self.include_padding_in_loss and (
            self.head != "token_classification" or self.enable_vts
        ):
            raise ValueError(
                "include_padding_in_loss: padding has activations in token classification without "
                "enable_vts alone; drop one of the two keys"
            )
        only_of_decoders(self)
        if self.token_dropout and self.mask_token_id is None:
            raise ValueError("mask_token_id: missing; token_dropout needs the id that it hides")
        if self.num_labels < 2 and self.head in {"classification", "token_classification"}:
            raise ValueError(f"num_labels: {self.num_labels} classes are nothing to choose from")
        if self.mlm_loss_weight is not None and not self.mlm_by_sequences:
            raise ValueError(
                f"mlm_loss_weight: mlm_loss_scaling {self.mlm_loss_scaling!r} divides by masked "
                "tokens, without a weight; drop one of the two"
            )
        return self
