"""What a run has left, in Python: ``wafer.history``, ``wafer.profile``."""

import os
import pathlib

from wafer.commands.run import Trained
from wafer.profiling.report import Profile, read_report
from wafer.session.metrics import History, read_history

Finished = Trained | str | os.PathLike[str]


def history(run: Finished) -> History:
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


def profile(run: Finished) -> Profile:
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
    folder = run.model_dir if isinstance(run, Trained) else pathlib.Path(run)
    return read_report(folder / "profile")
