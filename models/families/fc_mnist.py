"""FC-MNIST: a stack of dense layers over flat images.

A batch is ``batch.extras['images']`` [B, pixels] and ``batch.extras['class_labels']`` [B]; the
stream has one slot per image.
"""

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from pydantic import PositiveInt

from wafer import vsl
from wafer.models.base import Batch, DropKey, Model, Stage
from wafer.models.layers.basic import Dense, activation
from wafer.models.layers.blocks import draw
from wafer.models.layers.initializers import make_initializer
from wafer.models.losses import token_aux
from wafer.models.paths import Params
from wafer.models.schema import Dropout, Initializer, ModelConfig
from wafer.models.sections import Layers


class FcMnistConfig(ModelConfig):
    """``depth`` hidden layers of ``hidden_size``, then ``num_classes`` scores."""

    input_size: PositiveInt = 784  #: features of an input
    hidden_size: PositiveInt = 500  #: features of a hidden layer
    depth: Layers = 10  #: hidden layers
    num_classes: PositiveInt = 10  #: classes
    activation_fn: str = "relu"  #: activation of hidden layers
    dropout: Dropout = 0.0  #: share of activations dropped in training
    #: how weights are drawn; null: by initializer_range
    initializer: Initializer = Initializer(name="kaiming_uniform")
    is_dense_stack: ClassVar[bool] = True

    @property
    def tasks(self) -> tuple[str, ...]:
        """Classes of images."""
        return ("image",)

    @property
    def uses_dropout(self) -> bool:
        """After every hidden layer."""
        return self.dropout > 0

    @property
    def input_shape(self) -> tuple[int, ...]:
        """A flat image."""
        return (self.input_size,)

    @property
    def num_labels(self) -> int:
        """``num_classes``."""
        return self.num_classes

    def model_post_init(self, context: object, /) -> None:
        """Refuse unknown activations."""
        del context
        activation(self.activation_fn)


def image_batch(images: Array, labels: Array) -> Batch:
    """Wrap [B, pixels] float32 images and [B] int32 classes into the common batch."""
    count = images.shape[0]
    zeros = jnp.zeros((count,), jnp.int32)
    layout = vsl.layout_from_lengths(np.ones(count, np.int32), count)
    extras = {"images": images, "class_labels": labels}
    return Batch(zeros, labels, jnp.ones((count,), jnp.float32), layout, extras)


def _layer(cfg: FcMnistConfig, features: int) -> Dense:
    return Dense(features, True, make_initializer(cfg.initializer))


def _hidden(cfg: FcMnistConfig, params: Params, carry: PyTree, batch: Batch, key: DropKey) -> Array:
    x = batch.extras["images"].astype(cfg.dtype) if carry is None else carry
    y: Any = _layer(cfg, cfg.hidden_size).apply({"params": params["layer"]}, x)
    x = activation(cfg.activation_fn)(y)
    return vsl.dropout(key, x, batch.layout, cfg.dropout) if key is not None else x


def _head(cfg: FcMnistConfig, params: Params, carry: PyTree, batch: Batch, key: DropKey) -> PyTree:
    del batch, key
    return _layer(cfg, cfg.num_classes).apply({"params": params["layer"]}, carry)


def _init(cfg: FcMnistConfig, key: Array) -> Params:
    params = {}
    width = cfg.input_size
    for i in range(cfg.depth + 1):
        features = cfg.num_classes if i == cfg.depth else cfg.hidden_size
        x = jnp.zeros((1, width))
        params[f"fc_{i}"] = draw(_layer(cfg, features), jax.random.fold_in(key, i), x)
        width = features
    return params


def build_fc_mnist(cfg: FcMnistConfig) -> Model:
    """Assemble the bundle: 'fc_0' (input), 'fc_1', ..., the last one is the classifier."""
    fns = {"input": _hidden, "hidden": _hidden, "head": _head}
    kinds = {kind: (("layer",), functools.partial(fn, cfg)) for kind, fn in fns.items()}
    kind_of = ["input", *["hidden"] * (cfg.depth - 1), "head"]
    stages = [Stage(f"fc_{i}", kind, (f"fc_{i}",)) for i, kind in enumerate(kind_of)]
    return Model(
        config=cfg,
        init=functools.partial(_init, cfg),
        stages=tuple(stages),
        kinds=kinds,
        objective=lambda scores, batch: token_aux(
            scores, batch.extras["class_labels"], batch.weights
        ),
        alias=lambda name: name.replace("/", ".").replace("kernel", "weight"),
    )
