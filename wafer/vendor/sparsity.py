"""Sparsity sections of the vendor's releases as sections of ours.

They are told apart by their keys: ``type`` with ``param_name_patterns``, ``sparsity_schedule`` or
both ``sparsity`` and ``schedule`` is of 2.0 or 2.1; ``seed, param_name_patterns, in_groups,
out_groups`` without it are of 1.8 or 1.9, static, and begin each mask with the seed. All others
are those of 2.2 and later, which are ours.
"""

from collections.abc import Mapping

from wafer.errors import ConfigError
from wafer.models.user.yamlfile import YamlMapping
from wafer.vendor.translation import Path, Translation

INBAND = {"seed", "param_name_patterns", "in_groups", "out_groups", "dump_masks"}
_LATER = {"algorithm", "schedule", "update", "drop_fraction", "param_filter"}
_LATER |= {"balance_in_groups", "balance_out_groups"}
_GROUPS = {"in_groups": "balance_in_groups", "out_groups": "balance_out_groups"}
_METHODS = ("random", "topk", "from_zeros")


def translate_sparsity(file: Translation, section: object, path: Path) -> object:
    """Return a section of ours.

    Args:
        file: lists what cannot be read.
        section: of any release, or a list of them.
        path: path of the section.
    """
    if isinstance(section, list):
        groups = []
        for i, group in enumerate(section):
            own = translate_sparsity(file, group, (*path, i))
            groups += own if isinstance(own, list) and isinstance(group, Mapping) else [own]
        return groups
    if not isinstance(section, Mapping):
        return section
    keys = dict(section)
    if keys.get("sparsity", 0.0) is None and "schedule" not in keys:
        return keys
    if is_release_20(keys):
        return release_20(file, keys, path)
    if "type" in keys:
        keys["algorithm"] = keys.pop("type")
        file.note("renamed", (*path, "type"), (*path, "algorithm"))
    old, new = INBAND & keys.keys(), _LATER & keys.keys()
    if old and new and keys.get("algorithm") != "seeded":
        why = (
            f"{sorted(old)} belong to release 1.8, {sorted(new)} to 2.2 and later; keep one "
            "dialect (in 2.2 the run's `seed` is the one of runconfig)"
        )
        file.note("refused", path, why)
        return None
    return _inband(file, keys, path) if old and not new else keys


def core_section(section: object) -> object:
    """Return a section of any release as one of ours.

    Raises:
        ConfigError: what cannot be read.
    """
    file = Translation({}, None)
    translated = translate_sparsity(file, section, ("sparsity",))
    if file.problems:
        raise ConfigError(file.problems)
    return translated


def is_release_20(section: Mapping[str, object]) -> bool:
    """Whether a section has ``type`` and a key that only 2.0 and 2.1 read that way."""
    both = section.get("sparsity") is not None and section.get("schedule") is not None
    old = "param_name_patterns" in section or "sparsity_schedule" in section or both
    return ("type" in section and old) or "sparsity_schedule" in section


def release_20(file: Translation, section: YamlMapping, path: Path) -> object:
    """Return a section of 2.0 or 2.1 in the words of 2.2.

    ``sparsity_schedule: [[step, level], ...]`` becomes a list of levels and the steps they are due
    at, regular expressions become globs, and a mapping of patterns one section for each.

    Args:
        file: lists what cannot be read.
        section: of 2.0 or 2.1.
        path: path of the section.
    """
    out = dict(section)
    kind = out.pop("type", None)
    if kind is None or str(kind).lower() == "sideband":
        why = (
            f"release 2.0/2.1 sections need static, gmp, set or rigl, got {kind!r}; for the 1.8 "
            "mechanism drop `type` and give `seed`"
        )
        file.note("refused", (*path, "type"), why)
        return None
    out["algorithm"] = kind
    if "schedule" in out:
        out["update"] = out.pop("schedule")
    pairs = out.pop("sparsity_schedule", None)
    if pairs is not None:
        try:
            steps, levels = zip(*((int(step), float(level)) for step, level in pairs), strict=True)
        except (TypeError, ValueError):
            why = f"expected [[step, level], ...], got {pairs!r}"
            file.note("refused", (*path, "sparsity_schedule"), why)
            return None
        out |= {"schedule": list(levels), "update": {"steps": list(steps)}}
    if isinstance(out.get("sparsity"), Mapping | list):
        out["schedule"] = out.pop("sparsity")
    if out.get("update") == 1:
        del out["update"]
    patterns = out.pop("param_name_patterns", None)
    glob = lambda pattern: pattern.replace(".*", "*")
    if isinstance(patterns, Mapping):
        return [{**out, "param_filter": glob(p), **(own or {})} for p, own in patterns.items()]
    if patterns is not None:
        several = [glob(p) for p in ([patterns] if isinstance(patterns, str) else patterns)]
        out["param_filter"] = several[0] if isinstance(patterns, str) else several
    return out


def _inband(file: Translation, section: YamlMapping, path: Path) -> object:
    """Return a section of 1.8 or 1.9; a mapping of patterns is a group for each."""
    if section.pop("dump_masks", None):  # checkpoints hold the masks as NaN
        file.note("dropped", (*path, "dump_masks"))
    patterns = section.pop("param_name_patterns", None)
    if not isinstance(patterns, Mapping):
        return _inband_group(file, section, patterns, path)
    return [
        _inband_group(file, section | (own or {}), p, (*path, "param_name_patterns", p))
        for p, own in patterns.items()
    ]


def _inband_group(
    file: Translation, section: Mapping[str, object], patterns: object, path: Path
) -> object:
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if section.get("init_method") not in _METHODS:
        found = repr(section.get("init_method"))
        file.note(
            "refused", (*path, "init_method"), f"{found}: expected one of {', '.join(_METHODS)}"
        )
        return None
    rule = (
        {"exclude": ["embedding", "norm", "lm_head"]} if patterns is None else {"regex": patterns}
    )
    keeps = section["init_method"] == "from_zeros" and section.get("sparsity") is None
    level = {"sparsity": 0.0} if keeps else {}
    own = {_GROUPS.get(key, key): value for key, value in section.items()}
    return {"algorithm": "seeded", "param_filter": rule} | own | level
