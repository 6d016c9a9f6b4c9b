"""Functions of a user, named ``module:function`` in a run file: found, checked, called.

What goes wrong in them is said with the file and the line of the user's module.
"""

import inspect
import pkgutil
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from models.errors import Problem, SectionError, did_you_mean

__all__ = ["call", "check_arguments", "find", "is_own"]


def is_own(name: Any) -> bool:
    """Whether a name of a run file means code of the user."""
    return isinstance(name, str) and ":" in name


def find(name: str, known: Iterable[str] = ()) -> Callable[..., Any]:
    """Import ``module:function``; ``known`` are other names that may have been meant.

    Raises:
        ValueError: there is no such module or function, or importing it fails.
    """
    try:
        found = pkgutil.resolve_name(name)
    except AttributeError as error:
        near = did_you_mean(error.name, [*dir(error.obj), *known])
        raise ValueError(f"{name!r}: {error}{near}{_line(error)}") from error
    except ImportError as error:
        missing = f"{error}; is its folder on PYTHONPATH?"
        raise ValueError(f"{name!r}: {missing}{_line(error)}") from error
    except Exception as error:
        raise ValueError(f"{name!r}: importing it fails: {_said(error)}") from error
    if not callable(found):
        raise ValueError(f"{name!r}: expected a function, found {found!r}")
    return found


def check_arguments(name: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Compare the keys of a section with the parameters of a function.

    Raises:
        SectionError: a key that it does not take, or a parameter that the section lacks.
    """
    parameters = inspect.signature(function).parameters
    where = _place(function)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {
        k: p for k, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    problems = [
        Problem(
            (key,),
            f"{name}{where} does not take it{did_you_mean(key, named)}; it takes: "
            f"{', '.join(named) or 'nothing'}",
        )
        for key in arguments
        if key not in named and not takes_all
    ]
    problems += [
        Problem((key,), f"missing; {name}{where} has no default for it")
        for key, parameter in named.items()
        if parameter.default is parameter.empty and key not in arguments
    ]
    if problems:
        raise SectionError(problems)


def call(name: str, function: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
    """Call a function of the user.

    Raises:
        ValueError: it raised something; with the line of the user's file.
    """
    try:
        return function(*args, **arguments)
    except Exception as error:
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
        and "pkgutil" not in frame.filename
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _place(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""
