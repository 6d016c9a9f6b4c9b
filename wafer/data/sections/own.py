"""Loaders of users: ``data_processor: "module:function"``, or a name that Python registered."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from wafer.data.sections.base import InputSection
from wafer.models.errors import SectionError
from wafer.models.sections import parse
from wafer.models.user.code import check_arguments

# What a function is given if it names it, besides the keys that every data processor has.
GIVEN = ("training", "seed", "epoch", "task_id", "num_tasks", "params")


class OwnInput(InputSection, reader="wafer.data.readers.own:own_batches"):
    """A user's loader: keys that every processor has, and the function's arguments."""

    #: of the function, (name, value) pairs as the section has them
    arguments: tuple[tuple[str, Any], ...] = ()

    @property
    def decides_shapes(self) -> bool:
        """The loader does."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Plain YAML types that parse back to the same section."""
        out = super().to_dict()
        out.pop("arguments")
        return out | {"task": self.task} | dict(self.arguments)


@functools.cache
def _of_task(name: str) -> type[OwnInput]:
    class OwnRows(OwnInput, task=name):
        """Rows of one task."""

    return OwnRows


def parse_own(name: str, function: Callable[..., Any], section: Mapping[str, Any]) -> OwnInput:
    """Check the section of a user's loader against the function's parameters.

    Args:
        name: as the section names it.
        function: the loader.
        section: with ``task`` beside the keys of every processor; 'lm' where it is left out.

    Raises:
        SectionError: keys that the function does not take, or that it needs.
    """
    common = (*InputSection.model_fields, "task")
    ours = {k: v for k, v in section.items() if k in common and k != "task"}
    arguments = {k: v for k, v in section.items() if k not in common}
    cls = _of_task(section.get("task", "lm"))
    problems = []
    try:
        check_arguments(name, function, arguments, supplied=(*InputSection.model_fields, *GIVEN))
    except SectionError as error:
        problems += error.problems
    try:
        inputs = parse(cls, ours | {"arguments": tuple(arguments.items())})
    except SectionError as error:
        raise SectionError([*problems, *error.problems]) from None
    if problems:
        raise SectionError(problems)
    return inputs
