"""Errors a user can cause, each saying where, what was found, what was expected.

The command line catches ``WaferError`` and prints the message without a trace-back; anything
else is a defect of ours. Packages left of ``wafer`` raise plain ``ValueError``.
"""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "CapacityError",
    "CheckpointError",
    "CompileError",
    "ConfigError",
    "DataError",
    "Problem",
    "TrainingError",
    "WaferError",
    "dotted",
]


class WaferError(Exception):
    """Base of every error that is the user's to fix."""


class Problem(NamedTuple):
    """One thing wrong with a configuration.

    path: keys and list indices from the root of what was checked, ('optimizer', 'betas', 0)
    message: what was found and what is allowed
    """

    path: tuple[str | int, ...]
    message: str


def dotted(path: Iterable[str | int]) -> str:
    """Write a path the way users read it.

    >>> dotted(("optimizer", "betas", 0))
    'optimizer.betas[0]'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


class ConfigError(WaferError, ValueError):
    """A configuration that cannot be run; lists every problem found, not only the first.

    Attributes:
        problems: where and what, in the order of the file.
        source: the file, or '' for a configuration built in Python.
    """

    def __init__(self, problems: Iterable[Problem], source: str = "") -> None:
        self.problems = tuple(problems)
        self.source = source
        lines = [self._line(p) for p in self.problems]
        head = f"{source}: " if source else ""
        if len(lines) != 1:
            head += f"{len(lines)} problems\n  "
        super().__init__(head + "\n  ".join(lines))

    @staticmethod
    def _line(problem: Problem) -> str:
        place = dotted(("config", *problem.path)) if problem.path else ""
        return f"{place}: {problem.message}" if place else problem.message

    def under(self, *parents: str | int) -> "ConfigError":
        """The same problems, seen from further up the configuration."""
        return ConfigError([Problem((*parents, *p.path), p.message) for p in self.problems])


class CheckpointError(WaferError, ValueError):
    """A checkpoint that is missing, damaged, or does not fit the model or the configuration."""


class CompileError(WaferError, ValueError):
    """A program that cannot be matched to kernels."""


class CapacityError(CompileError):
    """A model that does not fit on the wafer.

    Attributes:
        kernel: the one that needs most.
        needed: bytes that must be held at once, of all kernels.
        available: bytes the wafer's PEs have for them.
    """

    def __init__(self, message: str, *, kernel: str, needed: float, available: float) -> None:
        self.kernel, self.needed, self.available = kernel, needed, available
        super().__init__(message)


class DataError(WaferError, ValueError):
    """An input file or batch that cannot be trained on."""


class TrainingError(WaferError, RuntimeError):
    """A run that must stop: NaN or infinite loss, no step left to do, a lost worker."""
