"""The engine with payloads: every wavelet, cycle by cycle. In plain JAX, the reference, or C++.

``init``, ``step`` and ``run`` are pure; ``run`` is a ``lax.while_loop`` of ``step`` that ends when
a cycle changes nothing. Since a step depends on the state alone, such a cycle would repeat for
ever: work left over is a deadlock, found in the very cycle it sets in.
"""

import functools
from collections.abc import Mapping, Sequence
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from wafer.fabric.engines import native as engine
from wafer.fabric.engines.alu import from_bits, to_bits
from wafer.fabric.engines.ce import ce_step, dispatch
from wafer.fabric.engines.router import router_step
from wafer.fabric.engines.state import FabricState, empty_state
from wafer.fabric.errors import DeadlockError, FabricError, FaultError
from wafer.fabric.native import is_asked
from wafer.fabric.program.arrays import AnyArray as Array
from wafer.fabric.program.tables import Program
from wafer.fabric.reports import fault_of, waiting

__all__ = [
    "check_finished",
    "cycles",
    "init",
    "memory_words",
    "read",
    "run",
    "run_many",
    "simulate",
    "start",
    "step",
]


def init(program: Program, values: Mapping[str, Array] | None = None) -> FabricState:
    """Load memory and dispatch the tasks that are active at the start.

    Args:
        program: the program.
        values: array name -> [H, W, n] or [n] initial values; others are 0.

    Returns:
        The state before cycle 0.
    """
    state, _ = dispatch(program, empty_state(program, memory_words(program, values, jnp)))
    return state


def memory_words(program: Program, values: Mapping[str, Array] | None, xp: ModuleType) -> Array:
    """[M, H, W] uint32: initial memory, built with ``xp`` (``jnp``, or ``numpy`` on the host)."""
    meta = program.meta
    values = dict(values or {})
    known = [name for name, *_ in meta.arrays]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise FabricError(f"no array {unknown[0]!r}; the program declares {known}")
    words = [xp.zeros((meta.words, meta.height, meta.width), xp.uint32)][: not known]
    for name, _, count, dtype in meta.arrays:
        value = xp.asarray(values.get(name, 0))
        try:
            full = xp.broadcast_to(value, (meta.height, meta.width, count))
        except ValueError:
            raise FabricError(
                f"array {name!r}: got shape {value.shape}, expected [{meta.height},"
                f" {meta.width}, {count}]"
            ) from None
        words.append(xp.moveaxis(to_bits(full, dtype, xp), -1, 0))
    return xp.concatenate(words)


def step(program: Program, state: FabricState) -> FabricState:
    """Advance every router and every CE by one cycle."""
    routed, moves = router_step(program, state)
    return ce_step(program, state, routed, moves)


def run(
    program: Program,
    state: FabricState,
    max_cycles: int = 1_000_000,
    implementation: str = "auto",
) -> FabricState:
    """Step until nothing changes any more, a fault occurs, or ``max_cycles`` have passed.

    Args:
        program: the program.
        state: where to start from.
        max_cycles: limit.
        implementation: "native" (C++), "jax" (a ``lax.while_loop`` of :func:`step`), or "auto":
            native where built. Both give the same state; both work under ``jit`` and ``vmap``.
    """
    if is_asked(implementation):
        return engine.run(program, state, max_cycles)
    return _run_jax(program, state, max_cycles)


@functools.partial(jax.jit, static_argnames="max_cycles")
def _run_jax(program: Program, state: FabricState, max_cycles: int) -> FabricState:
    def goes_on(state: FabricState) -> Array:
        return state.progress & (state.fault[0] == 0) & (state.cycle < max_cycles)

    return jax.lax.while_loop(goes_on, lambda s: step(program, s), state)


def cycles(state: FabricState) -> Array:
    """Cycles until the last CE issued its last element, counted from 1."""
    return state.end.max()


def read(program: Program, state: FabricState, name: str) -> Array:
    """[H, W, n] an array's values in its own type."""
    for array, base, words, dtype in program.meta.arrays:
        if array == name:
            return jnp.moveaxis(from_bits(state.mem[base : base + words], dtype), 0, -1)
    raise FabricError(f"no array {name!r}; declared: {[a for a, *_ in program.meta.arrays]}")


_SHOWN = 8  # of what waits


def check_finished(program: Program, state: FabricState) -> None:
    """Raise unless the run ended with every task done and every wavelet consumed.

    Raises:
        FaultError: naming PE, color and cycle.
        DeadlockError: naming what waits and for what, likely causes first.
    """
    if text := fault_of(program, state):
        raise FaultError(text)
    waits = waiting(program, state)
    if waits:
        verb = "still running" if bool(state.progress) else "deadlock: nothing can move"
        lines = [f"cycle {int(state.cycle)}: {verb}", *map(str, waits[:_SHOWN])]
        more = [f"and {len(waits) - _SHOWN} more"] if len(waits) > _SHOWN else []
        raise DeadlockError("\n  ".join(lines + more))


def simulate(
    program: Program,
    values: Mapping[str, Array] | None = None,
    max_cycles: int = 1_000_000,
    implementation: str = "auto",
) -> FabricState:
    """Run a program to its end and check that it ended well; see :func:`run`, `check_finished`."""
    return start(program, memory_words(program, values, np), max_cycles, implementation)


def start(
    program: Program, memory: Array, max_cycles: int = 1_000_000, implementation: str = "auto"
) -> FabricState:
    """Run a program to its end on given memory, for instance what its last run left there.

    Args:
        program: the program.
        memory: [M, H, W] uint32.
        max_cycles: limit.
        implementation: see :func:`run`.
    """
    state = _last_state(program, memory, max_cycles, implementation)
    check_finished(program, state)
    return state


def _last_state(
    program: Program, memory: Array, max_cycles: int, implementation: str
) -> FabricState:
    state = empty_state(program, memory)
    if is_asked(implementation):
        return engine.run(program, state, max_cycles, start=True)
    return _run_jax(program, dispatch(program, state)[0], max_cycles)


def run_many(
    programs: Sequence[Program],
    values: Sequence[Mapping[str, Array] | None],
    max_cycles: int = 10_000,
    implementation: str = "auto",
) -> list[FabricState]:
    """Run several programs one by one, without a check of how each ends.

    Args:
        programs: of any grids, colors, tasks and arrays.
        values: initial arrays of each program.
        max_cycles: limit for every one of them.
        implementation: see :func:`run`.
    """
    memories = [memory_words(p, v, np) for p, v in zip(programs, values, strict=True)]
    return [
        _last_state(program, memory, max_cycles, implementation)
        for program, memory in zip(programs, memories, strict=True)
    ]
