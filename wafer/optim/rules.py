"""What an optimizer declares of each parameter, so that equal updates can share one program.

An engine that updates a part of the model at a time compiles an update once for all parts whose
parameters follow equal rules. Only who built an optimizer knows its rules: an optax transformation
is a function, and two parameters are treated alike where it happens to do so.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import optax

__all__ = ["Declared", "Rule", "rules_of"]


class Rule(NamedTuple):
    """How an optimizer treats one parameter, besides what it does to all of them.

    rate: index of its learning-rate schedule
    factor: on that rate: of its group, or from muP
    decay: index of its weight-decay schedule; None where it does not decay
    """

    rate: int
    factor: float
    decay: int | None


class Declared(optax.GradientTransformationExtraArgs):
    """An optimizer that declares its rules.

    Chained with other transformations it is another optimizer, which declares nothing.

    Attributes:
        rule: name of a parameter -> its rule; None where it is not trained.
    """

    rule: Callable[[str], Rule | None]

    def __new__(
        cls, tx: optax.GradientTransformation, rule: Callable[[str], Rule | None]
    ) -> "Declared":
        """Declare the rules of ``tx``."""
        declared = super().__new__(cls, *optax.with_extra_args_support(tx))
        declared.rule = rule
        return declared


def rules_of(
    tx: optax.GradientTransformation, names: Iterable[str]
) -> tuple[Rule | None, ...] | None:
    """Return the rule of each named parameter; None for an optimizer that declares none."""
    return tuple(map(tx.rule, names)) if isinstance(tx, Declared) else None
