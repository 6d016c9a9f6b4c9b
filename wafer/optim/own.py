"""An optimizer of a user: ``optimizer_type: "module:function"`` in a run file.

The function takes the section's keys that are not every optimizer's, and returns an
``optax.GradientTransformation`` that gives the direction, like ``optax.scale_by_adam``. Clipping,
decoupled weight decay, learning rates and their groups are put around it.
"""

from collections.abc import Mapping
from typing import Any

from models.errors import SectionError
from models.sections import parse
from models.usercode import call, check_arguments, find
from wafer.errors import ConfigError, Problem
from wafer.optim.sections import Optimizer

__all__ = ["OwnOptimizer", "parse_own"]


class OwnOptimizer(Optimizer):
    """The section.

    Attributes:
        arguments: of the function, (name, value) pairs.
    """

    arguments: tuple[tuple[str, Any], ...] = ()

    def links(self, link: Any) -> list[Any]:
        """The user's direction, then the decoupled decay."""
        direction = call(self.optimizer_type, find(self.optimizer_type), **dict(self.arguments))
        if not isinstance(direction, link.optax.GradientTransformation):
            message = (
                f"{self.optimizer_type!r} gave {type(direction).__name__}; expected an "
                "optax.GradientTransformation"
            )
            raise ConfigError([Problem(("optimizer", "optimizer_type"), message)])
        return [direction, link.decay, link.rate()]

    def to_dict(self) -> dict[str, Any]:
        """Plain YAML types that parse back to the same section."""
        out = super().to_dict()
        out.pop("arguments")
        return out | dict(self.arguments)


def parse_own(section: Mapping[str, Any]) -> OwnOptimizer:
    """Check the section, and call the function once to see that it can be.

    Raises:
        ConfigError: wrong keys; the function cannot be found or fails.
    """
    name = section["optimizer_type"]
    common = Optimizer.keys()
    ours = {k: v for k, v in section.items() if k in common}
    arguments = {k: v for k, v in section.items() if k not in ours}
    try:
        function = find(name)
        check_arguments(name, function, arguments)
        call(name, function, **arguments)
    except SectionError as error:
        raise ConfigError(error.problems) from error
    except ValueError as error:
        raise ConfigError([Problem(("optimizer_type",), str(error))]) from error
    return parse(OwnOptimizer, ours | {"arguments": tuple(arguments.items())})
