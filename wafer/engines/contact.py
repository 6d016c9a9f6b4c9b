"""Processes of one run notice when one of them has gone: ended, killed or stopped.

JAX's own answer is to end the others in C++, with a stack. So each keeps a connection to process 0
and says every second that it lives; who hears nothing, or that another failed, says so in one line
and ends. The connection to JAX's service is led through this process: when process 0 dies, the
C++ client does not see it, and this code speaks first.
"""

import atexit
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NoReturn

from wafer.engines.meeting import Member, Peer, host_and_port

__all__ = ["contact", "give_up", "led_through"]

_BEAT = 1.0  # seconds
_GRACE = 2.0  # seconds for the main thread to say why it fails itself
_ALIVE, _BYE = b"", b"bye"
_PIECE = 1 << 16  # bytes
_SLOW = 10.0  # seconds to connect
_GONE = "\0"  # the line was closed
_ENDING = threading.Lock()  # taken once, never given back: one line, whoever is first


def give_up(member: Member, reason: str) -> NoReturn:
    """Say that another process is lost, and end without waiting for anybody.

    The clean way out is a barrier, which a lost process never reaches.
    """
    _ENDING.acquire()
    sys.stderr.write(
        f"wafer: error: {member} lost contact with another process ({reason}). Start all "
        "processes again, as many as you like: the run continues from the last checkpoint.\n"
    )
    sys.stderr.flush()
    os._exit(1)


@contextlib.contextmanager
def contact(member: Member, peers: Sequence[Peer], heartbeat: float) -> Iterator[None]:
    """Watch over the others, and be watched, until the block ends.

    An error in the block ends the other processes as well.

    Args:
        member: this process.
        peers: from ``meet``.
        heartbeat: seconds of silence after which a process counts as lost.
    """
    ended = threading.Event()
    lines = {peer.index: peer.line for peer in peers}
    watch = threading.Thread(target=_watch, args=(member, lines, heartbeat, ended), daemon=True)
    watch.start()
    try:
        yield
    except BaseException as error:
        reason = str(error).partition("\n")[0][:300] or type(error).__name__
        ended.set()
        watch.join()
        _tell(lines, f"{member} ended: {reason}".encode())
        atexit.register(os._exit, 1)  # before JAX's own, which waits for the others
        raise
    ended.set()
    watch.join()
    _tell(lines, _BYE)


def _watch(
    member: Member, lines: dict[int, socket.socket], heartbeat: float, ended: threading.Event
) -> None:
    """Send and count beats; silence is counted in own beats, so that a pause of all is none."""
    beat = min(_BEAT, heartbeat / 4)
    silent = dict.fromkeys(lines, 0)
    for line in lines.values():
        line.setblocking(False)
    while lines and not ended.wait(beat):
        _tell(lines, _ALIVE)
        for index in list(lines):
            words = _words(lines[index])
            silent[index] = 0 if words else silent[index] + 1
            reason = next(
                (w.decode(errors="replace") for w in words if w not in (_ALIVE, _BYE)), ""
            )
            if _BYE in words:
                del lines[index]
            elif silent[index] * beat > heartbeat:
                reason = f"nothing heard of process {index} for {heartbeat:g} s"
            if reason:
                reason = reason.replace(_GONE, f"process {index} is gone")
                _tell(lines, reason.encode())
                time.sleep(_GRACE)
                if not ended.is_set():
                    give_up(member, reason)
                return


def _words(line: socket.socket) -> list[bytes]:
    """What came since the last look: beats, a good-bye, or why another process ended."""
    try:
        text = line.recv(_PIECE)
    except BlockingIOError:
        return []
    except OSError:
        text = b""
    return text.splitlines() if text else [_GONE.encode()]


def _tell(lines: dict[int, socket.socket], word: bytes) -> None:
    """Send a word to all; who cannot take it is found silent."""
    for line in lines.values():
        with contextlib.suppress(OSError):
            line.send(word + b"\n")


def led_through(address: str) -> str:
    """Lead connections to JAX's service through this process.

    They stay open here when the other side is gone.

    Args:
        address: host:port of the service, which may still be starting.

    Returns:
        Where the client of this process connects to.
    """
    door = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_lead, args=(door, host_and_port(address)), daemon=True).start()
    return f"127.0.0.1:{door.getsockname()[1]}"


def _lead(door: socket.socket, where: tuple[str, int]) -> None:
    held = []  # a socket that is forgotten is closed
    while True:
        client, _ = door.accept()
        try:
            service = socket.create_connection(where, timeout=_SLOW)
        except OSError:  # not up yet: the client comes again
            client.close()
            continue
        service.settimeout(None)
        held += [client, service]
        for pair in ((client, service), (service, client)):
            threading.Thread(target=_pass_on, args=(*pair, client), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            sink.sendall(piece)
    if source is client:  # its end is the service's to know, but not the other way round
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
