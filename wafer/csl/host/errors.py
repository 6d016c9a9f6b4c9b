"""What can go wrong between a host and its program."""

import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from wafer.csl.syntax.source import CslWarning
from wafer.errors import WaferError
from wafer.models.errors import did_you_mean

_PACKAGE = str(Path(__file__).parents[2])  # wafer


class HostError(WaferError, ValueError):
    """A command that the program or its memory cannot carry out."""


class DeadlockError(HostError):
    """Nothing can move any more, and the host still waits.

    Attributes:
        waiting: all that waits, likely causes first; the message shows the first of them.
    """

    def __init__(self, message: str, waiting: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.waiting = tuple(waiting)


def check_keywords(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse keywords as Python does, and name the likely one.

    Args:
        call: the function's name.
        given: keywords that it has no parameter for.
        known: its keywords, and those without effect.

    Raises:
        TypeError: one of the given is not known.
    """
    known = [*known]
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}{hint}")


def warn_host(message: str) -> None:
    """Issue a ``CslWarning`` at the line of the host's script that leads here.

    Args:
        message: what is likely wrong, and the fix.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    warnings.warn_explicit(message, CslWarning, frame.f_code.co_filename, frame.f_lineno)


class FaultError(HostError):
    """The program did what the machine forbids, or one of its assertions failed."""
