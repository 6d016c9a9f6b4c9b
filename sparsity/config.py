"""From a ``sparsity:`` section to a ``Sparsifier``; every dialect of releases 1.8 to 2.10.

Dialects are told apart by their keys:

- a number, or the keys ``algorithm, schedule, update, drop_fraction, param_filter,
  balance_in_groups, balance_out_groups``: release 2.2 and later. A list is a group, first match
  wins. ``{sparsity, init_method}`` alone means this dialect too.
- ``type`` with ``param_name_patterns``, ``sparsity_schedule`` or both ``sparsity`` and
  ``schedule``: release 2.0/2.1, translated by the vendor's own rules.
- ``seed, param_name_patterns, in_groups, out_groups``: release 1.8/1.9, static.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pydantic

from sparsity import schedules
from sparsity.algorithms import GMP, SET, Algorithm, RigL, Static
from sparsity.filters import Filter
from sparsity.inband import InBandStatic
from sparsity.parse import schedule, update_schedule
from sparsity.schema import (
    SparsityError,
    StaticSection,
    VendorSection,
    check_level,
    check_regex,
    validate,
)
from sparsity.sparsifier import Sparsifier
from sparsity.translate import is_release_20, translate_release_20
from sparsity.views import WeightLayout

__all__ = ["configure"]

_LOG = logging.getLogger(__name__)

_INBAND_KEYS = {"seed", "param_name_patterns", "in_groups", "out_groups", "dump_masks"}
_VENDOR_KEYS = {"algorithm", "schedule", "update", "drop_fraction", "param_filter"} | {
    "balance_in_groups",
    "balance_out_groups",
}
_INBAND_EXCLUDED = ("embedding", "norm", "lm_head")
Group = tuple[Filter, Algorithm]


def configure(
    section: Any,
    *,
    weight_layout: WeightLayout = "io",
    aliases: Callable[[str], str] = lambda name: name,
    order: Sequence[str] | None = None,
    requires_dense: Sequence[str] = (),
    accepts: Callable[[str], bool] = lambda name: False,
) -> Sparsifier:
    """Build a sparsifier from a section, a number, an algorithm or a list of these.

    Args:
        section: None (nothing sparse), a level such as 0.9 (static), a dict of keys of any
            dialect, an ``Algorithm``, or a list of dicts and ``(filter, Algorithm)`` pairs, of
            which the first that matches a parameter takes it.
        weight_layout: "io" when weights are stored [in, out] as in Flax, "oi" for [out, in].
        aliases: '/'-path -> the vendor's dotted name; filters may match either.
        order: names of all parameters in the order the 1.8 dialect counts them for its seeds;
            tree order when None.
        requires_dense: globs of parameters that stay dense whatever the filters say.
        accepts: '/'-path -> whether the model takes a ``SparseWeight`` there (it multiplies by
            ``models.layers.project``); only those may be stored as csr under ``compute: auto``.

    Raises:
        SparsityError: names the key, what was found and what is allowed.

    >>> configure({"algorithm": "rigl", "sparsity": 0.8, "update": {"freq": 100}}).due(100)
    True
    """
    groups = _groups(section, "sparsity")
    return Sparsifier(
        groups=tuple(groups),
        weight_layout=weight_layout,
        aliases=aliases,
        order=None if order is None else tuple(order),
        requires_dense=tuple(requires_dense),
        accepts=accepts,
    )


def _groups(section: Any, where: str) -> list[Group]:
    if section is None:
        return []
    if isinstance(section, (list, tuple)) and not _is_pair(section):
        groups: list[Group] = []
        for i, item in enumerate(section):
            if isinstance(item, (list, tuple)) and not _is_pair(item):
                raise SparsityError(f"{where}[{i}]: a group cannot hold another group")
            groups += _groups(item, f"{where}[{i}]")
        return groups
    if _is_pair(section):
        return [(_glob(section[0]), section[1])]
    if isinstance(section, Algorithm):
        return [(Filter(), section)]
    if isinstance(section, pydantic.BaseModel):
        section = section.model_dump(exclude_unset=True)
    if isinstance(section, Mapping):
        return _from_keys(dict(section), where)
    return [(Filter(), Static(sparsity=_level(section, where)))]


def _is_pair(section: Any) -> bool:
    return (
        isinstance(section, (list, tuple))
        and len(section) == 2
        and isinstance(section[1], Algorithm)
    )


def _from_keys(section: dict[str, Any], where: str) -> list[Group]:
    if section.get("sparsity", 0.0) is None and "schedule" not in section:
        return []  # `sparsity: null` switches sparsity off
    if is_release_20(section):
        translated = translate_release_20(section, where)
        return _groups(translated, where)
    if "type" in section:
        _LOG.warning("%s.type is deprecated; use algorithm", where)
        section["algorithm"] = section.pop("type")
    old, new = _INBAND_KEYS & section.keys(), _VENDOR_KEYS & section.keys()
    if old and new:
        raise SparsityError(
            f"{where}: {sorted(old)} belong to release 1.8, {sorted(new)} to 2.2 and later; keep"
            " one dialect (in 2.2 the run's `seed` is the one of runconfig)"
        )
    return _inband_groups(section, where) if old else [_vendor_group(section, where)]


# --- release 2.2 and later ------------------------------------------------------------------


def _level(value: Any, where: str) -> schedules.Schedule:
    try:
        return schedules.Constant(check_level(value))
    except ValueError as error:
        raise SparsityError(f"{where}: {error}") from None


def _vendor_group(section: dict[str, Any], where: str) -> Group:
    fields = validate(VendorSection, section, where)
    key = "sparsity" if fields.sparsity is not None else "schedule"
    value = fields.sparsity if fields.sparsity is not None else fields.schedule
    common: dict[str, Any] = {
        "init_method": fields.init_method,
        "in_groups": fields.balance_in_groups,
        "out_groups": fields.balance_out_groups,
        "compute": fields.compute,
    }
    rule = Filter() if fields.param_filter is None else _glob(fields.param_filter)
    if fields.algorithm == "static":
        _refuse(section, ("update", "drop_fraction"), where, "static")
        return rule, Static(sparsity=_level(value, f"{where}.{key}"), **common)
    common["sparsity"] = schedule(value, f"{where}.{key}")
    common["update"] = update_schedule(fields.update, f"{where}.update")
    if fields.algorithm == "gmp":
        _refuse(section, ("drop_fraction",), where, "gmp")
        if schedules.is_constant(common["sparsity"]):
            raise SparsityError(f"{where}.{key}: gmp needs a schedule, got the constant {value!r}")
        return rule, GMP(**common)
    if fields.drop_fraction is not None:
        common["drop_fraction"] = schedule(fields.drop_fraction, f"{where}.drop_fraction")
    if callable(fields.algorithm):
        custom: Any = fields.algorithm
        return rule, custom(**common)
    if fields.algorithm == "set":
        return rule, SET(**common)
    return rule, RigL(**common)


def _refuse(section: Mapping[str, Any], keys: Sequence[str], where: str, algorithm: str) -> None:
    for key in keys:
        if section.get(key) is not None:
            raise SparsityError(f"{where}.{key}: {algorithm} takes no {key}")


def _glob(patterns: Any) -> Filter:
    if patterns is None:
        return Filter()
    if isinstance(patterns, Filter):
        return patterns
    return Filter("glob", (patterns,) if isinstance(patterns, str) else tuple(patterns))


# --- release 1.8 and 1.9 --------------------------------------------------------------------


def _inband_groups(section: dict[str, Any], where: str) -> list[Group]:
    if section.pop("dump_masks", None):
        _LOG.warning("%s.dump_masks is ignored; checkpoints hold the masks as NaN", where)
    patterns = section.pop("param_name_patterns", None)
    if isinstance(patterns, Mapping):
        return [
            _inband_group({**section, **(override or {})}, pattern, f"{where}[{pattern!r}]")
            for pattern, override in patterns.items()
        ]
    return [_inband_group(section, patterns, where)]


def _inband_group(section: dict[str, Any], patterns: Any, where: str) -> Group:
    fields = validate(StaticSection, section, where)
    rule = Filter("default", _INBAND_EXCLUDED)
    if patterns is not None:
        try:
            rule = Filter("regex", check_regex(patterns))
        except (ValueError, TypeError) as error:
            raise SparsityError(f"{where}: {error}") from None
    return rule, InBandStatic(
        sparsity=schedules.Constant(
            check_level(fields.sparsity) if fields.sparsity is not None else 0.0
        ),
        init_method=fields.init_method,
        seed=fields.seed,
        in_groups=fields.in_groups,
        out_groups=fields.out_groups,
        compute=fields.compute,
    )
