"""Models of users in our trainer: two plain functions, Flax's linen and nnx, and equinox.

    def build(hidden: int = 64, vocab_size: int = 256):
        return own.plain(init, apply, vocab_size=vocab_size)

A run file names the function: ``model: {name: "my_model:build", hidden: 128}``; its other keys are
the function's arguments. A model gets rows of tokens, [B, S] int32, and gives logits, [B, S, V].
It is one stage of the layer sweep. Its arrays of two and more axes can be sparse, stored dense
with zeros (``compute: masked``).
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array
from pydantic import PositiveInt

from wafer.models.base import Aux, Batch, Model, Stage
from wafer.models.errors import Problem, SectionError
from wafer.models.losses import token_aux
from wafer.models.names import MODELS
from wafer.models.paths import Params
from wafer.models.schema import ModelConfig
from wafer.models.user.code import call, check_arguments, find

Apply = Callable[..., Array]  # (params, tokens, key, **features) -> logits
Objective = Callable[[Any, Batch], Aux]


class OwnConfig(ModelConfig):
    """The section of a user's model: keys that every model has, and the function's arguments.

    Attributes:
        vocab_size: V, or None where nothing limits the ids.
    """

    #: of the function, (name, value) pairs as the section has them
    arguments: tuple[tuple[str, Any], ...] = ()
    takes: tuple[str, ...] = ("lm",)  #: tasks whose rows it learns from
    longest: PositiveInt | None = None  #: S at most, or None
    drops: bool = False  #: whether it uses the key that training hands it

    @property
    def tasks(self) -> tuple[str, ...]:
        """As the model says."""
        return self.takes

    @property
    def uses_dropout(self) -> bool:
        """As the model says."""
        return self.drops

    @property
    def max_length(self) -> int | None:
        """As the model says."""
        return self.longest


class _WithVocabulary(OwnConfig):
    vocab_size: PositiveInt


def plain(
    init: Callable[[Array], Params],
    apply: Apply,
    *,
    tasks: tuple[str, ...] = ("lm",),
    vocab_size: int | None = None,
    max_length: int | None = None,
    dropout: bool = False,
    objective: Objective | None = None,
    features: tuple[str, ...] = (),
    weight_layout: Mapping[str, str] | None = None,
) -> Model:
    """Make a model of two functions.

    Args:
        init: key -> params, nested dicts of float32 arrays.
        apply: (params, tokens [B, S] int32, key or None) -> logits [B, S, V]. The key is for
            dropout; None switches it off.
        tasks: of ``wafer.data.tasks.TASKS``, whose rows it learns from.
        vocab_size: V; ids of the data are checked against it.
        max_length: S at most.
        dropout: whether ``apply`` uses its key.
        objective: (logits of the flat stream [T, V], batch) -> sums of the loss; None is the mean
            cross-entropy of the tokens.
        features: of the rows of a task, which ``apply`` is given by name, [B, ...].
        weight_layout: glob of names -> a letter for each axis, see ``sparsity.configure``.

    Returns:
        The model, one stage named 'model'.
    """
    facts = {"takes": tasks, "longest": max_length, "drops": dropout, "name": "own"}
    config = (
        OwnConfig(**facts)
        if vocab_size is None
        else _WithVocabulary(**facts, vocab_size=vocab_size)
    )
    keys = tuple(sorted(jax.eval_shape(lambda: init(jax.random.key(0)))))

    def stage(params: Params, carry: object, batch: Batch, key: Array | None) -> Array:
        del carry
        if batch.layout.rows is None:
            raise ValueError(
                "this model takes rows of tokens, not a packed stream; set use_vsl and "
                "enable_vts to false, or write it as stages (models.Model)"
            )
        given = {name: batch.extras[name] for name in features}
        logits = apply(params, batch.tokens.reshape(batch.layout.rows), key, **given)
        return logits.reshape(-1, logits.shape[-1])

    return Model(
        config=config,
        init=init,
        stages=(Stage("model", "model", keys),),
        kinds={"model": (keys, stage)},
        objective=objective
        or (lambda logits, batch: token_aux(logits, batch.labels, batch.weights)),
        sparse=lambda name: False,
        weight_layout=weight_layout,
    )


_ROW = (1, 8)  # tokens that a module is initialised with


def linen(module: Any, **facts: Any) -> Model:
    """Make a model of a ``flax.linen`` module that takes tokens; ``facts`` are those of ``plain``.

    With ``dropout=True`` the module is given the key as the 'dropout' stream.
    """

    def init(key: Array) -> Params:
        return module.init(key, jnp.zeros(_ROW, jnp.int32))["params"]

    def apply(params: Params, tokens: Array, key: Array | None) -> Array:
        streams = {} if key is None else {"rngs": {"dropout": key}}
        return module.apply({"params": params}, tokens, **streams)

    return plain(init, apply, **facts)


def nnx(make: Callable[[Any], Any], **facts: Any) -> Model:
    """Make a model of a ``flax.nnx`` module.

    Args:
        make: ``nnx.Rngs`` -> the module, which takes tokens. It may hold Params and Rngs alone.
        **facts: those of ``plain``.
    """
    from flax import nnx as library

    template = library.eval_shape(lambda: make(library.Rngs(0)))
    graph, _, other_state = library.split(template, library.Param, ...)

    def init(key: Array) -> Params:
        module = make(library.Rngs(key))
        return library.to_pure_dict(library.state(module, library.Param))

    def apply(params: Params, tokens: Array, key: Array | None) -> Array:
        state = library.state(template, library.Param)
        library.replace_by_pure_dict(state, dict(params))
        streams = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), other_state)
        module = library.merge(graph, state, streams)
        if key is None:
            module.eval()
        else:
            module.train()
            library.reseed(module, default=key, dropout=key)
        return module(tokens)

    return plain(init, apply, **facts)


def equinox(make: Callable[[Array], Any], **facts: Any) -> Model:
    """Make a model of an equinox module.

    Args:
        make: key -> the module, which takes tokens [S] and, with ``dropout=True``, ``key=``; it
            is mapped over the rows. Parameters are its arrays, by their path.
        **facts: those of ``plain``.
    """
    import equinox as library  # pyright: ignore[reportMissingImports]

    shapes = library.filter_eval_shape(make, jax.random.key(0))
    arrays, static = library.partition(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    paths, tree = jax.tree_util.tree_flatten_with_path(arrays)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]

    def init(key: Array) -> Params:
        leaves = jax.tree.leaves(library.filter(make(key), library.is_array))
        return dict(zip(names, leaves, strict=True))

    def apply(params: Params, tokens: Array, key: Array | None) -> Array:
        module = library.combine(jax.tree.unflatten(tree, [params[n] for n in names]), static)
        if key is None:
            return jax.vmap(library.nn.inference_mode(module))(tokens)
        keys = jax.random.split(key, tokens.shape[0])
        return jax.vmap(lambda row, k: module(row, key=k))(tokens, keys)

    return plain(init, apply, **facts)


def parse_own(settings: Mapping[str, Any]) -> OwnConfig:
    """Check the section of a user's model, and build it once to see that it can be.

    Raises:
        SectionError: keys that the function does not take.
        ValueError: the function cannot be found, raises, or gives no model.
    """
    name = str(settings["name"])
    function = _function(name)
    common = {k: v for k, v in settings.items() if k in ModelConfig.model_fields}
    arguments = {k: v for k, v in settings.items() if k not in common}
    named = inspect.signature(function).parameters
    arguments |= {k: v for k, v in common.items() if k in named}
    common = {k: v for k, v in common.items() if k not in named or k == "name"}
    try:
        check_arguments(name, function, arguments)
    except SectionError as error:
        raise error.under("model") from None
    pairs = tuple((key, _frozen(value)) for key, value in arguments.items())
    model = _made(name, function, pairs)
    facts = {k: getattr(model.config, k) for k in type(model.config).model_fields}
    kept = {k: v for k, v in facts.items() if k not in ModelConfig.model_fields}
    return type(model.config)(**kept | common | {"arguments": pairs})


def build_own(config: OwnConfig) -> Model:
    """Build the model of a checked section."""
    model = _made(config.name, _function(config.name), config.arguments)
    return dataclasses.replace(model, config=config)


def arguments_of(config: OwnConfig) -> dict[str, object]:
    """Return the arguments of the function, as the section has them."""
    return {key: _thawed(value) for key, value in config.arguments}


def _function(name: str) -> Callable[..., object]:
    try:
        return find(name, MODELS, "model")
    except ValueError as error:
        raise SectionError([Problem(("model", "name"), str(error))]) from error


@functools.lru_cache(maxsize=8)
def _made(
    name: str, function: Callable[..., object], arguments: tuple[tuple[str, object], ...]
) -> Model:
    try:
        model = call(name, function, **{key: _thawed(value) for key, value in arguments})
    except ValueError as error:
        raise SectionError([Problem(("model", "name"), str(error))]) from error
    if not isinstance(model, Model) or not isinstance(model.config, OwnConfig):
        message = (
            f"{name!r} gave {type(model).__name__}; expected a model made by "
            "wafer.models.user.model.plain, .linen, .nnx or .equinox"
        )
        raise SectionError([Problem(("model", "name"), message)])
    return model


def _frozen(value: object) -> object:
    if isinstance(value, Mapping):
        return "mapping", tuple((key, _frozen(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return "list", tuple(map(_frozen, value))
    return value


def _thawed(value: object) -> object:
    if isinstance(value, tuple) and len(value) == 2 and value[0] in ("mapping", "list"):
        kind, items = value
        if kind == "list":
            return list(map(_thawed, items))
        return {key: _thawed(item) for key, item in items}
    return value
