"""Programs that run once or twice: what compiling them takes counts, not what running them does."""

import functools
import logging
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax._src.core import trace_state_clean  # it has no public name

__all__ = ["jit_once", "known_options"]

_LOG = logging.getLogger(__name__)
_LEVEL = "xla_backend_optimization_level"
# LLVM's first level, no MLIR for each fusion, one module: half the time, the same bits.
_QUICK: Mapping[str, Any] = {
    _LEVEL: 1,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
_LARGE = 1 << 22  # numbers of a result that are worth all passes


def jit_once(fun: Callable[..., Any], **options: Any) -> Callable[..., Any]:
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
    def call(*args: Any, **kwargs: Any) -> Any:
        if not trace_state_clean() or not _quick_options():
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


def known_options(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of XLA's options that this release knows.

    Args:
        wanted: name -> value, as ``compiler_options`` takes them.
    """
    if _are_known(wanted):
        return dict(wanted)
    return {name: value for name, value in wanted.items() if _are_known({name: value})}


def _are_known(options: Mapping[str, Any]) -> bool:
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=dict(options))
    except jax.errors.JaxRuntimeError as error:
        _LOG.debug("XLA's own default: %s", error)
        return False
    return True
