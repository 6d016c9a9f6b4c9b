"""From a run file of any release of the vendor's to the sections of ours.

``read`` applies the table of ``keys`` section by section, then the rules of ``rules``, which
concern several keys or sections at once, and last the defaults of the file's release.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from wafer.errors import ConfigError, Problem
from wafer.models.names import MODELS
from wafer.models.user.yamlfile import Lines, YamlMapping
from wafer.vendor.keys import PARTS, Action, KeyRow, Release, covers, names_of, release_of, rows_of
from wafer.vendor.rules import RULES, begin, encoder_decoder
from wafer.vendor.sparsity import translate_sparsity
from wafer.vendor.trainer import Upgraded, trainers_of, upgrade
from wafer.vendor.translation import Path, Translation

_LOG = logging.getLogger(__name__)
_ACTIONS: tuple[Action, ...] = ("rename", "pair", "drop", "refuse")
_NESTED = {"lora_params", "moe"}  # mappings of the model with rows of their own


def read(raw: Mapping[str, object], mode: str | None = None) -> Translation:
    """Translate a run file; ``raw`` is left as it is.

    Args:
        raw: its sections, or one ``trainer``.
        mode: of the run, as ``trainer.upgrade`` takes it.

    Raises:
        ConfigError: a ``trainer`` that is none.
    """
    form = upgraded(raw, mode)
    raw = form.sections
    release = release_of(raw.get("release"))
    sections = {key: _copy(value) for key, value in raw.items() if key != "release"}
    file = Translation(sections, release, left=form.left, trainer=form.origins)
    if "release" in raw and release is None:
        why = f"{raw['release']!r}: expected a release of the vendor's in quotes, such as '1.7'"
        file.note("refused", ("release",), why)
    begin(file)
    _apply(file, sections, "", ())
    for name, section in list(sections.items()):
        _apply_within(file, section, (name,))
    for rule in RULES:
        rule(file)
    if "sparsity" in sections:
        sections["sparsity"] = translate_sparsity(file, sections["sparsity"], ("sparsity",))
    for name, section in sections.items():
        for inner, scope, path in within(section, name, (name,)):
            _set_defaults(file, inner, scope, path)
    return file


def renamed(config: Mapping[str, object]) -> YamlMapping:
    """Return the run file of a checkpoint's record with today's names of keys, nothing added.

    Until the names had this table, records kept ``model`` and ``sparsity`` as the file had them.
    """
    sections = {name: _copy(config[name]) for name in ("model", "sparsity") if config.get(name)}
    file = Translation(sections, None)
    for inner, scope, path in list(within(sections.get("model"), "model", ("model",))):
        file.written[path] = frozenset(inner)  # a null of the model itself is a default of then
        _apply(file, inner, scope, path, _ACTIONS if path[1:] else ("rename", "pair"))
    encoder_decoder(file)
    if "sparsity" in sections:
        sections["sparsity"] = translate_sparsity(file, sections["sparsity"], ("sparsity",))
    return dict(config) | sections


def runs_of(raw: object, lines: Lines) -> list[tuple[object, Lines]]:
    """Return the runs of a file, whose ``trainer`` may be a list: each as a file with its lines.

    Raises:
        ConfigError: an empty list.
    """
    if not isinstance(raw, Mapping) or not isinstance(raw.get("trainer"), list):
        return [(raw, lines)]
    trainers = trainers_of(raw["trainer"])
    if not trainers:
        raise ConfigError([Problem(("trainer",), "an empty list; there is nothing to run")])
    return [({**raw, "trainer": own}, _lines_of(lines, i)) for i, own in enumerate(trainers)]


def _lines_of(lines: Lines, index: int) -> Lines:
    """Return the lines of one trainer of a list, as if it were the file's only one."""
    out: Lines = {}
    for path, line in lines.items():
        if path[:2] == ("trainer", index):
            rest = path[3:] if path[2:3] == ("trainer",) else path[2:]
            out["trainer", *rest] = line
    return out


def upgraded(raw: Mapping[str, object], mode: str | None = None) -> Upgraded:
    """Return the sections of a file; those of a ``trainer`` with the release of their defaults."""
    if "trainer" not in raw:
        return Upgraded(dict(raw), [], {})
    others = [key for key in raw if key not in ("trainer", "release")]
    if others:
        message = f"stands beside `trainer`, which is the whole file; move it: {', '.join(others)}"
        raise ConfigError([Problem((others[0],), message)])
    form = upgrade(raw["trainer"], mode)
    release = raw.get("release")
    if release is None:
        release, key = _release_shown(form.sections)
        why = f", the last one with {key}" if key else "; for 2.3's add `release: '2.3'` above it"
        _LOG.info("The trainer has the defaults of release %s%s", release, why)
    return form._replace(sections={"release": release} | form.sections)


def with_defaults(
    section: Mapping[str, object], path: tuple[str, ...], release: Release | None
) -> YamlMapping:
    """Return a section in our spelling, with the defaults of a release.

    Args:
        section: of the file.
        path: of the section, or of a part of the model.
        release: of the file.
    """
    copied = _copy(section)
    file = Translation({path[0]: copied}, None)
    _apply_within(file, copied, path)
    file.release = release
    for inner, scope, inner_path in within(copied, path[0], path):
        _set_defaults(file, inner, scope, inner_path)
    return copied


def _release_shown(sections: Mapping[str, object]) -> tuple[str, str]:
    """Return the release whose defaults the sections of a trainer have, and the key that shows it.

    The form came with 2.3; from 2.4 on, no release changed a default that a published trainer left
    out. So a trainer is of 2.3 where it has a key that 2.4 lacks, and else read by 2.4's defaults.

    Args:
        sections: of one trainer, in today's form.

    Returns:
        ('2.3', dotted key) or ('2.4', '').
    """
    for name, section in sections.items():
        for inner, scope, path in within(section, name, (name,)):
            names = _names(inner, scope, path)
            for row in rows_of(scope, "drop", "refuse"):
                keys = [key for key in row.keys if key in inner]
                if keys and row.known.endswith("-2.3") and row.is_of(names):
                    return "2.3", ".".join(map(str, (*path, keys[0])))
    return "2.4", ""


def _copy(value: object) -> Any:
    """Copy mappings and lists; what they hold stays the same object."""
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _parts(section: YamlMapping, scope: str) -> list[tuple[YamlMapping, str, Path]]:
    """List the sections in a section that have rows: (section, its scope in the table, keys)."""
    if scope == "model":
        named = {key: "model" if key in PARTS else f"model.{key}" for key in (*PARTS, *_NESTED)}
        return [
            (section[key], inner, (key,))
            for key, inner in named.items()
            if isinstance(section.get(key), dict)
        ]
    nested: list[tuple[YamlMapping, str, Path]] = []
    for key in ("learning_rate", "weight_decay") if scope == "optimizer" else ():
        value = section.get(key)
        entries = {(key, i): v for i, v in enumerate(value)} if isinstance(value, list) else {}
        for path, entry in (entries or {(key,): value}).items():
            if isinstance(entry, dict) and "scheduler" in entry:
                nested.append((entry, "schedule", path))
    return nested


def within(section: object, scope: str, path: Path) -> Iterator[tuple[YamlMapping, str, Path]]:
    """List a section and those in it: (section, its scope in the table, path).

    Args:
        section: of the file; what is no mapping has none.
        scope: of the section in the table of keys.
        path: of the section.
    """
    if isinstance(section, dict):
        yield section, scope, path
        for inner, inner_scope, keys in _parts(section, scope):
            yield from within(inner, inner_scope, (*path, *keys))


def _names(section: Mapping[str, object], scope: str, path: Path) -> tuple[str, ...]:
    return names_of(scope, section, PARTS.get(str(path[-1]) if path else "", ""))


def _apply_within(file: Translation, section: object, path: Path) -> None:
    """Apply the rows to a section and those in it."""
    for inner, scope, inner_path in list(within(section, str(path[0]), path)):
        file.written[inner_path] = frozenset(inner)
        _apply(file, inner, scope, inner_path)


def _apply(
    file: Translation,
    section: dict[str, object],
    scope: str,
    path: Path,
    actions: tuple[Action, ...] = _ACTIONS,
) -> None:
    names = _names(section, scope, path)
    rows = [row for row in rows_of(scope, *actions) if row.is_of(names)]
    for key in list(section):
        own = [row for row in rows if key in row.keys and covers(row.releases, file.release)]
        for row in own if key in section else ():
            if _acts(file, row, section, key, path):
                break


def _acts(file: Translation, row: KeyRow, section: dict[str, object], key: str, path: Path) -> bool:
    """Do what a row says of a key; whether it says anything of its value."""
    if row.action == "rename":
        return _rename(file, row, section, key, path)
    if row.action == "pair":
        _pair(file, row, section, path)
        return True
    value, full_path = section[key], (*path, key)
    if row.beside and row.beside not in file.written.get(path, section):
        return False
    kind = isinstance(value, bool)  # true is not 1
    same = any(value == known and isinstance(known, bool) == kind for known in row.values)
    if same or (row.action == "drop" and not row.values) or (row.action, value) == ("refuse", None):
        file.note("dropped", full_path)
    elif row.action == "refuse":
        file.note("refused", full_path, f"{value!r}: {row.says}")
    else:
        return False
    del section[key]
    return True


def _rename(
    file: Translation, row: KeyRow, section: dict[str, object], key: str, path: Path
) -> bool:
    if row.says == key and row.since:  # means the opposite since: the release decides
        return False
    scope, _, new = row.says.rpartition(".")
    target = file.sections.get(scope) if scope else section
    if not isinstance(target, dict):
        return False
    value, destination = section.pop(key), (scope, new) if scope else (*path, new)
    if True in row.map:
        if value is None:
            return True
        if not isinstance(value, bool):
            file.note("refused", (*path, key), f"{value!r}: expected true or false")
            return True
    if row.map and isinstance(value, str | bool | None):
        value = row.map.get(value, value)
    if (known := target.setdefault(new, value)) is not value and known != value:
        message = f"is another spelling of {new!r}, which is {known!r}; keep one"
        file.note("refused", (*path, key), message)
    elif destination != (*path, key):
        file.note("renamed", (*path, key), destination)
    return True


def _pair(file: Translation, row: KeyRow, section: dict[str, object], path: Path) -> None:
    present = [key for key in row.keys if key in section]
    if row.says in section:
        file.note("refused", (*path, present[0]), f"is part of {row.says!r}; keep one spelling")
    both = zip(row.keys, row.values, strict=True)
    values = [section.pop(key, default) for key, default in both]
    section.setdefault(row.says, values)
    for i, key in enumerate(row.keys):
        if key in present:
            file.note("renamed", (*path, key), (*path, row.says, i))


def _set_defaults(file: Translation, section: dict[str, object], scope: str, path: Path) -> None:
    """Set what a section leaves out and ours have otherwise; in place."""
    names = _names(section, scope, path)
    entry = MODELS.get(names[0]) if scope == "model" else None
    written = file.written.get(path, frozenset())
    for row in rows_of(scope, "default"):
        if not row.is_of(names) or not covers(row.releases, file.release):
            continue
        for key in row.keys:
            preset = not row.preset or (file.release and entry and key in entry.presets)
            if preset and not _given(row, key, section) and _beside(row, section, written):
                section[key] = section.get(row.like, row.says) if row.like else row.says
                file.note("default", (*path, key))


def _given(row: KeyRow, key: str, section: Mapping[str, object]) -> bool:
    return not section.keys().isdisjoint((key, *row.unless))


def _beside(row: KeyRow, section: Mapping[str, object], written: frozenset[str]) -> bool:
    if row.beside.startswith("!"):
        return section.get(row.beside[1:], True) in (False, None)
    return not row.beside or bool(section.get(row.beside)) or row.beside in written - set(section)
