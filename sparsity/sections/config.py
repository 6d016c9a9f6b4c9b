"""From a ``sparsity:`` section to groups, and to a ``Sparsifier``."""

import dataclasses
import functools
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import pydantic
from jax.typing import DTypeLike
from jaxtyping import PyTree

from wafer.models.errors import matches_nothing
from wafer.models.paths import named_leaves
from wafer.models.sections import Section
from wafer.models.user.code import call, find
from wafer.sparsity import storage
from wafer.sparsity.algorithms import inband as _registered  # noqa: F401  # `seeded`
from wafer.sparsity.algorithms.base import Algorithm, attributes, lookup
from wafer.sparsity.algorithms.magnitude import Static
from wafer.sparsity.algorithms.masks import INIT_METHODS
from wafer.sparsity.filters import ParamFilter, has_nan
from wafer.sparsity.schedules import constant_level
from wafer.sparsity.schema import (
    Place,
    SparsityError,
    as_number,
    is_traced,
    unknown,
    validate,
)
from wafer.sparsity.sections import budgets
from wafer.sparsity.sparsifier import Sparsifier
from wafer.sparsity.views import Blocks, FanIn, NofM, Structure, WeightLayout, check_layout

_KINDS: Mapping[str, Literal["default", "regex"]] = {"exclude": "default", "regex": "regex"}
_Edge = Annotated[int, pydantic.Field(ge=1, le=4096)]

Group = tuple[ParamFilter, Algorithm]


class Groups(tuple[Group, ...]):
    """What a section means: (filter, algorithm) pairs, of which the first match wins.

    Attributes:
        section: as it was written.
    """

    section: Any = None


def configure(
    section: object,
    *,
    weight_layout: WeightLayout | None = None,
    aliases: Callable[[str], str] = lambda name: name,
    order: Sequence[str] | None = None,
    params: PyTree = None,
    requires_dense: Sequence[str] = (),
    accepts: Callable[[str], bool] | None = None,
    dtype: DTypeLike = jnp.float32,
    flops: budgets.Flops | None = None,
    partial: bool = False,
    dense_words: bool = True,
) -> Sparsifier:
    """Build a sparsifier: a section, and what it must know of the model.

    Args:
        section: see ``parse``.
        weight_layout: "io" where matrices and convolutions are stored [..., in, out] as in Flax,
            "oi" for [out, in, ...]. For other arrays, by glob of names, a letter for each axis: l
            layers, e experts, i inputs, o outputs, k kernel positions, such as {"*query/kernel":
            "ioo", "layers/*/kernel": "lio"}; the first that matches counts. Each layer and expert
            has the level, budget and pattern of its own. None is "io", and refuses patterns in
            three or more axes.
        aliases: '/'-path -> another, dotted name; filters may match either.
        order: names of all parameters in the order in which `seeded` counts them; tree order when
            None.
        params: all parameters, arrays or shapes; needed where layers share a level (``budget``).
            With them, filters that match nothing and impossible ``compute: csr`` are refused here.
        requires_dense: globs of parameters that stay dense whatever the filters say.
        accepts: '/'-path -> whether the model takes a ``SparseWeight`` there, that is, computes
            ``x @ weight`` or ``wafer.models.layers.basic.project``. Only those become csr under
            ``compute: auto``; ``compute: csr`` is refused where it is false. None leaves ``auto``
            at masks.
        dtype: what the model computes in.
        flops: gives {name: FLOPs per token of the dense layer}, for ``budget: flops``; None takes
            every parameter for a matrix that each token passes once.
        partial: the trees may be parts of the one that ``init`` saw; otherwise a mask that finds no
            weight of its name is an error.
        dense_words: without a filter, also leave dense what ``wafer.models.paths.dense_word``
            finds a word in; False selects as a run file does.

    Raises:
        SparsityError: names the key, what was found and what is allowed.

    Examples:
        >>> configure({"algorithm": "rigl", "sparsity": 0.8, "update": {"freq": 100}}).due(100)
        True
    """
    check_layout(weight_layout)
    sparsifier = Sparsifier(
        groups=parse(section),
        weight_layout=weight_layout,
        aliases=aliases,
        order=None if order is None else tuple(order),
        requires_dense=tuple(requires_dense),
        accepts=accepts,
        dtype=dtype,
        partial=partial,
        dense_words=dense_words,
    )
    if weight_layout == "oi" and any(rule.compute == "csr" for _, rule in sparsifier.groups):
        raise SparsityError(
            "csr multiplies [in, out] kernels, and weight_layout is 'oi' ([out, "
            "in], as equinox and torch store them); use masked",
            ("sparsity", "compute"),
        )
    if params is not None:
        _require_matches(sparsifier, params)
        _require_possible(sparsifier, params)
    if all(rule.budget == "uniform" and not rule.dense_ends for _, rule in sparsifier.groups):
        return sparsifier
    if params is None:
        raise SparsityError(
            "budget and dense_ends need the model: configure(section, params=params)", ("sparsity",)
        )
    leaves = ((name, leaf) for name, leaf in named_leaves(params) if has_nan(leaf.dtype))
    shapes = {name: tuple(leaf.shape) for name, leaf in leaves}
    slices = _slices(sparsifier, shapes)
    spread = budgets.spread(sparsifier.groups, shapes, slices, sparsifier.group_of, flops)
    return dataclasses.replace(sparsifier, groups=spread)


def _slices(
    sparsifier: Sparsifier, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the shape [kernel ..., in, out] of one layer or expert of each selected parameter."""
    slices: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        group = sparsifier.group_of(name, len(shape))
        if group is None:
            continue
        view = sparsifier.view(group, name, len(shape))
        if sparsifier.groups[group][1].dense_ends and "l" in view.layout:
            raise SparsityError(
                f"{name!r} stacks its layers on one axis ({view.layout!r}); expected layers with "
                "numbers in their names. Leave dense_ends out",
                ("sparsity", "dense_ends"),
            )
        slices[name] = view.slice_shape(shape)
    return slices


def _require_matches(sparsifier: Sparsifier, params: PyTree) -> None:
    """Refuse a filter of a user, or a pattern of one, that matches no parameter."""
    ranks = {name: len(leaf.shape) for name, leaf in named_leaves(params)}
    aliases = {name: (name, sparsifier.aliases(name)) for name in ranks}
    used_groups = {sparsifier.group_of(name, rank) for name, rank in ranks.items()}
    path: Place = ("sparsity", "param_filter")
    for i, (rule, _) in enumerate(sparsifier.groups):
        default = rule.kind == "default"
        for pattern in [rule] if default else [ParamFilter(rule.kind, (p,)) for p in rule.patterns]:
            if not any(pattern.matches(aliases[name], rank) for name, rank in ranks.items()):
                known = {n: None for names in aliases.values() for n in names}
                matrices = (name for name, rank in ranks.items() if rank > 1)
                raise SparsityError(matches_nothing(pattern, known, matrices), path)
        if not default and i not in used_groups:
            raise SparsityError(
                f"{rule} has no effect: an earlier group takes what it matches, or the model needs "
                "it dense; order the groups from special to general",
                path,
            )


def _require_possible(sparsifier: Sparsifier, params: PyTree) -> None:
    """Refuse ``compute: csr`` where a parameter cannot be stored so, before anything is made."""
    for name, leaf in named_leaves(params):
        group = sparsifier.group_of(name, len(leaf.shape))
        if group is not None:
            accepted = sparsifier.accepts and sparsifier.accepts(name)
            view = sparsifier.view(group, name, len(leaf.shape))
            rule = sparsifier.groups[group][1]
            storage.require_possible(name, tuple(leaf.shape), rule, view, accepted=accepted)


def parse(section: object) -> Groups:
    """Read a section.

    Args:
        section: None (nothing sparse), a level such as 0.9 (static), a dict of keys, an
            ``Algorithm``, or a list of dicts and ``(filter, Algorithm)`` pairs, of which the first
            that matches a parameter takes it. Parsed groups come back as they are.

    Raises:
        SparsityError: names the key, what was found and what is allowed.
    """
    if isinstance(section, Groups):
        return section
    groups = Groups(_groups(section, ("sparsity",)))
    groups.section = section
    return groups


def _groups(section: Any, where: Place) -> list[Group]:
    if section is None:
        return []
    if isinstance(section, (list, tuple)) and not _is_pair(section):
        groups: list[Group] = []
        for i, item in enumerate(section):
            if isinstance(item, (list, tuple)) and not _is_pair(item):
                raise SparsityError("a group cannot hold another group", (*where, i))
            groups += _groups(item, (*where, i))
        return groups
    if _is_pair(section):
        return [(_glob(section[0]), section[1])]
    if isinstance(section, Algorithm):
        return [(ParamFilter(), section)]
    if isinstance(section, Mapping):
        off = section.get("sparsity", 0.0) is None and "schedule" not in section
        return [] if off else [_group(dict(section), where)]
    return [(ParamFilter(), Static(sparsity=constant_level(section, where)))]


def _is_pair(section: object) -> bool:
    return (
        isinstance(section, (list, tuple))
        and len(section) == 2
        and isinstance(section[1], Algorithm)
    )


def _glob(patterns: Any) -> ParamFilter:
    if isinstance(patterns, ParamFilter):
        return patterns
    if patterns is None:
        return ParamFilter()
    if isinstance(patterns, Mapping):
        ((kind, words),) = patterns.items()
        return ParamFilter(_KINDS[kind], tuple(words))
    return ParamFilter("glob", (patterns,) if isinstance(patterns, str) else tuple(patterns))


class PatternSection(Section):
    """``pattern:``: a structure, its type and the keys that the type takes; or text such as 2:4."""

    type: Literal["n:m", "block", "constant_fan_in"]  #: which structure
    n: int | None = pydantic.Field(None, ge=1, le=1023)  #: of every m neighbours so many are kept
    m: int | None = pydantic.Field(None, ge=2, le=1024)  #: neighbours that compete
    #: whether they are neighbours along the inputs or the outputs
    axis: Literal["in", "out"] = "in"
    size: _Edge | tuple[_Edge, _Edge] | None = None  #: edge of a block, or [inputs, outputs]

    @pydantic.model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        n, _, m = value.partition(":")
        if n.isdecimal() and m.isdecimal():
            return {"type": "n:m", "n": int(n), "m": int(m)}
        raise ValueError("expected N:M such as '2:4', or keys, of which type is one")

    @pydantic.model_validator(mode="after")
    def _keys_of_the_type(self) -> "PatternSection":
        takes = {"n:m": {"n", "m"}, "block": {"size"}, "constant_fan_in": set[str]()}[self.type]
        present = {key for key in ("n", "m", "size") if getattr(self, key) is not None}
        if present != takes:
            needs = " and ".join(sorted(takes)) or "no other key"
            raise ValueError(f"{self.type} takes {needs}, found {sorted(present) or 'none'}")
        if self.n and self.m and self.n >= self.m:
            raise ValueError(f"n={self.n} must be below m={self.m}")
        return self

    def build(self) -> Structure:
        """Return the structure."""
        if self.n and self.m:
            return NofM(self.n, self.m, self.axis)
        if self.size:
            return Blocks(*(self.size if isinstance(self.size, tuple) else (self.size, self.size)))
        return FanIn()


class GroupSection(Section):
    """One group; an algorithm's own attributes join it as keys."""

    read_before = ("algorithm",)
    sparsity: Any = None  #: share of weights that are 0: a number below 1, or a schedule
    schedule: Any = None  #: sparsity that changes with the step
    init_method: Any = "random"  #: how the first mask is chosen
    update: Any = None  #: when the mask changes: {freq, start, stop} or {steps}
    drop_fraction: Any = None  #: share of the kept weights that is exchanged at an update
    #: globs of parameter names; null: all kernels. {regex: [...]} searches in the names, and
    #: {exclude: [...]} takes the matrices without these words
    param_filter: str | tuple[str, ...] | dict[str, tuple[str, ...]] | None = None
    #: groups of inputs that keep equally many weights
    balance_in_groups: pydantic.PositiveInt | None = None
    #: groups of outputs that keep equally many weights
    balance_out_groups: pydantic.PositiveInt | None = None
    pattern: PatternSection | None = None  #: which weights compete: n:m, block, constant_fan_in
    #: how layers share the level: uniform, erdos_renyi, erk, module:function
    budget: Annotated[str, pydantic.AfterValidator(budgets.check_budget)] = "uniform"
    #: so many layers at either end of a stack stay dense
    dense_ends: Annotated[int, pydantic.Field(ge=0, le=10_000)] = 0
    #: multiply by masked weights or by kept ones (csr)
    compute: Literal["auto", "masked", "csr"] = "auto"

    @pydantic.field_validator(
        "sparsity", "schedule", "init_method", "update", "drop_fraction", mode="before"
    )
    @classmethod
    def _code(cls, value: Any) -> Any:
        return find(value, (), "sparsity") if isinstance(value, str) and ":" in value else value

    @pydantic.field_validator("param_filter", mode="before")
    @classmethod
    def _one_kind(cls, value: object) -> object:
        if isinstance(value, dict) and (len(value) != 1 or not value.keys() <= {*_KINDS}):
            raise ValueError("a dict is not a filter; list one section per pattern instead")
        for pattern in value.get("regex", ()) if isinstance(value, dict) else ():
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise ValueError(f"{pattern!r} is no regex: {error}") from None
        return tuple(value) if isinstance(value, list) else value

    @pydantic.field_validator("init_method")
    @classmethod
    def _known_method(cls, value: object) -> object:
        if callable(value) or value in INIT_METHODS:
            return value
        raise ValueError(unknown("init_method", value, INIT_METHODS))

    @pydantic.model_validator(mode="after")
    def _together(self) -> "GroupSection":
        if self.sparsity is not None and self.schedule is not None:
            raise ValueError("`sparsity` and `schedule` name the same thing; give one of them")
        fixed = None if self.pattern is None else self.pattern.build().level
        level = as_number(self.schedule if self.sparsity is None else self.sparsity)
        if level is None and fixed is None:
            raise ValueError("no level: give `sparsity` (a number below 1) or `schedule`")
        other = is_traced(level) or (isinstance(level, float) and abs(level - (fixed or 0)) > 1e-3)
        if fixed is not None and other:
            raise ValueError(f"this pattern has the level {fixed:.4g}, not {level}; leave it out")
        ways = ("balance_in_groups", "balance_out_groups", "pattern")
        given = [name for name in ways if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other")
        return self


@functools.cache
def section_of(algorithm: type[Algorithm]) -> type[GroupSection]:
    """Make the section of an algorithm: everybody's keys, and the attributes that it declares."""
    types = typing.get_type_hints(algorithm, include_extras=True)
    common = {field.name for field in dataclasses.fields(Algorithm)}
    fields: dict[str, Any] = {
        field.name: (types[field.name], ... if field.default is dataclasses.MISSING else None)
        for field in dataclasses.fields(algorithm)
        if field.name not in common
    }
    return pydantic.create_model(algorithm.__name__, __base__=GroupSection, **fields)


def _group(section: dict[str, Any], where: Place) -> Group:
    algorithm = lookup(section.pop("algorithm", "static"), where)
    is_class = isinstance(algorithm, type) and issubclass(algorithm, Algorithm)
    fields = validate(section_of(algorithm) if is_class else GroupSection, section, where)
    keys = {name: getattr(fields, name) for name in section}
    rule = _glob(keys.pop("param_filter", None))
    # For the common keys null means the default.
    common = GroupSection.model_fields
    keys = {key: value for key, value in keys.items() if value is not None or key not in common}
    fixed = fields.pattern and fields.pattern.build().level
    if fixed and not isinstance(keys.get("schedule", keys.get("sparsity")), (Mapping, list)):
        keys = {name: value for name, value in keys.items() if name != "schedule"}
        keys["sparsity"] = fixed
    if is_class:
        return rule, algorithm.from_section(keys, where)
    return rule, _made(algorithm, attributes(keys, where), where)


def _made(
    function: Callable[..., object], arguments: Mapping[str, object], where: Place
) -> Algorithm:
    """Call a function that a section names, and check what it gives."""
    where, name = (*where, "algorithm"), getattr(function, "__name__", repr(function))
    if isinstance(function, type):
        raise SparsityError(f"{name!r}: expected a subclass of sparsity.Algorithm", where)
    try:
        algorithm = call(name, function, **arguments)
    except ValueError as error:
        raise SparsityError(str(error), where) from error
    if not isinstance(algorithm, Algorithm):
        raise SparsityError(
            f"{name!r} gave {type(algorithm).__name__}; expected a sparsity.Algorithm", where
        )
    return algorithm
