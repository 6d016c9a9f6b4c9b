"""Sections of release 2.0 and 2.1, rewritten as 2.2 ones by the vendor's own rules."""

from collections.abc import Mapping
from typing import Any

from sparsity.schema import SparsityError

__all__ = ["is_release_20", "translate_release_20"]


def is_release_20(section: Mapping[str, Any]) -> bool:
    """True for a section with ``type`` and a key that only 2.0/2.1 reads that way."""
    both = section.get("sparsity") is not None and section.get("schedule") is not None
    old = "param_name_patterns" in section or "sparsity_schedule" in section or both
    return ("type" in section and old) or "sparsity_schedule" in section


def translate_release_20(section: Mapping[str, Any], where: str) -> dict[str, Any] | list[Any]:
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
            f"{where}.type: release 2.0/2.1 sections need static, gmp, set or rigl, got {kind!r};"
            " for the 1.8 mechanism drop `type` and give `seed`"
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


def _split_schedule(pairs: Any, where: str) -> dict[str, Any]:
    try:
        steps, levels = zip(*[(int(step), float(level)) for step, level in pairs], strict=True)
    except (TypeError, ValueError):
        raise SparsityError(
            f"{where}.sparsity_schedule: expected [[step, level], ...], got {pairs!r}"
        ) from None
    return {"schedule": list(levels), "update": {"steps": list(steps)}}


def _glob(pattern: str) -> str:
    return pattern.replace(".*", "*")
