"""The type checker of the default suite: every documented shape and dtype, and nothing else."""

import typing

import beartype
import jaxtyping
from jaxtyping import AbstractArray

_check = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))  # an int is a float


def _names_array(hint: object) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(map(_names_array, typing.get_args(hint)))


def checked(function):
    """Check the arguments and the result of a function whose signature names an array's shape."""
    hints = getattr(function, "__annotations__", {})
    return _check(function) if any(map(_names_array, hints.values())) else function


def _scoped(*, typechecker):
    """Give what names a shape jaxtyping's scope; it would slow down all others."""
    scope = _JAXTYPED(typechecker=typechecker)

    def decorate(thing):
        classes = thing.__mro__ if isinstance(thing, type) else [thing]
        hints = [h for c in classes for h in getattr(c, "__annotations__", {}).values()]
        return scope(thing) if any(map(_names_array, hints)) else thing

    return decorate


_JAXTYPED = jaxtyping.jaxtyped
jaxtyping.jaxtyped = _scoped  # which the import hook puts before every function
