"""LLaVA: CLIP's tower, a two-layer projector and a decoder that reads image tokens (Liu 2023).

``batch.extras['pixel_values']`` [images, C, h, w] fills, in order, the slots whose token is
``image_token_index``, P slots per image; without it the model is its decoder alone.
"""

import functools
from typing import Any, Literal, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree
from pydantic import NonNegativeInt, field_validator, model_validator

from wafer.models.alias import decoder_alias
from wafer.models.base import Batch, DropKey, Model, Stage
from wafer.models.families.decoder import Embed, build_decoder
from wafer.models.families.decoder_config import DecoderConfig
from wafer.models.families.vision import VisionConfig, VisionEmbed, build_vision, vision_layer
from wafer.models.layers.basic import Dense, activation
from wafer.models.layers.blocks import Stream, draw, no_dropout, start_stream, stream_dropout
from wafer.models.layers.initializers import make_initializer
from wafer.models.names import lookup
from wafer.models.paths import Params
from wafer.models.schema import ModelConfig


class LlavaConfig(ModelConfig):
    """Two models and how they meet."""

    image_model: VisionConfig  #: the tower's section
    text_model: DecoderConfig  #: the decoder's section, ``name`` included (llama by default)
    image_token_index: NonNegativeInt = 32000  #: id that marks an image slot
    image_feature_select_layer_idx: int = -2  #: which of the tower's L + 1 hidden states is read
    #: 'patch' drops the class token, 'cls_patch' keeps it
    image_feature_select_mode: Literal["patch", "cls_patch"] = "patch"
    projector_nonlinearity: str = "gelu"  #: between the projector's two layers
    freeze: tuple[str, ...] = ()  #: regexes over aliases of parameters that do not train

    @property
    def feature_layers(self) -> int:
        """Tower layers that run; the rest is only carried along."""
        index = self.image_feature_select_layer_idx
        return self.image_model.num_hidden_layers + 1 + index if index < 0 else index

    @property
    def parts(self) -> tuple[VisionConfig, DecoderConfig]:
        """Stacks whose attention costs are added: an image slot and a text token."""
        return self.image_model, self.text_model

    @property
    def tasks(self) -> tuple[str, ...]:
        """Answers about images, or text alone."""
        return ("image_text", "lm") if self.with_lm_head else ()

    @property
    def uses_dropout(self) -> bool:
        """As the decoder; the tower is not dropped out."""
        return self.text_model.uses_dropout

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, h, w) of the tower."""
        tower = self.image_model
        return tower.num_channels, tower.image_size, tower.image_size

    @property
    def max_length(self) -> int | None:
        """As the decoder, image slots included."""
        return self.text_model.max_length

    @property
    def with_lm_head(self) -> bool:
        """As the decoder."""
        return self.text_model.with_lm_head

    @property
    def vocab_size(self) -> int:
        """As the decoder."""
        return self.text_model.vocab_size

    @field_validator("image_model", mode="before")
    @classmethod
    def _name_image(cls, value: object) -> object:
        return {"name": "clip-vit", **value} if isinstance(value, dict) else value

    @field_validator("text_model", mode="before")
    @classmethod
    def _preset_text(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        name = value.get("name", "llama")
        return {**lookup(name).presets, "name": name, **value}

    @model_validator(mode="after")
    def _layers_exist(self) -> Self:
        if not 0 <= self.feature_layers <= self.image_model.num_hidden_layers:
            raise ValueError(
                f"image_feature_select_layer_idx: {self.image_feature_select_layer_idx} is none "
                f"of the tower's {self.image_model.num_hidden_layers + 1} hidden states"
            )
        return self


class _Projector(nn.Module):
    cfg: LlavaConfig

    @nn.compact
    def __call__(self, x: Float[Array, "T D"]) -> Float[Array, "P E"]:
        cfg = self.cfg
        tower, size = cfg.image_model, cfg.text_model.hidden_size
        if cfg.image_feature_select_mode == "patch":
            x = x.reshape(-1, tower.patches + 1, tower.hidden_size)[:, 1:]
        x = x.reshape(-1, tower.hidden_size).astype(cfg.text_model.dtype)
        init = make_initializer(cfg.text_model.init_of("ffn"))
        h = Dense(size, True, init, name="up")(x)
        return Dense(size, True, init, name="down")(activation(cfg.projector_nonlinearity)(h))


def _image_embed(
    cfg: LlavaConfig, params: Params, carry: PyTree, batch: Batch, key: DropKey
) -> Stream | None:
    del carry, key
    if "pixel_values" not in batch.extras:
        return None
    pixels = batch.extras["pixel_values"]
    x: Any = VisionEmbed(cfg.image_model).apply({"params": params["image_embed"]}, pixels)
    return Stream(x)


def _project(cfg: LlavaConfig, params: Params, carry: PyTree, batch: Batch, key: DropKey) -> PyTree:
    del batch, key
    if carry is None:
        return None
    return _Projector(cfg).apply({"params": params["projector"]}, carry.x)


def _text_embed(
    cfg: LlavaConfig, params: Params, carry: PyTree, batch: Batch, key: DropKey
) -> Stream:
    text = cfg.text_model
    positions = batch.layout.positions
    branch = {"params": params["embed"]}
    x: Any = Embed(text).apply(branch, batch.tokens, positions, no_dropout)
    if carry is not None:
        image = (batch.tokens == cfg.image_token_index) & batch.layout.valid
        index = jnp.clip(jnp.cumsum(image) - 1, 0, carry.shape[0] - 1)
        x = jnp.where(image[:, None], carry[index].astype(x.dtype), x)
    drop = stream_dropout(batch.layout, key)
    return start_stream(text, drop(x, text.dropout("embedding")))


def _init(cfg: LlavaConfig, text: Model, tower: Model, key: Array) -> Params:
    keys = jax.random.split(key, 3)
    x = jnp.zeros((cfg.image_model.patches + 1, cfg.image_model.hidden_size))
    image = {f"image_{k}": v for k, v in tower.init(keys[0]).items()}
    projector = draw(_Projector(cfg), keys[1], x)
    return {**image, "projector": projector, **text.init(keys[2])}


def _alias(name: str) -> str:
    if name.startswith("image_"):
        return "image_model." + decoder_alias(name.removeprefix("image_"))
    if name.startswith("projector/"):
        return name.replace("/", ".").replace("kernel", "weight")
    return "text_model." + decoder_alias(name)


def build_llava(cfg: LlavaConfig) -> Model:
    """Assemble the bundle: 'image_embed', 'image_layers_i', 'projector', then the decoder's."""
    text, tower = build_decoder(cfg.text_model), build_vision(cfg.image_model)
    used = range(cfg.feature_layers)
    # Layers past the one that is read stay in the tree, so that a checkpoint survives the trip.
    unused = [f"image_layers_{i}" for i in range(len(used), cfg.image_model.num_hidden_layers)]
    carried = ("projector", *unused, "image_norm_f")
    kinds = dict(text.kinds)
    kinds["embed"] = (("embed",), functools.partial(_text_embed, cfg))
    kinds["image_embed"] = (("image_embed",), functools.partial(_image_embed, cfg))
    image_layer = lambda params, carry, *rest: (
        None if carry is None else vision_layer(cfg.image_model, params, carry, *rest)
    )
    kinds["image_layer"] = (("layer",), image_layer)
    kinds["projector"] = (carried, functools.partial(_project, cfg))
    stages = [Stage("image_embed", "image_embed", ("image_embed",))]
    stages += [Stage(f"image_layers_{i}", "image_layer", (f"image_layers_{i}",)) for i in used]
    stages += [Stage("projector", "projector", carried), *text.stages]
    return Model(
        config=cfg,
        init=functools.partial(_init, cfg, text, tower),
        stages=tuple(stages),
        kinds=kinds,
        objective=text.objective,
        alias=_alias,
    )
