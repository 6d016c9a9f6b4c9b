"""Functions of a user, named ``module:function`` in a run file: found, checked, called.

What goes wrong in them is said with the file and the line of the user's module.
"""

import dis
import functools
import hashlib
import importlib
import inspect
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from wafer.models.errors import Problem, SectionError, did_you_mean
from wafer.models.user.trust import (
    OURS,
    name_code,
    owner,
    require_trusted,
    require_users_module,
    searching,
)

NOTEBOOK = "notebook:"  # begins names of code that no module has
_FORMER = ("models", "sparsity", "vsl")  # names of our packages in programs of before 0.1
Result = TypeVar("Result")
# (kind, name) -> the function, and the modules that register it
_REGISTERED: dict[tuple[str, str], tuple[Callable[..., Any], frozenset[str]]] = {}
_REGISTERS = {  # kind -> what registers code of it
    "model": "wafer.register_model({}, {})",
    "optimizer": "wafer.register_optimizer({}, {})",
    "sparsity": "wafer.sparsity.register({})({}) (functions: by giving them in a mapping again)",
}
_GIVEN = "by giving it in a mapping again"
_DATA = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    list,
    tuple,
    dict,
    set,
    frozenset,
    functools.partial,
)
_EMPTY = types.CellType()  # of a name that is not bound yet


def running_modules() -> frozenset[str]:
    """Return the names of the modules whose code calls this, at any depth: imports among them."""
    frames = (frame for frame, _ in traceback.walk_stack(None))
    return frozenset(str(frame.f_globals.get("__name__")) for frame in frames)


def register(kind: str, name: str, function: Callable[..., object], known: Iterable[str]) -> None:
    """Let a name mean a function of the user; once more, it means the newer one.

    Args:
        kind: what it makes, 'model' or 'optimizer'.
        name: as run files will have it, or ``notebook:NAME`` as a record has it.
        function: which section's arguments go to.
        known: names that are taken.

    Raises:
        ValueError: no name, a name that is taken, or no function.
    """
    if not isinstance(name, str) or not name or ":" in name.removeprefix(NOTEBOOK):
        raise ValueError(f"{name!r}: expected a name, without a colon")
    if name in known:
        raise ValueError(f"{name!r} is the name of a {kind} of ours; choose another")
    if not callable(function):
        raise ValueError(f"{name!r}: expected a function, found {function!r:.200}")
    _REGISTERED[kind, name] = function, running_modules()
    name_code(kind, name)


def give_name(kind: str, function: Callable[..., Any]) -> str:
    """Register code of a program under a name that a run file and a record can hold.

    Args:
        kind: of ``wafer.models.user.trust.ENTRY_POINTS``.
        function: a class or a function.

    Returns:
        ``module:NAME`` where importing the user's module finds it, else ``notebook:NAME#DIGEST``:
        other code, defaults, base classes, values in its closure and in globals that it reads
        have another digest. Modules and what attributes of objects hold do not count.

    Raises:
        ValueError: it has no name.
    """
    module, path = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    bare_name = path.rpartition(".")[2]
    if not bare_name.isidentifier():
        raise ValueError(
            f"{function!r:.100} has no name, which a record needs; write it with `def` or `class`"
        )
    held = sys.modules.get(module) if module != "__main__" else None
    for part in path.split("."):
        held = getattr(held, part, None)
    users = held is function and not owner(module.partition(".")[0])
    name = f"{module}:{path}" if users else f"{NOTEBOOK}{bare_name}#{_digest(function)}"
    _REGISTERED[kind, name] = function, running_modules()
    name_code(kind, name)
    return name


def _digest(function: object) -> str:
    """Eight hex digits of what code does: the same for a cell that is run once more."""
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(_parts_of(function, {})))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _parts_of(value: object, numbers: dict[int, int]) -> object:
    """What a value holds, in the same order in every process, for ``repr``; each object once."""
    inside = lambda parts: [_parts_of(part, numbers) for part in parts]
    value = _unwrapped(value)
    if isinstance(value, list | dict | types.FunctionType | type):
        if id(value) in numbers:
            return f"object {numbers[id(value)]}"
        numbers[id(value)] = len(numbers)
    if isinstance(value, set | frozenset):
        return sorted(map(repr, inside(value)))
    if isinstance(value, type) and _is_users(value):
        members = {
            k: v for k, v in vars(value).items() if k in ("__init__", "__call__") or k[:2] != "__"
        }
        return inside(value.__mro__[1:]), *members, inside(members.values())
    value = _members(value)
    if isinstance(value, list | tuple):
        return inside(value)
    shape, data = getattr(value, "shape", None), getattr(value, "tobytes", None)
    return (shape, data()) if shape and data and not isinstance(value, type) else value


def _members(value: object) -> object:
    """Return what a mapping, a function or its code holds, as a tuple; else the value."""
    if isinstance(value, dict):
        return (*value.items(),)
    if isinstance(value, types.CodeType):
        return value.co_code, value.co_names, value.co_consts
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != _EMPTY]
        kept = value.__code__, value.__defaults__, value.__kwdefaults__
        return *kept, *cells, *_globals_of(value)
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.items()
    return value


def _unwrapped(value: object) -> object:
    """Return the function in a method, a property, ``jit`` or ``staticmethod``; else the value."""
    value = inspect.unwrap(value) if callable(value) else value
    value = value.fget if isinstance(value, property) else value
    return value.__func__ if isinstance(value, types.MethodType) else value


def _globals_of(function: types.FunctionType) -> list[tuple[str, object]]:
    """Return (name, value) of the data and the user's code that a function reads from globals."""
    if not _is_users(function):
        return []
    codes, names = [function.__code__], set[str]()
    for code in codes:  # and of functions in it, which are appended
        codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
        steps = dis.get_instructions(code)
        names |= {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    held = {name: function.__globals__.get(name) for name in sorted(names)}
    return [(name, value) for name, value in held.items() if _is_users(value)]


def _is_users(value: object) -> bool:
    """Whether a value is data, or code that no installed package has."""
    value = _unwrapped(value)
    if isinstance(value, types.FunctionType | type):
        return not owner((value.__module__ or "").partition(".")[0])
    return isinstance(value, (*_DATA, functools.partial)) or hasattr(value, "tobytes")


def find(
    name: str, known: Iterable[str], kind: str, folders: Iterable[str] = ()
) -> Callable[..., Any]:
    """Import ``module:function``, or take what is registered.

    Args:
        name: of the run file. ``module:name`` is the one that the module registers, else its
            function; what other modules register is not meant.
        known: other names that may have been meant.
        kind: of ``wafer.models.user.trust.ENTRY_POINTS``.
        folders: that are searched for the module, after those of ``sys.path``.

    Raises:
        ValueError: there is no such module or function, importing it fails, it is not the user's,
            or a file's that the user does not trust.
    """
    if (kind, name) in _REGISTERED:
        require_trusted(name, kind)
        return _REGISTERED[kind, name][0]
    if name.startswith(NOTEBOOK):
        ref = name.removeprefix(NOTEBOOK).partition("#")[0]
        raise ValueError(
            f"{name!r}: was written in a notebook or a program, and no module has it. Define {ref} "
            f"and register it, {_REGISTERS.get(kind, _GIVEN).format(repr(name), ref)}, or move it "
            "into a module"
        )
    imported, ref = import_code(name, kind, folders), name.partition(":")[2]
    registered, modules = _REGISTERED.get((kind, ref), (None, frozenset()))
    if registered is not None and imported.__name__ in modules:
        return registered
    try:
        function = functools.reduce(_member, ref.split("."), imported)
    except AttributeError as error:
        near = did_you_mean(error.name, [*dir(error.obj), *known])
        raise ValueError(f"{name!r}: {error}{near}") from error
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from None
    if not callable(function):
        raise ValueError(f"{name!r}: expected a function, found {function!r:.200}")
    if owner(_home(function)) in ("Python", "Wafer"):
        raise ValueError(
            f"{name!r} is {_home(function)}'s {function!r}; expected a function of your own. Write "
            "one that calls it"
        )
    return function


def _member(holder: object, name: str) -> object:
    """Return a part of the user's module; another module in it is not the user's to name."""
    member = getattr(holder, name)
    if isinstance(member, types.ModuleType) and owner(member.__name__.partition(".")[0]):
        raise ValueError(
            f"{name} is the module {member.__name__}; expected a function of your own. Write one "
            "that calls it"
        )
    return member


def _home(function: Callable[..., object]) -> str:
    """The package in which a function, or the class of what is called like one, is written."""
    if isinstance(function, functools.partial):
        return ""  # arguments are bound where it is made, which is the user's module
    function = inspect.unwrap(function)
    module = getattr(function, "__module__", None) or type(function).__module__
    return module.partition(".")[0]


def import_code(name: str, kind: str, folders: Iterable[str] = ()) -> types.ModuleType:
    """Import the module of ``module:function``: nothing else imports what a file names.

    Args:
        name: of the file.
        kind: of ``wafer.models.user.trust.ENTRY_POINTS``.
        folders: as for ``find``.

    Raises:
        ValueError: there is no such module, it is not the user's, importing it fails, or it is not
            trusted here.
    """
    require_trusted(name, kind)
    with searching(folders):
        require_users_module(name, kind)
        try:
            return importlib.import_module(name.partition(":")[0])
        except ImportError as error:
            first = str(error.name).partition(".")[0]
            ours = f"write `from wafer import {first}`"
            fix = ours if first in _FORMER else "is its folder on PYTHONPATH?"
            raise ValueError(f"{name!r}: {error}; {fix}{_line(error)}") from error
        except (Exception, SystemExit) as error:
            raise ValueError(f"{name!r}: importing it fails: {_said(error)}") from error


def check_arguments(
    name: str,
    function: Callable[..., object],
    arguments: Mapping[str, object],
    supplied: Iterable[str] = (),
) -> None:
    """Compare the keys of a section with the parameters of a function.

    Args:
        name: as the section names it.
        function: of the user.
        arguments: keys of the section that are the function's.
        supplied: parameters that the caller fills in; ``params`` among them takes any key.

    Raises:
        SectionError: a key that it does not take, or a parameter that the section lacks.
    """
    parameters = inspect.signature(function).parameters
    location, supplied = place(function), frozenset(supplied)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    takes_all |= "params" in supplied & parameters.keys()
    named = {
        k: p for k, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    problems = [
        Problem(
            (key,),
            f"{name}{location} does not take it{did_you_mean(key, named)}; it takes: "
            f"{', '.join(named) or 'nothing'}",
        )
        for key in arguments
        if key not in named and not takes_all
    ]
    problems += [
        Problem((key,), f"missing; {name}{location} has no default for it")
        for key, parameter in named.items()
        if parameter.default is parameter.empty and key not in arguments and key not in supplied
    ]
    if problems:
        raise SectionError(problems)


def call(name: str, function: Callable[..., Result], *args: object, **arguments: object) -> Result:
    """Call a function of the user.

    Raises:
        ValueError: it raised something; with the line of the user's file.
    """
    try:
        return function(*args, **arguments)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{name!r} fails: {_said(error)}") from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}{_line(error)}"


def _line(error: BaseException) -> str:
    """The last place in the user's code that an error went through."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename
        and not frame.filename.startswith("<")
        and frame.filename != __file__
        and "importlib" not in frame.filename
    ]
    # What of the user's called us comes after it; ours is said where there is nothing else.
    frames = [frame for frame in frames if not frame.filename.startswith(OURS)] or frames
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def place(function: Callable[..., object]) -> str:
    """Where a function is written, in brackets; '' where that is not known."""
    function = function.__init__ if isinstance(function, type) else function
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""
