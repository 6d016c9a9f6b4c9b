"""``backward`` in the middle of a function: gradients without turning the function inside out.

JAX differentiates whole functions; a training step written as statements asks for gradients half
way. So ``backward`` leaves a mark in the traced program, and ``evaluate`` runs the program up to
the mark under ``jax.vjp``, puts the gradients where the mark was, and continues. The body is
traced once, and nothing is computed twice.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jaxtyping import Array, PyTree

_MARK = jex.Primitive("wafer_backward")
_MARK.multiple_results = True
_INFO = jex.DebugInfo("part of a step", "wafer.loop", None, None)
_MARK.def_abstract_eval(lambda loss, *leaves: list(leaves))


def differentiate(loss: Array, leaves: Sequence[Array]) -> list[Array]:
    """Ask for the gradient of ``loss`` [] at ``leaves``, inside a function run by ``evaluate``.

    Args:
        loss: [] what to differentiate.
        leaves: floating arrays [...] that the loss was computed from.

    Returns:
        One array per leaf, of its shape and dtype.

    Raises:
        ValueError: the loss is not a scalar.
    """
    if jnp.shape(loss) != ():
        raise ValueError(
            f"backward needs a loss of shape (), this one has {jnp.shape(loss)}; take its mean"
        )
    return _MARK.bind(loss, *leaves)


def evaluate(fn: Callable[..., PyTree], *args: PyTree) -> PyTree:
    """Run ``fn(*args)``, in which ``differentiate`` may be called any number of times.

    Args:
        fn: of trees of arrays, returning a tree of arrays.
        args: its arguments; may be traced.

    Raises:
        ValueError: ``differentiate`` was called inside a jitted or mapped part of ``fn``.
    """
    closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
    program = closed.jaxpr
    env = dict(zip(program.constvars, closed.consts, strict=True))
    env |= dict(zip(program.invars, jax.tree.leaves(args), strict=True))
    equations: list[jex.JaxprEqn] = []  # equations before the mark
    waiting: list[jex.JaxprEqn] = []  # those of them that are not computed yet
    for eqn in program.eqns:
        if eqn.primitive is _MARK:
            _backward(eqn, equations, waiting, env)
            waiting = []
        else:
            _refuse_inner(eqn)
            equations.append(eqn)
            waiting.append(eqn)
    _run(waiting, env)
    leaves = [_read(env, var) for var in program.outvars]
    return jax.tree.unflatten(jax.tree.structure(shape), leaves)


def _refuse_inner(eqn: jex.JaxprEqn) -> None:
    for inner in jex.jaxprs_in_params(eqn.params):
        for inner_eqn in inner.eqns:
            if inner_eqn.primitive is _MARK:
                raise ValueError(
                    f"backward was called inside {eqn.primitive.name}; call it in the body of the "
                    "traced step itself"
                )
            _refuse_inner(inner_eqn)


def _read(env: dict[jex.Var, PyTree], var: jex.Var | jex.Literal) -> PyTree:
    return var.val if isinstance(var, jex.Literal) else env[var]


def _run(eqns: Sequence[jex.JaxprEqn], env: dict[jex.Var, PyTree]) -> None:
    """Compute equations in order; their results join ``env``."""
    if not eqns:
        return
    results = list(
        dict.fromkeys(v for e in eqns for v in e.outvars if not isinstance(v, jex.DropVar))
    )
    own = set(results)
    needed = dict.fromkeys(
        v for e in eqns for v in e.invars if not isinstance(v, jex.Literal) and v not in own
    )
    effects: Any = set().union(*(eqn.effects for eqn in eqns))
    part = jex.Jaxpr((), tuple(needed), tuple(results), list(eqns), effects, _INFO)
    values = jex.jaxpr_as_fun(jex.ClosedJaxpr(part, ()))(*(env[v] for v in needed))
    env |= dict(zip(results, values, strict=True))


def _backward(
    mark: jex.JaxprEqn,
    equations: Sequence[jex.JaxprEqn],
    waiting: Sequence[jex.JaxprEqn],
    env: dict[jex.Var, PyTree],
) -> None:
    """Compute everything before a mark, and the gradients it stands for.

    What depends on the leaves runs under ``jax.vjp``; its results leave as auxiliary output, so
    that the forward pass is computed once.
    """
    loss, *leaves = mark.invars
    reached = {v for v in leaves if not isinstance(v, jex.Literal)}
    dependent: list[jex.JaxprEqn] = []
    for eqn in equations:
        if any(v in reached for v in eqn.invars if not isinstance(v, jex.Literal)):
            dependent.append(eqn)
            reached |= set(eqn.outvars)
    inside = set(map(id, dependent))
    _run([eqn for eqn in waiting if id(eqn) not in inside], env)
    fresh = [eqn for eqn in waiting if id(eqn) in inside]
    results = [v for e in fresh for v in e.outvars if not isinstance(v, jex.DropVar)]

    def forward(values: Sequence[Array]) -> tuple[Array, list[PyTree]]:
        local: dict[Any, PyTree] = env | dict(zip(leaves, values, strict=True))
        _run(dependent, local)
        return _read(local, loss), [local[v] for v in results]

    values = [_read(env, v) for v in leaves]
    out, pull, kept = jax.vjp(forward, values, has_aux=True)
    (gradients,) = pull(jnp.ones_like(out))
    env |= dict(zip(results, kept, strict=True))
    env |= dict(zip(mark.outvars, gradients, strict=True))
