"""Memory of the task that runs: what its instructions load, store and move."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from wafer.machine.codes import Op
from wafer.machine.reference.effects import register
from wafer.machine.reference.elements import load_bytes, store_bytes
from wafer.machine.reference.scalar import BYTES, wrapped
from wafer.machine.reference.state import State
from wafer.machine.reference.tables import Tables

__all__ = ["Accessed", "access"]

Array = jax.Array
_PAD = 64  # bytes behind a program's memory that read as zero


class Accessed(NamedTuple):
    """Memory after LOAD, STORE and MOVE: what was loaded, and which went outside, where."""

    memory: Array
    loaded: Array
    outside: Array
    where: Array


def access(tables: Tables, state: State, which: Array, i: Array) -> Accessed:
    """Do LOAD, STORE and MOVE.

    Args:
        tables: constants.
        state: of all PEs.
        which: [C] PEs that execute one.
        i: [C, 5] instructions.
    """
    op, kind, a, b, c = (i[:, k] for k in range(5))
    size = jnp.asarray(tables.size)[tables.program]
    width = jnp.asarray(BYTES)[kind]
    stores, loads = which & (op == Op.STORE), which & (op == Op.LOAD)
    address = (register(state, jnp.where(op == Op.STORE, a, b)) + c) & 0xFFFF
    outside = (loads & (address + width > size + _PAD)) | (stores & (address + width > size))
    inside = stores & ~outside
    memory = store_bytes(state.memory, inside, address, width, value=register(state, b), most=8)
    loaded = wrapped(kind, load_bytes(state.memory, address, width, most=8))
    moves = which & (op == Op.MOVE)
    to, source = register(state, a) & 0xFFFF, register(state, b) & 0xFFFF
    beyond = to + c > size
    far = moves & (beyond | (source + c > size + _PAD))
    place = jnp.arange(memory.shape[1])
    block = (moves & ~far)[:, None] & (place >= to[:, None]) & (place < (to + c)[:, None])
    moved = jnp.clip(place - to[:, None] + source[:, None], 0, memory.shape[1] - 1)
    memory = jnp.where(block, jnp.take_along_axis(memory, moved, 1), memory)
    where = jnp.where(moves, jnp.where(beyond, to, source), address)
    return Accessed(memory, loaded, outside | far, where)
