"""The table of the run file's keys, ``keys.yaml``: names, defaults, keys without effect."""

import fnmatch
import functools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

import yaml

from wafer.models.names import preset_of

Release = tuple[int, int]
Action = Literal["rename", "pair", "drop", "refuse", "default", "gone"]
PARTS = {
    "image_model": "vision",
    "text_model": "gpt2",
    "q_encoder": "tower",
    "ctx_encoder": "tower",
}
"""Sections of models in a model -> the code that reads one without a name."""

_GPTJ = {"gptj", "codegen", "gpt_neox", "falcon"}  # Hugging Face types of those that run its code
_CHOOSERS = {"": "", "model": "name", "optimizer": "optimizer_type", "schedule": "scheduler"}


class KeyRow(NamedTuple):
    """Keys of a section that one thing is said of; ``keys.yaml`` explains the fields."""

    section: str
    keys: tuple[str, ...]
    action: Action
    says: Any  #: our key, the reason, the default or the release, as the action has it
    of: tuple[str, ...] = ()
    map: Mapping[Any, Any] = {}
    since: Release | None = None
    values: tuple[Any, ...] = ()
    known: str = ""
    releases: str = ""
    beside: str = ""
    unless: tuple[str, ...] = ()
    like: str = ""
    preset: bool = False

    def is_of(self, names: tuple[str, ...]) -> bool:
        """Whether the row is of a model, processor, optimizer or scheduler of these names."""
        if not self.of:
            return True
        globs = [glob.lstrip("!") for glob in self.of]
        found = any(fnmatch.fnmatchcase(name.lower(), glob) for name in names for glob in globs)
        return found != self.of[0].startswith("!")


class KeyTable(NamedTuple):
    """What ``keys.yaml`` holds."""

    rows: Mapping[str, tuple[KeyRow, ...]]  #: by section
    names: Mapping[str, str]  #: other name of a model -> ours
    tower: Mapping[str, tuple[Any, Any]]  #: key of a ViT -> CLIP's value, the default since 2.4
    removed: Mapping[str, str]  #: key of stacks before -> what to write instead


def release_of(value: object) -> Release | None:
    """Read '2.10' or '1.7.1' as (major, minor); None where it is no release."""
    numbers = str(value).split(".")
    if not isinstance(value, str) or len(numbers) < 2 or not all(map(str.isdecimal, numbers)):
        return None
    return int(numbers[0]), int(numbers[1])


def covers(releases: str, release: Release | None) -> bool:
    """Whether 'first-last' has a release; '' has all, also none."""
    if not releases:
        return True
    first, last = map(release_of, releases.split("-"))
    return bool(release and first and last and first <= release <= last)


def _row(section: str, action: Action, fields: dict[str, Any]) -> KeyRow:
    says = fields.pop(action)
    keys, since = tuple(fields.pop("keys").split()), release_of(fields.pop("since", None))
    lists: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return KeyRow(section, keys, action, says, since=since, **lists)


@functools.cache
def table() -> KeyTable:
    """Return the table."""
    text = pathlib.Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    raw = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    names, tower, removed = (raw.pop(key) for key in ("names", "tower", "removed"))
    rows = {
        section: tuple(
            _row(section, action, dict(row))
            for row in entries
            for action in get_args(Action)
            if action in row
        )
        for section, entries in raw.items()
    }
    return KeyTable(rows, names, tower, removed)


def rows_of(section: str, *actions: Action) -> Iterator[KeyRow]:
    """List the rows of a section in order; those of ``input`` belong to both inputs."""
    both = ("input",) if section in ("train_input", "eval_input") else ()
    for scope in (section, *both):
        yield from (row for row in table().rows.get(scope, ()) if row.action in actions)


def code_of(name: str) -> str:
    """Return the vendor's code that a model's name runs: gpt2, gptj, t5, or else the family."""
    entry = preset_of(name)
    if entry is None:
        return ""
    code = {"decoder": "gptj" if entry.hf in _GPTJ else "gpt2", "seq2seq": "t5"}
    return code.get(entry.family, entry.family)


def names_of(scope: str, section: Mapping[str, object], code: str = "") -> tuple[str, ...]:
    """Return the names by which rows may be of a section.

    Args:
        scope: the section's, as the table has it.
        section: with its name, processor, optimizer or scheduler.
        code: that reads a part of a model without a name.
    """
    name = str(section.get(_CHOOSERS.get(scope, "data_processor"), ""))
    if scope == "schedule":
        return (name.lower().removesuffix("lr").removesuffix("wd"),)
    if scope != "model":
        return (name,)
    own = code_of(name) or ("encoder" if code == "tower" else code)
    return (name, own, code)


def spellings(section: str, name: str) -> dict[str, tuple[str, bool]]:
    """Return other names of a section's keys: key -> (ours, whether it is true or false).

    Args:
        section: as the table has it; 'learning_rate' is a schedule.
        name: that chooses among the section's classes.
    """
    scope = "schedule" if section == "learning_rate" else section
    chooser = {_CHOOSERS.get(scope, "data_processor"): name}
    rows = [*rows_of(scope, "rename", "pair")]
    names = names_of(scope, chooser)
    return {
        key: (row.says, True in row.map)
        for row in rows
        for key in row.keys
        if row.is_of(names) and "." not in row.says and key != row.says
    }
