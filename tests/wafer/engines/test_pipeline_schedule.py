"""The pipeline's timetable: by hand for small cases, by its invariants and formulas for all."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st

from wafer.engines.stagewise.pipeline.schedule import (
    StageTask,
    bubble,
    forward_schedule,
    in_flight,
    needs,
    schedule,
    spans,
    table,
)

BY_HAND = {
    (1, 2): """
step   0   1   2   3   4
0     F0  B0  F1  B1   U""",
    (2, 3): """
step   0   1   2   3   4   5   6   7   8
0     F0  F1   .  B0  F2  B1   .  B2   U
1      .  F0  B0  F1  B1  F2  B2   U   .""",
    (3, 1): """
step   0   1   2   3   4   5   6
0     F0   .   .   .   .  B0   U
1      .  F0   .   .  B0   U   .
2      .   .  F0  B0   U   .   .""",
}
SIZES = st.tuples(st.integers(1, 9), st.integers(1, 20), st.booleans())
quick = settings(max_examples=60)


@pytest.mark.parametrize("sizes", BY_HAND)
def test_small_tables_by_hand(sizes):
    shown = table(schedule(*sizes), sizes[0])
    assert [row.split() for row in shown.splitlines()] == [
        row.split() for row in BY_HAND[sizes].strip().splitlines()
    ]


def test_deferred_updates_share_the_last_step():
    late = [task for task in schedule(3, 2, deferred=True) if task.phase == "update"]
    assert late == [StageTask(8, stage, "update") for stage in range(3)]
    with pytest.raises(
        ValueError, match=r"0 stage\(s\), 3 micro-batch\(es\) and 1 copies: expected at le"
    ):
        schedule(0, 3)


@quick
@given(SIZES, st.integers(1, 4))
def test_every_task_once_one_per_stage_and_step_after_what_it_needs(sizes, copies):
    stages, turns, deferred = sizes
    micro = turns * copies
    tasks = schedule(stages, micro, copies=copies, deferred=deferred)
    at = {task[1:]: task.step for task in tasks}
    assert len(at) == len(tasks) == stages * (2 * micro + 1)
    busy = Counter((task.copy(copies), task.stage, task.step) for task in tasks)
    assert max(busy.values()) == 1
    for task in tasks:
        for need in needs(task, stages, micro, copies=copies, deferred=deferred):
            assert at[need] < task.step
    order = [at[0, "backward", part] for part in range(micro)]
    assert order == sorted(order)  # gradients add up in the order of the micro-batches
    assert list(tasks) == sorted(tasks, key=lambda task: (task.step, task.stage, task.micro))
    assert idle_share(tasks, copies * stages) == bubble(stages, micro, copies=copies)


def idle_share(tasks, stages):
    """Share of (stage, step) pairs without a task, counted."""
    steps = 1 + max(task.step for task in tasks)
    return 1 - Fraction(len(tasks), steps * stages)


@quick
@given(SIZES)
def test_the_bubble_is_its_formula_and_activations_are_bounded_by_theirs(sizes):
    stages, micro, deferred = sizes
    tasks = schedule(stages, micro, deferred=deferred)
    assert idle_share(tasks, stages) == bubble(stages, micro)
    evaluation = forward_schedule(stages, micro)
    assert idle_share(evaluation, stages) == bubble(stages, micro, train=False)
    for stage in range(stages):
        held = most = 0
        for task in tasks:
            if task.stage == stage:
                held += {"forward": 1, "backward": -1, "update": 0}[task.phase]
                most = max(most, held)
        assert held == 0
        assert most == in_flight(stages, micro, stage)


@quick
@given(SIZES)
def test_in_steady_state_every_region_works(sizes):
    stages, micro, _ = sizes
    latency, steady, drain = spans(stages, micro)
    busy = Counter(task.step for task in schedule(stages, micro))
    assert latency + steady + drain == 1 + max(busy)
    full = [step for step in range(latency, latency + steady) if busy[step] == stages]
    assert len(full) == steady
    assert (steady > 0) == (micro >= stages)


def test_known_fractions():
    assert bubble(4, 8) == Fraction(6, 23)
    assert bubble(1, 5) == 0
    assert bubble(4, 8, train=False) == Fraction(3, 11)  # (S - 1) / (S + M - 1)
