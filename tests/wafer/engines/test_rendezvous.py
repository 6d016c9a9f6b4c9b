"""Processes of one run: they agree before the first step, and a lost one ends the others.

A dictionary stands in for the store of JAX's service; ``test_cluster`` has real processes.
"""

import concurrent.futures
import contextlib
import threading

import pytest

from wafer.engines import rendezvous
from wafer.engines.cluster import joined, membership
from wafer.engines.rendezvous import Peer, agree, differences, join_limit, watch
from wafer.errors import TrainingError

HANG = 60.0  # seconds


class Store:
    """A key-value store of threads; ``fault`` is called at the beginning of each access."""

    def __init__(self):
        self.pairs, self.changed = {}, threading.Condition()
        self.fault = lambda: None

    def key_value_set(self, key, value, allow_overwrite=False):
        self.fault()
        with self.changed:
            assert allow_overwrite or key not in self.pairs
            self.pairs[key] = value
            self.changed.notify_all()

    def key_value_dir_get(self, key):
        self.fault()
        with self.changed:
            return [pair for pair in self.pairs.items() if pair[0].startswith(key)]

    def blocking_key_value_get(self, key, timeout_in_ms):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.pairs, timeout_in_ms / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED")
            return self.pairs[key]


def agreement(facts, counts=None):
    """What each process is told, one per element of ``facts``: "" when all agree."""
    store = Store()

    def one(index):
        count = counts[index] if counts else len(facts)
        try:
            agree(store, Peer("host:1", count, index), facts[index], HANG)
        except TrainingError as error:
            return str(error)
        return ""

    with concurrent.futures.ThreadPoolExecutor(len(facts)) as pool:
        return list(pool.map(one, range(len(facts))))


def test_all_agree():
    assert agreement([{"seed": 1, "sizes": (2, 3)}] * 4) == [""] * 4


def test_a_difference_is_named_by_key_to_all():
    told = agreement([{"a.b": 1, "c": 2}, {"a.b": 1, "c": 2}, {"a.b": 1, "c": 3, "d": 0}])
    for index, line in enumerate(told):
        assert line == (
            f"process {index} of 3: process 0 and process 2 differ in c (2 and 3), d (nothing and "
            "0). Give all processes the same run file, flags, code and checkpoints"
        )


def test_another_number_of_processes_is_a_difference():
    told = agreement([{}, {}], counts=[2, 3])
    assert all("differ in --num_processes (2 and 3)" in line for line in told if line)
    assert told[0]


@pytest.mark.parametrize("address", ["host", "host:", ":12", "host:0", "host:65536", "host:x"])
def test_what_is_no_address(address):
    with (
        pytest.raises(TrainingError, match="expected HOST:PORT"),
        joined(Peer(address, 2, 0), {}, 1.0, 1.0),
    ):
        pass


@pytest.fixture
def said(monkeypatch):
    """Lines of processes that give up: (index, reason); and an event for the first of them."""
    lines, first = [], threading.Event()

    def give_up(member, reason):
        lines.append((member.index, reason))
        first.set()

    monkeypatch.setattr(rendezvous, "give_up", give_up)
    return lines, first


def test_a_process_that_is_late_ends_in_one_line(said):
    lines, first = said
    with join_limit(Peer("host:1", 2, 1), 0.01):
        assert first.wait(HANG)
    index, reason = lines[0]
    assert index == 1
    assert reason.startswith("did not meet the other processes at host:1 within 0.01 s: one of")


def test_a_process_in_time_does_not(said):
    lines, _ = said
    with join_limit(Peer("host:1", 2, 1), HANG):
        pass
    assert not lines


def watched(store, index, count=2, heartbeat=0.2):
    return watch(store, Peer("host:1", count, index), heartbeat)


def test_a_silent_process_ends_the_others(said):
    """Process 2 never gives a sign of life; the two others do."""
    lines, first = said
    store = Store()
    with watched(store, 0, 3), watched(store, 1, 3):
        assert first.wait(HANG)
    assert "(nothing heard of process 2 for 0.2 s). Start all processes again" in lines[0][1]


def test_processes_that_live_and_leave_are_not_lost(said):
    lines, _ = said
    store = Store()
    with watched(store, 0, heartbeat=4.0) as leaving, watched(store, 1, heartbeat=4.0) as other:
        while set(store.pairs) != {"wafer/beat/0", "wafer/beat/1"}:
            other.wait(0.01)
        other.set()
        leaving.set()
    assert not lines


def test_an_error_of_one_process_ends_the_others_and_is_named(said, monkeypatch):
    lines, first = said
    kept = []
    monkeypatch.setattr(rendezvous.atexit, "register", lambda *call: kept.append(call))
    store = Store()
    with watched(store, 0):
        with pytest.raises(ValueError, match="disk"), watched(store, 1):
            raise ValueError("the disk is full\nand more")
        assert first.wait(HANG)
    assert lines[0][0] == 0
    assert "(process 1 of 2 ended: the disk is full). Start all processes again" in lines[0][1]
    assert len(kept) == 1  # the end of the process does not wait for the others


def test_the_end_of_the_service_is_the_end(said):
    lines, first = said
    store = Store()

    def fault():
        raise RuntimeError("UNAVAILABLE: Socket closed\nmore")

    with watched(store, 1):
        store.fault = fault
        assert first.wait(HANG)
    assert "lost contact with another process (UNAVAILABLE: Socket closed)" in lines[0][1]


def test_a_service_that_does_not_answer_is_a_silent_process_0(said):
    lines, first = said
    store = Store()
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: setattr(store, "fault", lambda: None))
        stack.enter_context(watched(store, 1))
        store.fault = lambda: first.wait(HANG)
        assert first.wait(HANG)
    assert "nothing heard of process 0 for 0.2 s" in lines[0][1]


def test_many_differences_are_counted_and_long_values_cut():
    here = {f"k{i}": i for i in range(11)}
    there = {f"k{i}": "v" * 99 for i in range(11)}
    named = differences(here, there)
    assert len(named) == 9
    assert named[0] == "k0 (0 and " + "v" * 57 + "...)"
    assert named[-1] == "3 more"
    assert not differences(here, dict(reversed(here.items())))


def test_long_values_are_shown_where_they_differ():
    lists = [["x" * 70, {"scheduler": name}, "y" * 70] for name in ("Linear", "Cosine")]
    (named,) = differences({"rate": lists[0]}, {"rate": lists[1]})
    first, second = named.removeprefix("rate (").removesuffix(")").split(" and ")
    assert "Linear" in first
    assert "Cosine" in second
    assert len(first) == len(second) == 60


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node1", "node1"),
        ("node1,gpu2", "node1"),
        ("node[003-007,9],gpu1", "node003"),
        ("node[003,007]", "node003"),
        ("node[5]", "node5"),
        ("a-b[01-02]", "a-b01"),
        ("cn[01-02]-ib0", "cn01-ib0"),
        ("rack[0-63]_blade[0-41]", "rack0_blade0"),
        ("rack[0,2]_blade[3-4],gpu1", "rack0_blade3"),
    ],
)
def test_slurm_names_the_first_host(nodes, host):
    slurm = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_JOB_ID": "5000"}
    member = membership(environ=slurm | {"SLURM_STEP_NODELIST": nodes})
    assert member == Peer(f"{host}:{61440 + 5000 - 4096}", 2, 1)
