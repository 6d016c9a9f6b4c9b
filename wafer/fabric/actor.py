"""Data-dependent handlers: what each PE does with a wavelet is a JAX function of its state.

The routers are those of the reference engine. Each CE takes the head of its lowest-numbered queue
that holds a wavelet, runs ``on_wavelet`` and sends what it returns, at most one wavelet per colour
and activation, one per cycle. For grids of up to about 128 x 128: every handler branch is computed
at every PE in every cycle.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from wafer.fabric.engines.cycle import memory_words
from wafer.fabric.engines.lanes import fifo_step, pipe_step
from wafer.fabric.engines.router import router_step
from wafer.fabric.engines.state import VALID, FabricState, empty_state
from wafer.fabric.program.tables import Program

__all__ = ["ActorState", "Sends", "actor_run", "actor_start", "actor_step"]


class Sends(NamedTuple):
    """What one activation sends.

    flags: [C] bool, whether to send on each colour
    data: [C] uint32 payloads
    """

    flags: Array
    data: Array


Handler = Callable[[Any, Array, Array], tuple[Any, Sends, Array]]


class ActorState(NamedTuple):
    """One instant.

    fabric: routers, pipes, queues and counters
    user: tree of [H, W, ...] arrays, each PE's own state
    out: what waits to be sent, [C, H, W]
    wait: [H, W] int32 cycles the running handler still takes
    """

    fabric: FabricState
    user: Any
    out: Sends
    wait: Array


def actor_start(program: Program, user: Any, first: Sends | None = None) -> ActorState:
    """Build the state before cycle 0.

    Args:
        program: routes only; its tasks are not run.
        user: tree of [H, W, ...] arrays.
        first: wavelets each PE sends unasked, [C, H, W].
    """
    meta = program.meta
    shape = (len(meta.colors), meta.height, meta.width)
    nothing = Sends(jnp.zeros(shape, bool), jnp.zeros(shape, jnp.uint32))
    state = empty_state(program, memory_words(program, None, jnp))
    return ActorState(state, user, first or nothing, jnp.zeros(shape[1:], jnp.int32))


def _inject(state: ActorState, space: Array) -> Array:
    """[C, H, W] bool: the one colour each PE puts on its ramp."""
    ready = state.out.flags & space
    return ready & (jnp.cumsum(ready.astype(jnp.int32), axis=0) == 1)


def _choose(tree: Any, old: Any, mask: Array) -> Any:
    wide = lambda leaf: mask.reshape(mask.shape + (1,) * (leaf.ndim - 2))
    return jax.tree.map(lambda new, was: jnp.where(wide(was), new, was), tree, old)


def actor_step(program: Program, on_wavelet: Handler, state: ActorState) -> ActorState:
    """Advance one cycle.

    Args:
        program: routes.
        on_wavelet: ``(user, color index, data) -> (user, Sends, cycles)`` for one PE; vmapped.
        state: at the start of the cycle.
    """
    before = state.fabric
    fabric, moves = router_step(program, before)

    # 1. Put at most one waiting wavelet on the ramp.
    sends = _inject(state, moves.room_up[0])
    value = jnp.where(sends, state.out.data, 0).max(axis=0)
    up = pipe_step(
        before.up,
        moves.room_up,
        jnp.broadcast_to(value, sends.shape),
        jnp.where(sends, VALID, 0).astype(jnp.uint8),
    )
    left = state.out.flags & ~sends

    # 2. A CE with nothing to send and no handler running takes the next wavelet.
    heads = before.queue.flag[:, 0] != 0
    idle = ~left.any(axis=0) & (state.wait == 0)
    pops = heads & idle & (jnp.cumsum(heads.astype(jnp.int32), axis=0) == 1)
    starts = pops.any(axis=0)
    color = jnp.argmax(pops, axis=0)
    data = jnp.where(pops, before.queue.data[:, 0], 0).max(axis=0)
    user, out, cycles = jax.vmap(jax.vmap(on_wavelet))(state.user, color, data)
    flags, words = (jnp.moveaxis(leaf, -1, 0) for leaf in out)
    none = jnp.zeros_like(fabric.queue.flag[:, 0])
    queue = fifo_step(fabric.queue, pops, fabric.queue.data[:, 0], none)

    issue = starts | sends.any(axis=0)
    waiting = state.wait > 0
    fabric = fabric._replace(
        up=up,
        queue=queue,
        cycle=before.cycle + 1,
        progress=moves.moved | issue.any() | waiting.any(),
        busy=before.busy + issue,
        end=jnp.where(issue, before.cycle + 1, before.end),
    )
    return ActorState(
        fabric,
        _choose(user, state.user, starts),
        Sends(jnp.where(starts, flags, left), jnp.where(starts, words, state.out.data)),
        jnp.where(starts, cycles - 1, jnp.maximum(state.wait - 1, 0)).astype(jnp.int32),
    )


@functools.partial(jax.jit, static_argnames=("on_wavelet", "max_cycles"))
def actor_run(
    program: Program, on_wavelet: Handler, state: ActorState, max_cycles: int = 100_000
) -> ActorState:
    """Step until nothing moves any more, a fault occurs, or ``max_cycles`` have passed."""

    def goes_on(state: ActorState) -> Array:
        fabric = state.fabric
        return fabric.progress & (fabric.fault[0] == 0) & (fabric.cycle < max_cycles)

    return jax.lax.while_loop(goes_on, lambda s: actor_step(program, on_wavelet, s), state)
