"""What becomes of a run file: its sections, and the list of what was changed."""

import dataclasses
from collections.abc import Collection
from typing import Any, Literal, NamedTuple

from wafer.errors import Problem
from wafer.models.user.yamlfile import YamlMapping
from wafer.vendor.keys import table

Path = tuple[str | int, ...]
_NAMED = (
    "The vendor's files name their model from release 2.4 on; before, the folder of their run.py "
    "did. Add the release, too, such as `release: '2.3'` above a trainer"
)


Action = Literal["renamed", "dropped", "default", "refused"]


class Change(NamedTuple):
    """What was done to a key."""

    action: Action
    path: Path  #: in the file; of a default, here
    says: Any  #: of a renamed key its path here, of a refused one why


@dataclasses.dataclass
class Translation:
    """Sections in our words, and how they came about."""

    sections: YamlMapping  #: as ``wafer.config.parse_config`` reads them
    release: tuple[int, int] | None  #: the file's, where its top-level key ``release`` says it
    changes: list[Change] = dataclasses.field(default_factory=list)  #: in order
    #: path of a section -> its keys as the file has them
    written: dict[Path, frozenset[str]] = dataclasses.field(default_factory=dict)
    left: list[str] = dataclasses.field(default_factory=list)  #: of a trainer, without a meaning
    trainer: dict[Path, Path] = dataclasses.field(default_factory=dict)  #: path -> in the trainer

    def section(self, name: str) -> YamlMapping:
        """Return a section; an empty one where the file has none."""
        own = self.sections.get(name)
        return own if isinstance(own, dict) else {}

    def note(self, action: Action, path: Path, says: object = None) -> None:
        """List what was done to a key.

        Args:
            action: as ``Change``.
            path: of the key.
            says: as ``Change``.
        """
        self.changes.append(Change(action, path, says))

    @property
    def ignored(self) -> list[str]:
        """Dotted keys without effect."""
        return [".".join(map(str, c.path)) for c in self.changes if c.action == "dropped"]

    @property
    def lines(self) -> list[str]:
        """What of the file is not read, for the log."""
        lines = [f"Accepted, no effect on this machine: {', '.join(self.ignored)}"]
        left = "\n  ".join(["These keys mean nothing here and are not read:", *self.left])
        return ([left] if self.left else []) + (lines if self.ignored else [])

    @property
    def problems(self) -> list[Problem]:
        """Refused keys."""
        return [Problem(c.path, c.says) for c in self.changes if c.action == "refused"]

    def in_file(self, problem: Problem, flags: Collection[str] = ()) -> Problem:
        """Name a key as the file does, and what replaces one of stacks before.

        Args:
            problem: with a path here.
            flags: keys of runconfig that are not the file's.
        """
        renamed = {c.says: c.path for c in self.changes if c.action == "renamed"}
        flag_paths = {("runconfig", key) for key in flags}
        for origins in (renamed, self.trainer):
            for length in range(len(problem.path), 0, -1):
                older = origins.get(problem.path[:length])
                if older is not None and problem.path[:length] not in flag_paths:
                    problem = problem._replace(path=(*older, *problem.path[length:]))
                    break
        return _explained(problem)


def _explained(problem: Problem) -> Problem:
    key = str(problem.path[-1]).rpartition(".")[2] if problem.path else ""
    if (
        key == "name"
        and problem.path[-2:-1] == ("model",)
        and problem.message.startswith("missing")
    ):
        return problem._replace(message=f"{problem.message}. {_NAMED}")
    advice = table().removed.get(key) if problem.unknown else None
    if advice is None:
        return problem
    return problem._replace(message=f"unknown {problem.unknown}: {advice}")
