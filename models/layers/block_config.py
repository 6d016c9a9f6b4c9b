"""The knobs of a transformer layer.

Every stack is configured by a subclass: decoders, encoders, both halves of encoder-decoders.
"""

from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from wafer.models.layers.basic import GATED, activation
from wafer.models.layers.initializers import make_initializer, scaled
from wafer.models.layers.positions import RopeScaling
from wafer.models.schema import Dropout, Fraction, Initializer, ModelConfig
from wafer.models.sections import Layers, Section

NormType = Literal[
    "layernorm", "rmsnorm", "rmsnorm-1p", "biasless-layernorm", "nonparametric-layernorm"
]
Part = Literal["residual", "embedding", "attention"]


class ExtraAttention(Section):
    """``extra_attention_params``: num_kv_groups key/value heads, shared by groups of queries."""

    num_kv_groups: PositiveInt = 1  #: K, key/value heads


class FixedSparse(Section):
    """``fixed_sparse_attention``: the "fixed" pattern of Child et al. 2019 (GPT-3's odd layers).

    A query sees its own block of ``local_attn_ctx`` tokens and, in every earlier block, a group
    of ``vert_size`` summary columns; heads take different groups, counted from the block's end,
    when ``different_layout_per_head``.
    """

    attn_type: Literal["fixed"] = "fixed"  #: the pattern
    local_attn_ctx: PositiveInt = 128  #: tokens of a block
    vert_size: PositiveInt = 8  #: summary columns of a block
    num_verts: PositiveInt = 1  #: groups of summary columns
    different_layout_per_head: bool = True  #: heads take different columns
    every_other_layer: bool = True  #: the pattern holds in every other layer only


class MoeConfig(Section):
    """``moe``: top-k routed experts in place of the feed-forward (Mixtral)."""

    num_experts: PositiveInt  #: E, routed experts
    top_k: PositiveInt = 2  #: experts of a token
    #: factor of the loss that keeps experts equally busy
    load_balancing_loss_coef: NonNegativeFloat = 0.0
    #: False keeps the coefficient without adding the loss, as Hugging Face's
    #: ``output_router_logits``
    use_load_balancing_loss: bool = True
    num_shared_experts: NonNegativeInt = 0  #: further experts, which take every token with weight 1
    #: added to the denominator of a token's expert weights
    null_expert_bias: NonNegativeFloat = 0.0
    #: False keeps the router's probabilities as the weights of the chosen experts
    normalize_top_k: bool = True

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k: {self.top_k} of {self.num_experts} experts")
        if self.null_expert_bias and not self.normalize_top_k:
            raise ValueError("null_expert_bias: read with normalize_top_k: true only")
        return self

    @property
    def balance_weight(self) -> float:
        """Factor of the loss that spreads tokens over experts; 0 without it."""
        return self.load_balancing_loss_coef if self.use_load_balancing_loss else 0.0


class LoraConfig(Section):
    """``lora_params``: low-rank updates beside frozen kernels (Hu et al. 2021)."""

    r: NonNegativeInt = 0  #: rank
    alpha: PositiveFloat = 1.0  #: the update is scaled by alpha / r
    dropout: Dropout = 0.0  #: on the update's input
    #: substrings of parameter names; kernels containing one are adapted
    target_modules: tuple[str, ...] = ("attn/query", "attn/value")


class FactorConfig(Section):
    """``factors``: kernels as products of two matrices, or with one added (Sparse-IFT)."""

    #: ``factorized`` (the product alone) or ``doped`` (beside the kernel)
    form: Literal["factorized", "doped"]
    #: that the factors (doped: the kernel) will have; it sets their inner width
    sparsity: Annotated[float, Field(gt=0, lt=1)]
    #: substrings of parameter names; kernels containing one have factors
    target_modules: tuple[str, ...] = ("/attn/", "/cross/", "/ffn/")


_EVERY_OTHER = "sliding_window_every_other_decoder_layer"


class BlockConfig(ModelConfig):
    """What a transformer layer needs, whatever stack it stands in. Defaults are GPT-2's.

    ``residual_after_norm`` is BLOOM's, ``clip_qkv`` and ``softmax_scale`` are MPT's;
    ``rotary_fraction`` is a quarter, all of a head for LLaMA and Falcon; ``norm_first`` False is
    post-LN.
    """

    # sizes
    vocab_size: PositiveInt = 50257  #: V, tokens of the vocabulary
    hidden_size: PositiveInt = 768  #: D, features of a token
    num_hidden_layers: Layers = 12  #: layers
    num_heads: PositiveInt = 12  #: N, attention heads
    filter_size: PositiveInt = 3072  #: F, inner width of the feed-forward
    max_position_embeddings: PositiveInt = 1024  #: longest sequence
    #: width of all heads together; null: hidden_size
    attention_inner_dim: PositiveInt | None = None
    # positions
    #: how positions enter
    position_embedding_type: Literal["learned", "fixed", "relative", "rotary", "alibi"] | None = (
        "learned"
    )
    position_embedding_offset: NonNegativeInt = 0  #: index of the first position
    #: features of a head that are rotated; null: rotary_fraction of them
    rotary_dim: PositiveInt | None = None
    rotary_fraction: Fraction = 0.25  #: share of a head that is rotated
    rope_theta: PositiveFloat = 10000.0  #: base of the rotary frequencies
    rotary_interleaved: bool = True  #: pairs are neighbours, or halves as Hugging Face has them
    pos_scaling_factor: PositiveFloat = 1.0  #: positions are divided by it
    pos_scaling_type: Literal["linear", "llama3", "yarn"] = "linear"  #: how positions are stretched
    pos_scaling_extra_args: RopeScaling | None = None  #: numbers of that stretching
    alibi_trainable_slopes: bool = False  #: learn the slopes
    alibi_slopes_in_checkpoint: bool = False  #: keep fixed slopes among the parameters
    alibi_style: Literal["standard", "falcon"] = "standard"  #: scaling of the biases
    #: buckets of relative distances
    num_relative_attention_buckets: Annotated[int, Field(ge=4)] = 32  # near and far, both ways
    max_relative_distance: PositiveInt = 128  #: distances beyond share the last bucket
    # dropout; None means dropout_rate
    dropout_rate: Dropout = 0.1  #: share of activations dropped in training
    #: dropout after the activation of the feed-forward
    relu_dropout_rate: Dropout = 0.0  # after the activation of the feed-forward
    residual_dropout_rate: Dropout | None = None  #: before residual additions; null: dropout_rate
    embedding_dropout_rate: Dropout | None = None  #: after the embedding; null: dropout_rate
    attention_dropout_rate: Dropout | None = None  #: of attention's weights; null: dropout_rate
    # block
    norm_type: NormType = "layernorm"  #: normalization
    layer_norm_epsilon: PositiveFloat = 1e-5  #: added to the variance
    norm_first: bool = True  #: normalize before each part (pre-LN) or after it (post-LN)
    norm_first_sandwich: bool = False  #: normalize before and after each part
    #: normalize what a part returns instead of what it reads (OLMo 2)
    norm_outputs_only: bool = False
    parallel_attention: bool = False  #: attention and feed-forward side by side
    use_untied_layer_norm: bool = False  #: a norm each for the two parallel parts
    residual_after_norm: bool = False  #: the residual starts after the norm (BLOOM)
    nonlinearity: str | None = "gelu"  #: activation of the feed-forward
    use_ffn_bias: bool = True  #: biases in the feed-forward
    moe: MoeConfig | None = None  #: experts in place of the feed-forward
    # attention
    #: key/value heads for all (aiayn) or for groups (multiquery)
    attention_module: Literal["aiayn_attention", "multiquery_attention"] = "aiayn_attention"
    extra_attention_params: ExtraAttention | None = None  #: {num_kv_groups: K}
    #: scaling of the scores
    attention_type: Literal["dot_product", "scaled_dot_product", "scaled_cosine"] = (
        "scaled_dot_product"
    )
    use_projection_bias_in_attention: bool = True  #: biases of query, key and value
    use_ffn_bias_in_attention: bool = True  #: bias of attention's output
    #: tokens that a query sees; null: all before it
    attention_sliding_window_length: PositiveInt | None = None
    #: first tokens that stay visible outside the sliding window
    attention_sink_tokens: NonNegativeInt = 0  # always visible (Xiao et al. 2023)
    #: the window holds in every other layer only
    sliding_window_every_other_decoder_layer: bool = False
    #: whether the first layer has the window
    sliding_window_every_other_decoder_layer_pattern: Literal[
        "sliding_window_first", "full_attention_first"
    ] = "sliding_window_first"
    #: every n-th layer has no window (Gemma 3); null: all layers have it
    full_attention_interval: PositiveInt | None = None
    #: base of the rotary frequencies in layers with a window, where positions are not divided;
    #: null: as in the others
    rope_theta_local: PositiveFloat | None = None
    #: scores are capped by tanh at this value
    attention_logit_softcapping: PositiveFloat | None = None
    attention_qk_norm_layer: NormType | None = None  #: normalization of queries and keys
    attention_qk_norm_eps: PositiveFloat = 1e-5  #: added to its variance
    attention_qk_norm_whole: bool = False  #: over all heads together instead of each
    scale_qk_dot_by_layer_idx: bool = False  #: divide scores by the layer's number
    fixed_sparse_attention: FixedSparse | None = None  #: the fixed pattern of Child et al. 2019
    clip_qkv: PositiveFloat | None = None  #: queries, keys and values are clipped to this size
    softmax_scale: PositiveFloat | None = None  #: factor of the scores; null: by attention_type
    # initialisers
    initializer_range: NonNegativeFloat = 0.02  #: standard deviation of initial weights
    initializer: Initializer | None = None  #: how weights are drawn; null: by initializer_range
    embedding_initializer: Initializer | None = None  #: of embeddings; null: initializer's
    #: of query, key and value; null: initializer's
    attention_initializer: Initializer | None = None
    #: how queries' weights are drawn; as the other projections' if unset
    attention_q_initializer: Initializer | None = None
    ffn_initializer: Initializer | None = None  #: of the feed-forward; null: initializer's
    #: of attention's output; null: initializer's
    output_layer_initializer: Initializer | None = None
    #: of the feed-forward's output; null: initializer's
    ffn_output_layer_initializer: Initializer | None = None
    head_initializer: Initializer | None = None  #: of the head; null: initializer's
    # muP: explicit scales, and those derived from base sizes
    #: divide scores by the head's size instead of its root; null: under muP
    scale_qk_dot_by_d: bool | None = None
    mup_base_hidden_size: PositiveFloat | None = None  #: hidden_size of the proxy model; given: muP
    mup_base_filter_size: PositiveFloat | None = None  #: filter_size of the proxy model
    attention_logits_alpha: PositiveFloat = 1.0  #: factor of the scores
    # fine-tuning
    lora_params: LoraConfig | None = None  #: low-rank updates beside frozen kernels
    # Sparse-IFT
    #: kernels as products of two matrices (Sparse-IFT): form, sparsity, target_modules
    factors: FactorConfig | None = None

    @property
    def causal(self) -> bool:
        """Whether a token sees earlier tokens only."""
        return True

    @property
    def head_dim(self) -> int:
        """H, features per head."""
        return (self.attention_inner_dim or self.hidden_size) // self.num_heads

    @property
    def num_kv_heads(self) -> int:
        """K, key/value heads."""
        if self.attention_module == "aiayn_attention":
            return self.num_heads
        return (self.extra_attention_params or ExtraAttention()).num_kv_groups

    @property
    def rotary_features(self) -> int:
        """R, rotated features per head: ``rotary_dim``, or the family's fraction of the head."""
        return self.rotary_dim or int(self.head_dim * self.rotary_fraction)

    @property
    def gated(self) -> bool:
        """Whether the feed-forward multiplies by a second, activated projection."""
        return self.nonlinearity in GATED

    def dropout(self, part: Part) -> float:
        """Return the dropout rate of a part, ``dropout_rate`` unless set."""
        rate = getattr(self, f"{part}_dropout_rate")
        return self.dropout_rate if rate is None else rate

    @property
    def uses_dropout(self) -> bool:
        """Whether any unit is dropped out, adapters' inputs included."""
        lora = self.lora_params
        adapters = lora is not None and lora.r > 0 and lora.dropout > 0
        parts: tuple[Part, ...] = ("residual", "embedding", "attention")
        inner = adapters or self.relu_dropout_rate > 0
        return inner or any(self.dropout(part) > 0 for part in parts)

    @property
    def max_length(self) -> int | None:
        """``max_position_embeddings``; relative positions share buckets that have no end."""
        relative = self.position_embedding_type == "relative"
        return None if relative else self.max_position_embeddings

    @property
    def is_mup(self) -> bool:
        """Whether the muP scalings derive from base sizes."""
        return self.mup_base_hidden_size is not None

    @property
    def mup_hidden_multiplier(self) -> float:
        """Width over the base width of the proxy model; 1 without muP."""
        return self.hidden_size / (self.mup_base_hidden_size or self.hidden_size)

    @property
    def mup_filter_multiplier(self) -> float:
        """Filter size over that of the proxy model; 1 without muP."""
        return self.filter_size / (self.mup_base_filter_size or self.filter_size)

    @property
    def mup_rates(self) -> dict[str, float]:
        """Factors of learning rates under muP by part: 'qkv', 'ffn_out', ...; others keep theirs.

        A kernel's rate is divided by how much wider its input is than in the base model.
        """
        hidden = dict.fromkeys(("qkv", "attention_out", "ffn"), 1 / self.mup_hidden_multiplier)
        return hidden | {"ffn_out": 1 / self.mup_filter_multiplier}

    @property
    def attention_scale(self) -> float:
        """Factor on q.k: 1/sqrt(H), 1/H under muP, 1 for ``dot_product``."""
        if self.softmax_scale is not None:
            return self.softmax_scale
        if self.attention_type != "scaled_dot_product":
            return 1.0
        by_d = self.is_mup if self.scale_qk_dot_by_d is None else self.scale_qk_dot_by_d
        return self.attention_logits_alpha / (self.head_dim if by_d else self.head_dim**0.5)

    @property
    def local_layers(self) -> list[bool]:
        """Whether each layer has the sliding window or the fixed sparse pattern."""
        sparse, interval = self.fixed_sparse_attention, self.full_attention_interval
        layers = range(self.num_hidden_layers)
        if interval:
            return [(i + 1) % interval != 0 for i in layers]
        if sparse is not None and sparse.every_other_layer:
            return [i % 2 == 1 for i in layers]
        if self.sliding_window_every_other_decoder_layer:
            first = self.sliding_window_every_other_decoder_layer_pattern == "sliding_window_first"
            return [i % 2 != first for i in layers]
        return [True for _ in layers]

    def attended_keys(self, length: int) -> float:
        """Sum over layers of the keys an average query of a sequence sees."""
        if not self.causal:
            return float(self.num_hidden_layers * length)
        width = self.attention_sliding_window_length or length
        window = min(width + self.attention_sink_tokens, length)
        local = window - window * (window - 1) / (2 * length)
        dense = (length + 1) / 2
        share = sum(self.local_layers) / max(self.num_hidden_layers, 1)
        return self.num_hidden_layers * (share * local + (1 - share) * dense)

    def init_of(self, group: str) -> Initializer:
        """Return the initialiser of a kernel group, muP and depth scaling included.

        Args:
            group: 'base' (as the file has it), 'embedding', 'query', 'attention', 'attention_out',
                'ffn', 'ffn_out' or 'head'.
        """
        base = self.initializer or Initializer(name="truncated_normal", std=self.initializer_range)
        attention = self.attention_initializer or base
        ffn = self.ffn_initializer or base
        depth = (2 * self.num_hidden_layers) ** -0.5
        narrow = self.mup_hidden_multiplier**-0.5
        if group in ("base", "embedding"):
            return (self.embedding_initializer if group == "embedding" else None) or base
        if group == "head":
            return self.head_initializer or Initializer(name="normal", std=self.initializer_range)
        inner = {
            "query": self.attention_q_initializer or attention,
            "attention": attention,
            "ffn": ffn,
        }
        if group in inner:
            return scaled(inner[group], narrow)
        wide = narrow if group == "attention_out" else self.mup_filter_multiplier**-0.5
        explicit = self.output_layer_initializer
        if group == "ffn_out":
            explicit = self.ffn_output_layer_initializer or explicit
        if explicit is not None and not self.is_mup:
            return explicit
        return scaled(explicit or (attention if group == "attention_out" else ffn), wide * depth)

    @model_validator(mode="before")
    @classmethod
    def _unsupported(cls, data: dict) -> dict:
        if data.get("pos_scaling_type") == "longrope":
            raise ValueError(
                "pos_scaling_type: longrope changes its tables with the batch's longest position, "
                "which packed batches of several documents do not have; use linear, llama3 or yarn"
            )
        return data

    @model_validator(mode="after")
    def _possible(self) -> Self:
        """Refuse what cannot be computed, with the reason."""
        self._check_heads()
        self._check_positions()
        if (self.mup_base_hidden_size is None) != (self.mup_base_filter_size is None):
            raise ValueError("mup_base_hidden_size and mup_base_filter_size: give both or neither")
        activation(self.nonlinearity)
        for part in ("embedding", "query", "attention", "attention_out", "ffn", "ffn_out", "head"):
            make_initializer(self.init_of(part))
        if self.parallel_attention and not self.norm_first:
            raise ValueError("norm_first: parallel attention has no post-LN form; use true")
        others = ("parallel_attention", "norm_first_sandwich", "residual_after_norm")
        clash = [key for key in others if getattr(self, key)]
        if self.norm_outputs_only and (clash or not self.norm_first):
            found = " and ".join([*clash, *([] if self.norm_first else ["norm_first: false"])])
            raise ValueError(f"norm_outputs_only: cannot be combined with {found}")
        if self.use_untied_layer_norm and not self.parallel_attention:
            raise ValueError("use_untied_layer_norm: only a parallel block can share its norm")
        if self.attention_sink_tokens and not self.attention_sliding_window_length:
            raise ValueError(
                "attention_sink_tokens: every token is visible without a window; give "
                "attention_sliding_window_length, too"
            )
        if self.full_attention_interval and self.sliding_window_every_other_decoder_layer:
            raise ValueError(f"full_attention_interval: cannot be combined with {_EVERY_OTHER}")
        if self.fixed_sparse_attention and self.attention_sliding_window_length:
            raise ValueError("fixed_sparse_attention: cannot be combined with a sliding window")
        return self

    def _check_heads(self) -> None:
        inner = self.attention_inner_dim or self.hidden_size
        if inner % self.num_heads:
            raise ValueError(f"num_heads: {self.num_heads} does not divide {inner} features")
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"extra_attention_params.num_kv_groups: {self.num_kv_heads} key/value heads cannot "
                f"be shared by {self.num_heads} query heads; it must divide num_heads"
            )
        if self.extra_attention_params and self.attention_module == "aiayn_attention":
            raise ValueError(
                "extra_attention_params: num_kv_groups needs attention_module multiquery_attention"
            )

    def _check_positions(self) -> None:
        if self.position_embedding_type == "rotary":
            features = self.rotary_features
            if features % 2 or not 0 < features <= self.head_dim:
                raise ValueError(
                    f"rotary_dim: {features} must be even, positive and at most the head size "
                    f"{self.head_dim}"
                )
        if self.pos_scaling_type != "linear" and self.pos_scaling_extra_args is None:
            raise ValueError(
                f"pos_scaling_extra_args: required by pos_scaling_type {self.pos_scaling_type}"
            )
        if self.alibi_trainable_slopes and self.position_embedding_type != "alibi":
            raise ValueError("alibi_trainable_slopes: needs position_embedding_type alibi")


def only_of_decoders(cfg: BlockConfig) -> None:
    """Refuse keys that only decoders read.

    Raises:
        ValueError: names them.
    """
    names = ("scale_qk_dot_by_layer_idx", _EVERY_OTHER, f"{_EVERY_OTHER}_pattern")
    names += ("full_attention_interval", "rope_theta_local", "norm_outputs_only")
    unsupported = [n for n in names if getattr(cfg, n) != BlockConfig.model_fields[n].default]
    if cfg.moe is not None and cfg.moe.balance_weight:
        unsupported.append("moe.load_balancing_loss_coef")
    if unsupported:
        raise ValueError(f"{', '.join(unsupported)}: decoders only")
