"""What an optimizer declares of each parameter, so that equal updates can share one program.

An engine that updates a part of the model at a time compiles an update once for all parts whose
parameters follow equal rules. Only who built an optimizer knows its rules: an optax transformation
is a function, and two parameters are treated alike where it happens to do so.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

from wafer.models.paths import map_named, named_leaves


class ParamRule(NamedTuple):
    """How an optimizer treats one parameter, besides what it does to all of them."""

    rate: int  #: index of its learning-rate schedule
    factor: float  #: on that rate: of its group, or from muP
    decay: int | None  #: index of its weight-decay schedule; None where it does not decay
    outliers: bool = False  #: only its outliers train, where it is a matrix or more


class WithParamRules(optax.GradientTransformationExtraArgs):
    """An optimizer that declares its rules.

    Chained with other transformations it is another optimizer, which declares nothing.
    """

    #: name of a parameter -> its rule; None where it is not trained
    rule: Callable[[str], ParamRule | None]

    def __new__(
        cls, tx: optax.GradientTransformation, rule: Callable[[str], ParamRule | None]
    ) -> "WithParamRules":
        """Declare the rules of ``tx``."""
        declared = super().__new__(cls, *optax.with_extra_args_support(tx))
        declared.rule = rule
        return declared


def rules_of(
    tx: optax.GradientTransformation, names: Iterable[str]
) -> tuple[ParamRule | None, ...] | None:
    """Return the rule of each named parameter; None for an optimizer that declares none."""
    return tuple(map(tx.rule, names)) if isinstance(tx, WithParamRules) else None


def without_frozen(tx: optax.GradientTransformation, grads: object) -> Any:
    """Set gradients to 0 of parameters that an optimizer does not train: norms leave them out."""
    if not isinstance(tx, WithParamRules):
        return grads
    frozen = {name for name, _ in named_leaves(grads) if tx.rule(name) is None}
    if not frozen:
        return grads
    return map_named(lambda name, g: jnp.zeros_like(g) if name in frozen else g, grads)
