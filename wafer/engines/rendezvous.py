"""Checks around ``jax.distributed``: processes agree before the first step, and notice a lost one.

JAX's coordination service connects the processes. It does not compare what they are about to do,
and ends a process in C++, with a stack, when another is lost. So the processes exchange their
configurations and their signs of life through its key-value store; JAX's own timeouts come later.
"""

import atexit
import contextlib
import dataclasses
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import NoReturn, Protocol

from wafer.errors import TrainingError

_SHOWN = 8  # differences
_WIDTH = 60  # characters of a value
_BEFORE = 20  # characters before the first difference
_BEAT = 1.0  # seconds
_ENDING = threading.Lock()  # taken once, never released: the first caller writes the one line


class KeyValueStore(Protocol):
    """What is used of JAX's distributed client."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        """Store a value that every process can read."""

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        """Read all pairs below a key."""
        ...

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        """Wait for a value."""
        ...


@dataclasses.dataclass(frozen=True)
class Peer:
    """A process's place in the cluster."""

    coordinator: str  #: host:port of process 0
    count: int  #: processes
    index: int  #: of this one

    def __str__(self) -> str:
        return f"process {self.index} of {self.count}"


def give_up(member: Peer, reason: str) -> NoReturn:
    """Write one line and exit without waiting.

    The clean way out is a barrier, which a lost process never reaches.
    """
    _ENDING.acquire()
    sys.stderr.write(f"wafer: error: {member} {reason}\n")
    sys.stderr.flush()
    os._exit(1)


@contextlib.contextmanager
def join_limit(member: Peer, patience: float) -> Iterator[None]:
    """End the process with one line when the block, which joins the others, takes longer.

    Args:
        member: this process.
        patience: seconds.
    """
    reason = (
        f"did not meet the other processes at {member.coordinator} within {patience:g} s: one of "
        "them did not start, two have the same --process_id, or another program has this address"
    )
    timer = threading.Timer(patience, give_up, (member, reason))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# --- agreement -----------------------------------------------------------------------------------


def agree(store: KeyValueStore, member: Peer, facts: Mapping[str, object], patience: float) -> None:
    """Compare what the processes are about to do.

    Args:
        store: JAX's client.
        member: this process.
        facts: name -> JSON value, which has to be the same in every process.
        patience: seconds to wait for each of the others.

    Raises:
        TrainingError: they differ; every process raises it with the same keys.
    """
    text = json.dumps({"--num_processes": member.count, **facts}, default=str)
    store.key_value_set(f"wafer/facts/{member.index}", text)
    wait = lambda index: json.loads(
        store.blocking_key_value_get(f"wafer/facts/{index}", round(patience * 1000))
    )
    first = wait(0)
    for index in range(1, member.count):
        unequal = differences(first, wait(index))
        if unequal:
            raise TrainingError(
                f"{member}: process 0 and process {index} differ in {', '.join(unequal)}. Give "
                "all processes the same run file, flags, code and checkpoints"
            )


def differences(here: Mapping[str, object], there: Mapping[str, object]) -> list[str]:
    """Name the keys whose values differ: the first eight, and how many more.

    >>> differences({"seed": 1, "width": 8}, {"seed": 2, "width": 8})
    ['seed (1 and 2)']
    """
    keys = [*here, *(key for key in there if key not in here)]
    unequal = [key for key in keys if here.get(key) != there.get(key)]
    named = [f"{key} ({_shown_pair(here.get(key), there.get(key))})" for key in unequal]
    more = len(named) - _SHOWN
    return [*named[:_SHOWN], *([f"{more} more"] if more > 0 else [])]


def _shown_pair(here: object, there: object) -> str:
    """Write two values; long ones from shortly before the first difference."""
    texts = ["nothing" if value is None else str(value) for value in (here, there)]
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False))
    start = max(sum(1 for _ in same) - _BEFORE, 0)
    if start and max(map(len, texts)) > _WIDTH:
        texts = ["..." + text[start:] for text in texts]
    return " and ".join(t if len(t) <= _WIDTH else t[: _WIDTH - 3] + "..." for t in texts)


# --- signs of life -------------------------------------------------------------------------------


@contextlib.contextmanager
def watch(store: KeyValueStore, member: Peer, heartbeat: float) -> Iterator[threading.Event]:
    """End this process when another one fails, is killed or is stopped during the block.

    An error in the block ends the other processes as well.

    Args:
        store: JAX's client.
        member: this process.
        heartbeat: seconds of silence after which a process counts as lost.

    Yields:
        An event to set before the processes leave JAX's service: silence is no loss from then on.
    """
    leaving, ended = threading.Event(), threading.Event()
    beat = min(_BEAT, heartbeat / 4)
    signs = _signs(store, member, heartbeat, beat)

    def send() -> None:
        while not ended.wait(beat):
            lost = next(signs)
            if lost and not (leaving.is_set() or ended.is_set()):
                _outlive_others(member, beat)
                give_up(member, lost_contact(lost))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield leaving
    except BaseException as error:
        reason = str(error).partition("\n")[0][:300] or type(error).__name__
        leaving.set()
        with contextlib.suppress(RuntimeError, ValueError):
            key = f"wafer/failed/{member.index}"
            store.key_value_set(key, f"{member} ended: {reason}", True)
        _outlive_others(member, beat)
        atexit.register(os._exit, 1)  # before JAX's own, which waits for the others
        raise
    finally:
        ended.set()
        thread.join(heartbeat)


def _outlive_others(member: Peer, beat: float) -> None:
    """JAX ends the others when its service, in process 0, ends: they read and write first."""
    if member.index == 0:
        time.sleep(2 * beat)


def _signs(store: KeyValueStore, member: Peer, heartbeat: float, beat: float) -> Iterator[str]:
    """Exchange signs of life; each element is the loss that was seen, or "".

    Silence is counted in own beats: a pause of all processes is none.
    """
    silent = dict.fromkeys(range(member.count), 0)
    last = dict.fromkeys(silent, "")
    silence = "nothing heard of process {} for " + f"{heartbeat:g} s"
    for number in itertools.count():
        limit = threading.Timer(heartbeat, give_up, (member, lost_contact(silence.format(0))))
        limit.daemon = True
        limit.start()
        try:
            store.key_value_set(f"wafer/beat/{member.index}", str(number), True)
            heard = dict(store.key_value_dir_get("wafer/beat/"))
            failed = store.key_value_dir_get("wafer/failed/")
        except (RuntimeError, ValueError) as error:  # the service has ended
            yield str(error).partition("\n")[0][:300]
            continue
        finally:
            limit.cancel()
        for index in silent:
            value = heard.get(f"wafer/beat/{index}", "")
            silent[index] = 0 if value != last[index] else silent[index] + 1
            last[index] = value
        lost = [silence.format(index) for index in silent if silent[index] * beat > heartbeat]
        yield next(iter([reason for _, reason in failed] + lost), "")


def lost_contact(reason: str) -> str:
    """Write why a run in several processes ends, and how to continue it."""
    return (
        f"lost contact with another process ({reason}). Start all processes again, as many as you "
        "like: the run continues from the last checkpoint."
    )
