"""Many small fabrics in one JAX call: pad programs to one shape, stack them, run under vmap.

Padding adds PEs without routes, colors nobody uses and tasks nobody binds, so that each fabric's
cycles and bits are those of its own run: the JAX engine compiles once for all cases of a test.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from wafer.fabric.engines.cycle import init, memory_words, run
from wafer.fabric.program.codes import Column
from wafer.fabric.program.tables import Program
from wafer.fabric.trace import QUICK_COMPILE

__all__ = ["init_stacked", "run_stacked", "stack", "unstack"]


def _kinds(program):
    return [(kind, key, high) for _, kind, key, high in program.meta.tasks]


def _merge_tasks(programs):
    """One task list that holds every program's list in its own order, and each one's places."""
    merged = []
    for program in programs:
        at = 0
        for kind in _kinds(program):
            at_or_after = [i for i in range(at, len(merged)) if merged[i] == kind]
            if not at_or_after:
                merged.insert(at, kind)
                at_or_after = [at]
            at = at_or_after[0] + 1
    places = []
    for program in programs:
        at, own = 0, []
        for kind in _kinds(program):
            at = merged.index(kind, at)
            own.append(at)
            at += 1
        places.append(own)
    return merged, places


def _grow(array, shape, value=0):
    array = np.asarray(array)
    widths = [(0, want - have) for want, have in zip(shape, array.shape, strict=True)]
    return np.pad(array, widths, constant_values=value)


def _spread(array, places, shape, value):
    """Put rows at their merged task ids and pad the grid."""
    out = np.full(shape, value, np.asarray(array).dtype)
    for row, place in zip(np.asarray(array), places, strict=True):
        out[place, : row.shape[0], : row.shape[1]] = row
    return out


def _retarget(code, places, rows):
    """Renumber the tasks that operations activate, block and unblock."""
    old = np.asarray(code)
    new = _grow(old, (rows, old.shape[1]))
    for column in (Column.ACTIVATE, Column.BLOCK, Column.UNBLOCK):
        bits = np.zeros(rows, np.int32)
        for task, place in enumerate(places):
            bits[: len(old)] |= ((old[:, column] >> task) & 1) << place
        new[:, column] = bits
    return new


def pad(program, meta, places, rows, k):
    """Pad one program to the shapes that ``meta`` describes.

    Args:
        program: the program.
        meta: the common static description.
        places: merged id of each of its tasks.
        rows: operations of the padded code table.
        k: positions of the padded route tables.
    """
    c, h, w, t = len(meta.colors), meta.height, meta.width, len(meta.tasks)
    return Program(
        rx=_grow(program.rx, (k, c, h, w)),
        tx=_grow(program.tx, (k, c, h, w)),
        positions=_grow(program.positions, (c, h, w)),
        swap=_grow(program.swap, (2, c, h, w)),
        ring=_grow(program.ring, (c, h, w)),
        start=_grow(program.start, (c, h, w)),
        depth=_grow(program.depth, (c,), 2),
        filters=_grow(program.filters, (4, c, h, w)),
        code=_retarget(program.code, places, rows),
        entry=_spread(program.entry, places, (t, h, w), -1),
        active=_spread(program.active, places, (t, h, w), 0),
        blocked=_spread(program.blocked, places, (t, h, w), 0),
        meta=meta,
    )


def stack(programs):
    """Stack programs along a new leading axis of every array.

    Args:
        programs: of any grids, colors, tasks and arrays, on one machine.

    Returns:
        A program for ``jax.vmap``; arrays are found by :func:`unstack`.

    Raises:
        FabricError: the programs are for different machines.
    """
    metas = [p.meta for p in programs]
    assert len({m.spec for m in metas}) == 1
    kinds, places = _merge_tasks(programs)
    # Ids only matter where colors swap; even numbers below 0 are nobody's partner.
    base = max(metas, key=lambda m: (m.swaps, len(m.colors))).colors
    spare = max(len(m.colors) for m in metas) - len(base)
    meta = metas[0]._replace(
        width=max(m.width for m in metas),
        height=max(m.height for m in metas),
        colors=base + tuple(range(-2, -2 - 2 * spare, -2)),
        arrays=(("memory", 0, max(m.words for m in metas), "uint32"),),
        words=max(m.words for m in metas),
        tasks=tuple((f"task_{i}", *kind) for i, kind in enumerate(kinds)),
        threads=max(m.threads for m in metas),
        opcodes=tuple(sorted({o for m in metas for o in m.opcodes})),
        dtypes=tuple(sorted({d for m in metas for d in m.dtypes})),
        rate=max(m.rate for m in metas),
        filters=any(m.filters for m in metas),
        switched=any(m.switched for m in metas),
        controls=any(m.controls for m in metas),
        swaps=any(m.swaps for m in metas),
        teardown=any(m.teardown for m in metas),
        ranked=any(m.ranked for m in metas),
    )
    for m in metas if meta.swaps else ():  # all list the colors that swap in one order
        assert not m.swaps or m.partners == meta.partners[: len(m.colors)]
    rows = max(len(np.asarray(p.code)) for p in programs)
    k = max(len(np.asarray(p.rx)) for p in programs)
    padded = [pad(p, meta, own, rows, k) for p, own in zip(programs, places, strict=True)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *padded)


def unstack(programs, states):
    """Cut each program's own state out of a stacked run; readable with its own meta."""
    out = []
    for i, program in enumerate(programs):
        meta = program.meta
        h, w, c = meta.height, meta.width, len(meta.colors)
        state = jax.tree.map(lambda leaf, i=i: leaf[i], states)
        grid = jax.tree.map(
            lambda leaf, h=h, w=w: leaf[..., :h, :w] if leaf.ndim >= 2 else leaf, state
        )
        colored = {
            name: jax.tree.map(lambda leaf, c=c: leaf[:c], getattr(grid, name))
            for name in ("router", "up", "down", "queue", "pos_rx", "pos_tx", "counter")
        }
        out.append(grid._replace(**colored, mem=grid.mem[: meta.words]))
    return out


@functools.partial(jax.jit, static_argnames="max_cycles", compiler_options=QUICK_COMPILE)
def _run_stacked(program, state, max_cycles):
    return jax.vmap(lambda p, s: run(p, s, max_cycles, "jax"))(program, state)


@functools.partial(jax.jit, compiler_options=QUICK_COMPILE)
def init_stacked(program, memory):
    return jax.vmap(lambda p, m: init(p, {"memory": m}))(program, memory)


def run_stacked(programs, values, max_cycles=10_000):
    """Final states of several programs' runs, as ``fabric.run_many`` gives them."""
    together = stack(programs)
    meta = together.meta
    memory = np.zeros((len(programs), meta.height, meta.width, meta.words), np.uint32)
    for i, (program, value) in enumerate(zip(programs, values, strict=True)):
        own = np.moveaxis(memory_words(program, value, np), 0, -1)
        memory[i, : own.shape[0], : own.shape[1], : own.shape[2]] = own
    states = _run_stacked(together, init_stacked(together, memory), max_cycles)
    return unstack(programs, states)
