"""Kernels that are products of two factors, or have one added: ``model.factors`` in a run.

The forms are those of Sparse-IFT (Saxena et al. 2023, arXiv:2303.11525), linear between the
factors:

- ``factorized``: x U V in the place of x W, with r = ceil(in out / ((1 - s) (in + out)))
- ``doped``: x W + x U V, with r = floor(s in out / (in + out))

so that, with U and V (or W) at sparsity s, as many weights are left as W alone has. U and V are
the parameters ``.../factor_in/kernel`` [in, r] and ``.../factor_out/kernel`` [r, out]: whatever
knows kernels (sparsity, csr storage, FLOPs, checkpoints, streaming) knows them.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from wafer import vsl
from wafer.models.base import Model, StageFn
from wafer.models.factored.lora import require_found
from wafer.models.layers.basic import project
from wafer.models.layers.block_config import FactorConfig
from wafer.models.paths import Params, named_leaves, unflatten

FACTORS = ("factor_in", "factor_out")
_KERNEL = "kernel"


class Factored(NamedTuple):
    """A kernel in factors, as ``wafer.models.layers.basic.project`` takes it."""

    first: vsl.AnyArray | vsl.Weight  #: [in, r]
    second: vsl.AnyArray | vsl.Weight  #: [r, out]
    kernel: vsl.AnyArray | vsl.Weight | None  #: [in, out] added to the product, None without

    def project(self, x: Array) -> Array:
        """Compute ``x @ first @ second``, plus ``x @ kernel`` where there is one."""
        low = project(project(x, self.first), self.second)
        return low if self.kernel is None else low + project(x, self.kernel)


def factors_of(config: object) -> FactorConfig | None:
    """Return ``factors`` of a configuration, None when unused."""
    return getattr(config, "factors", None)


def is_factor(name: str) -> bool:
    """Whether a parameter name is that of a factor."""
    return name.endswith(tuple(f"/{factor}/{_KERNEL}" for factor in FACTORS))


def rank(cfg: FactorConfig, shape: tuple[int, ...]) -> int:
    """Inner width of the factors of an [in, out] kernel.

    >>> rank(FactorConfig(form="factorized", sparsity=0.75), (64, 64))
    128
    >>> rank(FactorConfig(form="doped", sparsity=0.75), (64, 64))
    24
    """
    size, edges = math.prod(shape), sum(shape)
    if cfg.form == "factorized":
        return math.ceil(size / ((1 - cfg.sparsity) * edges))
    return math.floor(cfg.sparsity * size / edges)


def _targets(cfg: FactorConfig, params: Params) -> dict[str, PyTree]:
    matrices = {
        name: leaf
        for name, leaf in named_leaves(params)
        if name.endswith(f"/{_KERNEL}") and len(leaf.shape) == 2
    }
    require_found("factors.target_modules", cfg, matrices)
    kernels = {n: x for n, x in matrices.items() if any(part in n for part in cfg.target_modules)}
    if not kernels:
        raise ValueError(
            f"factors.target_modules: {list(cfg.target_modules)} match no kernel; they are parts "
            "of parameter names such as '/attn/' or 'ffn/up'"
        )
    for name, leaf in kernels.items():
        if rank(cfg, leaf.shape) < 1:
            raise ValueError(
                f"factors.sparsity: {cfg.sparsity} leaves no rank for {name} {leaf.shape}; raise "
                "it, or leave the kernel out with target_modules"
            )
    return kernels


def _draw(cfg: FactorConfig, name: str, kernel: Array, key: Array) -> dict[str, Array]:
    """Factors whose product has the standard deviation of the kernel that was drawn."""
    rows, columns = kernel.shape
    inner = rank(cfg, kernel.shape)
    keys = jax.random.split(key)
    first = jax.random.normal(keys[0], (rows, inner), jnp.float32) / rows**0.5
    wide = jnp.std(kernel) * (rows / inner) ** 0.5
    second = jax.random.normal(keys[1], (inner, columns), jnp.float32) * wide
    parent = name.removesuffix(_KERNEL)
    values = zip(FACTORS, (first, second), strict=True)
    return {f"{parent}{factor}/{_KERNEL}": value for factor, value in values}


def _attach(branch: PyTree) -> PyTree:
    """Replace a kernel's factors by the object that multiplies by them."""
    if not isinstance(branch, Mapping):
        return branch
    if FACTORS[0] not in branch:
        return {name: _attach(leaf) for name, leaf in branch.items()}
    out = {name: leaf for name, leaf in branch.items() if name not in FACTORS}
    first, second = (branch[name][_KERNEL] for name in FACTORS)
    return out | {_KERNEL: Factored(first, second, out.get(_KERNEL))}


def _stage(fn: StageFn) -> StageFn:
    return lambda params, *rest: fn({role: _attach(own) for role, own in params.items()}, *rest)


def with_factors(model: Model, cfg: FactorConfig) -> Model:
    """Give a model factors on the kernels that ``cfg.target_modules`` names.

    Returns:
        A bundle whose other parameters are drawn as before. ``init`` raises ValueError for
        targets that match no kernel, or that are too small for a rank.
    """

    def init(key: Array) -> Params:
        params = model.init(key)
        leaves = dict(named_leaves(params))
        for at, (name, kernel) in enumerate(_targets(cfg, params).items()):
            own = jax.random.fold_in(jax.random.fold_in(key, 0xFAC7), at)
            leaves |= _draw(cfg, name, kernel, own)
            if cfg.form == "factorized":
                del leaves[name]
        return unflatten(leaves)

    kinds = {kind: (roles, _stage(fn)) for kind, (roles, fn) in model.kinds.items()}
    return dataclasses.replace(model, init=init, kinds=kinds)


def fold_factors(params: Params) -> Params:
    """Multiply factors out: an ordinary tree of the model without ``factors``.

    Args:
        params: dense tree; one without factors comes back as it is.
    """
    leaves = dict(named_leaves(params))
    ends = [f"/{factor}/{_KERNEL}" for factor in FACTORS]
    for name in [name for name in leaves if name.endswith(ends[0])]:
        parent = name.removesuffix(ends[0])
        product: Float[Array, "D F"] = leaves.pop(name) @ leaves.pop(parent + ends[1])
        kernel = f"{parent}/{_KERNEL}"
        leaves[kernel] = product + leaves[kernel] if kernel in leaves else product
    return unflatten(leaves)
