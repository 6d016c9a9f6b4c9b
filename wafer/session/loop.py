"""The training loop: steps of an engine, metrics read one step late, complete checkpoints.

``train`` is the main path of ``wafer run``. Metrics of a step are read when the next one has been
started, so that the device does not wait for the host.
"""

import contextlib
import dataclasses
import logging
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import jax
import numpy as np
from jaxtyping import PyTree

from wafer.data.batching.pipeline import Loader, Rows
from wafer.engines.cluster import all_max
from wafer.errors import TrainingError
from wafer.models.checkpoint.tree import on_host
from wafer.models.checkpoint.writer import Checkpoints
from wafer.models.paths import named_leaves
from wafer.optim.step import TrainState
from wafer.profiling.rates import RateTracker, log_line
from wafer.profiling.window import StepProfiler
from wafer.session.build import Run
from wafer.session.metrics import MetricWriter, TrainProgress
from wafer.session.persist import save

_LOG = logging.getLogger(__name__)
_SHOWN = (
    "per_layer",
    "fabric/",
    "distillation/",
)  # metrics of an engine that are written as they come


@dataclasses.dataclass
class Session:
    """The open files and the position of one training run."""

    loader: Loader  #: training batches, positioned at the next one
    checkpoints: Checkpoints  #: where states go
    writer: MetricWriter  #: training metrics
    progress: TrainProgress  #: the bar, drawn while it is entered
    began: float  #: ``time.perf_counter()`` when the command began
    rates: RateTracker | None = None  #: samples per second since the first finished step
    #: number of the signal (SIGINT, SIGTERM) that asked this process for an end, else 0
    asked: int = 0
    #: the same once every process knows; the loop ends after the current step, with a checkpoint
    stop: int = 0
    profiler: StepProfiler | None = None  #: traces the steps of ``runconfig.op_profiler_config``

    def execute(
        self, run: Run, state: TrainState, features: PyTree, *, topology: bool
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """Execute a step, traced when it lies in the profiler's window.

        Args:
            run: its engine executes the step.
            state: before the step; donated.
            features: of the batch, placed.
            topology: whether masks may change.

        Returns:
            (the state after the step, metrics).
        """
        if self.profiler is None:
            return run.engine.step(state, features, topology=topology)
        self.profiler.before_step()
        result = run.engine.step(state, features, topology=topology)
        self.profiler.after_step(result)
        return result

    def close(self) -> None:
        """Close what is open, what fails included."""
        with contextlib.ExitStack() as last:
            last.callback(self.loader.close)
            last.callback(self.writer.close)
            if self.profiler is not None:
                last.callback(self.profiler.close)


@dataclasses.dataclass(frozen=True)
class _Finished:
    """A step whose metrics may still be computing on the device."""

    step: int  #: its number, from 1
    metrics: dict[str, jax.Array]  #: of the engine
    samples: int  #: of all processes
    padding_skipped: float  #: see ``_padding_skipped``; 0 unless shown
    gauges: dict[str, jax.Array]  #: tag -> value after the step; none unless shown
    shown: bool  #: a log line and its scalars are due


def _padding_skipped(run: Run, rows: Rows) -> float:
    """Share of the token slots a padded batch of the same sequences would have spent on padding."""
    mask = rows["attention_mask"] != 0
    if mask.ndim == 1:  # images
        return 0.0
    if "position_ids" in rows:
        sequences = int((mask & (rows["position_ids"] == 0)).sum())
        return 1.0 - float(mask.sum()) / max(sequences * mask.shape[-1], 1)
    return 0.0 if run.ladder is None else 1.0 - float(mask.mean())


def _check_loss(run: Run, finished: _Finished, newest: TrainState) -> float:
    """Return the loss; refuse one that is not finite, with norms of the newest state there is."""
    loss = float(finished.metrics["loss"])
    if math.isfinite(loss) or not run.cfg.runconfig.check_loss_values:
        return loss
    norms = {
        name: float(np.linalg.norm(np.asarray(on_host(leaf), np.float32)))
        for name, leaf in named_leaves(newest.params)
    }
    worst = sorted(norms, key=lambda n: (math.isfinite(norms[n]), -abs(norms[n])))[:8]
    listed = "\n  ".join(f"{name}: {norms[name]:.4g}" for name in worst)
    raise TrainingError(
        f"step {finished.step}: the loss is {loss}. Largest parameter norms after step "
        f"{int(newest.step)}:\n  {listed}\n"
        "Lower optimizer.learning_rate, set optimizer.max_gradient_norm, or start from an "
        "earlier checkpoint (--checkpoint_path). runconfig.check_loss_values: false continues."
    )


def _report(run: Run, session: Session, finished: _Finished, newest: TrainState) -> None:
    """Read the metrics of a finished step and show them where they are due."""
    loss = _check_loss(run, finished, newest)
    if session.rates is None:  # the first step, compilation included, does not count as speed
        _LOG.info("First step done %.1f s after the start", time.perf_counter() - session.began)
        session.rates = RateTracker(finished.samples, session.began)
    else:
        session.rates.add(finished.samples)
    session.progress.show(finished.step)
    if not finished.shown:
        return
    recent, average = session.rates.rates()
    tokens_per_second = recent * float(finished.metrics["tokens"]) / max(finished.samples, 1)
    gauges = {tag: float(value) for tag, value in finished.gauges.items()}
    scalars = {
        "loss": loss,
        "local_samples_per_sec": recent,
        "avg_samples_per_sec": average,
        "avg_steps_per_sec": average / max(finished.samples, 1),
        "tokens_per_sec": tokens_per_second,
        "padding_skipped": finished.padding_skipped,
        "model_wise_grad_norm": float(finished.metrics["grad_norm"]),
        **{tag: float(value) for tag, value in finished.metrics.items() if tag.startswith(_SHOWN)},
        **gauges,
    }
    if run.experiment.scaler.dynamic:
        scalars["loss_scale"] = float(finished.metrics["loss_scale"])
    session.writer.write(finished.step, scalars)
    session.progress.show(
        finished.step, _status(loss, tokens_per_second, gauges, finished.padding_skipped)
    )
    _LOG.info(log_line(run.device, finished.step, loss, recent, average))


def _status(
    loss: float, tokens_per_second: float, gauges: dict[str, float], padding_skipped: float
) -> dict[str, str]:
    actual = [v for k, v in gauges.items() if k.endswith("/actual")]
    sparsity = {"sparsity": f"{np.mean(actual):.1%}"} if actual else {}
    status = {"loss": f"{loss:.3f}", "tok/s": f"{tokens_per_second:,.0f}"}
    return status | sparsity | {"padding": f"{padding_skipped:.0%}"}


@contextmanager
def _graceful(session: Session) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into "finish the step, write a checkpoint, stop"."""

    def request(signum: int, frame: FrameType | None) -> None:
        del frame
        _LOG.warning("%s: stopping after this step", signal.Signals(signum).name)
        session.asked = signum
        signal.signal(signum, signal.SIG_DFL)  # a second one ends the process at once

    previous = {s: signal.signal(s, request) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def train(
    run: Run, session: Session, state: TrainState, until: int, *, keep: bool = False
) -> TrainState:
    """Train from ``state.step`` to step ``until``, or to the end of the data.

    Args:
        run: what to train, built from the configuration.
        session: open loader, checkpoints and writers.
        state: donated.
        until: the last step.
        keep: write a checkpoint of it.

    Returns:
        The state after the last step.

    Raises:
        TrainingError: the loss is NaN or infinite.
        Exception: what the loader failed with; if there is one process, after a checkpoint of the
            last step.
    """
    settings, dynamic = run.cfg.runconfig, run.experiment.scaler.dynamic
    sparsifier, shape = run.experiment.sparsifier, run.experiment.batch("train")
    begin = saved = step = int(state.step)
    sparse_step = int(state.sparse.step)  # behind `step` by the steps that overflowed
    pending: _Finished | None = None
    failure: Exception | None = None
    position = session.loader.state()
    with _graceful(session):
        while step < until and not session.stop:
            position = session.loader.state()
            rows, failure = _fetch(session.loader)
            if rows is None:
                break
            features = run.place_batch(rows, shape)
            # With a dynamic scale the step before may have been skipped: this waits for it.
            sparse_step = int(state.sparse.step) if dynamic else sparse_step
            topology = sparsifier.due(sparse_step + 1)
            # After the first step, if masks may change later: compile that program meanwhile.
            if step == begin + 1 and sparsifier.due_between(sparse_step + 2, until + 1):
                run.warmup.expect_topology(state, features)
            state, metrics = session.execute(run, state, features, topology=topology)
            step, sparse_step = step + 1, sparse_step + 1
            if pending is not None:
                _report(run, session, pending, state)
            # The next step donates the state: what is shown of it is taken now.
            shown = step % settings.log_steps == 0 or step == until
            gauges = run.gauges(state) if shown else {}
            padding_skipped = _padding_skipped(run, rows) if shown else 0.0
            samples = len(rows["attention_mask"]) * jax.process_count()
            pending = _Finished(step, metrics, samples, padding_skipped, gauges, shown)
            # A signal to one process stops all of them. The handler sets `asked`, not `stop`, so
            # that a signal which arrives during `all_max` is not overwritten.
            session.stop = all_max(session.asked)
            if settings.checkpoint_steps and step % settings.checkpoint_steps == 0:
                _check_loss(run, pending, state)  # no checkpoint after a loss that is not finite
                save(run, session.checkpoints, state, session.loader.state())
                saved = step
        if pending is not None:
            _report(run, session, pending, state)
        session.stop = all_max(session.asked)
    if step > saved and (keep or session.stop or failure):
        save(run, session.checkpoints, state, position if failure else session.loader.state())
    if failure is not None:
        raise failure
    return state


def _fetch(loader: Loader) -> tuple[Rows | None, Exception | None]:
    """Take the next batch, or what the loader failed with: no finished step is lost by it.

    With several processes the others are in the step already, and a checkpoint needs all of them.
    """
    try:
        return next(loader, None), None
    except Exception as error:
        if jax.process_count() > 1:
            raise
        return None, error
