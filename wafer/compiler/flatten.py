"""One flat list of operations from a jaxpr, with calls, loops and custom derivatives opened.

Every operation knows how often it runs, its scope (``jax.named_scope``, Flax modules), the user's
source line, and of each value it touches whether it depends on parameters, on the inputs, and on
anything that is trained.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax._src import source_info_util
from jax.core import AbstractValue
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from wafer.errors import CompileError

_WRAPPED = re.compile(r"\w+\(([^()]*)\)")
_NOISE = re.compile(r"[.,>]")
# A parameter of the equation that holds what it calls.
_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_UNROLL = 256  # turns of a scan over parameters that become kernels of their own

# No kernel of the fabric does these: data-dependent loops, host callbacks, foreign code, solvers.
_UNSUPPORTED = frozenset({
    "approx_top_k", "cholesky", "eig", "eigh", "ffi_call", "fft", "hessenberg",
    "householder_product", "igamma", "igammac", "io_callback", "lu", "pallas_call",
    "pure_callback", "qr", "schur", "sort", "svd", "triangular_solve", "tridiagonal",
    "tridiagonal_solve", "while",
})  # fmt: skip


class TracedValue(NamedTuple):
    """An array of the program."""

    key: int  #: identity within one ``flatten``
    shape: tuple[int, ...]  #: as traced
    dtype: Any  #: as traced
    params: frozenset[str]  #: names of the parameters it depends on
    data: bool  #: whether it depends on the inputs
    trained: bool  #: whether a gradient flows to it

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def weight(self) -> bool:
        """Whether it is made of parameters alone, the same for every sample."""
        return bool(self.params) and not self.data


class TracedOp(NamedTuple):
    """An operation."""

    name: str  #: of the primitive
    ins: tuple[TracedValue, ...]
    outs: tuple[TracedValue, ...]
    times: int  #: how often it runs per sample
    scope: str  #: names joined by '/', '' if none
    source: str  #: 'file.py:12 (function)' of the user's code
    settings: dict[str, Any]  #: the equation's parameters


def _scope(stack: str) -> str:
    """'layers_0/vmap(attn)' -> 'layers_0/attn'; method names and einsum's formulas go."""
    before = None
    while before != stack:
        before, stack = stack, _WRAPPED.sub(r"\1", stack)
    return "/".join(part for part in stack.split("/") if part and not _NOISE.search(part))


def _inner(settings: Mapping[str, object]) -> Jaxpr | None:
    for name in _CALLS:
        called = settings.get(name)
        if isinstance(called, ClosedJaxpr):
            return called.jaxpr
        if isinstance(called, Jaxpr):
            return called
    return None


class _Flattener:
    def __init__(self) -> None:
        self.ops: list[TracedOp] = []
        self.refused: dict[tuple[str, str], None] = {}
        self._count = 0

    def value(
        self,
        aval: AbstractValue | TracedValue,
        params: frozenset[str],
        *,
        data: bool,
        trained: bool,
    ) -> TracedValue:
        self._count += 1
        shape = tuple(int(n) for n in getattr(aval, "shape", ()))
        dtype = getattr(aval, "dtype", None)
        return TracedValue(self._count, shape, dtype, params, data, trained)

    def constant(self, aval: AbstractValue) -> TracedValue:
        return self.value(aval, frozenset(), data=False, trained=False)

    def like(
        self, aval: AbstractValue | TracedValue, ins: Sequence[TracedValue], *, trains: bool = True
    ) -> TracedValue:
        """A result: depends on whatever the operands depend on."""
        params = frozenset().union(*(v.params for v in ins))
        data = any(v.data for v in ins)
        trained = trains and any(v.trained for v in ins)
        return self.value(aval, params, data=data, trained=trained and _floats(aval))

    def run(
        self, jaxpr: Jaxpr, ins: Sequence[TracedValue], times: int, scope: str, lead: str = ""
    ) -> list[TracedValue]:
        """Append the operations of ``jaxpr`` on ``ins``; return its results."""
        env = dict(zip(jaxpr.invars, ins, strict=True))
        for var in jaxpr.constvars:
            env[var] = self.constant(var.aval)
        read = lambda v: self.constant(v.aval) if isinstance(v, Literal) else env[v]
        for eqn in jaxpr.eqns:
            given = [read(v) for v in eqn.invars]
            inside = "/".join(filter(None, (scope, _scope(str(eqn.source_info.name_stack)))))
            results = self._equation(eqn, given, times, inside, lead)
            env |= zip(eqn.outvars, results, strict=True)
        return [read(v) for v in jaxpr.outvars]

    def _equation(
        self, eqn: JaxprEqn, ins: list[TracedValue], times: int, scope: str, lead: str
    ) -> list[TracedValue]:
        name, settings = eqn.primitive.name, eqn.params
        if name == "scan":
            return self._scan(eqn, ins, times, scope)
        if name == "cond":
            return self._cond(eqn, ins, times, scope)
        inner = _inner(settings) if name != "while" else None
        source = source_info_util.summarize(eqn.source_info) or lead
        if inner is not None and len(inner.invars) == len(ins):
            return self.run(inner, ins, times, scope, source)
        outs = [self.like(v.aval, ins, trains=name != "stop_gradient") for v in eqn.outvars]
        unknown = inner is not None or name in _UNSUPPORTED
        if unknown and outs and outs[0].data and outs[0].params:
            self.refused[name, f"{source}{f' in {scope}' if scope else ''}"] = None
        self.ops.append(
            TracedOp(name, tuple(ins), tuple(outs), times, scope, source, dict(settings))
        )
        return outs

    def _cond(
        self, eqn: JaxprEqn, ins: list[TracedValue], times: int, scope: str
    ) -> list[TracedValue]:
        """The branch of most operations stands for all: a PE must be ready for any of them."""
        branches = [b.jaxpr for b in eqn.params["branches"]]
        largest = max(branches, key=_equations)
        source = source_info_util.summarize(eqn.source_info)
        outs = self.run(largest, ins[1:], times, scope, source)
        return [self.like(v.aval, [out, *ins]) for v, out in zip(eqn.outvars, outs, strict=True)]

    def _scan(
        self, eqn: JaxprEqn, ins: list[TracedValue], times: int, scope: str
    ) -> list[TracedValue]:
        """Turns over parameters are unrolled (stacked layers); any others counted."""
        settings, source = eqn.params, source_info_util.summarize(eqn.source_info)
        body: Jaxpr = settings["jaxpr"].jaxpr
        # Releases of JAX store the counts differently; rows and stacks have one axis more.
        ranks = lambda one, two: [a.aval.ndim == b.aval.ndim for a, b in zip(one, two, strict=True)]
        carries = sum(ranks(eqn.outvars, body.outvars))
        consts = sum(ranks(eqn.invars, body.invars)) - carries
        fixed, carry, rows = ins[:consts], ins[consts : consts + carries], ins[consts + carries :]
        length = settings["length"]
        layered = any(row.weight for row in rows) and length <= _UNROLL
        slices = [v.aval for v in body.invars[consts + carries :]]
        ys: list[TracedValue] = []
        for turn in range(length if layered else 1):
            row_slices = [self.like(a, [row]) for a, row in zip(slices, rows, strict=True)]
            if not layered:  # a carry depends on what earlier turns read
                carry = [self.like(v, [v, *ins]) for v in carry]
            inside = f"{scope}[{turn}]" if layered else scope
            many = times if layered else times * length
            results = self.run(body, [*fixed, *carry, *row_slices], many, inside, source)
            carry, ys = results[:carries], results[carries:]
        stacked = [self.like(v.aval, [y]) for v, y in zip(eqn.outvars[carries:], ys, strict=True)]
        return [*carry, *stacked]


def _floats(aval: AbstractValue | TracedValue) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jax.numpy.issubdtype(dtype, jax.numpy.inexact)


def _equations(jaxpr: Jaxpr) -> int:
    """How many there are, with those of calls."""
    called = (_inner(eqn.params) for eqn in jaxpr.eqns)
    return len(jaxpr.eqns) + sum(_equations(inner) for inner in called if inner is not None)


def flatten(
    closed: ClosedJaxpr, names: Sequence[str | None], frozen: frozenset[str] = frozenset()
) -> tuple[list[TracedOp], list[TracedValue], list[TracedValue]]:
    """List the operations of a traced function.

    Args:
        closed: from ``jax.make_jaxpr``.
        names: of each argument: a parameter's name, or None for an input.
        frozen: names of parameters that are not trained.

    Returns:
        (operations in order, arguments, results).

    Raises:
        CompileError: primitives that no kernel does, all of them, each with its source line.
    """
    work = _Flattener()
    ins = [
        work.value(
            v.aval,
            frozenset() if name is None else frozenset({name}),
            data=name is None,
            trained=name is not None and name not in frozen and _floats(v.aval),
        )
        for v, name in zip(closed.jaxpr.invars, names, strict=True)
    ]
    outs = work.run(closed.jaxpr, ins, 1, "")
    if work.refused:
        lines = [f"{name} at {where}" for name, where in work.refused]
        raise CompileError(
            f"{len(lines)} operations have no kernel:\n  " + "\n  ".join(lines) + "\nRewrite them"
            " with matrix products, convolutions, look-ups, reductions and elementwise functions,"
            " or run with `wafer run`, which needs no kernels."
        )
    return work.ops, ins, outs
