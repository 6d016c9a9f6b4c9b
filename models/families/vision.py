"""CLIP's vision tower: patches and a class token through the shared pre-norm layers.

A batch is ``batch.extras['pixel_values']`` [B, C, h, w], normalised as the tower expects. The
stream has 1 + P slots per image, class token first. Letters: C channels, P patches, D hidden.
"""

import functools
from typing import Any, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree
from pydantic import NonNegativeInt, PositiveInt, model_validator

from wafer import vsl
from wafer.models.alias import encoder_alias
from wafer.models.base import Aux, Batch, DropKey, Model
from wafer.models.layers.basic import Dense, Embedding, Norm, leaf
from wafer.models.layers.block_config import BlockConfig, only_of_decoders
from wafer.models.layers.blocks import Block, Stream, apply_layer, draw, init_layers, stack_stages
from wafer.models.layers.initializers import make_initializer
from wafer.models.losses import token_aux
from wafer.models.paths import Params
from wafer.models.schema import Dropout
from wafer.models.sections import Layers
from wafer.vsl import Layout

# Keys of streams of tokens. A tower has positions of its own and drops nothing of its embedding.
_OF_TEXT = (
    *("vocab_size", "position_embedding_type", "position_embedding_offset", "rotary_dim"),
    *("rotary_fraction", "rope_theta", "rotary_interleaved", "pos_scaling_factor"),
    *("pos_scaling_extra_args", "alibi_slopes_in_checkpoint", "alibi_style"),
    *("num_relative_attention_buckets", "max_relative_distance"),
)


class VisionConfig(BlockConfig):
    """A ViT as CLIP has it; ``num_labels`` adds a classifier on the class token."""

    hidden_size: PositiveInt = 1024
    num_hidden_layers: Layers = 24
    num_heads: PositiveInt = 16
    filter_size: PositiveInt = 4096
    nonlinearity: str | None = "quick_gelu"
    dropout_rate: Dropout = 0.0
    image_size: PositiveInt = 336  #: height and width of an image, pixels
    patch_size: PositiveInt = 14  #: height and width of a patch, pixels
    num_channels: PositiveInt = 3  #: channels of an image
    num_labels: NonNegativeInt = 0  #: classes

    @property
    def causal(self) -> bool:
        """Patches see each other."""
        return False

    @property
    def patches(self) -> int:
        """P, patches per image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def image_slots(self) -> int:
        """Slots per image: the class token and P patches."""
        return self.patches + 1

    @model_validator(mode="after")
    def _patches_fit(self) -> Self:
        only_of_decoders(self)
        fields = type(self).model_fields
        text_keys = [n for n in _OF_TEXT if getattr(self, n) != fields[n].default]
        text_keys += ["embedding_dropout_rate"] if self.embedding_dropout_rate else []
        if text_keys:
            raise ValueError(f"{', '.join(text_keys)}: of text; nothing reads it in a tower")
        if self.image_size % self.patch_size:
            raise ValueError(
                f"patch_size: {self.patch_size} does not divide image_size {self.image_size}"
            )
        return self


def image_layout(cfg: VisionConfig, images: int) -> Layout:
    """Lay out ``images`` rows of 1 + P slots."""
    rows = jnp.full((images,), cfg.patches + 1, jnp.int32)
    return vsl.padded_layout(rows, cfg.patches + 1, validate=False)


class VisionEmbed(nn.Module):
    """Cut into patches, project, prepend the class token, add positions, normalise."""

    cfg: VisionConfig

    @nn.compact
    def __call__(self, pixels: Float[Array, "B C h w"]) -> Float[Array, "T D"]:
        """Embed images; T = B * (1 + P)."""
        cfg, count = self.cfg, pixels.shape[0]
        size, side = cfg.patch_size, cfg.image_size // cfg.patch_size
        expected = (cfg.num_channels, cfg.image_size, cfg.image_size)
        if pixels.shape[1:] != expected:
            raise ValueError(f"pixel_values: {pixels.shape}, expected [images, {expected}]")
        init = make_initializer(cfg.init_of("embedding"))
        patches = pixels.reshape(count, cfg.num_channels, side, size, side, size)
        patches = patches.transpose(0, 2, 4, 1, 3, 5).reshape(count, cfg.patches, -1)
        x = Dense(cfg.hidden_size, False, init, name="patch_embedding")(patches.astype(cfg.dtype))
        token = leaf(self, "class_embedding", init, (cfg.hidden_size,)).astype(x.dtype)
        token = jnp.broadcast_to(token, (count, 1, cfg.hidden_size))
        x = jnp.concatenate([token, x], axis=1)
        rows = cfg.patches + 1
        table = Embedding(rows, cfg.hidden_size, init, name="position")(jnp.arange(rows))
        x = (x + table.astype(x.dtype)).reshape(-1, cfg.hidden_size)
        return Norm(cfg.norm_type, cfg.layer_norm_epsilon, name="norm")(x)


def vision_layer(
    cfg: VisionConfig, params: Params, carry: Stream, batch: Batch, key: DropKey
) -> Stream:
    """Run a layer, a ``StageFn``; the layout follows from the number of images.

    Args:
        cfg: of the tower.
        params: the layer's, under 'layer'.
        carry: of whole images.
        batch: not read.
        key: of dropout.
    """
    del batch
    layout = image_layout(cfg, carry.x.shape[0] // (cfg.patches + 1))
    return apply_layer(Block(cfg), params["layer"], carry, layout, key=key, shared=None)


def _embed(cfg: VisionConfig, params: Params, carry: PyTree, batch: Batch, key: DropKey) -> Stream:
    del carry, key
    pixels = batch.extras["pixel_values"]
    x: Any = VisionEmbed(cfg).apply({"params": params["embed"]}, pixels)
    return Stream(x)


class _Head(nn.Module):
    cfg: VisionConfig

    @nn.compact
    def __call__(self, x: Array) -> dict[str, Array]:
        cfg = self.cfg
        first = x.reshape(-1, cfg.patches + 1, cfg.hidden_size)[:, 0]
        pooled = Norm(cfg.norm_type, cfg.layer_norm_epsilon, name="norm_f")(first)
        out = {"hidden": x, "pooled": pooled}
        if cfg.num_labels:
            init = make_initializer(cfg.init_of("head"))
            out["logits"] = Dense(cfg.num_labels, True, init, name="classifier")(pooled)
        return out


def init_tower(cfg: VisionConfig, key: Array) -> dict[str, PyTree]:
    """Draw all parameters of a tower."""
    pixels = jnp.zeros((1, cfg.num_channels, cfg.image_size, cfg.image_size))
    x = jnp.zeros((cfg.patches + 1, cfg.hidden_size))
    embed = draw(VisionEmbed(cfg), jax.random.fold_in(key, 0), pixels)
    head = draw(_Head(cfg), jax.random.fold_in(key, 2), x)
    return {"embed": embed} | init_layers(cfg, key) | head


def _objective(cfg: VisionConfig, out: dict[str, Array], batch: Batch) -> Aux:
    if not cfg.num_labels:
        raise ValueError(f"{cfg.name}: set num_labels to train the tower as a classifier")
    labels = batch.extras["class_labels"]
    return token_aux(out["logits"], labels, jnp.ones(labels.shape, jnp.float32))


def build_vision(cfg: VisionConfig) -> Model:
    """Assemble the bundle; the last carry has 'hidden' [T, D] and 'pooled' [B, D]."""
    roles = ("norm_f", "classifier") if cfg.num_labels else ("norm_f",)
    return Model(
        config=cfg,
        init=functools.partial(init_tower, cfg),
        stages=stack_stages(["layer"] * cfg.num_hidden_layers, (), roles),
        kinds={
            "embed": (("embed",), functools.partial(_embed, cfg)),
            "layer": (("layer",), functools.partial(vision_layer, cfg)),
            "head": (
                roles,
                lambda params, carry, *_: _Head(cfg).apply({"params": params}, carry.x),
            ),
        },
        objective=functools.partial(_objective, cfg),
        alias=encoder_alias,
    )
