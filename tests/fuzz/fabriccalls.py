"""The fabric's two handlers with damaged programs, states and headers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from helpers import fabric_rules

from fuzz.values import damaged_array
from wafer.fabric import native
from wafer.fabric.engines import native as engine, planar
from wafer.fabric.engines.cycle import memory_words
from wafer.fabric.engines.state import empty_state
from wafer.fabric.errors import FabricError

_LIMIT = 2_000  # cycles
_AT_LIMIT = {"engine": 9, "plane": 7}  # in the headers


def _limited(header, which):
    """No damage makes a run long."""
    header = np.array(header)
    at = _AT_LIMIT[which]
    if header.size > at and header.dtype == np.int32:
        header.reshape(-1)[at] = min(header.reshape(-1)[at], _LIMIT)
    return header


def _runs():
    """Header, tables and state of each rule's program, before its first cycle and in its midst."""
    for name, (program, _) in fabric_rules.CASES.items():
        values = fabric_rules.VALUES.get(name, fabric_rules.CASES[name][1])
        tables = tuple(np.asarray(getattr(program, table)) for table in engine._TABLES)
        state = empty_state(program, jnp.asarray(memory_words(program, values, np)))
        for cycles in (0, 7):
            if cycles:
                state = engine.run(program, state, cycles, start=True)
            header = engine._header(program.meta, program.rx.shape, 400, start=not cycles)
            yield header, tables, jax.tree.map(np.asarray, state)


def engine_calls(rng):
    """Calls of the engine with payloads; one or two arguments are wrong."""
    runs = list(_runs())
    while True:
        header, tables, state = rng.choice(runs)
        leaves, tree = jax.tree.flatten(state)
        given = [header, *tables, *leaves]
        for _ in range(rng.choice([1, 1, 2])):
            at = rng.randrange(len(given))
            given[at] = damaged_array(given[at], rng)
        given[0] = _limited(given[0], "engine")
        count = len(tables) + 1
        yield lambda given=given, tree=tree, count=count: engine._call(
            given[0], tuple(given[1:count]), jax.tree.unflatten(tree, given[count:])
        )


def whole_programs(rng):
    """Programs with a damaged table, as a user who builds one by hand has them."""
    cases = [(p, fabric_rules.VALUES.get(n, v)) for n, (p, v) in fabric_rules.CASES.items()]
    names = [field.name for field in dataclasses.fields(cases[0][0]) if field.name != "meta"]
    while True:
        program, values = rng.choice(cases)
        name = rng.choice(names)
        spoiled = dataclasses.replace(
            program, **{name: damaged_array(np.asarray(getattr(program, name)), rng)}
        )
        state = empty_state(program, jnp.asarray(memory_words(program, values, np)))
        yield lambda p=spoiled, s=state: engine.run(p, s, _LIMIT, start=True)


def plane_calls(rng):
    """Calls of the timing plane."""
    programs = []
    for program, _ in fabric_rules.CASES.values():
        try:
            programs.append(native.prepare_words(*planar.plane_program(program)))
        except FabricError:  # it has switches, or tasks that start others
            continue
    while True:
        header, words = rng.choice(programs)
        given = [header, words]
        at = rng.choice([0, 0, 0, 1])
        given[at] = damaged_array(given[at], rng)
        given[0] = _limited(given[0], "plane")
        yield lambda given=given: native.run_words(*given)
