"""The first fault of a cycle: that of the first PE."""

import jax
import jax.numpy as jnp

from wafer.machine.reference.state import Fault

__all__ = ["noted"]


def noted(
    fault: Fault, there: jax.Array, kind: int | jax.Array, pc: jax.Array, detail: jax.Array
) -> Fault:
    """A fault, or an earlier PE's that is seen now.

    Args:
        fault: so far.
        there: [C] bool; where it is seen.
        kind: number of ``reports.Fault``, for all or [C].
        pc: [C] instruction, -1 for none.
        detail: [C].
    """
    cell = jnp.argmax(there)
    first = there.any() & ((fault.kind == 0) | (cell < fault.cell))
    seen = Fault(*(jnp.broadcast_to(part, there.shape)[cell] for part in (kind, 0, pc, detail)))
    seen = seen._replace(cell=cell)
    return jax.tree.map(lambda new, old: jnp.where(first, new, old).astype(old.dtype), seen, fault)
