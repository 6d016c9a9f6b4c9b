"""Products of a stream with a weight that stop at the last token.

A compiled step has a static capacity; a packed batch fills nine tenths of it. What lies behind the
last token is padding like any other: the native product (``native/product.cc``) reads the number of
tokens when it runs and leaves the rest alone. Of a padded batch it computes every row, as XLA does:
its gradients take a seventh to a third less time there, because XLA packs the larger of two
operands at a stride.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from wafer.vsl.attend import may_be_native
from wafer.vsl.layout import AnyArray, Layout
from wafer.vsl.native.kernels import LIBRARY
from wafer.vsl.native.library import vary_together

_PANEL = 64  # features that the native product takes at a time
_PACKED = 2**26  # floats that a product may pack to save time alone
_NO_BIAS = np.zeros((0,), np.float32)
_FASTER = {"avx512", "avx2"}  # targets whose products are faster than XLA's where all rows are real


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(transposed: bool, x: Array, kernel: Array, count: Array, bias: Array) -> Array:
    features = kernel.shape[0 if transposed else 1]
    result = jax.ShapeDtypeStruct((x.shape[0], features), jnp.float32)
    y: Any = LIBRARY.call(
        "wafer_product_forward", result, x, kernel, count, bias, transposed=np.bool_(transposed)
    )
    return y


def _product_bwd(
    transposed: bool, residuals: tuple[Array, ...], dy: Array
) -> tuple[Array, Array, np.ndarray, Array]:
    x, kernel, count, bias = residuals
    results = tuple(jax.ShapeDtypeStruct(leaf.shape, jnp.float32) for leaf in (x, kernel, bias))
    dx, dw, d_bias = LIBRARY.call(
        "wafer_product_backward", results, x, kernel, count, dy, transposed=np.bool_(transposed)
    )
    return dx, dw, np.zeros((1,), jax.dtypes.float0), d_bias


_product.defvjp(lambda transposed, *xs: (_product(transposed, *xs), xs), _product_bwd)


def stream_product(
    x: Float[Array, "T D"],
    kernel: Float[AnyArray, "rows columns"],
    count: Int[Array, ""],
    *,
    bias: Float[AnyArray, " F"] | None = None,
    transposed: bool = False,
) -> Float[Array, "T F"]:
    """Multiply the first ``count`` rows of a stream by a weight.

    Args:
        x: [T, D] float32; what lies at rows from ``count`` on is not read.
        kernel: [D, F] float32, D and F multiples of 64.
        count: [] int32 number of rows, known when the program runs.
        bias: [F] added to each of those rows, or None.
        transposed: ``kernel`` is [F, D], as an embedding table is; there is no bias then.

    Returns:
        [T, F] float32, 0 at rows from ``count`` on. Reverse-mode differentiable: the gradient of
        those rows is 0 as well, and what flows back into them is not read.

    Raises:
        RuntimeError: the native library is not built, or programs run on a GPU.
        ValueError: sizes that do not fit, or are no multiples of 64.
    """
    inner, features = kernel.shape[::-1] if transposed else kernel.shape
    if x.shape[1] != inner or any(size % _PANEL for size in kernel.shape):
        raise ValueError(
            f"stream_product: x {x.shape} and kernel {kernel.shape}"
            f"{' (transposed)' if transposed else ''}: expected x [T, {inner}] and sizes that are "
            f"multiples of {_PANEL}; use x @ kernel for others"
        )
    if bias is not None and (transposed or bias.shape != (features,)):
        raise ValueError(
            f"stream_product: bias {bias.shape} for {features} features"
            f"{' (transposed)' if transposed else ''}; expected ({features},), and none for a "
            "transposed kernel"
        )
    count = jnp.reshape(count, (1,)).astype(jnp.int32)
    added = jnp.asarray(_NO_BIAS if bias is None else bias, jnp.float32)
    return _product(transposed, *vary_together([x, jnp.asarray(kernel), count, added]))


@runtime_checkable
class Weight(Protocol):
    """A weight that multiplies activations itself, in place of an array."""

    def project(self, x: Array) -> Array:
        """Multiply ``x`` [..., D] by the weight: [..., F] in the dtype of x."""
        ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StreamWeight:
    """A weight that is multiplied with the tokens of a stream only; as ``models`` take one."""

    weight: AnyArray  #: [D, F] float32, or [F, D] where ``transposed``
    tokens: Array  #: [] int32, one past the stream's last token; all slots of a padded batch
    #: static; true for an embedding table that scores the vocabulary
    transposed: bool = dataclasses.field(default=False, metadata={"static": True})

    def project(self, x: Float[Array, "T D"]) -> Float[Array, "T F"]:
        """Multiply x by the weight where x is float32, else leave it to XLA."""
        if x.dtype == jnp.float32:
            return stream_product(x, self.weight, self.tokens, transposed=self.transposed)
        weight = self.weight.T if self.transposed else self.weight
        return x @ weight.astype(x.dtype)

    def project_all(
        self, x: Array, weights: Sequence["StreamWeight"], biases: Sequence[Array | None]
    ) -> list[Array]:
        """Compute x W + bias for several weights, this one among them.

        Args:
            x: [T, D].
            weights: of D inputs each.
            biases: [F] of each weight, or None.
        """
        ys = []
        for stream, bias in zip(weights, biases, strict=True):
            if x.dtype == jnp.float32 and not stream.transposed:
                ys.append(stream_product(x, stream.weight, stream.tokens, bias=bias))
            else:
                y = stream.project(x)
                ys.append(y if bias is None else y + bias.astype(y.dtype))
        return ys


def _count(layout: Layout) -> Int[Array, ""] | None:
    """Rows to compute: to the last token, or all of a padded batch; None where XLA's serves."""
    if not (may_be_native() and LIBRARY.usable()):
        return None
    if layout.rows is None:
        return jnp.max(layout.ends)  # 0 at slack
    return jnp.int32(layout.capacity) if LIBRARY.target() in _FASTER else None


def _fits(leaf: AnyArray | Weight, layout: Layout) -> TypeGuard[AnyArray]:
    if isinstance(leaf, Weight) or leaf.ndim != 2 or leaf.dtype != jnp.float32:
        return False
    if layout.rows is not None and layout.capacity * max(leaf.shape) > _PACKED:
        return False
    return leaf.shape[0] % _PANEL == 0 and leaf.shape[1] % _PANEL == 0


def stream_kernels(branch: PyTree, layout: Layout) -> PyTree:
    """Wrap the weights of a layer whose input is the stream that ``layout`` describes.

    Only where the native library serves; elsewhere, and for leaves that are no float32 matrix
    [D, F] of whole panels, nothing changes. Of a padded batch all rows are computed.

    Args:
        branch: parameters; every leaf named 'kernel' multiplies this stream.
        layout: of the stream.
    """
    count = _count(layout)
    if count is None:
        return branch

    def wrapped(path: jax.tree_util.KeyPath, leaf: PyTree) -> PyTree:
        named = bool(path) and getattr(path[-1], "key", None) == "kernel"
        return StreamWeight(leaf, count) if named and _fits(leaf, layout) else leaf

    return jax.tree_util.tree_map_with_path(wrapped, branch)


def stream_table(
    table: Float[AnyArray, "V D"] | Weight, layout: Layout
) -> Float[AnyArray, "V D"] | Weight:
    """Wrap an embedding table that scores a stream, under the same conditions."""
    count = _count(layout)
    if count is None or not _fits(table, layout):
        return table
    return StreamWeight(table, count, transposed=True)
