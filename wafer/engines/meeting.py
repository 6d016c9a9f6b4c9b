"""Processes of one run meet at the coordinator's address and see that they agree.

JAX takes whoever comes and trains with whatever each of them believes. So they talk over plain
sockets first: each says who it is and what it is about to do, process 0 compares and lets all
begin or none. Everything ends in one line, within a stated time.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import select
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from wafer.errors import TrainingError

__all__ = ["BIND", "Member", "Peer", "differences", "host_and_port", "meet"]

BIND = "JAX_COORDINATOR_BIND_ADDRESS"  # JAX's own; for hosts whose name leads elsewhere
_BANNER = {"wafer": "several processes, 1"}
_LONGEST = 1 << 22  # bytes of a message
_ANSWER = 10.0  # seconds for what is sent at once
_LATE = 10.0  # seconds that the others have left to come and hear of a problem
_RETRY = 0.2  # seconds
_SHOWN = 8  # differences
_WIDTH = 60  # characters of a value
_BEFORE = 20  # characters before the first difference

Facts = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Member:
    """A process's place in the cluster.

    Attributes:
        coordinator: host:port of process 0.
        count: processes.
        index: of this one.
    """

    coordinator: str
    count: int
    index: int

    def __str__(self) -> str:
        return f"process {self.index} of {self.count}"


@dataclasses.dataclass(frozen=True)
class Peer:
    """Another process, and the connection that both keep as long as they live."""

    index: int
    line: socket.socket


def host_and_port(address: str) -> tuple[str, int]:
    """Split ``HOST:PORT``; an IPv6 host may be in brackets.

    Raises:
        TrainingError: it is none.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise TrainingError(f"--coordinator {address!r}: expected HOST:PORT of process 0")
    return host.strip("[]"), int(port)


def differences(here: Facts, there: Facts) -> list[str]:
    """Name the keys whose values differ: the first eight, and how many more.

    >>> differences({"seed": 1, "width": 8}, {"seed": 2, "width": 8})
    ['seed (1 and 2)']
    """
    keys = [*here, *(key for key in there if key not in here)]
    unequal = [key for key in keys if here.get(key) != there.get(key)]
    named = [f"{key} ({_shown_pair(here.get(key), there.get(key))})" for key in unequal]
    more = len(named) - _SHOWN
    return [*named[:_SHOWN], *([f"{more} more"] if more > 0 else [])]


def _shown_pair(here: Any, there: Any) -> str:
    """Write two values; long ones from shortly before the first difference."""
    texts = ["nothing" if value is None else str(value) for value in (here, there)]
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False))
    start = max(sum(1 for _ in same) - _BEFORE, 0)
    if start and max(map(len, texts)) > _WIDTH:
        texts = ["..." + text[start:] for text in texts]
    return " and ".join(t if len(t) <= _WIDTH else t[: _WIDTH - 3] + "..." for t in texts)


def meet(member: Member, facts: Facts, patience: float) -> list[Peer]:
    """Wait for the others and compare what they are about to do.

    Args:
        member: this process.
        facts: name -> JSON value, which has to be the same in every process.
        patience: seconds until all must have come.

    Returns:
        The connections that stay: process 0 has one to each of the others, they to process 0.

    Raises:
        TrainingError: they disagree, one is missing or there twice, or the address is not ours.
    """
    facts = json.loads(json.dumps({"--num_processes": member.count, **facts}, default=str))
    deadline = time.monotonic() + patience
    if member.index == 0:
        return _receive(member, facts, deadline, patience)
    return [Peer(0, _present(member, facts, deadline, patience))]


# --- process 0 -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _door(member: Member) -> Iterator[socket.socket]:
    """Listen on the address that was given, and on no other."""
    address = os.environ.get(BIND, member.coordinator)
    try:
        host, port = host_and_port(address)
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        door = socket.create_server(place[:2], family=family)
    except OSError as error:
        raise TrainingError(
            f"{member} cannot listen at {address}: {error.strerror or error}. --coordinator is an "
            f"address of this machine with a port that nobody uses ({BIND} where they differ)"
        ) from None
    with door:
        yield door


def _receive(member: Member, facts: Facts, deadline: float, patience: float) -> list[Peer]:
    """Take everybody in; the end of all when they do not go together."""
    peers: list[Peer] = []
    problem = ""
    others = set(range(1, member.count))
    with _door(member) as door:
        while others - {peer.index for peer in peers} and _wait(door, deadline):
            guest, address = door.accept()
            hello = _introduced(guest)
            if hello is None:  # a scanner, a browser, a process that was stopped
                guest.close()
                continue
            peer = Peer(hello["process"], guest)
            known = {peer.index for peer in peers} | {0}
            peers.append(peer)
            problem = problem or _unfit(peer.index, known, address, facts, hello["facts"])
            if problem:
                deadline = min(deadline, time.monotonic() + _LATE)
    missing = sorted(others - {peer.index for peer in peers})
    if missing and not problem:
        names = ", ".join(map(str, missing))
        problem = f"process {names} of {member.count} did not come within {patience:g} s"
    for peer in peers:
        with contextlib.suppress(OSError):
            _say(peer.line, {"end": problem})
        if problem:
            peer.line.close()
    if problem:
        raise TrainingError(f"{member}: {problem}")
    return peers


def _introduced(guest: socket.socket) -> dict[str, Any] | None:
    """What a guest says of itself; None when it is no process of a run."""
    try:
        _say(guest, _BANNER)
        hello = _heard(guest, time.monotonic() + _ANSWER)
    except (OSError, ValueError):
        return None
    sound = hello.keys() == {"process", "facts"} and isinstance(hello["facts"], dict)
    return hello if sound and isinstance(hello["process"], int) else None


def _unfit(index: int, known: set[int], address: Any, here: Facts, there: Facts) -> str:
    unequal = differences(here, there)
    if unequal:
        return (
            f"process 0 and process {index} differ in {', '.join(unequal)}. Give all processes "
            "the same run file, flags, code and checkpoints"
        )
    if index in known:
        return f"--process_id {index} is there twice (the second time from {address[0]})"
    return ""


# --- the others ----------------------------------------------------------------------------------


def _present(member: Member, facts: Facts, deadline: float, patience: float) -> socket.socket:
    """Find process 0, introduce this one, hear the verdict."""
    where = host_and_port(member.coordinator)
    met = False
    while time.monotonic() < deadline:
        try:
            line = socket.create_connection(where, timeout=_ANSWER)
        except socket.gaierror as error:
            raise TrainingError(f"{member}: --coordinator {where[0]}: {error.strerror}") from None
        except OSError:
            time.sleep(_RETRY)
            continue
        try:
            _greeted(line, member)
            met = True
            _say(line, {"process": member.index, "facts": facts})
            verdict = _heard(line, deadline + 2 * _LATE)
        except (OSError, ValueError):  # it went; perhaps another is just starting
            line.close()
            time.sleep(_RETRY)
            continue
        except TrainingError:
            line.close()
            raise
        if verdict["end"]:
            line.close()
            raise TrainingError(f"{member}: {verdict['end']}")
        return line
    reason = "process 0 gave no answer" if met else "nobody listens there; is process 0 running?"
    raise TrainingError(f"{member}: not met at {member.coordinator} in {patience:g} s: {reason}")


def _greeted(line: socket.socket, member: Member) -> None:
    """Hear process 0's first words.

    Raises:
        TrainingError: those of another program.
        ValueError: none; the line was closed.
    """
    wanted, answer = json.dumps(_BANNER).encode() + b"\n", b""
    try:
        while answer != wanted and wanted.startswith(answer):
            piece = line.recv(len(wanted) - len(answer))
            if not piece:
                raise ValueError("closed")
            answer += piece
    except TimeoutError:
        answer = answer or b"nothing"
    if answer != wanted:
        raise TrainingError(
            f"{member}: what listens at {member.coordinator} is no process 0 that waits for others "
            f"(it says {answer[:40]!r}): another program, a run that has begun, or a stopped one"
        )


# --- lines of JSON -------------------------------------------------------------------------------


def _say(line: socket.socket, message: Mapping[str, Any]) -> None:
    line.settimeout(_ANSWER)
    line.sendall(json.dumps(message).encode() + b"\n")


def _heard(line: socket.socket, deadline: float) -> dict[str, Any]:
    """Read one line.

    Raises:
        OSError: it takes too long.
        ValueError: it is no JSON object, or too long.
    """
    text = b""
    while not text.endswith(b"\n"):
        line.settimeout(max(deadline - time.monotonic(), 0.01))
        piece = line.recv(1 << 16)
        if not piece or len(text) > _LONGEST:
            raise ValueError("the line was closed")
        text += piece
    message = json.loads(text)
    if not isinstance(message, dict):
        raise ValueError("no JSON object")
    return message


def _wait(door: socket.socket, deadline: float) -> bool:
    """Whether somebody stands at the door before the deadline."""
    return bool(select.select([door], [], [], max(deadline - time.monotonic(), 0.0))[0])
