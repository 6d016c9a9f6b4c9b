"""What is done once: programs of which compiling counts, and values that a program keeps."""

import functools
import logging
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Shaped

_LOG = logging.getLogger(__name__)
_LEVEL = "xla_backend_optimization_level"
# LLVM's first level, no MLIR for each fusion, one module: half the time, the same bits.
_QUICK: Mapping[str, Any] = {
    _LEVEL: 1,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
_LARGE = 1 << 22  # numbers of a result that are worth all passes


def jit_once(fun: Callable[..., PyTree], **options: Any) -> Callable[..., PyTree]:
    """Jit a function whose programs run once: on a CPU they are compiled in half the time.

    Under another transformation, for large results, and where XLA_FLAGS name an optimization
    level, it is ``jax.jit``.

    Args:
        fun: what to compile.
        options: of ``jax.jit``.
    """
    plain = jax.jit(fun, **options)
    quick = functools.cache(lambda: jax.jit(fun, compiler_options=_quick_options(), **options))

    @functools.wraps(fun)
    def call(*args: PyTree, **kwargs: PyTree) -> PyTree:
        leaves = jax.tree.leaves((args, kwargs, jnp.asarray(0)))  # 0: of the program around it
        is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        if is_traced or not _quick_options():
            return plain(*args, **kwargs)
        results = jax.tree.leaves(quick().eval_shape(*args, **kwargs))  # traced once for both
        is_large = sum(math.prod(leaf.shape) for leaf in results) > _LARGE
        return (plain if is_large else quick())(*args, **kwargs)

    return call


@functools.cache
def _quick_options() -> dict[str, Any]:
    if jax.default_backend() != "cpu" or _LEVEL in os.environ.get("XLA_FLAGS", ""):
        return {}
    return known_options(_QUICK)


def known_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of XLA's options that this release knows.

    Args:
        options: name -> value, as ``compiler_options`` takes them.
    """
    if _are_known(options):
        return dict(options)
    return {name: value for name, value in options.items() if _are_known({name: value})}


def _are_known(options: Mapping[str, Any]) -> bool:
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=dict(options))
    except jax.errors.JaxRuntimeError as error:
        _LOG.debug("XLA's own default: %s", error)
        return False
    return True


def computed_once(fun: Callable[[Array], PyTree], x: Shaped[Array, "..."]) -> PyTree:
    """Return ``fun(x)``, which XLA does not compute again for each operation that reads it.

    On a CPU it does so for what is short to write, such as cosines; ``optimization_barrier`` does
    not hinder it. The result of a branch is kept, and equal branches are one. On a GPU, where the
    host would have to choose the branch, it is ``fun(x)``.

    Args:
        fun: a function of one array [...] with floats as results.
        x: that array; where its first number is NaN, so are all results.
    """
    if jax.default_backend() != "cpu":
        return fun(x)
    shapes = jax.eval_shape(fun, x)

    def otherwise(x: Array) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.full(leaf.shape, x.reshape(-1)[0], leaf.dtype), shapes)

    first = x.reshape(-1)[0].astype(jnp.float32)
    return jax.lax.cond(jnp.isnan(first), otherwise, fun, x)
