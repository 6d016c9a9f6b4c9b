"""Where metrics go: TensorBoard events, JSONL beside them, the log line, the progress bar."""

import contextlib
import json
import logging
import pathlib
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.constrain import Constrain
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from tensorboardX import SummaryWriter

from wafer.errors import DataError
from wafer.models.errors import optional
from wafer.models.shown.html import table
from wafer.profiling.rates import RateTracker
from wafer.session.loggers import Logger
from wafer.session.logs import CONSOLE

_LOG = logging.getLogger(__name__)
_CELL = 80  # columns of a notebook's cell


class MetricWriter:
    """Scalars into ``folder`` as TensorBoard events and as ``metrics.jsonl``, and to loggers.

    Args:
        folder: ``model_dir/train`` or ``model_dir/eval``; created.
        loggers: they get tags that begin with 'train/' or 'eval/'.
    """

    def __init__(self, folder: str | pathlib.Path, loggers: Iterable[Logger] = ()) -> None:
        folder = pathlib.Path(folder)
        self._part, self._loggers = folder.name, tuple(loggers)
        folder.mkdir(parents=True, exist_ok=True)
        self._events = SummaryWriter(str(folder), flush_secs=10)
        path = folder / "metrics.jsonl"
        torn = path.exists() and not path.read_bytes().endswith(b"\n")  # its writer was killed
        self._lines = path.open("a", encoding="utf-8")
        if torn:
            self._lines.write("\n")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record scalars under their tags at a step."""
        for tag, value in scalars.items():
            self._events.add_scalar(tag, float(value), step)
        record = {"step": step, "time": time.time()} | {k: float(v) for k, v in scalars.items()}
        self._lines.write(json.dumps(record) + "\n")
        self._lines.flush()
        part = f"{self._part}/"
        tagged = {f"{part}{tag.removeprefix(part)}": float(x) for tag, x in scalars.items()}
        for logger in self._loggers:
            logger.write(step, tagged)

    def close(self) -> None:
        """Flush and close both files, and the loggers; a full disk was reported by the write."""
        try:
            with contextlib.ExitStack() as last:
                for logger in self._loggers:  # of others: each is closed, whatever another does
                    last.callback(logger.close)
        finally:
            for file in (self._events, self._lines):
                with contextlib.suppress(OSError):
                    file.close()


def read_metrics(folder: pathlib.Path) -> list[dict[str, float]]:
    """Read what a ``MetricWriter`` wrote: ``step``, ``time`` and the scalars, in order."""
    path, records = folder / "metrics.jsonl", []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):  # a line whose writer was killed
            records.append(json.loads(line))
    return records


class History(NamedTuple):
    """What a run logged, by tag: [N] float64 columns, NaN where a record lacks the tag."""

    train: dict[str, np.ndarray]  #: ``step``, ``time``, ``loss``, ``tokens_per_sec``, ...
    eval: dict[str, np.ndarray]  #: ``step``, ``time``, ``loss``, ``eval/...``

    def __repr__(self) -> str:
        shown = lambda columns: [tag for tag in ("step", "loss") if tag in columns]
        last = lambda columns: ", ".join(f"{t} {columns[t][-1]:.5g}" for t in shown(columns))
        return "\n".join(
            f"{part}: {len(columns.get('step', ()))} records, the last: {last(columns) or 'none'}"
            for part, columns in self._asdict().items()
        )

    def _repr_html_(self) -> str:
        rows = []
        for mode, tagged in self._asdict().items():
            for tag, column in tagged.items():
                known = column[~np.isnan(column)]
                if known.size and tag != "time":
                    ends = known[0], known[-1], known.min(), known.max()
                    rows.append((mode, tag, known.size, *ends))
        return table("History", ("", "tag", "records", "first", "last", "least", "greatest"), rows)

    def to_pandas(self) -> tuple[Any, Any]:
        """Return the training and the evaluation as pandas frames, a column for each tag.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        pandas = optional("pandas", "History.to_pandas")
        return pandas.DataFrame(self.train), pandas.DataFrame(self.eval)


def read_history(folder: pathlib.Path) -> History:
    """Read the metrics of a run; of steps that were run again, the last records.

    Args:
        folder: ``model_dir``, or ``summary_dir`` where that is another.

    Raises:
        DataError: there are none.
    """
    columns = [columns_of(read_metrics(folder / part)) for part in ("train", "eval")]
    if not any(columns):
        raise DataError(f"{folder} has no metrics; expected the model_dir of a run that has begun")
    return History(*columns)


def columns_of(records: Iterable[Mapping[str, float]]) -> dict[str, np.ndarray]:
    """Return the [N] column of each tag; of records of one step the last counts."""
    by_step = {record["step"]: record for record in records}
    rows = [by_step[step] for step in sorted(by_step)]
    tags = dict.fromkeys(tag for row in rows for tag in row)
    return {tag: np.array([row.get(tag, np.nan) for row in rows]) for tag in tags}


class TrainProgress(Progress):
    """A bar with the time that is left, loss, tokens/s, sparsity and padding skipped.

    In a terminal, and in a notebook, where one output is drawn anew twice a second. Elsewhere it
    draws nothing: there the log lines are the progress.
    """

    def __init__(self, total: int, step: int) -> None:
        whole = Column(no_wrap=True)
        super().__init__(
            BarColumn(bar_width=None, table_column=Column(ratio=1, max_width=24)),
            MofNCompleteColumn(table_column=whole),
            TimeRemainingColumn(compact=True, table_column=whole),
            TextColumn("{task.fields[status]}", table_column=whole),
            console=CONSOLE,
            disable=not CONSOLE.is_terminal,
        )
        self._task = self.add_task("train", total=total, completed=step, status="")
        self._cell: Any = None
        self._drawn = 0.0

    def get_renderable(self) -> RenderableType:
        """Lay the bar out: a cell of a notebook has 80 columns, whatever rich takes it to have."""
        return Constrain(super().get_renderable(), _CELL if CONSOLE.is_jupyter else None)

    def start(self) -> None:
        """Show the bar."""
        super().start()
        if CONSOLE.is_jupyter:
            from IPython.display import display

            self._cell = display(self, display_id=True)

    def show(self, step: int, status: Mapping[str, str] | None = None) -> None:
        """Show a finished step, and new figures if there are any."""
        self.update(self._task, completed=step)
        if status is not None:
            text = "  ".join(f"{name} {value}" for name, value in status.items())
            self.update(self._task, status=text)
        if self._cell is not None and (self.finished or time.perf_counter() - self._drawn > 0.5):
            self._cell.update(self)
            self._drawn = time.perf_counter()


def write_performance(folder: pathlib.Path, rates: RateTracker, num_csx: int) -> None:
    """Write ``performance.json``: rates, samples and seconds of a training run.

    Args:
        folder: where to write.
        rates: of the run.
        num_csx: systems.
    """
    _, overall = rates.rates()
    record = {
        "global_rate": overall,
        "samples_per_sec": overall,
        "total_samples": rates.total,
        "total_time": rates.seconds,
        "num_csx": num_csx,
    }
    (folder / "performance.json").write_text(json.dumps(record, indent=2) + "\n")
