"""The ``schedulers`` of a ``trainer`` as values of the ``optimizer`` section, and back.

Schedulers there are nested classes; here they are one list for each key, in which entries of the
same ``param_group_tags`` belong together. Rules are those of the vendor's ``lr_scheduler`` and
``SchedulersCallback``.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wafer.errors import ConfigError, Problem
from wafer.models.errors import did_you_mean
from wafer.models.user.yamlfile import YamlMapping
from wafer.optim.schedule_sections import parse_schedules, schedule_class
from wafer.vendor.keys import names_of, rows_of, spellings

Path = tuple[str | int, ...]
_Tags = tuple[str | None, ...]
_KEYS = {"lr": "learning_rate", "wd": "weight_decay"}
# class that holds other schedulers, without its ending -> the keys it takes
_HOLDERS = {
    "sequential": ("schedulers", "milestones", "last_epoch", "param_group_tags"),
    "chained": ("schedulers", "param_group_tags"),
    "scaleperparam": ("scheduler", "param_group_tags"),
}
_OURS = ("scheduler", "main_scheduler")  # keys of our entries that the vendor's classes lack


class _Read(NamedTuple):
    """A scheduler of the trainer, without its nesting."""

    path: Path
    key: str  #: of the optimizer section
    tags: _Tags | None  #: None in it: the groups without a tag
    entries: list[tuple[YamlMapping, Path]]  #: in our form, each with the path of its class
    combined: str = "sequential"  #: how they are combined: sequential or chained
    scaled: bool = False  #: whether ScalePerParamLR holds it


def _wrong(path: Path, message: str) -> ConfigError:
    return ConfigError([Problem(path, message)])


def read_mapping(value: object, path: Path) -> Mapping[str, object]:
    """Read a mapping; nothing is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(path, f"{value!r}: expected a mapping")
    return value


def as_list(value: object) -> list[Any]:
    """Read a list, or one entry where a list may be."""
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def read_class(value: object, path: Path) -> tuple[str, Mapping[str, object] | None]:
    """Read ``{ClassName: {…}}``."""
    entry = read_mapping(value, path)
    if len(entry) != 1:
        names = ", ".join(map(str, entry)) or "nothing"
        raise _wrong(path, f"expected one class name, got {names}")
    ((name, arguments),) = entry.items()
    return str(name), None if arguments is None else read_mapping(arguments, (*path, str(name)))


def read_schedulers(
    value: object, path: Path, optimizer: YamlMapping
) -> dict[str, list[tuple[YamlMapping, Path]]]:
    """Translate ``trainer.init.schedulers``.

    Args:
        value: one scheduler, or a list of them.
        path: of it, for errors.
        optimizer: the section; its numbers act where every scheduler has tags.

    Returns:
        key of the section -> its entries, each with the path of its class.

    Raises:
        ConfigError: a key without an effect, schedulers that act on the same parameters, or a
            nesting that one list does not say.
    """
    listed = isinstance(value, list | tuple)
    parts = [_read(entry, (*path, i) if listed else path) for i, entry in enumerate(as_list(value))]
    by_key = {key: [part for part in parts if part.key == key] for key in _KEYS.values()}
    return {key: _joined(key, own, optimizer) for key, own in by_key.items() if own}


def _read(value: object, path: Path) -> _Read:
    name, arguments = read_class(value, path)
    path, args = (*path, name), dict(arguments or {})
    # ChainedScheduler is ChainedLR.
    kind, key = name.lower().removesuffix("scheduler"), "learning_rate"
    if kind[-2:] in _KEYS:
        kind, key = kind[:-2], _KEYS[kind[-2:]]
    tags = _read_tags(args.get("param_group_tags"), (*path, "param_group_tags"))
    if kind not in _HOLDERS:
        for unknown in args.keys() & set(_OURS):
            raise _wrong((*path, unknown), f"unknown key; the class is {name}")
        args.pop("param_group_tags", None)
        return _Read(path, key, tags, [({"scheduler": name, **args}, path)])
    for unknown in args.keys() - set(_HOLDERS[kind]):
        hint, takes = did_you_mean(unknown, _HOLDERS[kind]), ", ".join(_HOLDERS[kind])
        raise _wrong((*path, unknown), f"unknown key{hint}; {name} takes {takes}")
    if args.get("last_epoch") not in (None, -1):
        message = f"{args['last_epoch']!r}: a schedule begins at step 0 or where its checkpoint is"
        raise _wrong((*path, "last_epoch"), f"{message}; drop the key")
    inner = _inner(kind, args, path)
    if kind == "scaleperparam":
        (read,) = inner
        combined = read.combined
    else:
        combined = kind
    for read in inner:
        _check_nested(read, name, _Read(path, key, tags, [], combined))
    if kind == "sequential":
        _check_milestones(args.get("milestones"), inner, (*path, "milestones"))
    entries = [entry for read in inner for entry in read.entries]
    return _Read(path, key, tags, entries, combined, kind == "scaleperparam")


def _inner(kind: str, args: Mapping[str, object], path: Path) -> list[_Read]:
    """Read the schedulers that a class holds."""
    if kind == "scaleperparam":
        return [_read(args.get("scheduler"), (*path, "scheduler"))]
    entries = as_list(args.get("schedulers"))
    if not entries:
        raise _wrong((*path, "schedulers"), "no scheduler; expected a list of them")
    return [_read(entry, (*path, "schedulers", i)) for i, entry in enumerate(entries)]


def _check_nested(read: _Read, name: str, outer: _Read) -> None:
    inner = read.path[-1]
    if outer.key == read.key == "weight_decay" and name.lower().startswith("scale"):
        message = (
            f"{name}: adjust_learning_rate does not scale the weight decay here; write {inner}"
        )
        raise _wrong(outer.path, message)
    if read.key != outer.key:
        raise _wrong(read.path, f"{inner} in {name}; expected a scheduler of the {outer.key}")
    if read.tags is not None and read.tags != outer.tags:
        where = (*read.path, "param_group_tags")
        raise _wrong(where, f"tags in {name}; write them at {name}, for all that it holds")
    if read.scaled:
        raise _wrong(read.path, f"{inner} in {name}; put {name} into {inner} instead")
    if len(read.entries) > 1 and read.combined != outer.combined:
        raise _wrong(read.path, f"{inner} in {name} is not supported; write either alone")


def _check_milestones(steps: object, inner: Sequence[_Read], path: Path) -> None:
    """Compare milestones with the ends of the schedulers, which decide here."""
    if steps is None:
        return
    lengths = [[_length(entry) for entry, _ in part.entries] for part in inner[:-1]]
    if any(None in own for own in lengths):
        return  # refused when the section is read, with the missing total_iters
    ends = list(itertools.accumulate(sum(n for n in own if n) for own in lengths))
    if not isinstance(steps, list | tuple) or list(steps) != ends:
        raise _wrong(path, f"{steps}: total_iters of the schedulers end at {ends}; drop the key")


def _length(entry: Mapping[str, object]) -> int | None:
    try:
        others = spellings("schedule", str(entry.get("scheduler")))
        ours = {others.get(key, (key, False))[0]: value for key, value in entry.items()}
        return parse_schedules(ours)[0].length
    except ConfigError:  # reported when the section is read
        return None


def _read_tags(value: Any, path: Path) -> _Tags | None:
    if value is None:
        return None
    tags = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not tags or any(tag is not None and not isinstance(tag, str) for tag in tags):
        raise _wrong(path, f"{value!r}: expected a tag or a list of tags")
    return tags


def _joined(key: str, reads: list[_Read], optimizer: YamlMapping) -> list[tuple[YamlMapping, Path]]:
    """Write the schedulers of a key as one list."""
    _check_apart(reads)
    scaled = [read for read in reads if read.scaled]
    if optimizer.get("adjust_learning_rate") and scaled and len(scaled) < len(reads):
        bare = next(read for read in reads if not read.scaled)
        message = "not in ScalePerParamLR; adjust_learning_rate acts on all or none: wrap it, too"
        raise _wrong(bare.path, message)
    known = {tag.get("tag") for tag in optimizer.get("params") or () if isinstance(tag, Mapping)}
    idle = known - {tag for read in reads for tag in read.tags or ()}
    out: list[tuple[YamlMapping, Path]] = []
    base = optimizer.get(key, 0.0 if key == "weight_decay" else None)
    untagged = any(read.tags is None or None in read.tags for read in reads)
    if not untagged and base is not None and not isinstance(base, Mapping | list):
        out.append(({"scheduler": "Constant", "learning_rate": base}, reads[0].path))
    for read in reads:
        if read.tags is not None and None in read.tags and idle:
            missing = ", ".join(sorted(map(repr, idle)))
            message = f"null is for parameters without a tag, and none is for {missing}; add it"
            raise _wrong((*read.path, "param_group_tags"), message)
        for entry, _ in read.entries[:1]:
            if read.combined == "chained" and len(read.entries) > 1:
                entry["main_scheduler"] = "chained"
        for entry, path in read.entries:
            named = read.tags or (None,)
            tags = {} if None in named else {"param_group_tags": list(named)}
            out.append((entry | tags, path))
    return out


def _check_apart(parts: Sequence[_Read]) -> None:
    """Refuse schedulers of a key that act on the same parameters."""
    for first, second in itertools.combinations(parts, 2):
        shared = [tag for tag in first.tags or (None,) if tag in (second.tags or (None,))]
        if shared:
            both = f"the tag {shared[0]!r}" if shared[0] else "the same parameters"
            message = (
                f"acts on {both}, as {first.path[-1]} before it; put them into one SequentialLR or "
                "ChainedScheduler, or give each its own param_group_tags"
            )
            raise _wrong(second.path, message)


def write_optimizer(section: YamlMapping) -> YamlMapping:
    """Write an optimizer section as ``optimizer`` and ``schedulers`` of ``trainer.init``."""
    values = dict(section)
    known = [tag["tag"] for tag in values.get("params") or ()]
    schedulers = []
    for key, end in (("learning_rate", "LR"), ("weight_decay", "WD")):
        value = values.get(key)
        if value is None or (key == "weight_decay" and not isinstance(value, Mapping | list)):
            continue
        scaled = key == "learning_rate" and bool(values.get("adjust_learning_rate"))
        schedulers += _written(values.pop(key), end, known, scaled=scaled)
    optimizer = {values.pop("optimizer_type", "AdamW"): values}
    return {"optimizer": optimizer} | ({"schedulers": schedulers} if schedulers else {})


def _written(value: object, end: str, known: list[str], *, scaled: bool) -> list[YamlMapping]:
    """Write a number, a scheduler or a list of them: one class for each list of tags."""
    if not isinstance(value, Mapping | list):
        value = {"scheduler": "Constant", "learning_rate": value}
    groups: dict[_Tags, list[YamlMapping]] = {}
    for entry in as_list(value):
        groups.setdefault(tuple(as_list(entry.get("param_group_tags"))), []).append(entry)
    followed = {tag for tags in groups for tag in tags}
    out = []
    for tags, entries in groups.items():
        written = [_write_class(entry, end) for entry in entries]
        chained = str(entries[0].get("main_scheduler")).lower() == "chained"
        name = "ChainedScheduler" if (chained, end) == (True, "LR") else f"Chained{end}"
        name = name if chained else f"Sequential{end}"
        holder = written[0] if len(written) == 1 else {name: {"schedulers": written}}
        levels = [holder, {"ScalePerParamLR": {"scheduler": holder}}][: 1 + scaled]
        if len(groups) > 1 and not tags:  # there, one without tags acts on all
            tags = (None, *(tag for tag in dict.fromkeys(known) if tag not in followed))  # noqa: PLW2901
        for level in levels if tags else ():
            next(iter(level.values()))["param_group_tags"] = list(tags)
        out.append(levels[-1])
    return out


def _write_class(entry: Mapping[str, object], end: str) -> YamlMapping:
    name = str(entry["scheduler"])
    cls = schedule_class(name)
    ours = {*_OURS, "param_group_tags"}
    arguments = {key: value for key, value in entry.items() if key not in ours}
    if cls is None:  # refused when the file is read
        return {name: arguments}
    if end == "WD":  # whose classes have the names of their base, such as initial_val
        names = names_of("schedule", entry)
        rows = [r for r in rows_of("schedule", "rename") if not r.since and r.is_of(names)]
        older = {row.says: row.keys[0] for row in rows}
        arguments = {older.get(key, key): value for key, value in arguments.items()}
    bare = (cls.__name__, end) == ("CosineAnnealingWarmRestarts", "LR")
    return {cls.__name__ + ("" if bare else end): arguments}
