"""Addresses for the servers that tests start."""

import contextlib
import random
import socket


def free_address():
    """Return a host:port that is not in use, below the ports that the system gives to clients.

    Those may be taken by a connection of another process before the test comes to use them.
    """
    numbers = random.SystemRandom()
    while True:
        port = numbers.randrange(15_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return f"127.0.0.1:{port}"
