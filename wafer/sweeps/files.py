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
from wafer.sweeps.grid import Point, TuneGrid, TuneSection, read_grid
from wafer.yamlfile import read_yaml

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_OWN = {  # keys that the sweep itself sets in every run
    "model_dir": "DIR/ARM/SEED",
    "seed": "one of `seeds`",
    "mode": "train_and_eval",
    "summary_dir": "the run's own folder",
}


class _ArmKeys(Section):
    """Keys of an arm that are no changes of its run file."""

    file: Annotated[str, Field(min_length=1)] | None = None
    group: str = ""
    after: str = ""
    tune: str | dict[str, tuple[Annotated[float, Field(gt=0)], ...]] | None = None


class SweepFile(Section):
    """What a sweep file takes."""

    #: run file that the arms change, seen from the sweep file's folder; or its sections
    base: str | dict[str, Any] | None = None
    #: name -> changes by dotted key; `file` names a base of the arm's own, `group` its group in the
    #: fit, `after` the arm whose last weights it begins with, `tune` its own multiples or the arm
    #: whose multiples it takes
    arms: YamlMapping = Field(default_factory=dict)
    #: patterns of files with more arms, before those of `arms`; seen from the sweep file's folder
    arm_files: tuple[str, ...] = ()
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...]  #: every arm is run with each
    first: str | None = None  #: arm that the others are compared with; None is the first one
    tune: TuneSection | None = None  #: multiples that are tried for each arm
    #: folder of runs.csv and tuning.csv whose rows are not run again, seen from the sweep file's
    known: str | None = None
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
    grid: TuneGrid | None = None  #: multiples that tuning tries; None: it is not tuned
    like: str = ""  #: arm whose tuned multiples it takes; '' for its own

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
    first: str  #: arm that the others are compared with
    tune: TuneSection | None  #: seed and mode of tuning
    known: pathlib.Path | None  #: folder of tables whose rows are not run again


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
    folder = pathlib.Path(path).parent
    written = _joined(folder, file)
    problems = [*_wrong_seeds(file.seeds, file.tune), *_wrong_names(written, [*only, file.first])]
    arms, bases = [], _Bases(folder)
    for name, changes in written.items():
        try:
            arms.append(_arm(name, changes, file, bases))
        except (SectionError, ValueError) as error:
            problems += _under(name, error)
    if not problems:
        problems += _wrong_order({arm.name: arm for arm in arms})
    if problems:
        raise ConfigError(problems, path)
    selected = set(only)
    for arm in reversed(arms * len(arms)):  # also those that they come after, or are tuned like
        selected |= {arm.after, arm.like} - {""} if arm.name in selected else set()
    chosen = tuple(arm for arm in arms if not selected or arm.name in selected)
    known = None if file.known is None else folder / file.known
    first = file.first or chosen[0].name
    return Sweep(chosen, file.seeds, file.metric, first, file.tune, known)


def _joined(folder: pathlib.Path, file: SweepFile) -> YamlMapping:
    """Join the arms of files, in the order of their names, and those of the sweep file."""
    arms: YamlMapping = {}
    paths = [path for pattern in file.arm_files for path in sorted(folder.glob(pattern))]
    if file.arm_files and not paths:
        message = f"{', '.join(file.arm_files)}: no such file in {folder}"
        raise ConfigError([Problem(("arm_files",), f"{message}; expected files with arms")])
    for path, table in [*((path, read_yaml(path)[0]) for path in paths), ("", file.arms)]:
        if not isinstance(table, Mapping):
            message = "expected a mapping: name of an arm -> its changes by dotted key"
            raise ConfigError([Problem((), message)], str(path))
        twice = [
            Problem((name,), "an arm of another file; rename one") for name in table if name in arms
        ]
        if twice:
            raise ConfigError(twice, str(path))
        arms |= table
    return arms


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
        chain, last = [name], arm
        while last.after and not (last.after in chain or last.after not in arms):
            chain.append(last.after)
            last = arms[last.after]
        if arm.like and (arm.like not in arms or arms[arm.like].grid is None):
            message = f"{arm.like!r}: no arm that is tuned{did_you_mean(arm.like, arms)}"
            yield Problem(("arms", name, "tune"), message)
        if last.after and last.after not in arms:
            hint = did_you_mean(last.after, arms)
            yield Problem(("arms", last.name, "after"), f"{last.after!r}: unknown arm{hint}")
        elif last.after:
            way = " after ".join([*chain, last.after])
            yield Problem(("arms", name, "after"), f"{way}: none of them can begin")
        elif arm.after:
            yield from _other_weights(arm, arms[arm.after])


def _other_weights(arm: SweepArm, before: SweepArm) -> Iterable[Problem]:
    """Say before hours of training that the weights will not fit."""
    ours, theirs = (
        {name: leaf.shape for name, leaf in named_leaves(one.experiment.shapes)}
        for one in (arm, before)
    )
    strict = not arm.experiment.cfg.runconfig.disable_strict_checkpoint_loading
    differ = [name for name in ours if ours[name] != theirs.get(name)]
    if strict and differ:
        name = differ[0]
        message = f"{name} has the shape {ours[name]}, in {before.name} {theirs.get(name, 'none')}"
        yield Problem(("arms", arm.name, "after"), f"{message}; give both the same model")


def _wrong_seeds(seeds: Sequence[int], tune: TuneSection | None) -> Iterable[Problem]:
    if tune is not None and tune.seed in seeds:
        message = f"{tune.seed} is one of `seeds`; expected a seed that no final run has"
        yield Problem(("tune", "seed"), message)
    if not seeds:
        yield Problem(("seeds",), "an empty list; name at least one, three to see a spread")
    for at, seed in enumerate(seeds):
        if seed in seeds[:at]:
            yield Problem(("seeds", at), f"{seed} is there twice; runs of one seed are the same")


def _wrong_names(arms: Mapping[str, object], only: Sequence[str | None]) -> Iterable[Problem]:
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
        if name is not None and name not in arms:
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


def _arm(name: str, changes: object, sweep: SweepFile, bases: _Bases) -> SweepArm:
    changes = {} if changes is None else changes
    if not isinstance(changes, Mapping):
        message = f"{changes!r}: expected changes by dotted key, as sparsity.sparsity: 0.9"
        raise ConfigError([Problem((), message)])
    keys = parse(_ArmKeys, {key: changes[key] for key in _ArmKeys.model_fields if key in changes})
    file = keys.file or sweep.base
    if file is None:
        raise ConfigError([Problem((), "no run file: add `base` to the sweep, or `file` here")])
    sections = bases.sections(file)
    for key, value in changes.items():
        if key not in _ArmKeys.model_fields:
            _set(sections, str(key), copy.deepcopy(value))
    sections = _for_sweep(named(sections))
    times, like = sweep.tune and sweep.tune.times, ""
    if keys.tune is not None:
        times, like = ({}, keys.tune) if isinstance(keys.tune, str) else (keys.tune, "")
        if sweep.tune is None:
            raise ConfigError([Problem(("tune",), "the sweep has no `tune` section; add its seed")])
    grid = read_grid(times) if times else None
    if grid is not None:
        grid.apply(sections, (0,) * len(grid.keys))
    return SweepArm(name, keys.group, keys.after, sections, _experiment(sections), grid, like)


def _experiment(sections: YamlMapping) -> Experiment:
    experiment = Experiment.from_config(parse_config(sections), seed=0)
    check(experiment)
    return experiment


def tuned_arm(arm: SweepArm, grid: TuneGrid, point: Point, name: str) -> SweepArm:
    """Return an arm with the numbers of the grid's keys multiplied.

    Args:
        arm: with its own values.
        grid: keys and series.
        point: position in each series.
        name: of the arm that is returned.
    """
    sections = grid.apply(arm.sections, point)
    return arm._replace(name=name, sections=sections, experiment=_experiment(sections))


def _set(sections: YamlMapping, key: str, value: object) -> None:
    """Change a value by its dotted key; None removes it."""
    names = key.split(".")
    if names[0] == "runconfig" and names[1:2] and names[1] in _OWN:
        message = f"the sweep sets it: {_OWN[names[1]]}; drop the key"
        raise ConfigError([Problem(tuple(names), message)])
    inside: Any = sections
    for depth, name in enumerate(names):
        index: Any = name
        if isinstance(inside, list):
            if not name.isdigit() or int(name) >= len(inside):
                message = f"{'.'.join(names[:depth])} is a list of {len(inside)}; expected a place "
                raise ConfigError([Problem(tuple(names), message + f"from 0, found {name!r}")])
            index = int(name)
        elif not isinstance(inside, dict):
            message = f"{'.'.join(names[:depth])} is {inside!r}, which has no keys"
            raise ConfigError([Problem(tuple(names), message)])
        if depth < len(names) - 1:
            if isinstance(inside, dict) and inside.get(index) is None:
                inside[index] = {}
            inside = inside[index]
        elif value is None and isinstance(inside, dict):
            inside.pop(index, None)
        else:
            inside[index] = value


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
    if settings.get("checkpoint_root") is not None:
        message = "all runs would continue from each other's checkpoints there; drop the key"
        problems.append(Problem(("runconfig", "checkpoint_root"), message))
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
