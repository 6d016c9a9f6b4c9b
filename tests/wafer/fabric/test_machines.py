"""One program on both machines, C++ and JAX; which of them runs it."""

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from helpers import collective_cases, fabric_rules
from helpers.fabric_rows import ROW, random_row

from wafer import fabric
from wafer.errors import CompileError
from wafer.fabric.library import lowering
from wafer.machine import engine

LIMIT = 400


def agree(program, values, limit=LIMIT):
    """Both machines leave the same; the final state."""
    ends = [
        fabric.run(program, values, limit, implementation) for implementation in ("native", "jax")
    ]
    jax.tree.map(np.testing.assert_array_equal, ends[0].arrays, ends[1].arrays)
    for name in ("status", "busy", "end", "links"):
        np.testing.assert_array_equal(*(getattr(end, name) for end in ends), err_msg=name)
    assert ends[0].machine.cycle == ends[1].machine.cycle
    assert ends[0].machine.fault == ends[1].machine.fault
    return ends[0]


@pytest.mark.native
@pytest.mark.parametrize(
    "name",
    [
        n if n == "counter_filter" else pytest.param(n, marks=pytest.mark.slow)
        for n in fabric_rules.CASES
    ],
)
def test_both_machines_run_every_rule_alike(name):
    """Deadlocks and faults included, after some cycles and at the end."""
    program, values = fabric_rules.CASES[name]
    values = fabric_rules.VALUES.get(name, values)
    for limit in (7, LIMIT):
        agree(program, values, limit)


@pytest.mark.slow
@pytest.mark.native
@hypothesis.settings(max_examples=6)
@hypothesis.given(row=ROW, limit=st.integers(1, 60))
def test_both_machines_run_random_rows_alike(row, limit):
    a = np.arange(80, dtype=np.float32).reshape(1, 5, 16)
    agree(random_row(*row), {"a": a}, limit)


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.parametrize("name", ["shift3", "overheads"])
def test_both_machines_run_collectives_alike(name):
    program, _, x = collective_cases.CASES[name]
    agree(program, {"x": x}, 2000)


def test_machines_are_chosen_by_name(monkeypatch):
    program = lowering.chain_program(3, 1, 2)
    with pytest.raises(CompileError, match="'cuda'; there are auto, jax and native"):
        fabric.simulate(program, implementation="cuda")
    monkeypatch.setattr(engine, "available", lambda: False)
    with pytest.raises(CompileError, match=r"native machine is not built; to build it: `"):
        fabric.simulate(program, implementation="native")
    with pytest.raises(CompileError, match="the JAX machine records nothing"):
        fabric.trace.record(program)
