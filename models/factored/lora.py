"""Low-rank adapters over any parameter tree (Hu et al. 2021), and which parameters train.

The adapters are a tree of their own beside the frozen parameters: the model computes with
``merge(params, lora, cfg)``, whose adapted kernels are ``kernel + (alpha / r) A B``, or, for large
kernels, ``Adapted`` objects that never form the sum. ``fold`` bakes them in for good.
"""

import itertools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from wafer import vsl
from wafer.models.alias import all_names
from wafer.models.base import Model
from wafer.models.errors import matches_nothing
from wafer.models.layers.block_config import FactorConfig, LoraConfig
from wafer.models.paths import Params, map_named, named_leaves, unflatten

ADAPTER_LEAVES = ("lora_down", "lora_up")  # beside the kernel, see models.factored.adapters
_HEADS = ("classifier", "span")  # of the tasks; no pretrained checkpoint has them


class Lora(NamedTuple):
    """The adapters."""

    down: Mapping[str, Array]  #: kernel name -> [in, r] float32, drawn
    #: kernel name -> [r, out] float32, zeros at the start, so that nothing changes at first
    up: Mapping[str, Array]


class Adapted(NamedTuple):
    """A kernel with its adapter, as ``wafer.models.layers.basic.project`` takes it."""

    kernel: vsl.AnyArray | vsl.Weight  #: [in, out] frozen
    down: Float[Array, "D r"]  #: down, up: the adapter
    up: Float[Array, "r F"]
    scale: Float[Array, ""]  #: [] float32 alpha / r
    #: key, keep: for dropout on the adapter's input, the probability of keeping a unit; None
    #: without
    key: Array | None = None
    keep: Float[Array, ""] | None = None

    def project(self, x: Array) -> Array:
        """Compute ``x @ kernel + scale * (x @ down) @ up``."""
        base = (
            self.kernel.project(x)
            if isinstance(self.kernel, vsl.Weight)
            else x @ jax.lax.stop_gradient(self.kernel).astype(x.dtype)
        )
        if self.key is not None and self.keep is not None:
            kept = jax.random.bernoulli(self.key, self.keep, x.shape)
            x = jnp.where(kept, x / self.keep.astype(x.dtype), jnp.zeros((), x.dtype))
        low = (x @ self.down.astype(x.dtype)) @ self.up.astype(x.dtype)
        return base + self.scale.astype(x.dtype) * low


# Classes that a Linear layer must lie in, all of them -> what names of parameters contain there.
_CLASSES = {
    "TransformerDecoderLayer": "layers_",
    "TransformerDecoder": "layers_",
    "TransformerEncoderLayer": "layers_",
    "TransformerEncoder": "layers_",
    "MultiheadAttention": "/attn/",
    "FeedForwardNetwork": "/ffn/",
    "Linear": "",
}


def _targets(cfg: LoraConfig, params: Params) -> dict[str, PyTree]:
    if cfg.r < 1:
        raise ValueError(f"lora_params.r: {cfg.r}, expected a rank of at least 1")
    targets = cfg.target_modules
    kernels = {name: leaf for name, leaf in named_leaves(params) if name.endswith("/kernel")}
    if all(target in _CLASSES for target in targets):
        is_target = lambda name: all(_CLASSES[target] in name for target in targets)
    else:
        require_found("lora_params.target_modules", cfg, kernels)
        is_target = lambda name: any(target in name for target in targets)
    chosen = {name: leaf for name, leaf in kernels.items() if is_target(name)}
    if not chosen:
        raise ValueError(
            f"lora_params.target_modules: {list(targets)} match no kernel; they are parts of "
            "parameter names such as 'attn/query' or 'ffn/up'"
        )
    return chosen


def require_found(key: str, cfg: LoraConfig | FactorConfig, kernels: Iterable[str]) -> None:
    """Refuse a part of a name that no kernel has; those of the default may find nothing.

    Args:
        key: the key, for the error.
        cfg: whose ``target_modules`` are looked for.
        kernels: names of the kernels that could be targets.

    Raises:
        ValueError: names the part, and the nearest that there is.
    """
    parts = cfg.target_modules
    if parts != type(cfg).model_fields["target_modules"].default:
        _require_matches(key, parts, list(kernels), operator.contains)


def _require_matches(
    key: str,
    patterns: Iterable[str],
    names: Sequence[str],
    has: Callable[[str, str], object],
) -> None:
    """Refuse a pattern that no name has, and the empty one, which all have."""
    for pattern in patterns:
        if not pattern:
            raise ValueError(f"{key}: '' matches every name; expected a part of names")
        if not any(has(name, pattern) for name in names):
            words = [re.split(r"[/.]", name)[:-1] for name in names]
            pairs = ("/".join(pair) for own in words for pair in itertools.pairwise(own))
            known = itertools.chain(pairs, *words)
            raise ValueError(f"{key}: {matches_nothing(repr(pattern), known, names)}")


def init_lora(cfg: LoraConfig, params: Params, key: Array) -> Lora:
    """Draw adapters for every targeted kernel.

    Args:
        cfg: rank, targets.
        params: the tree to adapt.
        key: consumed.

    Raises:
        ValueError: rank below 1, or targets that match nothing.
    """
    down, up = {}, {}
    for i, (name, kernel) in enumerate(_targets(cfg, params).items()):
        rows, columns = kernel.shape
        draw = jax.random.normal(jax.random.fold_in(key, i), (rows, cfg.r), jnp.float32)
        down[name] = draw / rows**0.5
        up[name] = jnp.zeros((cfg.r, columns), jnp.float32)
    return Lora(down, up)


def merge(cfg: LoraConfig, params: Params, lora: Lora) -> Params:
    """Return the tree the model computes with: gradients reach the adapters only."""
    scale = jnp.asarray(cfg.alpha / cfg.r, jnp.float32)

    def adapt(name: str, leaf: PyTree) -> PyTree:
        if name not in lora.down:
            return jax.lax.stop_gradient(leaf)
        return Adapted(leaf, lora.down[name], lora.up[name], scale)

    return unflatten({name: adapt(name, leaf) for name, leaf in named_leaves(params)})


def fold(cfg: LoraConfig, params: Params, lora: Lora) -> Params:
    """Bake the adapters into the kernels: the result is an ordinary tree of the same model."""

    def add(name: str, leaf: PyTree) -> PyTree:
        if name not in lora.down:
            return leaf
        update = (cfg.alpha / cfg.r) * (lora.down[name] @ lora.up[name])
        return (leaf.astype(jnp.float32) + update).astype(leaf.dtype)

    return map_named(add, params)


def lora_of(config: object) -> LoraConfig | None:
    """Return ``lora_params`` of a configuration (LLaVA: of its decoder), None when unused."""
    cfg = getattr(config, "lora_params", None)
    if cfg is None:
        cfg = getattr(getattr(config, "text_model", None), "lora_params", None)
    return cfg if cfg is not None and cfg.r > 0 else None


def is_adapter(name: str) -> bool:
    """Whether a parameter name is that of an adapter's matrix."""
    return name.rpartition("/")[2] in ADAPTER_LEAVES


def trains_with_lora(name: str) -> bool:
    """Whether a parameter trains when the model has adapters."""
    return is_adapter(name) or name.split("/", maxsplit=1)[0] in _HEADS


def trainable(model: Model, params: Params, freeze: Sequence[str] = ()) -> PyTree:
    """Return a tree of booleans: which parameters train.

    With ``lora_params`` only adapters and task heads do. Frozen are ``position/slopes`` unless
    ``alibi_trainable_slopes``, and whatever a regex of ``freeze`` (and of the configuration's
    ``freeze``) finds in a parameter's path or dotted name.

    Raises:
        ValueError: a regex that finds nothing.
    """
    patterns = [*freeze, *getattr(model.config, "freeze", ())]
    if patterns:
        forms = [n for name, _ in named_leaves(params) for n in all_names(name, model.alias)]
        _require_matches("model.freeze", patterns, forms, lambda form, one: re.search(one, form))
    adapted = lora_of(model.config) is not None
    fixed_slopes = not getattr(model.config, "alibi_trainable_slopes", False)

    def trains(name: str, leaf: PyTree) -> bool:
        del leaf
        if name == "position/slopes" and fixed_slopes:
            return False
        if adapted and not trains_with_lora(name):
            return False
        names = all_names(name, model.alias) if patterns else ()
        return not any(re.search(p, n) for p in patterns for n in names)

    return map_named(trains, params)
