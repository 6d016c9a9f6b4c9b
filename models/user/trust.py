"""Whether code that a file names, ``module:function``, may be imported: one rule for all readers.

A run imports what its run file names. A checkpoint may come from anywhere: what it names is refused
unless the user trusts it, by ``--trust_code`` or by a run file of the same command that names the
same.
"""

import argparse
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

__all__ = [
    "UntrustedError",
    "add_option",
    "code_in",
    "imports_allowed",
    "require_trusted",
    "trusting",
    "untrusted",
]


class UntrustedError(ValueError):
    """A file names code that nobody asked to run."""


_TRUSTED: ContextVar[frozenset[str] | None] = ContextVar(
    "trusted", default=frozenset()
)  # None: any
_READING: ContextVar[str] = ContextVar("reading", default="")  # the checkpoint that names code


@contextlib.contextmanager
def trusting(names: Iterable[str] = (), *, trust_code: bool = False) -> Iterator[None]:
    """Trust code in the block, besides what is trusted around it.

    Args:
        names: ``module:function`` that a run file of the user's names, from ``code_in``.
        trust_code: trust any.
    """
    outer = _TRUSTED.get()
    token = _TRUSTED.set(None if trust_code or outer is None else outer.union(names))
    try:
        yield
    finally:
        _TRUSTED.reset(token)


@contextlib.contextmanager
def untrusted(where: object) -> Iterator[None]:
    """Take names of code in the block for a checkpoint's.

    Args:
        where: the checkpoint, for the refusal.
    """
    token = _READING.set(str(where))
    try:
        yield
    finally:
        _READING.reset(token)


def imports_allowed(name: str = "") -> bool:
    """Whether code of this name may be imported here; of '', whether any may."""
    trusted = _TRUSTED.get()
    return not _READING.get() or trusted is None or name in trusted


def require_trusted(name: str) -> None:
    """Refuse code of a file that the user did not ask to run.

    Raises:
        UntrustedError: with the file, the name and the option.
    """
    if not imports_allowed(name):
        raise UntrustedError(
            f"{_READING.get()} names code, {name!r}, which is not imported: a checkpoint may come "
            "from anywhere. Give --trust_code (trust_code=True in Python), or a run file that "
            "names it"
        )


def code_in(section: Any) -> set[str]:
    """Collect every text of a run file that may name code, at any depth."""
    if isinstance(section, Mapping):
        section = list(section.values())
    if isinstance(section, list | tuple):
        return set().union(*map(code_in, section))
    return {section} if isinstance(section, str) and ":" in section else set()


def add_option(parser: argparse.ArgumentParser) -> None:
    """Declare ``--trust_code``; the command line trusts what it names while the command runs."""
    parser.add_argument(
        "--trust_code",
        action="store_true",
        help="import code that a checkpoint names (module:function); it may do anything",
    )
