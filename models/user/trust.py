"""Whether code that a file names, ``module:function``, may be imported: one rule for all readers.

A run imports what its run file names. A checkpoint may come from anywhere, and a command that only
looks at a run file runs nothing of it: what these name is refused unless the user trusts it, by
``--trust_code`` or, for a checkpoint, by a run file of the same command whose section of the same
kind names it with the same arguments; numbers may differ. A name without a colon, under which the
program has registered code, imports nothing, but a checkpoint that has it needs the same trust.

Only a user's own module is imported: one on the path (PYTHONPATH, the working directory,
``runconfig.python_paths``), or of an installed package with an entry point of the kind's group.
"""

import argparse
import contextlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeGuard

#: kind of code -> group of entry points in which an installed package names its modules
ENTRY_POINTS: Mapping[str, str] = {
    "model": "wafer.models",
    "optimizer": "wafer.optimizers",
    "data": "wafer.data",
    "sparsity": "wafer.sparsity",
    "engine": "wafer.engines",
}
_WAFER = pathlib.Path(__file__).parents[2]  # in a checkout three of its packages are links
OURS = tuple(
    f"{os.path.realpath(_WAFER / package)}{os.sep}" for package in ("", "models", "sparsity", "vsl")
)
_INSTALLED = ("site-packages", "dist-packages")
_INTERPRETER = tuple(
    f"{os.path.realpath(sysconfig.get_path(name))}{os.sep}"
    for name in ("stdlib", "platstdlib", "scripts")
)


class UntrustedError(ValueError):
    """A file names code that nobody asked to run."""


_OF_SPARSITY = ("algorithm", "type", "budget", "schedule", "sparsity", "update", "drop_fraction")
#: section -> kind, keys that name code in it
SECTIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "model": ("model", ("name",)),
    "optimizer": ("optimizer", ("optimizer_type", "scheduler", "learning_rate", "weight_decay")),
    "train_input": ("data", ("data_processor",)),
    "eval_input": ("data", ("data_processor",)),
    "sparsity": ("sparsity", (*_OF_SPARSITY, "init_method")),
    "runconfig": ("engine", ("execution_strategy",)),
}


class NamedCode(NamedTuple):
    """Code that a section names."""

    kind: str  #: of ``ENTRY_POINTS``
    name: str  #: ``module:function``
    #: (key, value as JSON) of what is beside the name, without numbers; None: any are trusted
    arguments: frozenset[tuple[str, str]] | None = None


class _Reading(NamedTuple):
    """A file that is read, whose code is imported only where it is trusted."""

    where: str  #: the checkpoint; '' for the run file of a command that only looks
    note: str  #: what else the refusal says
    refused: list[str]  #: names, in the order in which they were refused
    codes: frozenset[NamedCode] = frozenset()  #: what the checkpoint's sections name


_REGISTERED = set[tuple[str, str]]()  # (kind, name) that programs give to code
# None: any
_TRUSTED: ContextVar[frozenset[NamedCode] | None] = ContextVar("trusted", default=frozenset())
# None: the run file of a run
_READING: ContextVar[_Reading | None] = ContextVar("reading", default=None)


def name_code(kind: str, name: str) -> None:
    """Note that a name means code of the running program, of a kind of ``ENTRY_POINTS``."""
    _REGISTERED.add((kind, _key(kind, name)))


def _key(kind: str, name: str) -> str:
    return name.lower() if kind == "sparsity" else name  # algorithms are found in any case


def is_user_defined(name: object, kind: str = "") -> TypeGuard[str]:
    """Whether a name of a run file means code of the user, of one kind or any."""
    if not isinstance(name, str):
        return False
    return ":" in name or (kind, _key(kind, name)) in _REGISTERED


@contextlib.contextmanager
def trusting(codes: Iterable[NamedCode] = (), *, trust_code: bool = False) -> Iterator[None]:
    """Trust code in the block, besides what is trusted around it.

    Args:
        codes: what a run file of the user's names, from ``code_in``.
        trust_code: trust any.
    """
    outer = _TRUSTED.get()
    token = _TRUSTED.set(None if trust_code or outer is None else outer.union(codes))
    try:
        yield
    finally:
        _TRUSTED.reset(token)


@contextlib.contextmanager
def _reading(
    source: str, note: str, codes: frozenset[NamedCode] = frozenset()
) -> Iterator[list[str]]:
    outer, refused = _READING.get(), []
    token = _READING.set(_Reading(source, note, refused, codes))
    try:
        yield refused
    finally:
        _READING.reset(token)
        if outer is not None:
            outer.refused.extend(refused)


def untrusted(
    source: object, note: str = "", sections: object = None
) -> contextlib.AbstractContextManager[list[str]]:
    """Take names of code in the block for a checkpoint's; it gets the list of those refused.

    Args:
        source: the checkpoint, for the refusal.
        note: what else the refusal says, a sentence.
        sections: of its record; a run file may vouch for the code that they name.
    """
    return _reading(str(source), note, code_in(sections))


def looking(note: str = "") -> contextlib.AbstractContextManager[list[str]]:
    """Look at a run file in the block, without running it; it gets the list of names refused.

    Args:
        note: what else the refusal says, a sentence.
    """
    return _reading("", note)


def is_looking() -> bool:
    """Whether a run file is only looked at here."""
    reading = _READING.get()
    return reading is not None and not reading.where


def imports_allowed() -> bool:
    """Whether any code may be imported here."""
    return _READING.get() is None or _TRUSTED.get() is None


def refusal(name: str) -> str:
    """Say why code is not imported here, and which option imports it."""
    source, note, *_ = _READING.get() or _Reading("", "", [])
    option = "Give --trust_code (trust_code=True in Python)"
    if source:
        message = (
            f"{source} names code, {name!r}, which is not imported: a checkpoint may come from "
            f"anywhere. {option}, or a run file that names it where the command takes one"
        )
    else:
        message = (
            f"{name!r} is code, which is not imported: this command only looks at the file. "
            f"{option} to import it"
        )
    return f"{message}. {note}" if note else message


def require_trusted(name: str, kind: str) -> None:
    """Refuse code of a file that the user did not ask to run.

    Args:
        name: of the code. A file that is only looked at may have those of the program that looks.
        kind: of ``ENTRY_POINTS``.

    Raises:
        UntrustedError: with the file, the name and the option.
    """
    reading, trusted = _READING.get(), _TRUSTED.get()
    if reading is None or trusted is None:
        return
    if not reading.where and (kind, _key(kind, name)) in _REGISTERED:
        return
    known = [code.arguments for code in trusted if code[:2] == (kind, name)]
    used = [code.arguments or frozenset() for code in reading.codes if code[:2] == (kind, name)]
    if known and (not reading.where or None in known):
        return
    own = frozenset().union(*filter(None, known))
    others = sorted(set().union(*used) - own)
    if known and used and not others:
        return
    reading.refused.append(name)
    text = refusal(name)
    if known and others:
        given = ", ".join(f"{key} = {value}" for key, value in others)
        text = f"{text}. The run file names it without these arguments of the checkpoint: {given}"
    raise UntrustedError(text)


def code_in(sections: object) -> frozenset[NamedCode]:
    """Collect the code that the sections of a run file or record name, where they name it."""
    codes = set[NamedCode]()
    if not isinstance(sections, Mapping):
        return frozenset()
    for section, (kind, keys) in SECTIONS.items():
        for mapping in _mappings(sections.get(section)):
            arguments = frozenset(
                (str(key), json.dumps(value, sort_keys=True, default=str))
                for key, value in mapping.items()
                if key not in keys and not isinstance(value, int | float | None)
            )
            names = map(mapping.get, keys)
            codes |= {
                NamedCode(kind, name, arguments) for name in names if is_user_defined(name, kind)
            }
    return frozenset(codes)


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    """Give a section's mappings, at any depth."""
    if isinstance(value, Mapping):
        yield value
        value = list(value.values())
    for part in value if isinstance(value, list | tuple) else ():
        yield from _mappings(part)


@contextlib.contextmanager
def searching(folders: Iterable[str]) -> Iterator[None]:
    """Find modules in these folders, too, after all others; no longer once the block fails.

    Their paths are made absolute: Python keeps what '.' was when it first looked there.
    """
    new = [folder for folder in map(os.path.abspath, folders) if folder not in sys.path]
    sys.path += new
    try:
        yield
    except BaseException:
        sys.path[:] = [folder for folder in sys.path if folder not in new]
        raise


def child_environment() -> dict[str, str]:
    """Return the environment of a process that finds the modules which this one does.

    ``python -P`` starts it: else a module in the working directory would be found first.
    """
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def add_option(parser: argparse.ArgumentParser) -> None:
    """Declare ``--trust_code``; the command line trusts what it names while the command runs."""
    parser.add_argument(
        "--trust_code",
        action="store_true",
        help="import code that the file names (module:function); it may do anything",
    )


def require_users_module(name: str, kind: str) -> None:
    """Refuse modules of Python, of Wafer, and of packages that declare nothing for Wafer.

    Args:
        name: ``module:function``; nothing of it is imported.
        kind: of ``ENTRY_POINTS``.

    Raises:
        ValueError: it is none of the user's.
    """
    module, _, function = name.partition(":")
    package = module.partition(".")[0]
    whose = owner(package)
    if not whose or (whose == "installed" and _is_declared(module, function, kind)):
        return
    origin = {
        "Python": "part of Python",
        "Wafer": "part of Wafer",
        "installed": f"an installed package without an entry point {ENTRY_POINTS[kind]!r}",
    }[whose]
    raise ValueError(
        f"{name!r}: {package} is {origin}; expected a module of your own, on PYTHONPATH, in the "
        "working directory or in runconfig.python_paths. Write a function there that calls it"
    )


def owner(package: str) -> str:
    """Return whose a package is: 'Python', 'Wafer', 'installed', else '' (the user's, or none).

    Args:
        package: without a dot; nothing of it is imported.
    """
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # the running program, or made by it without a file
        return ""
    return "" if spec is None else owner_of(spec)


def owner_of(spec: importlib.machinery.ModuleSpec) -> str:
    """Return whose the package of a spec is, as ``owner`` does."""
    places = [*(spec.submodule_search_locations or ())]
    if spec.has_location and spec.origin is not None:
        places.append(spec.origin)
    return max(map(_owner_of, places), default="Python")  # one without a place is built in


def _owner_of(place: str) -> str:
    path = os.path.realpath(place)
    if f"{path}{os.sep}".startswith(OURS):
        return "Wafer"
    if any(part in _INSTALLED for part in pathlib.Path(path).parts):
        return "installed"
    return "Python" if path.startswith(_INTERPRETER) else ""


def _is_declared(module: str, function: str, kind: str) -> bool:
    """Whether an entry point names the function, or its module or one around that as a whole.

    A distribution opens modules of its own alone: 'x = yaml' in another's opens nothing.
    """
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS[kind]):
        whole = not point.attr and f"{module}.".startswith(f"{point.module}.")
        if whole or (point.module, point.attr) == (module, function):
            shipped = importlib.metadata.packages_distributions()
            package = module.partition(".")[0]
            if point.dist is not None and point.dist.name in shipped.get(package, ()):
                return True
    return False
