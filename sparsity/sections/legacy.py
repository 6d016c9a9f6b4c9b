"""Sparsity sections of the older releases: 2.0/2.1 rewritten as 2.2, and 1.8/1.9 static."""

import logging
import re
from collections.abc import Mapping
from typing import Any, Literal

import pydantic

from wafer.models.errors import dotted
from wafer.models.sections import Section
from wafer.sparsity.algorithms.base import Algorithm
from wafer.sparsity.algorithms.inband import InBandStatic
from wafer.sparsity.filters import ParamFilter
from wafer.sparsity.schedules import ConstantValue, constant_level
from wafer.sparsity.schema import Place, SparsityError, check_level, validate
from wafer.sparsity.views import RowGroups

_LOG = logging.getLogger(__name__)

RELEASE_18_KEYS = {"seed", "param_name_patterns", "in_groups", "out_groups", "dump_masks"}
_EXCLUDED = ("embedding", "norm", "lm_head")
Group = tuple[ParamFilter, Algorithm]


# --- release 2.0 and 2.1 --------------------------------------------------------------------


def is_release_20(section: Mapping[str, Any]) -> bool:
    """True for a section with ``type`` and a key that only 2.0/2.1 reads that way."""
    both = section.get("sparsity") is not None and section.get("schedule") is not None
    old = "param_name_patterns" in section or "sparsity_schedule" in section or both
    return ("type" in section and old) or "sparsity_schedule" in section


def translate_release_20(section: Mapping[str, Any], where: Place) -> dict[str, Any] | list[Any]:
    """Rewrite a 2.0/2.1 section.

    ``type`` becomes ``algorithm``, ``schedule`` becomes ``update``, ``sparsity_schedule: [[step,
    level], ...]`` becomes a list of levels and the steps they are due at, a non-numeric
    ``sparsity`` becomes ``schedule``, and regex patterns become globs. A dict of patterns
    becomes one section per pattern.

    Raises:
        SparsityError: ``type`` is missing or is the release 1.8 mechanism ("sideband").
    """
    out = dict(section)
    kind = out.pop("type", None)
    if kind is None or str(kind).lower() == "sideband":
        raise SparsityError(
            f"release 2.0/2.1 sections need static, gmp, set or rigl, got {kind!r};"
            " for the 1.8 mechanism drop `type` and give `seed`",
            (*where, "type"),
        )
    out["algorithm"] = kind
    if "schedule" in out:
        out["update"] = out.pop("schedule")
    if "sparsity_schedule" in out:
        out.update(_split_schedule(out.pop("sparsity_schedule"), where))
    if isinstance(out.get("sparsity"), (Mapping, list)):
        out["schedule"] = out.pop("sparsity")
    if out.get("update") == 1:
        out.pop("update")
    patterns = out.pop("param_name_patterns", None)
    if isinstance(patterns, Mapping):
        return [{**out, "param_filter": _glob(p), **(own or {})} for p, own in patterns.items()]
    if isinstance(patterns, str):
        out["param_filter"] = _glob(patterns)
    elif patterns is not None:
        out["param_filter"] = [_glob(p) for p in patterns]
    return out


def _split_schedule(pairs: Any, where: Place) -> dict[str, Any]:
    try:
        steps, levels = zip(*[(int(step), float(level)) for step, level in pairs], strict=True)
    except (TypeError, ValueError):
        raise SparsityError(
            f"expected [[step, level], ...], got {pairs!r}", (*where, "sparsity_schedule")
        ) from None
    return {"schedule": list(levels), "update": {"steps": list(steps)}}


def _glob(pattern: str) -> str:
    return pattern.replace(".*", "*")


# --- release 1.8 and 1.9 --------------------------------------------------------------------


class _Release18(Section):
    """One group of the 1.8 dialect, with the keys 1.9 added."""

    sparsity: Any = None
    init_method: Literal["random", "topk", "from_zeros"]
    seed: int | None = None
    in_groups: pydantic.PositiveInt | None = None
    out_groups: pydantic.PositiveInt | None = None
    compute: Literal["auto", "masked", "csr"] = "auto"

    @pydantic.field_validator("seed", mode="before")
    @classmethod
    def _integer(cls, value: Any) -> Any:
        if (
            isinstance(value, bool)
            or not (value is None or isinstance(value, int))
            or (value or 0) < 0
        ):
            raise ValueError(f"seed must be a non-negative integer, got {value!r}")
        return value

    @pydantic.model_validator(mode="after")
    def _together(self) -> "_Release18":
        if self.in_groups and self.out_groups:
            raise ValueError("in_groups and out_groups exclude each other")
        if self.init_method != "from_zeros" or self.sparsity is not None:
            check_level(self.sparsity)
        return self


def release_18_groups(section: dict[str, Any], where: Place) -> list[Group]:
    """Read a 1.8 section; a dict of patterns is one group per pattern.

    Raises:
        SparsityError: names the key, what was found and what is allowed.
    """
    if section.pop("dump_masks", None):
        _LOG.warning("%s.dump_masks is ignored; checkpoints hold the masks as NaN", dotted(where))
    patterns = section.pop("param_name_patterns", None)
    if isinstance(patterns, Mapping):
        return [
            _release_18_group(
                {**section, **(override or {})}, pattern, (*where, "param_name_patterns", pattern)
            )
            for pattern, override in patterns.items()
        ]
    return [_release_18_group(section, patterns, where)]


def _release_18_group(section: dict[str, Any], patterns: Any, where: Place) -> Group:
    fields = validate(_Release18, section, where)
    rule = ParamFilter("default", _EXCLUDED) if patterns is None else _regex(patterns, where)
    level = (
        ConstantValue(0.0) if fields.sparsity is None else constant_level(fields.sparsity, where)
    )
    own = {"init_method", "seed", "compute"} & section.keys()
    keys = {name: getattr(fields, name) for name in own}
    number = fields.in_groups or fields.out_groups
    if number:
        keys["structure"] = RowGroups(number, "in" if fields.in_groups else "out")
    return rule, InBandStatic(sparsity=level, **keys)


def _regex(patterns: Any, where: Place) -> ParamFilter:
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise SparsityError(f"{pattern!r} is no regex: {error}", where) from error
    return ParamFilter("regex", patterns)
