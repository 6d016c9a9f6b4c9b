"""The checks of ``wafer.vsl.lengths`` for values that exist only on the device.

They use :mod:`jax.experimental.checkify`: call them inside a function and run
``checkify.checkify(function)`` under jit; the error comes back with the result. A plain jit
refuses to compile them, so nothing here is switched on by accident.
"""

import jax.numpy as jnp
from jax.experimental import checkify
from jaxtyping import Array, Int, Shaped


def check_fit(lengths: Int[Array, " B"], capacity: int) -> None:
    """Check that the sequences fit a stream of static ``capacity``."""
    total = jnp.sum(lengths)
    checkify.check(
        total <= capacity,
        "ragged overflow: {total} tokens > capacity {capacity}",
        total=total,
        capacity=jnp.int32(capacity),
    )


def check_prefix_mask(mask: Shaped[Array, "B S"], *, allow_empty: bool = False) -> None:
    """Check that each row of a mask is ones, then zeros, and not empty."""
    real = mask != 0
    hole = ~real[:, :-1] & real[:, 1:]
    row = jnp.argmax(hole.any(axis=1))
    position = jnp.argmax(hole[row])
    checkify.check(
        ~hole.any(),
        "mask: row {row} is not a prefix: position {position} is masked but the next is real",
        row=row,
        position=position,
    )
    if not allow_empty:
        empty = ~real.any(axis=1)
        checkify.check(~empty.any(), "mask: row {row} is empty", row=jnp.argmax(empty))
