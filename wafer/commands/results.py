"""What a run has left, in Python: ``wafer.history``, ``wafer.profile``."""

import dataclasses
import os
import pathlib
from typing import Any

from wafer.models.shown.html import table
from wafer.profiling.report import Profile, read_report
from wafer.session.metrics import History, columns_of, read_history


@dataclasses.dataclass(frozen=True)
class Trained:
    """What ``wafer.train`` leaves."""

    model_dir: pathlib.Path  #: folder of checkpoints and logs
    summary_dir: pathlib.Path  #: folder of metrics and events
    step: int  #: the last one
    #: after it: a tree of dense arrays, pruned weights 0
    params: Any = dataclasses.field(repr=False)
    #: folders of the complete ones, oldest first; none are written where ``checkpoint_steps`` is 0
    checkpoints: tuple[pathlib.Path, ...]
    #: step -> metrics of the evaluation there, in mode ``train_and_eval``
    scores: dict[int, dict[str, float]]
    #: a record per logged step: ``step``, ``loss``, ``tokens_per_sec``, ...
    metrics: list[dict[str, float]] = dataclasses.field(repr=False)
    stop: int  #: number of the signal that ended training early, where it is ignored; else 0

    def __fspath__(self) -> str:
        """Return ``model_dir``: a run stands where a folder of one does."""
        return os.fspath(self.model_dir)

    def _repr_html_(self) -> str:
        saved = ", ".join(path.name for path in self.checkpoints)
        figures = [("model_dir", self.model_dir), ("step", self.step), ("checkpoints", saved)]
        figures += [("stopped by signal", self.stop)] * bool(self.stop)
        scores = columns_of({"step": step} | scores for step, scores in self.scores.items())
        return (
            table("Trained", (), figures) + History(columns_of(self.metrics), scores)._repr_html_()
        )


def history(run: str | os.PathLike[str]) -> History:
    """Read what a run has logged, while it trains or later.

    Args:
        run: its folder, ``model_dir`` (or ``summary_dir``), or what ``wafer.train`` returned.

    Returns:
        ``train`` and ``eval``: tag -> [N] column.

    Raises:
        DataError: no run has logged there.

    Examples:
        >>> columns = wafer.history("runs/demo").train  # doctest: +SKIP
        >>> plt.plot(columns["step"], columns["loss"])  # doctest: +SKIP
    """
    return read_history(run.summary_dir if isinstance(run, Trained) else pathlib.Path(run))


def profile(run: str | os.PathLike[str]) -> Profile:
    """Read the profile of a run whose ``runconfig`` has ``op_profiler_config``.

    Args:
        run: its ``model_dir``, or what ``wafer.train`` returned.

    Returns:
        The time of each module; printed, a table of the most expensive ones.

    Raises:
        DataError: the run was not profiled.

    Examples:
        >>> print(wafer.profile("runs/demo"))  # doctest: +SKIP
    """
    return read_report(pathlib.Path(run) / "profile")
