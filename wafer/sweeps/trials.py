"""One run of a sweep on the disk: whether it is finished, how it is started, what it left.

A run's folder holds ``run.yaml``, what ``wafer run`` writes, ``output.log`` of its process, the
times of its starts and, when it is finished, ``result.json``.
"""

import contextlib
import hashlib
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from wafer.errors import ConfigError, Problem
from wafer.models.checkpoint.layout import CHECKPOINTS, complete_checkpoints, step_folders
from wafer.models.files import atomic_write, write_text
from wafer.models.user.trust import child_environment, code_in, trusting
from wafer.session.metrics import read_metrics
from wafer.sparsity.finalize import finalize
from wafer.sweeps.files import SweepArm, run_sections
from wafer.yamlfile import read_yaml

_RUN, _LOG = "run.yaml", "output.log"
_RESULT, _STARTS = "result.json", "starts.jsonl"
ERROR = "wafer: error: "  #: begins the line of an output that says why it ended


class Result(NamedTuple):
    """What a finished run left."""

    metrics: dict[str, float]  #: of its last evaluation, by name; none where its loss diverged
    levels: dict[str, float]  #: parameter -> sparsity, as the last log line had it
    seconds: float  #: of all starts whose end was seen


class Launch(NamedTuple):
    """The process of a run, here or on another machine: data alone, and its folder."""

    folder: pathlib.Path  #: of the run
    steps: int  #: of training
    begins: bool  #: with the weights of a checkpoint
    anew: bool  #: and counts its steps from 0

    def newest(self) -> int | None:
        """Return the step of its newest checkpoint."""
        steps = complete_checkpoints(step_folders(self.folder / CHECKPOINTS))
        return int(steps[-1].name) if steps else None

    def options(self) -> dict[str, str]:
        """Return the keys of ``runconfig`` with which it goes on from where it is."""
        newest = self.newest()
        if newest is None:
            return {}
        # It may have ended between its last step and the evaluation.
        options = {"mode": "eval"} if newest == self.steps else {}
        if self.begins and (not self.anew or newest == self.steps):
            options["checkpoint_path"] = str(self.folder / CHECKPOINTS / str(newest))
        return options

    def command(self) -> list[str]:
        """Return the command that starts it, or lets it go on."""
        options = [word for key, value in self.options().items() for word in (f"--{key}", value)]
        first = [sys.executable, "-P", "-m", "wafer", "run"]
        return [*first, "--params", str(self.folder / _RUN), *options]

    def process(self) -> "subprocess.Popen[bytes]":
        """Start it; it ends with this process. Its output is appended to the run's log."""
        with (self.folder / _LOG).open("ab") as log:
            # A session of its own: Ctrl-C reaches a run once, as the signal that the sweep sends.
            return subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment()
                | {"PYTHONUNBUFFERED": "1", "WAFER_PARENT": str(os.getpid())},
                start_new_session=True,
            )

    def note(self, code: int, seconds: float) -> None:
        """Note the exit code and the seconds of a start that has ended."""
        with (self.folder / _STARTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"seconds": seconds, "code": code}) + "\n")


class Trial(NamedTuple):
    """One arm with one seed."""

    arm: SweepArm  #: its run file
    seed: int  #: of the run
    folder: pathlib.Path  #: where everything of it lies
    before: "Trial | None" = None  #: the run whose last weights it begins with; None for fresh ones

    @property
    def name(self) -> str:
        """Arm and seed, for messages."""
        return f"{self.arm.name}/{self.seed}"

    @property
    def file(self) -> pathlib.Path:
        """Its run file."""
        return self.folder / _RUN

    @property
    def log(self) -> pathlib.Path:
        """What its processes said."""
        return self.folder / _LOG

    def sections(self) -> dict[str, Any]:
        """Return what its run file says."""
        weights = None
        if self.before is not None:
            dense = not self.arm.experiment.sparsifier
            weights = self.before._dense if dense else self.before._last
        return run_sections(self.arm, self.seed, self.folder, weights)

    @property
    def blocked(self) -> str:
        """Name of the trial that it waits for; '' when it can begin."""
        waits = self.before is not None and self.before.result() is None
        return self.before.name if self.before is not None and waits else ""

    @property
    def _last(self) -> pathlib.Path:
        return self.folder / CHECKPOINTS / str(self.arm.steps)

    @property
    def _dense(self) -> pathlib.Path:
        """The last checkpoint with zeros at pruned positions: they train like any others."""
        return self.folder / "finalized" if self.arm.experiment.sparsifier else self._last

    def result(self) -> Result | None:
        """Return what it left, or None when it is not finished."""
        path = self.folder / _RESULT
        if not path.exists():
            return None
        with contextlib.suppress(ValueError, TypeError):  # edited by hand
            return Result(**json.loads(path.read_text(encoding="utf-8")))
        return None

    def write(self) -> None:
        """Write its run file, and the dense weights that it begins with."""
        self.folder.mkdir(parents=True, exist_ok=True)
        start = self.sections()["runconfig"].get("checkpoint_path")
        if self.before is not None and start == str(self.before._dense):
            self.before._finalize()
        text = yaml.safe_dump(self.sections(), sort_keys=False, default_flow_style=None)
        write_text(self.file, text)

    @property
    def launch(self) -> Launch:
        """What starts it, or lets it go on."""
        settings = self.arm.experiment.cfg.runconfig
        states = settings.load_checkpoint_states
        anew = settings.is_pretrained_checkpoint or not (states is None or "global_step" in states)
        begins = bool(settings.checkpoint_path or self.before is not None)
        return Launch(self.folder, self.arm.steps, begins, anew or self.before is not None)

    def _finalize(self) -> None:
        """Write the dense form of its last checkpoint, once."""
        if not self._dense.exists():
            with trusting(code_in(self.arm.sections)):
                finalize(self._last, self._dense)

    @property
    def digest(self) -> str:
        """Digest of its run file, without seed and folder, and of the run that it comes after."""
        earlier = "" if self.before is None else self.before.digest
        text = json.dumps([self.arm.sections, earlier], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def finish_diverged(self) -> None:
        """Note that its loss became infinite or NaN, which no repetition changes."""
        self._write_result(Result({}, {}, self._seconds()))

    def finish(self, code: int, seconds: float, since: int) -> str:
        """Note how a start ended.

        Args:
            code: exit code of the process; -N: killed by signal N.
            seconds: it took.
            since: length of the log before.

        Returns:
            Why the run is not finished, in a line; '' when it is.
        """
        self.launch.note(code, seconds)
        if code:
            return _ended_by(code) or self._reason(code, since)
        metrics = self._evaluation()
        if metrics is None:
            return f"it ended without an evaluation at step {self.arm.steps}; see {self.log}"
        self._write_result(Result(metrics, self._levels(), self._seconds()))
        return ""

    def _write_result(self, result: Result) -> None:
        text = json.dumps(result._asdict(), indent=1)
        with atomic_write(self.folder / _RESULT) as partial:
            partial.write_text(f"{text}\n", encoding="utf-8")

    def _reason(self, code: int, since: int) -> str:
        with self.log.open("rb") as file:
            file.seek(since)
            lines = file.read().decode(errors="replace").splitlines()
        said = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
        said = said or [line.strip() for line in lines if line.strip()] or [f"exit code {code}"]
        return f"{said[-1]} (all of it: {self.log})"

    def _evaluation(self) -> dict[str, float] | None:
        records = read_metrics(self.folder / "eval")
        last = [record for record in records if record.get("step") == self.arm.steps]
        if not last:
            return None
        return {key: value for key, value in last[-1].items() if key not in ("step", "time")}

    def _levels(self) -> dict[str, float]:
        records = read_metrics(self.folder / "train")
        last = records[-1] if records else {}
        ends = ("sparsity/", "/actual")
        return {
            key.removeprefix(ends[0]).removesuffix(ends[1]): value
            for key, value in last.items()
            if key.startswith(ends[0]) and key.endswith(ends[1])
        }

    def _seconds(self) -> float:
        lines = (self.folder / _STARTS).read_text(encoding="utf-8").splitlines()
        return math.fsum(json.loads(line)["seconds"] for line in lines)


def trials_of(
    arms: tuple[SweepArm, ...], seeds: tuple[int, ...], folder: pathlib.Path
) -> list[Trial]:
    """List the runs of a sweep, seed by seed, so that pairs are complete early.

    Raises:
        ConfigError: a folder holds a run of another file.
    """
    by_name = {arm.name: arm for arm in arms}

    def trial(arm: SweepArm, seed: int) -> Trial:
        before = trial(by_name[arm.after], seed) if arm.after else None
        return Trial(arm, seed, folder / arm.name / str(seed), before)

    trials = [trial(arm, seed) for seed in seeds for arm in arms]
    require_same_files(trials)
    return trials


def with_earlier(trials: Sequence[Trial]) -> list[Trial]:
    """Add the runs whose weights others begin with, where these weights are not there."""
    every = list(trials)
    for trial in every:  # grows
        before = trial.before
        known = {one.name for one in every}
        if before is not None and before.result() is None and before.name not in known:
            every.append(before)
    return every


def require_same_files(trials: Sequence[Trial]) -> None:
    """Refuse folders that hold a run of another file.

    Raises:
        ConfigError: the key that differs, of each.
    """
    problems = [problem for trial in trials for problem in _other_file(trial)]
    if problems:
        raise ConfigError(problems)


def _other_file(trial: Trial) -> Iterator[Problem]:
    """Refuse to go on with, or to count, what another run file has done."""
    path = trial.file
    if not path.exists() or (trial.result() is None and trial.launch.newest() is None):
        return
    before = _flat(read_yaml(path)[0])
    now = _flat(trial.sections())
    ignored = [("runconfig", "model_dir")]  # the same folder by another name
    ignored += [("runconfig", "checkpoint_path")] if trial.before is not None else []
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    keys = [key for key in keys if key not in ignored]
    if keys:
        old, new = before.get(keys[0]), now.get(keys[0])
        message = f"{trial.folder} was run with {'.'.join(keys[0])} {old!r}, the sweep has {new!r} "
        message += "now; choose another --model_dir, another name for the arm, or remove the folder"
        yield Problem(("arms", trial.arm.name), message)


def _flat(value: object, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], object]:
    if not isinstance(value, Mapping) or not value:
        return {path: list(value) if isinstance(value, tuple) else value}
    return {k: v for key, one in value.items() for k, v in _flat(one, (*path, str(key))).items()}


def _ended_by(code: int) -> str:
    number = -code if code < 0 else code - 128
    if number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        return f"interrupted ({signal.Signals(number).name}); the same command goes on with it"
    return ""
