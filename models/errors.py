"""Errors about sections of a configuration, checkpoints and missing packages; no pydantic, no jax.

They are none of ``wafer``'s own, so that these packages need nothing of it to raise them.
"""

import difflib
import errno
import importlib
import itertools
import logging
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)  # numbers of a disk that takes no more
_LOG = logging.getLogger(__name__)
_EXTRAS = {  # package -> the extra that brings it
    "PIL": "pictures",
    "datasketch": "data",
    "ftfy": "data",
    "hdf5plugin": "mdl",
    "jinja2": "data",
    "lm_eval": "harness",
    "matplotlib": "pictures",
    "mlflow": "loggers",
    "pandas": "notebooks",
    "pyarrow": "data",
    "submitit": "cluster",
    "wandb": "loggers",
    "zstandard": "data",
}


class Problem(NamedTuple):
    """One thing wrong with a configuration."""

    #: keys and list indices from the root of what was checked, ('optimizer', 'betas', 0)
    path: tuple[str | int, ...]
    message: str  #: what was found and what is allowed
    unknown: str = ""  #: "key" or "section" where the path's last part is not known as one


def plain(text: str) -> str:
    r"""Spell out what would steer a terminal, or is no text at all: names of files are anything.

    >>> plain("a\x1b[31mb\n")
    'a\\x1b[31mb\n'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def first_lines(lines: Sequence[str], most: int = 20) -> str:
    """Join the first of many lines for a message, each indented, and count the rest."""
    more = [f"... and {len(lines) - most} more"] if len(lines) > most else []
    return "\n  ".join([*lines[:most], *more])


def dotted(path: Iterable[str | int]) -> str:
    """Write a path the way users read it.

    >>> dotted(("optimizer", "betas", 0))
    'optimizer.betas[0]'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def disk_full(error: Exception, path: str | os.PathLike[str]) -> OSError | None:
    """Return the error of a disk that takes no more, or None where the error is another.

    Args:
        error: any; tensorstore reports a full disk as ValueError, ``write`` without a file's name.
        path: what was being written, as the user knows it.
    """
    number = getattr(error, "errno", None)
    named = [n for n in DISK_FULL if os.strerror(n) in str(error)]
    number = number if number in DISK_FULL else next(iter(named), None)
    if number is None:
        return None
    return OSError(number, os.strerror(number), str(path))


class SectionError(ValueError):
    """A section that cannot be used; lists every problem found, not only the first.

    Attributes:
        problems: where and what, in the order of the section.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.lines()))

    def lines(self, *root: str) -> list[str]:
        """One line for each problem, its path seen from ``root``."""
        return [
            f"{dotted((*root, *path))}: {message}" if path else message
            for path, message, _ in self.problems
        ]

    def under(self, *parents: str | int) -> Self:
        """The same problems, seen from further up the configuration."""
        return type(self)([p._replace(path=(*parents, *p.path)) for p in self.problems])


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or does not fit the model or the configuration."""


class LinkError(CheckpointError):
    """A link out of a folder of weights: no damage, so nothing goes on without the folder."""


class MissingPackageError(ImportError):
    """A package that only some uses need is not installed; the message names the extra."""


def optional(module: str, why: str) -> Any:
    """Import a module of a package that only some uses need.

    Args:
        module: with dots, such as 'matplotlib.figure'.
        why: what needs it, the subject of the message.

    Raises:
        MissingPackageError: it is not installed; says how to install it.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        install = f"{shlex.quote(sys.executable)} -m pip install 'wafer-jax[{_EXTRAS[package]}]'"
        raise MissingPackageError(
            f"{why} needs the package {package}, which is not installed: {install}", name=package
        ) from error


def has(module: str, why: str) -> bool:
    """Import it for a by-product that a command can leave out; where it is missing, log that.

    Args:
        module: with dots.
        why: what is left out without it, the subject of the message.
    """
    try:
        optional(module, why)
    except MissingPackageError as error:
        _LOG.warning("%s", error)
        return False
    return True


def nearest(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known name most like another in any case, with the same numbers, or ''.

    Args:
        name: that is not known.
        known: names; of two that differ in case alone the last in order counts.
        cutoff: least likeness, from 0 to 1.
    """
    lower, own = {k.lower(): k for k in sorted(known)}, str(name).lower()
    others = [other for other in lower if _numbers(other) == _numbers(own)]
    near = difflib.get_close_matches(own, others, n=1, cutoff=cutoff)
    return lower[near[0]] if near else ""


def _numbers(name: str) -> list[str]:
    return re.findall(r"\d+", name)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return '; did you mean ...?' for the nearest known name in any case, or ''."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""


def matches_nothing(pattern: object, known: Iterable[str], examples: Iterable[str]) -> str:
    """Say that a pattern matches no name of a model.

    Args:
        pattern: of the user.
        known: what it could have been, for the nearest.
        examples: names of which three are listed.
    """
    near, such = did_you_mean(pattern, known), ", ".join(itertools.islice(examples, 3))
    return f"{pattern} matches no parameter{near}; the model has such as {such}"


def did_you_mean_model(name: object, known: Iterable[str]) -> str:
    """Return a hint for a model's name: like names are often those of other models.

    One wrong, missing, doubled or swapped letter is a slip, in names of five letters and more; case
    and separators do not count. Of the same words with another number the hint says what is there.
    """
    plain = lambda text: re.sub(r"[-_. /]", "", str(text).lower())
    bare = plain(name)
    others = {plain(item): item for item in sorted(known)}
    near = others.get(bare) or next((item for key, item in others.items() if _slip(bare, key)), "")
    if near:
        return f"; did you mean {near!r}?"
    letters = lambda text: re.sub(r"\d", "", text)
    cousins = [item for key, item in others.items() if letters(key) == letters(bare)]
    if not cousins:
        return ""
    what = "is another model" if len(cousins) == 1 else "are other models"
    return f"; {', '.join(map(repr, cousins))} {what}"


def _same_letters(first: str, second: str) -> int:
    """Return how many letters two words begin with alike."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def _slip(first: str, second: str) -> bool:
    """Whether two names differ in one letter, or in the order of two beside one another."""
    if min(len(first), len(second)) < 4 or _numbers(first) != _numbers(second):
        return False
    start = _same_letters(first, second)
    first, second = first[start:][::-1], second[start:][::-1]
    end = _same_letters(first, second)
    first, second = first[end:], second[end:]
    is_swap = len(first) == 2 and first == second[::-1]
    return is_swap or (max(len(first), len(second)) == 1 and start + end >= 4)
