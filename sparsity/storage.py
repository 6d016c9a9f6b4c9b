"""Weights kept as their values only: which ones, and the way there and back.

In ``csr`` storage a parameter's leaf is the [nnz] array of its kept values, so the optimizer's
moments are [nnz] too; the pattern lives in the ``SparseState``. The number of values is fixed when
training starts, and topology changes never recompile.
"""

import logging
import math
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

from wafer.models.checkpoint.moments import in_weights_and_moments
from wafer.sparsity import kernels
from wafer.sparsity.algorithms.base import Algorithm
from wafer.sparsity.algorithms.masks import checkerboard
from wafer.sparsity.kernels import native
from wafer.sparsity.kernels.choice import obstacle
from wafer.sparsity.schedules import is_constant
from wafer.sparsity.schema import SparsityError, listed
from wafer.sparsity.selection import kept_number
from wafer.sparsity.state import SparseState
from wafer.sparsity.views import CompetitionRows, axes_of

_LOG = logging.getLogger(__name__)
_NOMINAL_TOKENS = 2048  # storage is chosen before the batch is known
_UNKNOWN = (
    "configure() was not told that the model takes kept values there; pass accepts= where it "
    "computes `x @ weight`, or write compute: masked"
)


class Probed(NamedTuple):
    """A sparse parameter prepared for a step that also needs its dense gradient."""

    values: Array  #: the leaf as it is stored: [nnz] kept values, or dense under a mask
    probe: Array  #: of the dense shape; its value is never read, its gradient is the dense one

    def _refuse(self, *_: object) -> NoReturn:
        """Refuse arithmetic of gradients that ``split`` has not seen."""
        raise TypeError(
            "sparsity: a gradient at prepare(…, dense=True) is two, of values and the dense one; "
            "expected an array. Call `grads, dense = sparsifier.split(grads, sparse)` first"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = _refuse


@jax.custom_jvp
def masked(weight: Array, mask: Array, probe: Array) -> Array:
    """Return the weight, 0 where pruned, as if ``probe`` had been added to it.

    Args:
        weight: [...] dense.
        mask: [...] bool, true where kept.
        probe: [...] anything; it is never read.

    Gradients of ``weight`` are those of kept positions, and of ``probe`` those of all.
    """
    del probe
    return jnp.where(mask, weight, 0)


@masked.defjvp
def _masked_jvp(primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    mask, (change, _, dense) = primals[1], tangents
    return masked(*primals), jnp.where(mask, change, 0) + dense


def is_probed(node: object) -> bool:
    """Return whether a node of a tree is a prepared parameter with its probe."""
    return isinstance(node, Probed)


class Choice(NamedTuple):
    """How a parameter is stored."""

    storage: str  #: "csr" or "masked"
    why: str = ""  #: why ``compute: auto`` keeps a mask; "" where nothing fell back to one


def choose(
    name: str,
    shape: tuple[int, ...],
    algorithm: Algorithm,
    view: CompetitionRows,
    *,
    dtype: DTypeLike,
    accepted: bool | None,
) -> Choice:
    """Choose how a parameter is stored.

    Args:
        name: '/'-path, for errors and the log.
        shape: dense shape.
        algorithm: with its ``compute`` key.
        view: with the weight layout.
        dtype: what the model computes in.
        accepted: whether the model takes a sparse weight object there; None when it is unknown.

    Raises:
        SparsityError: ``compute: csr`` where it cannot be, or where its kernels are not built.
    """
    require_possible(name, shape, algorithm, view, accepted=accepted)
    if algorithm.compute == "csr":
        _require_native()
        return Choice("csr")
    if algorithm.compute == "masked":
        return Choice("masked")
    why = unfit(shape, algorithm, view, accepted)
    if not why:
        kept = kept_number(algorithm.sparsity.at(0), math.prod(shape))
        rows, columns = shape
        why = obstacle(_NOMINAL_TOKENS, rows, columns, kept, jnp.dtype(dtype))
    if not why and accepted is None:
        why = _UNKNOWN
    return Choice("masked" if why else "csr", why)


def require_possible(
    name: str,
    shape: tuple[int, ...],
    algorithm: Algorithm,
    view: CompetitionRows,
    *,
    accepted: bool | None,
) -> None:
    """Refuse ``compute: csr`` for a parameter that cannot be stored so; looks at no device.

    Raises:
        SparsityError: names the parameter and the reason.
    """
    reason = unfit(shape, algorithm, view, accepted)
    if algorithm.compute == "csr" and reason:
        raise SparsityError(
            f"{name!r} cannot be stored as csr: {reason}; use auto or masked",
            ("sparsity", "compute"),
        )


def tell_masked(why: Mapping[str, str]) -> None:
    """Log in one line which weights ``compute: auto`` stores with masks, and why."""
    if why:
        names, reasons = list(why), dict.fromkeys(why.values())
        level = logging.WARNING if _UNKNOWN in reasons else logging.INFO
        _LOG.log(
            level,
            "sparsity.compute: auto keeps masks of %s: %s",
            listed(names),
            "; ".join(reasons),
        )


def _require_native() -> None:
    """Refuse kept values on a CPU without the kernels: they would be slower than dense."""
    if jax.default_backend() != "cpu":
        return
    try:
        native.loaded()
    except RuntimeError as error:
        raise SparsityError(
            f"csr: {error}; or set compute: auto", ("sparsity", "compute")
        ) from error


def unfit(
    shape: tuple[int, ...], algorithm: Algorithm, view: CompetitionRows, accepted: bool | None
) -> str:
    """Say why a parameter cannot be stored as csr, or "".

    Args:
        shape: dense shape.
        algorithm: of its group.
        view: of its group.
        accepted: see ``choose``.
    """
    if accepted is False:
        return "accepts() says that the model, or its optimizer, takes only an array there"
    if len(shape) != 2:
        return f"its rank is {len(shape)}, csr is for matrices"
    axes = axes_of(view.layout, 2)
    if axes != "io":
        return f"its axes are {axes!r}; csr multiplies [in, out] kernels ('io')"
    if algorithm.sparsity.traced or not is_constant(algorithm.sparsity):
        how = "is traced" if algorithm.sparsity.traced else "follows a schedule"
        return f"its level {how}; csr keeps a fixed number of values"
    if not algorithm.starts_sparse():
        return "it starts dense; csr keeps a fixed number of values"
    return ""


def may_be_csr(
    shape: tuple[int, ...], algorithm: Algorithm, view: CompetitionRows, accepted: bool | None
) -> bool:
    """Whether ``choose`` may store a parameter as csr; looks at no device and no size.

    Args:
        shape: dense shape.
        algorithm: with its ``compute`` key.
        view: of the parameter.
        accepted: see ``choose``.
    """
    asks = algorithm.compute == "csr" or (algorithm.compute == "auto" and accepted is not None)
    return asks and not unfit(shape, algorithm, view, accepted)


def capacity(mask: Array, algorithm: Algorithm, view: CompetitionRows) -> int:
    """How many values to store for a first mask, and all that may follow it."""
    level = slots(mask.shape, algorithm, view)
    first = _first_count(mask, algorithm, view, level)
    return max(first, level) if algorithm.dynamic else first


def slots(shape: tuple[int, ...], algorithm: Algorithm, view: CompetitionRows) -> int:
    """Return how many values the level of the first step keeps.

    Args:
        shape: dense shape.
        algorithm: with the level.
        view: of the parameter.
    """
    each = kept_number(algorithm.sparsity.at(0), view.row_length(shape))
    return each * view.groups(shape) * view.cell


def _first_count(mask: Array, algorithm: Algorithm, view: CompetitionRows, level: int) -> int:
    """Weights that the first mask keeps; under a trace from the rule that draws it."""
    if not isinstance(mask, jax.core.Tracer):
        return int(np.count_nonzero(mask))
    method = algorithm.init_method
    known = type(algorithm).init_mask is Algorithm.init_mask
    if known and method in ("random", "topk"):
        return level
    if known and method == "checkerboard":
        with jax.ensure_compile_time_eval():
            return int(jnp.sum(checkerboard(mask.shape, algorithm.sparsity.at(0), view)))
    raise SparsityError(
        f"csr: how many weights init_method {method!r} keeps depends on their"
        " values; call init outside jit, or use compute: masked",
        ("sparsity", "compute"),
    )


def pattern_of(mask: Array, size: int) -> kernels.Pattern:
    """Build the pattern of a mask in ``size`` slots; fewer kept weights leave slack."""
    return jax.jit(kernels.pattern_from_mask, static_argnums=1)(mask, size)


def require_values(name: str, leaf: Array) -> None:
    """Refuse a dense leaf, [K, N], of a weight that is stored as csr, [nnz]."""
    if leaf.ndim != 1:
        raise ValueError(
            f"sparsity: {name!r} is stored as csr, but its leaf has shape {leaf.shape}; call"
            " params, opt_state = sparsifier.prune(params, opt_state, sparse) after init"
        )


def require_numbers(weights: Mapping[str, Array]) -> None:
    """Refuse weights, each [...], that are NaN before a first mask, where they are known."""
    known = {n: leaf for n, leaf in weights.items() if not isinstance(leaf, jax.core.Tracer)}
    wrong = [name for name, leaf in known.items() if np.isnan(np.asarray(leaf)).any()]
    if wrong:
        raise ValueError(
            f"sparsity.init: weights of {listed(wrong)} are NaN; expected numbers. Weights that "
            "`encode` stored come back by sparsity.resume"
        )


def shrink(leaf: Array, pattern: kernels.Pattern) -> Array:
    """Take the kept values of a dense leaf; values pass through."""
    return kernels.gather(leaf, pattern) if leaf.ndim == 2 else leaf


def expand(leaf: Array, pattern: kernels.Pattern, fill: float = 0.0) -> Array:
    """Spread values to the dense [K, N] leaf; a dense one passes through."""
    return kernels.to_dense(leaf, pattern, fill) if leaf.ndim == 1 else leaf


def density(pattern: kernels.Pattern) -> Array:
    """Share of weights in use, without slack; [] float32."""
    rows, columns = pattern.shape
    return pattern.pointers[-1].astype(jnp.float32) / jnp.float32(rows * columns)


def pruned(params: PyTree, opt_state: PyTree, sparse: SparseState) -> tuple[PyTree, PyTree]:
    """Bring weights and their moments into a state's storage, 0 where pruned.

    Args:
        params: in that storage, or dense.
        opt_state: any tree; leaves that end in a parameter's name and have its shape go along.
        sparse: the topology.
    """

    def visit(name: str, leaf: PyTree) -> PyTree:
        if name in sparse.patterns:
            return shrink(leaf, sparse.patterns[name])
        if name in sparse.masks:
            return jnp.where(sparse.masks[name], leaf, 0).astype(leaf.dtype)
        return leaf

    return in_weights_and_moments(visit, params, opt_state)


def expanded(
    params: PyTree, opt_state: PyTree, sparse: SparseState, fill: float = 0.0
) -> tuple[PyTree, PyTree]:
    """Bring csr weights and their moments back to dense.

    Args:
        params: in the storage of ``sparse``, or dense.
        opt_state: any tree, see ``pruned``.
        sparse: the topology.
        fill: at pruned positions of csr weights.
    """

    def visit(name: str, leaf: PyTree) -> PyTree:
        pattern = sparse.patterns.get(name)
        return leaf if pattern is None else expand(leaf, pattern, fill)

    return in_weights_and_moments(visit, params, opt_state)
