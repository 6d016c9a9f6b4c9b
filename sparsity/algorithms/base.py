"""What an algorithm is: a level schedule, an update schedule and masks; and how sections name it.

Every algorithm works per parameter. A user's own one subclasses ``Algorithm`` (whole new masks)
or ``Dynamic`` (drop and grow scores), or passes score functions to ``Dynamic``; ``register``
makes it known to sections, with its own attributes as keys.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, dataclass_transform

import jax
import numpy as np
from jaxtyping import Array

from wafer.models.user.code import find
from wafer.models.user.trust import is_user_defined, name_code, require_trusted
from wafer.sparsity.algorithms.masks import InitMethod, init_mask
from wafer.sparsity.schedules import (
    EVERY_STEP,
    NEVER,
    ConstantValue,
    UpdateSchedule,
    ValueSchedule,
    needs_number,
    schedule,
    update_schedule,
)
from wafer.sparsity.schema import Place, SparsityError, unknown
from wafer.sparsity.views import UNSTRUCTURED, CompetitionRows, RowGroups, Structure


class InitContext(NamedTuple):
    """What an algorithm sees when it makes a parameter's first mask.

    Attributes:
        name: '/'-path of the parameter
        position: its place in the list of all parameters (``InBandStatic`` seeds by it)
        weight: the parameter, any shape
        sparsity: [] float32 level in [0, 1]; concrete under jit, too
        key: consumed; this parameter's own
        run_key: the state's key, the same for all parameters
        view: which positions compete
    """

    name: str
    position: int
    weight: Array
    sparsity: Array | float
    key: Array
    run_key: Array
    view: CompetitionRows


class UpdateContext(NamedTuple):
    """What an algorithm sees at a due step, after the optimizer step.

    Attributes:
        name: '/'-path of the parameter
        weight: the parameter, 0 where pruned
        grad: dense gradient of this step; reading it without ``needs_gradient`` is an error
        mask: bool, the pattern in force
        sparsity: [] float32 level to reach, in [0, 1]
        drop_fraction: [] float32 share of active weights to drop
        step: [] int32, optimizer steps taken
        key: consumed; differs per step and parameter
        view: which positions compete
        active: [] int32, kept weights of the mask; None where it has to be counted
    """

    name: str
    weight: Array
    grad: Array | None
    mask: Array
    sparsity: Array
    drop_fraction: Array
    step: Array
    key: Array
    view: CompetitionRows
    active: Array | None = None


class ContextWithoutGradient(UpdateContext):
    """What an algorithm sees that did not ask for gradients."""

    @property
    def grad(self) -> Array:  # type: ignore[override]
        """Refuse: whether there is one would depend on the storage and on the loop."""
        raise ValueError(
            f"sparsity of {self.name!r}: the method reads ctx.grad, but its needs_gradient is "
            "False; set `needs_gradient: bool = True` in its class, or pass needs_gradient=True"
        )


_NO_DROP = ConstantValue(0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Base of all algorithms; hashable, holds no arrays.

    Schedules may be given as a section gives them: numbers, lists, dicts, functions.

    Attributes:
        sparsity: level schedule; 0.9 keeps a tenth.
        init_method: "random", "topk", "from_zeros", "checkerboard" or a function.
        update: when the topology changes, in optimizer steps taken.
        drop_fraction: share of active weights to drop at an update (``Dynamic`` only).
        structure: which positions compete: the whole weight, groups, n:m, blocks.
        budget: how layers share the level, see ``budgets``.
        dense_ends: so many layers at either end of a stack stay dense.
        compute: "auto", "masked" or "csr" storage of the weights.
        needs_gradient: whether scores read the dense gradient, which costs a dense product.
    """

    sparsity: ValueSchedule
    init_method: InitMethod = "random"
    update: UpdateSchedule = EVERY_STEP
    drop_fraction: ValueSchedule = _NO_DROP
    structure: Structure = UNSTRUCTURED
    budget: str = "uniform"
    dense_ends: int = 0
    compute: str = "auto"
    needs_gradient: bool = False
    #: whether the level may be an array that JAX traces; drop fractions always may
    level_may_be_traced: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Turn what users write into schedules; refuse a traced level where none can be."""
        for key in ("sparsity", "drop_fraction", "update"):
            object.__setattr__(self, key, _PARSERS[key](getattr(self, key), (key,)))
        reasons = {
            f"{type(self).__name__}.level_may_be_traced is false": not self.level_may_be_traced,
            "csr keeps a fixed number of values": self.compute == "csr",
            "every row of a pattern keeps a fixed number": self.structure != UNSTRUCTURED,
            "layers share a known level": self.budget != "uniform",
            "checkerboard has a fixed period": self.init_method == "checkerboard",
        }
        if self.sparsity.traced and any(reasons.values()):
            why = "; ".join(reason for reason, holds in reasons.items() if holds)
            raise SparsityError(needs_number(why), ("sparsity",))

    @classmethod
    def from_section(cls, keys: Mapping[str, Any], where: Place) -> Self:
        """Build the algorithm from a section; override it for rules of its own.

        Args:
            keys: those of the section that name attributes, as written; all known.
            where: the section's path, such as ("sparsity", 0), for errors.

        Raises:
            SparsityError: names the key, what was found and what is allowed.
        """
        return cls(**attributes(keys, where))

    @property
    def dynamic(self) -> bool:
        """True when the topology can change after the start."""
        return self.update != NEVER

    def starts_sparse(self) -> bool:
        """False for a dynamic algorithm whose update schedule is not due at step 0."""
        with jax.ensure_compile_time_eval():  # a user's rule may compute with jnp
            return not self.dynamic or bool(self.update(0))

    def init_mask(self, ctx: InitContext) -> Array:
        """Return the parameter's first mask, true where kept."""
        return init_mask(self.init_method, ctx.weight, ctx.sparsity, ctx.key, ctx.view)

    def resume_mask(self, ctx: InitContext, saved: Array) -> Array:
        """Return the mask to go on with, given the one a checkpoint holds: as it is."""
        del ctx
        return saved

    def forward(self, weight: Array, view: CompetitionRows) -> Array:
        """Return what the model computes with, for a weight that is stored dense."""
        del view
        return weight

    def update_mask(self, ctx: UpdateContext) -> Array:
        """Return the mask after a due step, true where kept."""
        return ctx.mask

    def level_after(self, level: float, before: float, drop: float) -> float:
        """Return the level that an update reaches.

        Args:
            level: the scheduled one.
            before: in force before the update.
            drop: share of active weights to drop.
        """
        del before, drop
        return level

    def shares(self, levels: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Say which share of a weight takes part in each step's products.

        Args:
            levels: [T] float, sparsity in force.
            steps: [T] int, counted from 1.

        Returns:
            ([T] share that computes, [T] share whose gradient is computed). The dense gradients
            of due steps are not in it: ``needs_gradient`` says that there are some.
        """
        del steps
        return 1 - levels, 1 - levels


_PARSERS: Mapping[str, Callable[[Any, Place], Any]] = {
    "sparsity": schedule,
    "schedule": schedule,
    "drop_fraction": schedule,
    "update": update_schedule,
    "pattern": lambda value, where: value if isinstance(value, Structure) else value.build(),
    "balance_in_groups": lambda value, where: RowGroups(value, "in"),
    "balance_out_groups": lambda value, where: RowGroups(value, "out"),
}
_ATTRIBUTES = {  # key of a section -> attribute, where they differ
    "schedule": "sparsity",
    "pattern": "structure",
    "balance_in_groups": "structure",
    "balance_out_groups": "structure",
}


def attributes(keys: Mapping[str, Any], where: Place) -> dict[str, Any]:
    """Turn a section's keys into an algorithm's arguments: their names, and parsed schedules."""
    return {
        _ATTRIBUTES.get(key, key): _PARSERS[key](value, (*where, key)) if key in _PARSERS else value
        for key, value in keys.items()
    }


def refuse(keys: Collection[str], wrong: Sequence[str], where: Place, algorithm: str) -> None:
    """Raise ``SparsityError`` when a section sets keys that mean nothing to its algorithm."""
    found = [key for key in wrong if key in keys]
    if found:
        raise SparsityError(f"{algorithm} takes no {' and no '.join(found)}", (*where, found[0]))


ALGORITHMS: dict[str, type[Algorithm]] = {}
_A = TypeVar("_A", bound=type[Algorithm])


@dataclass_transform(frozen_default=True, kw_only_default=True)
def register(name: str) -> Callable[[_A], _A]:
    """Make an algorithm known to sections as ``algorithm: name``.

    The class becomes a frozen dataclass; what it declares beyond ``Algorithm`` are its own keys,
    checked against their types.

    Raises:
        ValueError: another class has the name.

    >>> @register("keep_first")
    ... class KeepFirst(Algorithm):
    ...     rows: int = 1
    >>> lookup("keep_first", ("sparsity",)) is KeepFirst
    True
    """

    def add(cls: _A) -> _A:
        known = ALGORITHMS.get(name.lower(), cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"the algorithm {name!r} is {known.__module__}.{known.__qualname__}")
        if cls.__module__.partition(".")[0] != "wafer":
            name_code("sparsity", name.lower())
        ALGORITHMS[name.lower()] = cls = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        return cls

    return add


def lookup(name: object, where: Place) -> Any:
    """Return the class a section names: registered, ``module:class``, or itself a callable.

    Raises:
        SparsityError: an unknown name, with the nearest known one.
    """
    if is_user_defined(name, "sparsity"):
        try:
            require_trusted(name, "sparsity")
            own = ":" in name and name.lower() not in ALGORITHMS
            name = find(name, ALGORITHMS, "sparsity") if own else name
        except ValueError as error:
            raise SparsityError(str(error), (*where, "algorithm")) from error
    if callable(name):
        return name
    if str(name).lower() not in ALGORITHMS:
        raise SparsityError(unknown("algorithm", name, ALGORITHMS), (*where, "algorithm"))
    return ALGORITHMS[str(name).lower()]
