"""Knobs of the one encoder-decoder: T5 (1.0, 1.1, Flan, UL2) and the 2017 Transformer."""

from typing import Any, Literal, Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from wafer.models.layers.block_config import BlockConfig, only_of_decoders
from wafer.models.layers.initializers import scaled
from wafer.models.schema import Dropout, Initializer
from wafer.models.sections import LARGEST_INT, Layers

_POSITIONS = tuple(f"{of}max_position_embeddings" for of in ("", "src_", "tgt_"))
_TABLES = ("vocab_size", "tgt_vocab_size")
_NO_MUP = {"mup_base_hidden_size": None, "mup_base_filter_size": None}


class _Encoder(BlockConfig):
    @property
    def causal(self) -> bool:
        return False


class Seq2SeqConfig(BlockConfig):
    """An encoder and a decoder of the same width. Defaults are T5-small's.

    ``scale_logits``: tied T5 multiplies by hidden_size^-1/2; ``scale_embedding``: the 2017
    Transformer multiplies by hidden_size^1/2; ``final_norm`` of both stacks, None is as
    ``norm_first``. muP without ``mup_base_d_kv``: queries and keys shrink by the root of the width
    over the base's.
    """

    hidden_size: PositiveInt = 512
    num_hidden_layers: Layers = 6
    num_heads: PositiveInt = 8
    filter_size: PositiveInt = 2048
    vocab_size: PositiveInt = 32128
    tgt_vocab_size: PositiveInt | None = None  #: vocabulary of the decoder; null: vocab_size
    decoder_num_hidden_layers: Layers | None = None  #: layers of the decoder; null: as the encoder
    max_position_embeddings: PositiveInt = 512
    src_max_position_embeddings: PositiveInt | None = None  #: longest source
    tgt_max_position_embeddings: PositiveInt | None = None  #: longest target
    extra_ids: NonNegativeInt = 0  #: sentinels after the vocabulary
    position_embedding_type: Literal["learned", "fixed", "relative", "rotary", "alibi"] | None = (
        "relative"
    )
    layer_norm_epsilon: PositiveFloat = 1e-6
    use_pre_encoder_decoder_dropout: bool = False  #: dropout on both halves' inputs
    use_dropout_outside_residual_path: bool = True  #: dropout after each stack
    #: normalize after the last layer of both stacks; as norm_first if unset
    final_norm: bool | None = None
    share_encoder_decoder_embedding: bool = True  #: both halves have one embedding
    share_embedding_weights: bool = True  #: the head's weights are the embedding's
    use_bias_in_output: bool = False  #: bias of the head
    scale_logits: bool = False  #: divide logits by the root of the width
    scale_embedding: bool = False  #: multiply embeddings by the root of the width
    decoder_start_token_id: NonNegativeInt = 0  #: first token of the decoder
    # muP: the widths of the base model are in BlockConfig, but for that of a head
    #: features of a head in muP's base model; null: heads keep their size
    mup_base_d_kv: PositiveFloat | None = None
    embeddings_alpha: PositiveFloat = 1.0  #: factor on embeddings
    encoder_attention_logits_alpha: PositiveFloat = 1.0  #: factor on the encoder's attention scores
    decoder_attention_logits_alpha: PositiveFloat = 1.0  #: factor on the decoder's attention scores
    #: divide the encoder's scores by the head size, not by its root
    scale_encoder_qk_dot_by_d: bool | None = None
    #: divide the decoder's scores by the head size, not by its root
    scale_decoder_qk_dot_by_d: bool | None = None
    output_logits_alpha: PositiveFloat | None = None  #: factor of the logits, beside muP's own
    scale_output_logits_by_d: bool = False  #: muP divides logits by the width instead of its root
    with_lm_head: bool = True  #: whether there is a head
    #: what the summed loss is divided by
    loss_scaling: Literal["num_tokens", "batch_size"] = "num_tokens"
    loss_weight: NonNegativeFloat = 1.0  #: factor of the loss
    label_smoothing: Dropout = 0.0  #: share of a label that is spread over all classes

    @property
    def tasks(self) -> tuple[str, ...]:
        """Targets for sources."""
        return ("seq2seq",) if self.with_lm_head else ()

    @property
    def norms_ends(self) -> bool:
        """Whether a norm follows the last layer of either stack."""
        return self.norm_first if self.final_norm is None else self.final_norm

    @property
    def decoder_layers(self) -> int:
        """Layers of the decoder; as many as the encoder's unless set."""
        return self.decoder_num_hidden_layers or self.num_hidden_layers

    def _half(self, cls: type[BlockConfig], **fields: Any) -> BlockConfig:
        own = {name: getattr(self, name) for name in BlockConfig.model_fields}
        return cls.model_construct(**own | fields)

    @property
    def encoder_block(self) -> BlockConfig:
        """Configuration of an encoder layer."""
        alpha, by_d = self.encoder_attention_logits_alpha, self.scale_encoder_qk_dot_by_d
        return self._half(_Encoder, **self._attention(alpha, by_d, self.num_hidden_layers))

    @property
    def decoder_block(self) -> BlockConfig:
        """Configuration of a decoder layer."""
        alpha, by_d = self.decoder_attention_logits_alpha, self.scale_decoder_qk_dot_by_d
        return self._half(BlockConfig, **self._attention(alpha, by_d, self.decoder_layers))

    def _attention(self, alpha: float, by_d: bool | None, layers: int) -> dict[str, Any]:
        """Express a half's scales and initial values in a layer's knobs without muP."""
        alpha *= self.attention_logits_alpha
        out = {"attention_logits_alpha": alpha}
        if by_d is not None:
            out["scale_qk_dot_by_d"] = by_d
        if not self.is_mup:
            return out
        # Factors of values and outputs cancel: width^-1/2 and width^1/2.
        wide = self.hidden_size / (self.attention_inner_dim or self.hidden_size)
        plain, depth = self._half(BlockConfig, **_NO_MUP), (2 * layers) ** -0.5
        first = self.output_layer_initializer or plain.init_of("attention")
        second = self.ffn_output_layer_initializer or plain.init_of("ffn")
        return _NO_MUP | {
            "attention_type": "scaled_dot_product",
            "scale_qk_dot_by_d": by_d is not False,
            "attention_logits_alpha": alpha
            / (1 if self.mup_base_d_kv else self.mup_hidden_multiplier),
            "output_layer_initializer": scaled(
                first, depth * (wide**0.5 if self.mup_base_d_kv else 1)
            ),
            "ffn_output_layer_initializer": scaled(second, depth),
        }

    @property
    def attention_scales(self) -> tuple[float, float]:
        """Factors on q.k of both halves."""
        return self.encoder_block.attention_scale, self.decoder_block.attention_scale

    @property
    def embeddings_factor(self) -> float:
        """Factor on embeddings with their positions."""
        return self.embeddings_alpha * (self.hidden_size**0.5 if self.is_mup else 1.0)

    @property
    def logits_scale(self) -> float:
        """Factor on the logits: that of muP, or of tied embeddings under ``scale_logits``."""
        if not self.is_mup:
            tied = self.scale_logits and self.share_embedding_weights
            return self.hidden_size**-0.5 if tied else 1.0
        width = self.mup_hidden_multiplier ** (1.0 if self.scale_output_logits_by_d else 0.5)
        return (self.output_logits_alpha or 1.0) / width

    @property
    def mup_rates(self) -> dict[str, float]:
        """Factors of learning rates under muP by part."""
        width, root = self.mup_hidden_multiplier, self.mup_hidden_multiplier**0.5
        head = self.head_dim / self.mup_base_d_kv if self.mup_base_d_kv else root
        return {
            "embedding": 1 / root,
            "head": 1 / root,
            "qkv": 1 / (width if self.mup_base_d_kv else root),
            "attention_out": 1 / head,
            "ffn": 1 / width,
            "ffn_out": 1 / self.mup_filter_multiplier,
        }

    def init_of(self, group: str) -> Initializer:
        """Return the initializer of a kernel group; under muP embeddings start narrower."""
        if not self.is_mup:
            return super().init_of(group)
        plain = self._half(BlockConfig, **_NO_MUP).init_of(group)
        return scaled(plain, self.hidden_size**-0.5) if group in ("embedding", "head") else plain

    def attended_keys(self, length: int) -> float:
        """Sum over both stacks of the keys a query sees, cross-attention included."""
        decoder = self.decoder_layers * ((length + 1) / 2 + length)
        return self.num_hidden_layers * length + decoder

    @model_validator(mode="before")
    @classmethod
    def _t5_defaults(cls, data: dict) -> dict:
        data = dict(data)
        if data.get("relu_dropout_rate") is None:  # T5 drops out there, too
            default = cls.model_fields["dropout_rate"].default
            data["relu_dropout_rate"] = data.get("dropout_rate", default)
        return data

    @model_validator(mode="before")
    @classmethod
    def _sizes(cls, data: dict) -> dict:
        """Add the sentinels to the vocabularies; take the longer half's positions for both."""
        data = dict(data)
        extra = data.get("extra_ids")
        if type(extra) is int and 0 <= extra <= LARGEST_INT:  # others the field refuses
            del data["extra_ids"]
            tables = [key for key in _TABLES if isinstance(data.get(key), int)]
            data |= {key: data[key] + extra for key in tables}
        longest = [data[key] for key in _POSITIONS if isinstance(data.get(key), int)]
        return data | ({"max_position_embeddings": max(longest)} if longest else {})

    @model_validator(mode="after")
    def _halves_fit(self) -> Self:
        if self.tgt_vocab_size not in {None, self.vocab_size} and (
            self.share_encoder_decoder_embedding
        ):
            raise ValueError(
                f"share_encoder_decoder_embedding: vocabularies of {self.vocab_size} and "
                f"{self.tgt_vocab_size} cannot share a table"
            )
        if self.output_logits_alpha is not None and not self.is_mup:
            raise ValueError(
                "output_logits_alpha: of muP; give mup_base_hidden_size and mup_base_filter_size"
            )
        only_of_decoders(self)
        names = ("parallel_attention", "moe", "position_embedding_offset")
        if any(getattr(self, name) for name in names):
            raise ValueError(f"{', '.join(names)}: other families only")
        return self
