"""Errors a user can cause, each saying where, what was found, what was expected.

The command line catches ``WaferError`` and prints the message without a trace-back; anything
else is a defect of ours. Packages left of ``wafer`` raise plain ``ValueError``.
"""

import contextlib
from collections.abc import Iterable, Iterator

from wafer.models.errors import CheckpointError, Problem, SectionError, dotted

__all__ = [
    "CapacityError",
    "CheckpointError",
    "CompileError",
    "ConfigError",
    "DataError",
    "Problem",
    "SectionError",
    "TrainingError",
    "WaferError",
    "dotted",
    "errors_of_file",
]


class WaferError(Exception):
    """Base of every error that is the user's to fix."""


class ConfigError(WaferError, SectionError):
    """A configuration that cannot be run; lists every problem found, not only the first.

    Attributes:
        problems: where and what, in the order of the file.
        source: the file, or '' for a configuration built in Python.
    """

    def __init__(self, problems: Iterable[Problem], source: str = "") -> None:
        super().__init__(problems)
        self.source = source

    def __str__(self) -> str:
        lines = self.lines("config")
        head = f"{self.source}: " if self.source else ""
        if len(lines) != 1:
            head += f"{len(lines)} problems\n  "
        return head + "\n  ".join(lines)


@contextlib.contextmanager
def errors_of_file(source: object) -> Iterator[None]:
    """Name the run file in errors of its sections that do not name it.

    Raises:
        ConfigError: in place of any ``SectionError`` of the block.
    """
    try:
        yield
    except SectionError as error:
        if isinstance(error, ConfigError) and error.source:
            raise
        raise ConfigError(error.problems, str(source)) from error


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
