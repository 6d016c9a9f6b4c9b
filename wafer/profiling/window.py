"""The profiled stretch of a run: opened before one step, closed after another, nothing else."""

import logging
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence

import jax

from wafer.profiling.report import write_report
from wafer.profiling.trace import read_operations

_LOG = logging.getLogger(__name__)


class StepProfiler:
    """Traces a window of steps; outside it, a step costs two comparisons of integers.

    Args:
        start_step: first step of this run to trace, counted from 1.
        end_step: last one, included.
        folder: where the report goes.
        params: parameter tree or shapes; its paths name the modules.
        programs: returns the HLO text of every program that was compiled, asked at the end.
    """

    def __init__(
        self,
        start_step: int,
        end_step: int,
        folder: pathlib.Path,
        params: Mapping[str, object],
        programs: Callable[[], Sequence[str]],
    ) -> None:
        self._start, self._end, self._folder = start_step, end_step, folder
        self._params, self._programs = params, programs
        self._trace: tempfile.TemporaryDirectory[str] | None = None
        self._step = 0

    def before_step(self) -> None:
        """Count a step; open the window if it is the first one inside."""
        self._step += 1
        if self._step != self._start:
            return
        self._trace = tempfile.TemporaryDirectory(prefix="wafer-profile-")
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # operations only
        options.enable_hlo_proto = False
        jax.profiler.start_trace(self._trace.name, profiler_options=options)

    def after_step(self, state: object) -> None:
        """Close the window, once ``state`` is computed, if the step was the last one inside."""
        if self._step == self._end:
            self.close(state)

    def close(self, state: object = None) -> str | None:
        """End the window, wherever it is; returns the table, or None when it was not open."""
        if self._trace is None:
            return None
        jax.block_until_ready(state)
        jax.profiler.stop_trace()
        with self._trace as folder:
            operations = read_operations(pathlib.Path(folder), self._programs(), self._params)
        self._trace = None
        steps = (self._start, min(self._step, self._end))
        table = write_report(operations, steps, self._folder)
        _LOG.info("%s", table)
        _LOG.info("Profile written to %s (ui.perfetto.dev opens chrome_trace.json)", self._folder)
        return table
