"""The sweep file: a base run file, arms that change it, seeds; checked as a whole before a run."""

import copy
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from wafer.config import parse_config
from wafer.config.loader import sections_as_written
from wafer.engines.choose import check
from wafer.errors import ConfigError, Problem
from wafer.experiment import Experiment
from wafer.models.errors import SectionError, did_you_mean
from wafer.models.paths import named_leaves
from wafer.models.sections import Section, parse
from wafer.models.user.code import NOTEBOOK
from wafer.models.user.trust import code_in
from wafer.models.user.yamlfile import YamlMapping
from wafer.registration import named
from wafer.yamlfile import read_yaml

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_OWN = {  # keys that the sweep itself sets in every run
    "model_dir": "DIR/ARM/SEED",
    "seed": "one of `seeds`",
    "mode": "train_and_eval",
    "summary_dir": "the run's own folder",
}


class SweepFile(Section):
    """What a sweep file takes."""

    #: run file that the arms change, seen from the sweep file's folder; or its sections
    base: str | dict[str, Any] | None = None
    #: name -> changes by dotted key; `file` names a base of the arm's own, `group` its group in the
    #: fit, `after` the arm whose last weights it begins with. The others are compared with the
    #: first
    arms: YamlMapping
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...]  #: every arm is run with each
    #: name of a metric of the last evaluation; None is eval/bits_per_byte where the data is text,
    #: else loss
    metric: str | None = None


class SweepArm(NamedTuple):
    """A run file of the grid."""

    name: str  #: as in the sweep file
    group: str  #: in the fit; '' takes dense or sparse, by what is left of the weights
    after: str  #: arm whose weights its runs begin with, seed by seed; '' for fresh ones
    sections: YamlMapping  #: of its run file, checked; without seed and model_dir
    experiment: Experiment  #: what follows from them

    @property
    def steps(self) -> int:
        """Last step of its runs."""
        return int(self.experiment.cfg.runconfig.max_steps or 0)

    @property
    def held(self) -> list[str]:
        """Names of its code that this process alone has."""
        names = {code.name for code in code_in(self.sections)}
        return sorted(name for name in names if name.startswith(NOTEBOOK))


class Sweep(NamedTuple):
    """A checked sweep file."""

    arms: tuple[SweepArm, ...]  #: in the file's order
    seeds: tuple[int, ...]  #: as given
    metric: str | None  #: name, or None for the default


def read_sweep(source: str | pathlib.Path | Mapping[str, Any], only: Sequence[str] = ()) -> Sweep:
    """Read and check a sweep and the run files of all its arms.

    Args:
        source: the file, or what it holds; then paths are seen from the working directory.
        only: names of arms to keep; all when empty.

    Raises:
        ConfigError: everything that is wrong with it, arm by arm.
    """
    raw, path = source, ""
    if not isinstance(source, Mapping):
        path = str(source)
        raw, _ = read_yaml(path)
    try:
        file = parse(SweepFile, raw)
    except SectionError as error:
        raise ConfigError(error.problems, path) from None
    problems = [*_wrong_seeds(file.seeds), *_wrong_names(file.arms, only)]
    arms, bases = [], _Bases(pathlib.Path(path).parent)
    for name, changes in file.arms.items():
        try:
            arms.append(_arm(name, changes, file.base, bases))
        except (SectionError, ValueError) as error:
            problems += _under(name, error)
    if not problems:
        problems += _wrong_order({arm.name: arm for arm in arms})
    if problems:
        raise ConfigError(problems, path)
    kept = set(only)
    for arm in reversed(arms * len(arms)):  # also those that they come after
        kept |= {arm.after} if arm.name in kept and arm.after else set()
    chosen = tuple(arm for arm in arms if not kept or arm.name in kept)
    return Sweep(chosen, file.seeds, file.metric)


def run_sections(
    arm: SweepArm, seed: int, folder: pathlib.Path, weights: pathlib.Path | None = None
) -> YamlMapping:
    """Write down one run of an arm: a run file's sections.

    Args:
        arm: its run file.
        seed: of the run.
        folder: of the run.
        weights: checkpoint whose weights it begins with; None for fresh ones.
    """
    settings = dict(arm.sections["runconfig"])
    settings |= {"model_dir": str(folder), "seed": seed}
    if weights is not None:
        settings |= {"checkpoint_path": str(weights), "load_checkpoint_states": "model"}
    return {**arm.sections, "runconfig": settings}


def _wrong_order(arms: Mapping[str, SweepArm]) -> Iterable[Problem]:
    """Check that what an arm comes after is there, begins before it, and has the same weights."""
    for name, arm in arms.items():
        chain, at = [name], arm
        while at.after and not (at.after in chain or at.after not in arms):
            chain.append(at.after)
            at = arms[at.after]
        if at.after and at.after not in arms:
            hint = did_you_mean(at.after, arms)
            yield Problem(("arms", at.name, "after"), f"{at.after!r}: unknown arm{hint}")
        elif at.after:
            way = " after ".join([*chain, at.after])
            yield Problem(("arms", name, "after"), f"{way}: none of them can begin")
        elif arm.after:
            yield from _other_weights(arm, arms[arm.after])


def _other_weights(arm: SweepArm, before: SweepArm) -> Iterable[Problem]:
    """Say before hours of training that the weights will not fit."""
    own, theirs = (
        {name: leaf.shape for name, leaf in named_leaves(one.experiment.shapes)}
        for one in (arm, before)
    )
    strict = not arm.experiment.cfg.runconfig.disable_strict_checkpoint_loading
    differ = [name for name in own if own[name] != theirs.get(name)]
    if strict and differ:
        name = differ[0]
        message = f"{name} has the shape {own[name]}, in {before.name} {theirs.get(name, 'none')}"
        yield Problem(("arms", arm.name, "after"), f"{message}; give both the same model")


def _wrong_seeds(seeds: Sequence[int]) -> Iterable[Problem]:
    if not seeds:
        yield Problem(("seeds",), "an empty list; name at least one, three to see a spread")
    for at, seed in enumerate(seeds):
        if seed in seeds[:at]:
            yield Problem(("seeds", at), f"{seed} is there twice; runs of one seed are the same")


def _wrong_names(arms: Mapping[str, object], only: Sequence[str]) -> Iterable[Problem]:
    if not arms:
        yield Problem(("arms",), "no arm; `dense: {}` is the base file as it is")
    lower: dict[str, str] = {}
    for name in arms:
        if not _NAME.fullmatch(name):
            message = "names a folder: expected letters, digits, '.', '_' and '-', no '.' in front"
            yield Problem(("arms", name), message)
        if name.lower() in lower:
            message = f"is also {lower[name.lower()]!r}; some disks know no capitals, rename one"
            yield Problem(("arms", name), message)
        lower[name.lower()] = name
    for name in only:
        if name not in arms:
            hint = did_you_mean(name, arms)
            yield Problem(("arms",), f"{name!r}: unknown arm{hint}; known: {', '.join(arms)}")


class _Bases:
    """Run files, each read once."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._read: dict[str, YamlMapping] = {}

    def sections(self, name: str | YamlMapping) -> YamlMapping:
        """Return a file's sections, to be changed at will."""
        if isinstance(name, dict):
            return copy.deepcopy(name)
        if name not in self._read:
            raw, _ = read_yaml(self._folder / name)
            if isinstance(raw, Mapping) and isinstance(raw.get("trainer"), Mapping):
                raw = sections_as_written(raw)
            if not isinstance(raw, Mapping) or "trainer" in raw:
                message = f"{name}: expected the sections of one run (model, runconfig, ...)"
                raise ConfigError([Problem((), message)])
            self._read[name] = dict(raw)
        return copy.deepcopy(self._read[name])


def _arm(name: str, changes: object, base: str | YamlMapping | None, bases: _Bases) -> SweepArm:
    changes = {} if changes is None else changes
    if not isinstance(changes, Mapping):
        message = f"{changes!r}: expected changes by dotted key, as sparsity.sparsity: 0.9"
        raise ConfigError([Problem((), message)])
    own = {key: changes[key] for key in ("file", "group", "after") if key in changes}
    for key, value in own.items():
        if not isinstance(value, str) or not value:
            raise ConfigError([Problem((key,), f"{value!r}: expected a text")])
    file = own.get("file", base)
    if file is None:
        raise ConfigError([Problem((), "no run file: add `base` to the sweep, or `file` here")])
    sections = bases.sections(file)
    for key, value in changes.items():
        if key not in own:
            _set(sections, str(key), copy.deepcopy(value))
    sections = _for_sweep(named(sections))
    experiment = Experiment.from_config(parse_config(sections), seed=0)
    check(experiment)
    return SweepArm(name, own.get("group", ""), own.get("after", ""), sections, experiment)


def _set(sections: YamlMapping, key: str, value: object) -> None:
    """Change a value by its dotted key; None removes it."""
    parts = key.split(".")
    if parts[0] == "runconfig" and parts[1:2] and parts[1] in _OWN:
        message = f"the sweep sets it: {_OWN[parts[1]]}; drop the key"
        raise ConfigError([Problem(tuple(parts), message)])
    inside: Any = sections
    for at, part in enumerate(parts):
        where: Any = part
        if isinstance(inside, list):
            if not part.isdigit() or int(part) >= len(inside):
                message = f"{'.'.join(parts[:at])} is a list of {len(inside)}; expected a place "
                raise ConfigError([Problem(tuple(parts), message + f"from 0, found {part!r}")])
            where = int(part)
        elif not isinstance(inside, dict):
            message = f"{'.'.join(parts[:at])} is {inside!r}, which has no keys"
            raise ConfigError([Problem(tuple(parts), message)])
        if at < len(parts) - 1:
            if isinstance(inside, dict) and inside.get(where) is None:
                inside[where] = {}
            inside = inside[where]
        elif value is None and isinstance(inside, dict):
            inside.pop(where, None)
        else:
            inside[where] = value


def _for_sweep(sections: YamlMapping) -> YamlMapping:
    """Set what every run of a sweep has, and refuse what would keep it from going on."""
    settings = sections.get("runconfig") or {}
    if not isinstance(settings, dict):
        return sections  # parse_config says what is wrong
    problems = []
    if settings.get("max_steps") is None:
        message = "missing; a run that was interrupted goes on to this step"
        problems.append(Problem(("runconfig", "max_steps"), message))
    for key in ("num_steps", "num_epochs"):
        if settings.get(key) is not None:
            message = "counts from where a run starts, also after an interruption; use max_steps"
            problems.append(Problem(("runconfig", key), message))
    if sections.get("eval_input") is None:
        problems.append(Problem(("eval_input",), "missing section; arms are compared by it"))
    dry = [key for key in ("validate_only", "compile_only") if settings.get(key)]
    problems += [Problem(("runconfig", key), "trains nothing; drop the key") for key in dry]
    if problems:
        raise ConfigError(problems)
    kept = {key: value for key, value in settings.items() if key not in _OWN}
    return {**sections, "runconfig": {**kept, "mode": "train_and_eval"}}


def _under(arm: str, error: ValueError) -> Iterable[Problem]:
    if isinstance(error, SectionError):
        source = getattr(error, "source", "")
        for problem in error.under("arms", arm).problems:
            yield problem if not source else Problem(problem.path, f"{source}: {problem.message}")
    else:
        yield Problem(("arms", arm), str(error).replace("\n", "; "))
