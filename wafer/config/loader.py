"""The whole run file: merge flags, file and cluster defaults, check all sections, report once."""

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import Field, PrivateAttr, SerializeAsAny

from wafer.config.distillation import Distillation
from wafer.config.runconfig import RunSection
from wafer.data.registry import parse_input
from wafer.data.sections.base import InputSection
from wafer.errors import ConfigError, Problem
from wafer.models.errors import SectionError, did_you_mean
from wafer.models.sections import Section, parse
from wafer.models.user.trust import (
    imports_allowed,
    is_looking,
    is_user_defined,
    looking,
    require_trusted,
    searching,
)
from wafer.models.user.yamlfile import Lines, YamlMapping
from wafer.optim.sections import Optimizer, parse_optimizer
from wafer.registration import named
from wafer.vendor import runfile
from wafer.yamlfile import read_yaml

if TYPE_CHECKING:
    from wafer.models.schema import ModelConfig

_OnInputs = Callable[[RunSection, Mapping[str, InputSection]], None]

CLUSTER_DEFAULTS_VARIABLE = "CEREBRAS_WAFER_SCALE_CLUSTER_DEFAULTS"

_LOG = logging.getLogger(__name__)
_JOINED = ("mount_dirs", "python_paths")  # lists of flag, file and defaults add up
_MERGED = ("job_labels", "debug_args", "ini", "experimental")  # mappings merge key by key


class RunConfig(Section):
    """A checked run file."""

    description: Any = None  #: free text, ignored
    runconfig: RunSection  #: how long, where, on what
    train_input: SerializeAsAny[InputSection] | None = None  #: None if not given, or unseen
    eval_input: SerializeAsAny[InputSection] | None = None  #: None if not given, or unseen
    #: the ``model`` section as written; ``models`` checks it. Read only
    model: dict[str, Any] = Field(repr=False)
    optimizer: SerializeAsAny[Optimizer] | None = None  #: None if not given, or unseen
    sparsity: Any = None  #: groups (``sparsity.parse``); they keep their section
    distillation: Distillation | None = None  #: a teacher, or None
    _unseen: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def unseen(self) -> Mapping[str, str]:
        """Sections that name code which was not imported, and so were not checked: their names.

        Only a command that looks at a file leaves any.
        """
        return self._unseen

    @property
    def no_effect(self) -> tuple[str, ...]:
        """Dotted keys the file sets that mean nothing on this machine, to be logged once."""
        keys = []
        for name in ("train_input", "eval_input", "optimizer", "runconfig"):
            section = getattr(self, name)
            if section is not None:
                keys += [f"{name}.{key}" for key in section.no_effect]
        return tuple(keys)

    def to_dict(self) -> YamlMapping:
        """Plain YAML types that parse back to the same configuration."""
        sections = super().to_dict()
        return sections if self.sparsity is None else sections | {"sparsity": self.sparsity.section}

    def to_yaml(self) -> str:
        """Write the resolved configuration; ``load`` reads it back to an equal one."""
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml's is much faster
        return yaml.dump(self.to_dict(), Dumper=dumper, sort_keys=False, default_flow_style=None)


def model_section_of(cfg: "ModelConfig") -> YamlMapping:
    """Return a ``model`` section that a run file reads as the configuration.

    ``wafer.models.registry.settings_of`` leaves out keys that are defaults; a run file may have
    other ones.
    """
    from wafer.models.registry import parse_config, settings_of  # imports jax

    return settings_of(
        cfg, lambda own: parse_config(runfile.read({"model": own}).sections["model"])
    )


def read_sections(raw: Mapping[str, object]) -> YamlMapping:
    """Return the sections of a run file of any form with the keys of ``RunConfig``, unchecked.

    Raises:
        ConfigError: keys that cannot be read.
    """
    file = runfile.read(raw)
    if file.problems:
        raise ConfigError([file.in_file(problem) for problem in file.problems])
    return file.sections


def sections_as_written(raw: Mapping[str, object]) -> YamlMapping:
    """Return the sections of a run file of any form with the keys that it uses, unchecked."""
    return runfile.upgraded(raw).sections


def unseen_lines(cfg: RunConfig) -> list[str]:
    """Say what of a run file was not checked, as it is code that a look does not import."""
    return [
        f"{section}: not checked: {name!r} is code, which is not imported (--trust_code imports it)"
        for section, name in cfg.unseen.items()
    ]


def load(
    path: str | Path,
    overrides: Mapping[str, object] | None = None,
) -> RunConfig:
    """Read and check a run file (YAML).

    Args:
        path: the file.
        overrides: runconfig keys given as flags; they win over the file, the file over the file
            that the environment variable ``CLUSTER_DEFAULTS_VARIABLE`` names. None is "not given".

    Returns:
        The configuration, frozen.

    Raises:
        ConfigError: everything that is wrong, each with its key's path, line, value and what is
            allowed.
    """
    raw, line_numbers = read_yaml(path)
    return _parse_file(path, raw, line_numbers, overrides)


def load_all(
    path: str | Path,
    overrides: Mapping[str, object] | None = None,
    on_inputs: _OnInputs | None = None,
) -> list[RunConfig]:
    """Read and check a run file whose ``trainer`` may be a list; see ``load``.

    Args:
        path: the file.
        overrides: the same.
        on_inputs: called with ``runconfig`` and the input sections, by name, of the first trainer
            where they are sound by themselves: before jax is imported, which checking a model
            takes. The file may yet be refused.

    Returns:
        A configuration for each trainer, in the order in which they run.

    Raises:
        ConfigError: everything that is wrong with the first trainer that cannot be run.
    """
    runs, out = runfile.runs_of(*read_yaml(path)), list[RunConfig]()
    for number, (raw, line_numbers) in enumerate(runs, 1):
        where = path if len(runs) == 1 else f"{path}, trainer {number} of {len(runs)}"
        begin = on_inputs if number == 1 else None
        out.append(_parse_file(where, raw, line_numbers, overrides, begin))
    return out


def _parse_file(
    where: str | Path,
    raw: object,
    line_numbers: Lines,
    overrides: Mapping[str, Any] | None,
    on_inputs: _OnInputs | None = None,
) -> RunConfig:
    try:
        return parse_config(raw, overrides, defaults=_cluster_defaults(), on_inputs=on_inputs)
    except ConfigError as err:
        problems = [_with_origin(p, line_numbers, overrides or {}) for p in err.problems]
        raise ConfigError(problems, str(where)) from None


def parse_config(
    raw: object,
    overrides: Mapping[str, Any] | None = None,
    *,
    defaults: Mapping[str, object] | None = None,
    on_inputs: _OnInputs | None = None,
    needs_inputs: bool = True,
) -> RunConfig:
    """Check a run file given as a mapping; see ``load`` and ``load_all``.

    Folders of the user's modules are appended to ``sys.path``, and stay there if nothing is wrong.

    Args:
        raw: the mapping.
        overrides: see ``load``.
        defaults: of ``runconfig``.
        on_inputs: see ``load_all``.
        needs_inputs: refuse a file without the input sections of its mode.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    if not isinstance(raw, Mapping):
        raise ConfigError([Problem((), f"expected sections (model, runconfig, ...), got {raw!r}")])
    flags = {k: v for k, v in (overrides or {}).items() if v is not None}
    file = runfile.read(named(raw), flags.get("mode"))
    for line in file.lines:
        _LOG.warning("%s", line)
    sections, problems, known = file.sections, [*file.problems], tuple(RunConfig.model_fields)
    problems += [
        Problem(
            (str(key),),
            f"unknown section{did_you_mean(key, known)}; known: {', '.join(known)}",
            unknown="section",
        )
        for key in sections
        if key not in known
    ]
    run = _check_runconfig(sections.get("runconfig"), flags, defaults or {}, problems)
    if run is not None and run.only_looks and "compile_dir" not in flags:
        kept = run.compile_dir if _may_import(run) else None  # compiled programs are code, too
        run = run.model_copy(update={"compile_dir": kept})
    missing = _missing(sections, run.mode if run else "train")
    problems += [p for p in missing if needs_inputs or not str(p.path[0]).endswith("_input")]
    with searching(_code_folders(run)):
        parsed, unseen = _check_sections(sections, run, problems, on_inputs)
        if problems:
            raise ConfigError([file.in_file(problem, flags) for problem in problems])
        try:  # to put the sections together, each of which is checked
            cfg = parse(RunConfig, parsed)
        except SectionError as err:
            raise ConfigError(err.problems) from None
    cfg._unseen.update(unseen)
    return cfg


def _check_sections(
    raw: YamlMapping,
    run: RunSection | None,
    problems: list[Problem],
    on_inputs: _OnInputs | None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Check each section; what is wrong with one is added to ``problems``.

    ``on_inputs`` is called when ``runconfig`` and the inputs, which come first, are sound.

    Returns:
        The sections, and the names of code in those that were not seen.
    """
    parsed: dict[str, Any] = {"runconfig": run, "description": raw.get("description")}
    unseen: dict[str, str] = {}
    readers: dict[str, Callable[[Any], Any]] = {  # jax is imported behind the inputs
        "runconfig": lambda value: _require_trusted_engine(run),  # parsed already
        "train_input": lambda value: parse_input(value, _systems(run, "train_input")),
        "eval_input": lambda value: parse_input(value, _systems(run, "eval_input")),
        "optimizer": parse_optimizer,
        "model": _model,
        "sparsity": _sparsity,
        "distillation": lambda value: parse(Distillation, value),
    }
    inputs = [part for part in ("train_input", "eval_input") if raw.get(part) is not None]
    for name, read in readers.items():
        if name == "optimizer" and on_inputs and run and all(part in parsed for part in inputs):
            on_inputs(run, {part: parsed[part] for part in inputs})
        if raw.get(name) is None and name != "runconfig":
            continue
        with _importing(run) as refused:
            try:
                parsed[name] = read(raw.get(name))
            except ValueError as err:
                if refused:
                    unseen[name] = refused[-1]
                else:
                    problems += _problems_from(name, err)
    if "model" in unseen:
        parsed["model"] = dict(raw["model"])
    return parsed, unseen


def _require_trusted_engine(run: RunSection | None) -> RunSection | None:
    """Return the section; refuse code as its engine, imported when it is made, unless trusted."""
    if run is not None and is_user_defined(run.execution_strategy):
        require_trusted(str(run.execution_strategy), "engine")
    return run


def _importing(run: RunSection | None) -> contextlib.AbstractContextManager[list[str]]:
    """Let named code be imported; if the file is only looked at, refuse and list it instead."""
    looks = is_looking() or run is None or run.only_looks  # a wrong runconfig may ask to look
    return looking() if looks else contextlib.nullcontext([])


def _may_import(run: RunSection | None) -> bool:
    with _importing(run):
        return imports_allowed()


def _code_folders(run: RunSection | None) -> Sequence[str]:
    """Folders of the user's modules; none where nothing is imported."""
    return run.python_paths or () if run is not None and _may_import(run) else ()


def _check_runconfig(
    section: object,
    flags: Mapping[str, object],
    defaults: Mapping[str, object],
    problems: list[Problem],
) -> RunSection | None:
    """Check ``runconfig``; what is wrong with it is added to ``problems``."""
    try:
        return parse(RunSection, _merge(section, flags, defaults))
    except SectionError as err:
        problems += err.under("runconfig").problems
        return None


def _model(value: object) -> YamlMapping:
    if not isinstance(value, Mapping):
        raise ConfigError([Problem((), f"{value!r}: expected a mapping of keys")])
    from wafer.models import registry  # imports jax

    section = dict(value)
    if "name" not in section:
        message = "missing; such as `name: gpt2` (`wafer models` lists all)"
        raise ConfigError([Problem(("name",), message)])
    registry.parse_config(section)
    return section


def _sparsity(value: object) -> object:
    from wafer.sparsity import parse as parse_groups  # imports jax

    return parse_groups(value)


def _missing(raw: Mapping[str, object], mode: str) -> list[Problem]:
    needed = ["model"]
    if mode in ("train", "train_and_eval"):
        needed += ["train_input", "optimizer"]
    if mode != "train":
        needed.append("eval_input")
    return [
        Problem((name,), f"missing section; mode {mode!r} needs it")
        for name in needed
        if raw.get(name) is None
    ]


def _systems(run: RunSection | None, name: str) -> int:
    """Return how many systems share the batch of an input section; 1 where the mode reads none."""
    if run is None or (run.mode == "train" and name == "eval_input"):
        return 1
    return 1 if run.mode.startswith("eval") and name == "train_input" else run.num_csx


def _merge(section: object, flags: Mapping[str, Any], defaults: Mapping[str, Any]) -> YamlMapping:
    """Merge ``runconfig``: flags win over the file, the file over the cluster's defaults."""
    section = {} if section is None else section
    if not isinstance(section, Mapping):
        raise ConfigError([Problem((), f"{section!r}: expected a mapping of keys")])
    merged = {**defaults, **section, **flags}
    layers = (flags, section, defaults)
    for key in _JOINED:
        given = [layer[key] for layer in layers if layer.get(key) is not None]
        if len(given) > 1:
            lists = (items if isinstance(items, list | tuple) else [items] for items in given)
            merged[key] = [item for items in lists for item in items]
    for key in _MERGED:
        given = [layer[key] for layer in reversed(layers) if isinstance(layer.get(key), Mapping)]
        if len(given) > 1:
            merged[key] = {k: v for layer in given for k, v in layer.items()}
    return merged


def _cluster_defaults() -> YamlMapping:
    path = os.environ.get(CLUSTER_DEFAULTS_VARIABLE)
    if not path:
        return {}
    try:
        raw, _ = read_yaml(path)
    except ConfigError as err:
        message = f"{err} (named by the environment variable {CLUSTER_DEFAULTS_VARIABLE})"
        raise ConfigError([Problem((), message)]) from None
    section = raw.get("runconfig", raw) if isinstance(raw, Mapping) else raw
    if not isinstance(section, Mapping):
        message = f"expected runconfig keys, got {section!r} (from {CLUSTER_DEFAULTS_VARIABLE})"
        raise ConfigError([Problem((), message)], path)
    return dict(section)


def _problems_from(section: str, err: ValueError) -> Sequence[Problem]:
    """Problems of a section, seen from the root of the file."""
    if not isinstance(err, SectionError):
        return [Problem((section,), str(err) or type(err).__name__)]
    rooted = all(problem.path[:1] == (section,) for problem in err.problems)
    return (err if rooted else err.under(section)).problems


def _with_origin(problem: Problem, line_numbers: Lines, flags: Mapping[str, object]) -> Problem:
    """Say where a value came from: a flag, or a line of the file."""
    path = problem.path
    if path[:1] == ("runconfig",) and len(path) > 1 and flags.get(str(path[1])) is not None:
        return Problem(path, f"(flag --{path[1]}) {problem.message}")
    line = line_numbers.get(path)
    return Problem(path, f"(line {line}) {problem.message}") if line else problem
