"""The ``trainer:`` form of releases 2.3 and later: read as the sections of a run file, and written.

Where a key of a section stands in a trainer, ``trainer.yaml`` says for both directions. What has
no meaning here is left over, by its path, and said once.
"""

import functools
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import yaml

from wafer.errors import ConfigError, Problem
from wafer.models.user.yamlfile import YamlMapping
from wafer.vendor.trainer_schedulers import (
    as_list,
    read_class,
    read_mapping,
    read_schedulers,
    write_optimizer,
)
from wafer.vendor.translation import Path

_METHODS = {"fit": "train", "validate": "eval", "validate_all": "eval_all"}
_INPUTS = ("train_input", "eval_input")


class TrainerTable(NamedTuple):
    """What ``trainer.yaml`` holds."""

    places: Mapping[str, tuple[str, str]]  #: place below ``trainer.init`` -> (section, key)
    always: frozenset[str]  #: callbacks that do here what they do there, without being asked
    arguments: Mapping[str, str]  #: callback -> the argument that it needs
    ignored: Mapping[str, list[str]]  #: callback, or a part of it -> arguments without a meaning


@functools.cache
def table() -> TrainerTable:
    """Return the table."""
    text = pathlib.Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    raw = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    pairs = ((place, key.partition(".")) for place, key in raw["places"].items())
    places = {place: (section, key) for place, (section, _, key) in pairs}
    return TrainerTable(places, frozenset(raw["always"]), raw["arguments"], raw["ignored"])


class Upgraded(NamedTuple):
    """What a ``trainer`` is here."""

    sections: YamlMapping  #: runconfig, model, optimizer, train_input, eval_input, sparsity
    left: list[str]  #: dotted paths of keys without a meaning here
    #: path of a section or key here -> path of the trainer that it comes from
    origins: dict[Path, Path]


def _keys(path: str) -> Path:
    """Split a dotted path; places in lists are numbers."""
    return tuple(int(part) if part.isdigit() else part for part in path.split("."))


def _mapping(value: object, path: str) -> Mapping[str, object]:
    return read_mapping(value, _keys(path))


def _is_part(location: str) -> bool:
    """Whether keys stand below a location."""
    return any(known.startswith(f"{location}.") for known in table().places)


class _Reader:
    """One trainer on its way; ``left`` fills up."""

    def __init__(self) -> None:
        self.sections: dict[str, YamlMapping] = {}
        self.left: list[str] = []
        self.origins: dict[Path, Path] = {}

    def put(self, place: tuple[str, str], value: object, path: Path) -> None:
        """Set a key; the file may say it in two places where both agree."""
        section, key = place
        keys = self.sections.setdefault(section, {})
        if key == "log_summaries":  # any of its places switches it on
            value = value or keys.get(key, False)
        elif key in keys and keys[key] != value:
            first = self.origins.get((section, key)) or (*self.origins[(section,)], key)
            message = f"{value!r}, but {'.'.join(map(str, first))} is {keys[key]!r}; keep one"
            raise ConfigError([Problem(path, message)])
        keys[key] = value
        self.origins[section, key] = path

    def fill(self, section: str, value: Any, path: str) -> None:
        """Make a whole section of a part."""
        self.sections[section] = value
        self.origins[section,] = _keys(path)

    def rest(self, part: Mapping[str, object], path: str, known: Iterable[str]) -> None:
        """List the keys of a part that are not known."""
        self.left += [f"{path}.{key}" for key in part if key not in known]

    def init(self, init: Mapping[str, object], path: str) -> None:
        """Read ``trainer.init``: what fills a section comes before what adds keys to it."""
        settings = {key: value for key, value in init.items() if value is not None}
        if "model" in settings:
            model = dict(_mapping(settings.pop("model"), f"{path}.model"))
            self.fill("model", model, f"{path}.model")
        if "optimizer" in settings:
            self._optimizer(settings.pop("optimizer"), f"{path}.optimizer")
        for key, value in settings.items():
            key_path = f"{path}.{key}"
            if key in ("callbacks", "loggers"):
                self._callbacks(value, key_path)
            elif key == "schedulers":
                self._schedulers(value, key_path)
            elif key == "sparsity":
                self.fill("sparsity", value, key_path)
            else:
                self._key(key, value, _keys(key_path))

    def _key(self, location: str, value: object, path: Path) -> None:
        """Put a value where the table says, or the values below it."""
        if location in table().places:
            self.put(table().places[location], value, path)
        elif _is_part(location):
            for key, inner in read_mapping(value, path).items():
                self._key(f"{location}.{key}", inner, (*path, key))
        else:
            self.left.append(".".join(map(str, path)))

    def _optimizer(self, value: object, path: str) -> None:
        name, arguments = read_class(value, _keys(path))
        self.fill("optimizer", {"optimizer_type": name}, f"{path}.{name}")
        for key, own in (arguments or {}).items():
            place = "optimizer", "learning_rate" if key == "lr" else key
            self.put(place, own, (*_keys(path), name, key))

    def _schedulers(self, value: object, path: str) -> None:
        optimizer = self.sections.setdefault("optimizer", {})
        for key, entries in read_schedulers(value, _keys(path), optimizer).items():
            optimizer[key] = [entry for entry, _ in entries]
            self.origins["optimizer", key] = _keys(path)
            for i, (_, origin) in enumerate(entries):
                self.origins["optimizer", key, i] = origin

    def _callbacks(self, value: object, path: str) -> None:
        for i, entry in enumerate(as_list(value)):
            name, arguments = read_class(entry, (*_keys(path), i))
            keys, location = (*_keys(path), i, name), f"callbacks.{name}"
            if name in table().arguments and not arguments:
                missing = f"missing argument {table().arguments[name]!r}"
                raise ConfigError([Problem(keys, f"{missing}; add it or drop the callback")])
            if f"{location}.*" in table().places:
                given = self._without_ignored(arguments or {}, name, keys)
                self.put(table().places[f"{location}.*"], given, keys)
                continue
            if location in table().places:
                self.put(table().places[location], arguments is not None, keys)
            elif name not in table().always and not _is_part(location):
                self.left.append(".".join(map(str, keys)))
                continue
            for key, own in (arguments or {}).items():
                self._key(f"{location}.{key}", own, (*keys, key))

    def _without_ignored(
        self, arguments: Mapping[str, Any], location: str, path: Path
    ) -> dict[str, object]:
        """Take away what has no meaning here, and list it."""
        ignored = table().ignored.get(location, ())
        self.left += [".".join(map(str, (*path, key))) for key in arguments if key in ignored]
        return {
            key: self._without_ignored(value, f"{location}.{key}", (*path, key))
            if isinstance(value, Mapping)
            else value
            for key, value in arguments.items()
            if key not in ignored
        }

    def methods(self, whole: Mapping[str, object], mode: str | None) -> None:
        """Read data and mode: fit trains, and evaluates where it has validation data."""
        methods = [method for method in _METHODS if method in whole]
        asked = (mode or "").removesuffix("_and_eval")
        primary = next((m for m in methods if _METHODS[m] == asked), next(iter(methods), None))
        flags = {name: self.sections.pop(name, {}) for name in _INPUTS}
        for method in sorted(methods, key=lambda method: method == primary):  # its data win
            path = f"trainer.{method}"
            self._method(_mapping(whole[method], path), path, method, is_own=method == primary)
        for section, keys in flags.items():
            for key, value in keys.items():
                origin = self.origins.pop((section, key))
                # An advice on speed, of a file whose batch or systems a flag or an arm may change.
                bounds = (
                    type(value) is int and value > 0 and key not in self.sections.get(section, ())
                )
                self.put((section, key), {"explore": {"max": value}} if bounds else value, origin)

    def _method(self, args: Mapping[str, object], path: str, method: str, *, is_own: bool) -> None:
        self.rest(
            args, path, ("train_dataloader", "val_dataloader", "val_dataloaders", "ckpt_path")
        )
        if "train_dataloader" in args:
            source = f"{path}.train_dataloader"
            self.fill("train_input", dict(_mapping(args["train_dataloader"], source)), source)
        name = "val_dataloader" if "val_dataloader" in args else "val_dataloaders"
        if loaders := as_list(args.get(name)):
            source = f"{path}.{name}" + ".0" * isinstance(args[name], list | tuple)
            self.fill("eval_input", dict(_mapping(loaders[0], source)), source)
            self.left += [f"{path}.val_dataloader.{i}" for i in range(1, len(loaders))]
        if not is_own:
            return
        if args.get("ckpt_path") is not None:
            place = ("runconfig", "checkpoint_path")
            self.put(place, args["ckpt_path"], _keys(f"{path}.ckpt_path"))
        both = method == "fit" and loaders
        run = self.sections.setdefault("runconfig", {})
        run["mode"] = "train_and_eval" if both else _METHODS[method]

    def frequency(self) -> None:
        """Turn an evaluation frequency that is a share of the run into steps."""
        run = self.sections.get("runconfig", {})
        share = run.get("eval_frequency")
        if not isinstance(share, float):
            return
        steps = run.get("max_steps") or run.get("num_steps")
        del run["eval_frequency"]
        if steps and share > 0:
            run["eval_frequency"] = max(1, round(share * steps))
        elif 0 < share < 1:  # at the end of each epoch is the default
            self.left.append("trainer.init.loop.eval_frequency")


def trainers_of(trainer: object) -> list[object]:
    """The trainers of a file, in order; entries of a list may say ``trainer`` once more."""
    if not isinstance(trainer, list | tuple):
        return [trainer]
    return [
        _mapping(entry, f"trainer.{i}").get("trainer", entry) for i, entry in enumerate(trainer)
    ]


def upgrade(trainer: object, mode: str | None = None) -> Upgraded:
    """Translate the value of ``trainer``.

    Args:
        trainer: ``{init, fit, validate, validate_all}``, or a list with one such trainer.
        mode: of the run; validation data and checkpoint are those of its method. None is that of
            the first method in the file.

    Raises:
        ConfigError: not of that form; several trainers in a row.
    """
    trainers = trainers_of(trainer)
    if len(trainers) != 1:
        message = (
            f"a list of {len(trainers)} trainers; `wafer run` runs them in order, and "
            "wafer.config.load_all reads them"
        )
        raise ConfigError([Problem(("trainer",), message)])
    whole, reader = _mapping(trainers[0], "trainer"), _Reader()
    reader.rest(whole, "trainer", ("init", *_METHODS))
    init = _mapping(whole.get("init"), "trainer.init")
    reader.init(init, "trainer.init")
    if "precision" in init:  # the vendor's defaults there are others than in older files
        model = reader.sections.setdefault("model", {})
        reader.sections["model"] = model | {
            "mixed_precision": model.get("mixed_precision", True),
            "fp16_type": model.get("fp16_type", "bfloat16"),
        }
    reader.methods(whole, mode)
    reader.frequency()
    return Upgraded(reader.sections, reader.left, reader.origins)


# --- our sections as a trainer ---------------------------------------------------------------


@functools.cache
def _written() -> Mapping[tuple[str, str], str]:
    """Return (section, key) -> its place below ``trainer.init``."""
    return {key: place for place, key in reversed([*table().places.items()])}


def as_trainer(sections: YamlMapping) -> tuple[YamlMapping, list[str]]:
    """Write sections as the value of ``trainer``.

    Args:
        sections: runconfig, model, optimizer, train_input, eval_input, sparsity; keys of 2.2.

    Returns:
        (trainer, dotted paths of keys that have no place in it).
    """
    init: YamlMapping = {}
    names = ("runconfig", "model", "optimizer", *_INPUTS)
    contents = {name: dict(sections.get(name) or {}) for name in names}
    run = contents["runconfig"]
    mode, path = run.pop("mode", None), run.pop("checkpoint_path", None)  # verbs since 2.3
    for section, own in contents.items():
        for key in [key for key in own if (section, key) in _written()]:
            _put(init, _written()[section, key], own.pop(key))
    if "precision" in init:  # its defaults are others since 2.3
        init["precision"] = {"enabled": False, "fp16_type": "float16"} | init["precision"]
    if contents["model"]:
        init["model"] = contents["model"]
    if contents["optimizer"]:
        init |= write_optimizer(contents["optimizer"])
    if sections.get("sparsity") is not None:
        init["sparsity"] = sections["sparsity"]
    left = [f"runconfig.{key}" for key in run]
    left += [name for name in sections if name not in (*names, "sparsity")]
    return {"init": init} | _write_methods(contents, mode, path), left


def _put(init: YamlMapping, location: str, value: object) -> None:
    """Write a value at its place; a callback that is switched off is left out."""
    first, _, remainder = location.partition(".")
    if first != "callbacks":
        *parents, last = location.split(".")
        for parent in parents:
            init = init.setdefault(parent, {})
        init[last] = value
        return
    name, _, argument = remainder.partition(".")
    entries = init.setdefault("loggers" if name.endswith("Logger") else first, [])
    if argument == "*":
        value, argument = value or None, ""
    if argument:
        entries.append({name: {argument: value}})
    elif value:
        entries.append({name: value if isinstance(value, Mapping) else {}})


def _write_methods(contents: Mapping[str, object], mode: object, path: object) -> YamlMapping:
    """Write ``fit`` and ``validate``, each with the data it reads."""
    start = {} if path is None else {"ckpt_path": path}
    train, evaluation = (contents[name] for name in _INPUTS)
    methods: dict[str, Any] = {}
    if train:
        methods["fit"] = {"train_dataloader": train, **start}
        if evaluation and mode == "train_and_eval":
            methods["fit"]["val_dataloader"] = evaluation
    if evaluation:
        methods["validate"] = {"val_dataloader": evaluation, **start}
    return methods
