"""How processes of one run meet: who is let in, who is not, and what each of them hears."""

import concurrent.futures
import contextlib
import socket
import time

import pytest
from helpers.ports import free_address

from wafer.engines.cluster import membership
from wafer.engines.meeting import Member, differences, host_and_port, meet
from wafer.errors import TrainingError


@pytest.fixture
def address():
    return free_address()


def attempt(member, facts, patience):
    """The number of peers, or the one line."""
    try:
        peers = meet(member, facts, patience)
    except TrainingError as error:
        return str(error)
    for peer in peers:
        peer.line.close()
    return f"{len(peers)} peers"


def meeting(address, facts, *, count=None, indices=None, patience=60.0):
    """Let one process per element of ``facts`` come; returns what each was told."""
    indices = range(len(facts)) if indices is None else indices
    members = [Member(address, count or len(facts), index) for index in indices]
    with concurrent.futures.ThreadPoolExecutor(len(facts)) as pool:
        return list(pool.map(attempt, members, facts, [patience] * len(facts)))


def knock(address):
    """A connection to process 0, as soon as it listens."""
    while True:
        with contextlib.suppress(OSError):
            return socket.create_connection(host_and_port(address))
        time.sleep(0.01)


def test_all_agree(address):
    answers = meeting(address, [{"seed": 1, "sizes": (2, 3)}] * 4)
    assert answers == ["3 peers", "1 peers", "1 peers", "1 peers"]


def test_a_difference_is_named_by_key_to_all(address):
    answers = meeting(address, [{"a.b": 1, "c": 2}, {"a.b": 1, "c": 2}, {"a.b": 1, "c": 3, "d": 0}])
    for index, line in enumerate(answers):
        assert line == (
            f"process {index} of 3: process 0 and process 2 differ in c (2 and 3), d (nothing and "
            "0). Give all processes the same run file, flags, code and checkpoints"
        )


def test_another_number_of_processes_is_a_difference(address):
    members = [Member(address, 2, 0), Member(address, 3, 1)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(attempt, members, [{}, {}], [60, 60]))
    assert all("differ in --num_processes (2 and 3)" in line for line in answers)


def test_the_same_process_id_twice(address):
    answers = meeting(address, [{}] * 3, indices=[0, 1, 1], patience=1.0)
    assert all("--process_id 1 is there twice" in line for line in answers)


def test_process_0_twice(address):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(attempt, Member(address, 2, 0), {}, 60.0)
        knock(address).close()
        refused = attempt(Member(address, 2, 0), {}, 60.0)
        assert attempt(Member(address, 2, 1), {}, 60.0) == first.result() == "1 peers"
    assert "cannot listen" in refused
    assert "Address already in use" in refused


def test_who_does_not_come_is_named_and_all_end_in_time(address):
    began = time.monotonic()
    answers = meeting(address, [{}] * 2, count=4, indices=[0, 2], patience=1.0)
    assert time.monotonic() - began < 10 * 1.0, "a hang: patience is 1 s"
    assert answers[0] == "process 0 of 4: process 1, 3 of 4 did not come within 1 s"
    assert answers[1] == "process 2 of 4: process 1, 3 of 4 did not come within 1 s"


def test_nobody_listens(address):
    began = time.monotonic()
    answers = attempt(Member(address, 2, 1), {}, 0.5)
    assert time.monotonic() - began < 10 * 0.5, "a hang: patience is 0.5 s"
    assert answers.endswith("in 0.5 s: nobody listens there; is process 0 running?")


@pytest.mark.parametrize("words", [b"HTTP/1.0 400 Bad Request\r\n", b"\0\0\x06\4\0\0"])
def test_a_foreign_program_at_the_address_is_told_at_once(address, words):
    with socket.create_server(host_and_port(address)) as foreign, contextlib.ExitStack() as kept:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answers = pool.submit(attempt, Member(address, 2, 1), {}, 30.0)
            guest, _ = foreign.accept()
            kept.enter_context(guest)
            guest.sendall(words)
            assert "is no process 0 that waits" in answers.result(timeout=60)
        assert "cannot listen" in attempt(Member(address, 2, 0), {}, 30.0)


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"process": "1"}\n', b""])
def test_strangers_who_knock_do_not_disturb(address, words):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(attempt, Member(address, 2, 0), {}, 60.0)
        with knock(address) as stranger:
            stranger.sendall(words)
        second = pool.submit(attempt, Member(address, 2, 1), {}, 60.0)
        assert (first.result(timeout=90), second.result(timeout=90)) == ("1 peers",) * 2


def test_process_0_listens_on_the_given_address_alone(address):
    _, port = host_and_port(address)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(attempt, Member(address, 2, 0), {}, 60.0)
        with knock(address), pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))
        assert attempt(Member(address, 2, 1), {}, 60.0) == first.result() == "1 peers"


def test_an_address_of_another_machine():
    answers = attempt(Member("192.0.2.1:4000", 2, 0), {}, 5.0)  # a number for documents only
    assert "cannot listen at 192.0.2.1:4000: " in answers


@pytest.mark.parametrize("address", ["host", "host:", ":12", "host:0", "host:65536", "host:x"])
def test_what_is_no_address(address):
    with pytest.raises(TrainingError, match="expected HOST:PORT"):
        host_and_port(address)


def test_addresses():
    assert host_and_port("[::1]:80") == ("::1", 80)
    assert host_and_port("a.b:8080") == ("a.b", 8080)


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
    assert member == Member(f"{host}:{61440 + 5000 - 4096}", 2, 1)
