"""How a decoder is divided among the PEs of a mesh, and which decoders can be."""

from typing import Any, NamedTuple

from wafer.errors import WaferError
from wafer.models.families.decoder_config import DecoderConfig
from wafer.spec import WSE2

ACTIVATIONS = {
    "relu": 0, "reglu": 0, "squared_relu": 1, "gelu": 2, "geglu": 2, "gelu_new": 3, "gelu_fast": 3,
    "geglu_new": 3, "silu": 4, "swish": 4, "swiglu": 4,
}  # fmt: skip

# What the program does: of each key the values that it has a way for.
_ABLE: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("learned", "rotary", None),
    "position_embedding_offset": (0,),
    "pos_scaling_factor": (1.0,),
    "pos_scaling_type": ("linear",),
    "norm_type": ("layernorm", "biasless-layernorm", "rmsnorm", "nonparametric-layernorm"),
    "norm_first": (True,),
    "norm_first_sandwich": (False,),
    "parallel_attention": (False,),
    "residual_after_norm": (False,),
    "embedding_layer_norm": (False,),
    "embeddings_scale": (1.0,),
    "logits_scale": (1.0,),
    "final_logit_softcapping": (None,),
    "with_lm_head": (True,),
    "nonlinearity": tuple(ACTIVATIONS),
    "moe": (None,),
    "attention_type": ("scaled_dot_product", "dot_product"),
    "attention_sliding_window_length": (None,),
    "attention_logit_softcapping": (None,),
    "attention_qk_norm_layer": (None,),
    "scale_qk_dot_by_layer_idx": (False,),
    "fixed_sparse_attention": (None,),
    "clip_qkv": (None,),
    "lora_params": (None,),
}
_CODE = 6144  # bytes left to the program itself; ours has no size in the vendor's instructions
_MOST = 2**16 - 1


class Sizes(NamedTuple):
    """The params of layout.csl; letters there say what each is.

    Vectors are divided into parts of equal size, the last ones filled up with zeros.
    """

    width: int
    height: int
    layers: int
    positions: int
    features: int
    here: int
    heads: int
    part: int
    team: int
    filter: int
    vocab: int
    gates: int
    activation: int
    learned: int
    rotary: int
    own_table: int
    centred: int
    share: float
    epsilon: float

    @property
    def slots(self) -> int:
        """Tokens whose keys and values find room on a PE."""
        return _fours(-(-self.positions // self.height))

    @property
    def places(self) -> int:
        """Rows of the table of positions on a PE."""
        return -(-self.positions // self.width)

    @property
    def up(self) -> int:
        """Features that a layer's third product gives a column, gates included."""
        return self.filter * self.gates

    @property
    def weights(self) -> int:
        """Words of weights on a PE."""
        rows = self.features + 1
        layer = rows * 3 * self.here + (self.here + 1) * self.features
        layer += rows * self.up + (self.filter + 1) * self.features + 4 * self.features
        words = self.layers * layer + 2 * self.features + rows * self.vocab
        words += self.own_table * self.vocab * self.features
        words += self.learned * self.places * self.features
        return words + self.rotary * self.slots * self.part

    @property
    def cache(self) -> int:
        """Words of keys and values on a PE."""
        return 2 * self.layers * self.here * self.slots

    @property
    def bytes(self) -> int:
        """Of a PE's memory: weights, cache, tokens and vectors."""
        vectors = 2 * self.features + max(3 * self.here, self.up) + self.vocab + self.part
        vectors += self.heads * (self.slots + 2) + self.here + 16
        return 4 * (self.weights + self.cache + self.positions + 1 + vectors)


def _fours(n: int) -> int:
    """Rounded up to a multiple of four, so that all rows begin in one bank of the memory."""
    return -(-n // 4) * 4


def sizes_of(cfg: DecoderConfig, grid: tuple[int, int], positions: int | None = None) -> Sizes:
    """Divide a decoder.

    Args:
        cfg: its configuration.
        grid: rows and columns of PEs.
        positions: tokens that a text may have; None is all that the model has positions for.

    Raises:
        WaferError: what the program does not do, or a mesh that does not fit.
    """
    able(cfg)
    height, width = grid
    positions = cfg.max_position_embeddings if positions is None else positions
    if min(grid) < 1:
        raise WaferError(f"grid: {grid}; expected rows and columns of PEs, each at least 1")
    if not 1 <= positions <= cfg.max_position_embeddings:
        raise WaferError(
            f"positions: {positions}; the model has 1 to {cfg.max_position_embeddings}"
        )
    rotary = cfg.position_embedding_type == "rotary"
    team = max(1, width // cfg.num_heads)
    heads = -(-cfg.num_heads * team // width) if team == 1 else 1
    part = -(-cfg.head_dim // team)
    part += part % 2 if rotary else 0
    sizes = Sizes(
        width=width,
        height=height,
        layers=cfg.num_hidden_layers,
        positions=positions,
        features=_fours(-(-cfg.hidden_size // height)),
        here=_fours(heads * part),
        heads=heads,
        part=part,
        team=team,
        filter=_fours(-(-cfg.filter_size // width)),
        vocab=_fours(-(-cfg.vocab_size // width)),
        gates=2 if cfg.gated else 1,
        activation=ACTIVATIONS[str(cfg.nonlinearity)],
        learned=int(cfg.position_embedding_type == "learned"),
        rotary=int(rotary),
        own_table=int(not cfg.share_embedding_weights),
        centred=int(cfg.norm_type != "rmsnorm"),
        share=1 / cfg.hidden_size,
        epsilon=cfg.layer_norm_epsilon,
    )
    _fits(sizes)
    return sizes


def able(cfg: DecoderConfig) -> None:
    """Refuse a decoder that the program has no way for.

    Raises:
        WaferError: the first such key, its value and those that would do.
    """
    if not isinstance(cfg, DecoderConfig):
        raise WaferError(f"expected a decoder's configuration, got {type(cfg).__name__}")
    for key, values in _ABLE.items():
        value = getattr(cfg, key)
        if value not in values:
            known = ", ".join(map(repr, values))
            raise WaferError(
                f"model.{key}: {value!r}; the program for PEs has a way for {known} alone."
                " `wafer generate` decodes every model"
            )


def _fits(sizes: Sizes) -> None:
    if max(sizes.vocab * sizes.width, sizes.weights) > _MOST:
        raise WaferError(
            f"vocab_size: {sizes.vocab * sizes.width:,} tokens, and {sizes.weights:,} words of"
            " weights per PE; a PE counts both with 16 bits"
        )
    room = WSE2.sram_bytes - _CODE
    if sizes.bytes > room:
        raise WaferError(
            f"grid: {sizes.height} x {sizes.width} PEs need {sizes.bytes:,} bytes each"
            f" ({4 * sizes.weights:,} of weights, {4 * sizes.cache:,} of keys and values), and have"
            f" {room:,} besides the program; take more PEs, or fewer positions"
        )
