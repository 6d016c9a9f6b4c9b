"""Processes that watch over each other: the end of one is the end of all, in one line each.

They are small ones without JAX, which the contact does not need.
"""

import contextlib
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from helpers.paths import ROOT
from helpers.ports import free_address

from wafer.engines.contact import led_through

PROCESS = textwrap.dedent("""
    import sys, time
    from wafer.engines.contact import contact
    from wafer.engines.meeting import Member, meet
    address, count, index, seconds = sys.argv[1], *map(int, sys.argv[2:5])
    member = Member(address, count, index)
    peers = meet(member, {}, 300.0)
    print("met", flush=True)
    try:
        with contact(member, peers, 2.0):
            time.sleep(seconds)
            if index == int(sys.argv[5]):
                raise ValueError("the disk is full\\nand more")
    except ValueError as error:
        print("error:", str(error).splitlines()[0], flush=True)
    """)


def start(seconds, failing=-1):
    """Three processes, the given seconds long, once they have met."""
    address = free_address()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, address, "3", str(i), str(seconds[i]), str(failing)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(3)
    ]
    for process in started:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == "met\n", line + process.stdout.read()
    return started


def ends(process):
    out, _ = process.communicate(timeout=60)
    return process.returncode, out


def test_an_orderly_end_is_no_loss():
    """Each leaves when it is done, process 0 first or last."""
    for seconds in ((0, 1, 2), (2, 1, 0)):
        assert [ends(process) for process in start(seconds)] == [(0, "")] * 3


@pytest.mark.parametrize(
    ("lost", "how"),
    [
        (2, signal.SIGKILL),
        (0, signal.SIGSTOP),
        pytest.param(0, signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param(2, signal.SIGSTOP, marks=pytest.mark.slow),
    ],
)
def test_who_is_killed_or_stopped_is_missed(lost, how):
    started = start((60, 60, 60))
    started[lost].send_signal(how)
    what = "is gone" if how == signal.SIGKILL else f"nothing heard of process {lost} for 2 s"
    for index in {0, 1, 2} - {lost}:
        code, out = ends(started[index])
        assert code == 1
        assert out.startswith(f"wafer: error: process {index} of 3 lost contact with another")
        assert out.count("\n") == 1
        assert what in out or "process 0 is gone" in out
    started[lost].send_signal(signal.SIGCONT)
    code, out = ends(started[lost])
    if how == signal.SIGSTOP:
        assert (code, out.count("\n")) == (1, 1)


def test_an_error_of_one_ends_all_and_is_named():
    started = start((60, 1, 60), failing=1)
    assert ends(started[1]) == (1, "error: the disk is full\n")
    for index in (0, 2):
        code, out = ends(started[index])
        assert code == 1
        assert "(process 1 of 3 ended: the disk is full). Start all processes again" in out


@pytest.mark.slow
def test_a_pause_of_all_is_no_loss():
    """A suspended terminal: silence is counted in a process's own beats."""
    started = start((4, 4, 4))
    for process in started:
        process.send_signal(signal.SIGSTOP)
    time.sleep(4)
    for process in started:
        process.send_signal(signal.SIGCONT)
    assert [ends(process) for process in started] == [(0, "")] * 3


def test_a_connection_that_is_led_through_outlives_the_service():
    with socket.create_server(("127.0.0.1", 0)) as service:
        address = led_through(f"127.0.0.1:{service.getsockname()[1]}")
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), timeout=5) as client:
            inside, _ = service.accept()
            sent = b"x" * 300_000
            threading.Thread(target=client.sendall, args=(sent,), daemon=True).start()
            got = b""
            while len(got) < len(sent):
                got += inside.recv(1 << 16)
            assert got == sent
            inside.sendall(b"answer")
            assert client.recv(10) == b"answer"
            inside.close()
            client.settimeout(0.5)
            with pytest.raises(TimeoutError):  # not b"", which would be its end
                client.recv(1)


def test_the_end_of_a_client_reaches_the_service():
    with socket.create_server(("127.0.0.1", 0)) as service:
        host, _, port = led_through(f"127.0.0.1:{service.getsockname()[1]}").partition(":")
        client = socket.create_connection((host, int(port)), timeout=5)
        inside, _ = service.accept()
        with inside, contextlib.suppress(ConnectionResetError):
            client.close()
            inside.settimeout(5)
            assert inside.recv(1) == b""
