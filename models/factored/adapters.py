"""A model whose parameter tree holds its own low-rank adapters: ``model.lora_params`` in a run.

Beside each adapted ``.../kernel`` stand ``.../lora_down`` and ``.../lora_up``, so that one tree is
initialized, trained, checkpointed and streamed layer by layer like any other. Only adapters (and
task heads, which no pretrained checkpoint has) receive gradients.
"""

import dataclasses
import zlib
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from wafer.models.base import Batch, DropKey, Model, StageFn
from wafer.models.factored.lora import (
    ADAPTER_LEAVES,
    Adapted,
    Lora,
    fold,
    init_lora,
    trains_with_lora,
)
from wafer.models.layers.block_config import LoraConfig
from wafer.models.paths import Params, named_leaves, unflatten

_DOWN, _UP = ADAPTER_LEAVES


def _split(params: Params) -> tuple[Params, Lora]:
    base, down, up = {}, {}, {}
    for name, leaf in named_leaves(params):
        parent, _, last = name.rpartition("/")
        branch = {_DOWN: down, _UP: up}.get(last)
        if branch is None:
            base[name] = leaf
        else:
            branch[f"{parent}/kernel"] = leaf
    return unflatten(base), Lora(down, up)


def fold_adapters(cfg: LoraConfig | None, params: Params) -> Params:
    """Bake adapters into their kernels; a tree without any comes back as it is."""
    base, lora = _split(params)
    if cfg is None or not lora.down:
        return params
    return fold(cfg, base, lora)


def _attach(cfg: LoraConfig, branch: PyTree, key: Array | None, path: str) -> PyTree:
    """Replace adapted kernels by ``Adapted`` ones and stop gradients to all that is frozen."""
    if not isinstance(branch, Mapping):
        if trains_with_lora(path):
            return branch
        return jax.tree.map(jax.lax.stop_gradient, branch)
    out = {
        name: _attach(cfg, leaf, key, f"{path}/{name}" if path else name)
        for name, leaf in branch.items()
        if name not in {_DOWN, _UP}
    }
    if _DOWN in branch:
        draw = None if key is None else jax.random.fold_in(key, zlib.crc32(path.encode()))
        scale = jnp.asarray(cfg.alpha / cfg.r, jnp.float32)
        drops = cfg.dropout > 0 and draw is not None
        keep = jnp.asarray(1 - cfg.dropout, jnp.float32) if drops else None
        out["kernel"] = Adapted(
            out["kernel"], branch[_DOWN], branch[_UP], scale, draw if drops else None, keep
        )
    return out


def _stage(cfg: LoraConfig, fn: StageFn) -> StageFn:
    def run(params: Params, carry: PyTree, batch: Batch, key: DropKey) -> PyTree:
        local_key = None  # a share of the batch has draws of its own
        if key is not None:
            local_key = jax.random.fold_in(jax.random.fold_in(key, 0x10FA), batch.layout.first)
        ready = {role: _attach(cfg, branch, local_key, role) for role, branch in params.items()}
        return fn(ready, carry, batch, key)

    return run


def with_adapters(model: Model, cfg: LoraConfig) -> Model:
    """Give a model adapters on the kernels ``cfg.target_modules`` names.

    Returns:
        A bundle that computes what ``model`` does at first; its ``init`` draws the same base
        parameters. ``init`` raises ValueError for targets that match no kernel.
    """
    init: Callable[[Array], Params] = model.init

    def both(key: Array) -> Params:
        params = init(key)
        lora, leaves = init_lora(cfg, params, jax.random.fold_in(key, 0x10FA)), named_leaves(params)
        for part, last in ((lora.down, _DOWN), (lora.up, _UP)):
            leaves += [(f"{name.removesuffix('kernel')}{last}", x) for name, x in part.items()]
        return unflatten(dict(leaves))

    kinds = {kind: (roles, _stage(cfg, fn)) for kind, (roles, fn) in model.kinds.items()}
    return dataclasses.replace(model, init=both, kinds=kinds)
