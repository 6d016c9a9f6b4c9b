"""The small Linen layers every family shares, and ``project``, the one matrix product.

A kernel leaf may be a plain [in, out] array or any object with a method ``project(x)`` (a sparse
weight): the layers read an existing leaf without asking Flax to check its shape.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, overload, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

from wafer import vsl
from wafer.models.errors import did_you_mean
from wafer.models.layers.initializers import InitFn


@runtime_checkable
class _Table(Protocol):
    """An object in place of an embedding table."""

    def lookup(self, ids: Array) -> Array:
        """Rows [..., features]; ids outside the table read zeros."""
        ...


@runtime_checkable
class _Together(Protocol):
    """A weight that multiplies activations by several weights of its kind at once."""

    def project_all(
        self, x: Array, weights: Sequence[PyTree], biases: Sequence[Array | None]
    ) -> list[Array]:
        """Compute ``x @ weight + bias`` for each."""
        ...


def project(x: Array, kernel: vsl.AnyArray | vsl.Weight) -> Array:
    """Multiply activations by a weight: ``x @ kernel`` in the dtype of ``x``.

    Args:
        x: [..., in] activations.
        kernel: [in, out] array, or an object whose ``project(x)`` does the product.

    Returns:
        [..., out]; accumulated in float32 by the backend, rounded to the dtype of ``x``.
    """
    if isinstance(kernel, vsl.Weight):
        return kernel.project(x)
    return x @ kernel.astype(x.dtype)


def score(x: Array, table: vsl.AnyArray | vsl.Weight) -> Array:
    """Multiply activations [..., D] by an embedding table [V, D], or by an object for one."""
    if isinstance(table, vsl.Weight):
        return table.project(x)
    return project(x, jnp.swapaxes(jnp.asarray(table), 0, 1))


def leaf(module: nn.Module, name: str, init: InitFn, shape: tuple[int, ...]) -> PyTree:
    """Read parameter ``name`` if the tree has it, whatever its type; else declare it."""
    if module.has_variable("params", name):
        return module.get_variable("params", name)
    return module.param(name, init, shape)


def zeros_init(key: Array, shape: tuple[int, ...]) -> Array:
    """Draw zeros."""
    del key
    return jnp.zeros(shape, jnp.float32)


RMS_NORMS = ("rmsnorm", "rmsnorm-1p")


class Dense(nn.Module):
    """``x @ kernel + bias`` over the last axis."""

    features: int
    use_bias: bool
    init_fn: InitFn
    bias_init: InitFn = zeros_init

    @nn.compact
    def leaves(self, inputs: int) -> tuple[PyTree, Array | None]:
        """Read or declare the kernel and the bias, None without one."""
        kernel = leaf(self, "kernel", self.init_fn, (inputs, self.features))
        bias = leaf(self, "bias", self.bias_init, (self.features,)) if self.use_bias else None
        return kernel, bias

    def __call__(self, x: Array) -> Array:
        """Multiply [..., in] by the kernel."""
        kernel, bias = self.leaves(x.shape[-1])
        if isinstance(kernel, _Together):
            return kernel.project_all(x, [kernel], [bias])[0]
        y = project(x, kernel)
        return y if bias is None else y + bias.astype(y.dtype)


def dense_together(x: Array, layers: Sequence[Dense]) -> list[Array]:
    """Apply several layers to the same activations, at once where their kernels can.

    Args:
        x: [..., in].
        layers: with kernels of ``in`` inputs.
    """
    kernels, biases = zip(*(layer.leaves(x.shape[-1]) for layer in layers), strict=True)
    first = kernels[0]
    if isinstance(first, _Together) and all(type(kernel) is type(first) for kernel in kernels):
        return first.project_all(x, kernels, biases)
    return [layer(x) for layer in layers]


class Norm(nn.Module):
    """LayerNorm or RMSNorm with float32 statistics."""

    #: 'layernorm' (scale, bias), 'biasless-layernorm' (scale), 'rmsnorm' (scale, no mean
    #: subtracted; Zhang & Sennrich 2019), 'rmsnorm-1p' (its scale is 1 + the parameter: Gemma) or
    #: 'nonparametric-layernorm'
    kind: str
    eps: float  #: added to the variance

    @overload
    def __call__(self, x: Array) -> Array: ...
    @overload
    def __call__(self, x: Array, *, branch: Literal[True]) -> tuple[Array, Array]: ...
    @nn.compact
    def __call__(self, x: Array, *, branch: bool = False) -> Array | tuple[Array, Array]:
        """Normalise the last axis.

        Args:
            x: [..., D].
            branch: return x, too, for the sum behind a residual branch.
        """
        features, scale, bias = (x.shape[-1],), None, None
        if self.kind == "rmsnorm-1p":
            scale = 1 + leaf(self, "scale", zeros_init, features).astype(jnp.float32)
        elif self.kind != "nonparametric-layernorm":
            scale = leaf(self, "scale", nn.initializers.ones, features)
        if self.kind == "layernorm":
            bias = leaf(self, "bias", zeros_init, features)
        run = vsl.normalize_branch if branch else vsl.normalize
        return run(x, scale, bias, eps=self.eps, centered=self.kind not in RMS_NORMS)


class Embedding(nn.Module):
    """A table [rows, features]; ids outside it read zeros, so that padding may hold anything."""

    rows: int
    features: int
    init_fn: InitFn
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, ids: Array) -> Array:
        """Look ids [...] up: [..., features]."""
        table = leaf(self, "embedding", self.init_fn, (self.rows, self.features))
        if isinstance(table, _Table):
            return table.lookup(ids).astype(self.dtype)
        return jnp.take(table, ids, axis=0, mode="fill", fill_value=0).astype(self.dtype)


class Mixed(nn.Module):
    """A table [rows, features] read at several rows at once, each with its share."""

    rows: int
    features: int
    init_fn: InitFn

    @nn.compact
    def __call__(self, shares: Array) -> Array:
        """Add up the rows by shares [..., rows]: [..., features]; no share gives zeros."""
        return project(shares, leaf(self, "embedding", self.init_fn, (self.rows, self.features)))


class _Bias(nn.Module):
    size: int

    @nn.compact
    def __call__(self) -> Array:
        return leaf(self, "bias", zeros_init, (self.size,))


def vocabulary_scores(
    x: Array, table: vsl.AnyArray | vsl.Weight | None, size: int, init: InitFn, *, bias: bool
) -> Array:
    """Score ``size`` tokens inside a head, by its own 'lm_head' or the shared embedding table."""
    if table is None:
        return Dense(size, bias, init, name="lm_head")(x)
    logits = score(x, table)
    return logits + _Bias(size, name="lm_head")().astype(x.dtype) if bias else logits


def _gelu_new(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=True)


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + jax.lax.erf(x * 0.7071067811865476))


class _Slope(NamedTuple):
    """Derivative of an activation within reach; beyond it is what it is there.

    A minimax fit of 1/2 + x P(x^2) / Q(x^2).
    """

    reach: float  #: largest absolute x
    over: tuple[float, ...]  #: coefficients of P, highest power first
    under: tuple[float, ...]  #: of Q


# To 4e-7 in float32. With erf and exp, or tanh, a backward pass takes twice the time.
_SLOPES: dict[Any, _Slope] = {
    _gelu: _Slope(
        5.75,
        (1.92906326e-7, 3.59542537e-5, 1.9239038e-5, 0.0142301722, -0.0309950989, 0.79788536),
        (8.95168614e-6, 1.92037754e-4, 0.00352302892, 0.0409803689, 0.294494987, 1.0),
    ),
    _gelu_new: _Slope(
        5.25,
        (-2.91904939e-07, 2.98782688e-05, -0.000367522618, 0.0135905594, -0.0537068956, 0.79788512),
        (
            -5.59293518e-08,
            3.60420995e-06,
            9.85689985e-05,
            0.0015233286,
            0.0299725179,
            0.267677218,
            1.0,
        ),
    ),
}


def _derivative(act: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return the derivative of ``act``, for those of ``_SLOPES`` the fit but in float64."""
    exact = lambda x: jax.jvp(act, (x,), (jnp.ones_like(x),))[1]
    fit = _SLOPES.get(act)
    if fit is None:
        return exact

    @jax.custom_jvp
    def slope(x: Array) -> Array:
        if x.dtype == jnp.float64:
            return exact(x)
        near = jnp.clip(x.astype(jnp.float32), -fit.reach, fit.reach)
        powers = (jnp.asarray(p, jnp.float32) for p in (fit.over, fit.under))
        over, under = (jnp.polyval(p, near * near) for p in powers)
        return (0.5 + near * over / under).astype(x.dtype)

    slope.defjvp(lambda at, moved: (slope(*at), jax.jvp(exact, at, moved)[1]))
    return slope


def _linear(x: Array) -> Array:
    return x


def _from_input(act: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Differentiate ``act`` from its input alone, which the next product keeps anyway.

    Left to itself the forward pass writes out a factor as wide as the layer (for GELU the error
    function) for the backward pass to read: two sweeps over memory instead of some arithmetic.
    """
    slope = _derivative(act)

    @jax.custom_vjp
    def run(x: Array) -> Array:
        return act(x)

    def backward(x: Array, dy: Array) -> tuple[Array]:
        # The barrier keeps the compiler from finding the same arithmetic in the forward pass.
        return (slope(jax.lax.optimization_barrier(x)) * dy,)

    run.defvjp(lambda x: (act(x), x), backward)
    return run


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "leaky_relu": lambda x: jax.nn.leaky_relu(x, 0.01),
    "relu6": jax.nn.relu6,
    "silu": _from_input(jax.nn.silu),
    "swish": _from_input(jax.nn.silu),
    "gelu": _from_input(_gelu),
    "gelu_new": _from_input(_gelu_new),
    "gelu_fast": _from_input(_gelu_new),
    "gelu_10": _from_input(lambda x: jnp.clip(_gelu(x), -10, 10)),
    "quick_gelu": _from_input(lambda x: x * jax.nn.sigmoid(1.702 * x)),
    "squared_gelu": _from_input(lambda x: jnp.square(_gelu(x))),
    "squared_relu": lambda x: jnp.square(jax.nn.relu(x)),
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "linear": _linear,
    "mish": _from_input(jax.nn.mish),
    "hardswish": _from_input(jax.nn.hard_swish),
    # Gaussian distribution function, mean 1/sqrt(2), deviation 0.282095 (Ma et al. 2022)
    "laplace": _from_input(lambda x: 0.5 * (1 + jax.lax.erf((x - 0.707107) / (0.282095 * 2**0.5)))),
    "sqrtsoftplus": _from_input(lambda x: jnp.sqrt(jax.nn.softplus(x))),
}

# Gated units x1 * act(x2) (Shazeer 2020): the name gives act.
GATED: dict[str, str] = {
    "liglu": "linear",
    "geglu": "gelu",
    "geglu_new": "gelu_new",
    "reglu": "relu",
    "swiglu": "silu",
}


def activation(name: str | None) -> Callable[[Array], Array]:
    """Look an activation up; for a gated name, the one on the gate; None is linear.

    Raises:
        ValueError: unknown name.
    """
    if name is None:
        return _linear
    key = GATED.get(name, name)
    if key not in ACTIVATIONS:
        known = [*ACTIVATIONS, *GATED]
        raise ValueError(f"nonlinearity {name!r} is unknown{did_you_mean(name, known)}; {known}")
    return ACTIVATIONS[key]
