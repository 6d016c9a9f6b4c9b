"""Programs in a Python of their own."""

import os
import subprocess
import sys
import time


def ended(program, **settings):
    """Run a program to its end, with settings added to the environment; it must succeed.

    -P: the installed packages, which have the libraries, not the folder the tests run in.
    """
    environment = os.environ | {"JAX_PLATFORMS": "cpu"} | settings
    command = [sys.executable, "-P", "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


def until(condition, process=None, seconds=200):
    """Wait until a condition holds; a process that is given must run until then."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.1)
