"""A training run from where it begins to its last checkpoint, with evaluations in between."""

import dataclasses
import logging
import pathlib

import jax

from wafer.config import total_steps
from wafer.config.engines import engines_with
from wafer.config.runconfig import RunSection
from wafer.data.batching.dataset import Dataset
from wafer.data.batching.pipeline import Loader
from wafer.errors import CheckpointError, ConfigError, DataError, Problem
from wafer.models.checkpoint.tree import on_host
from wafer.models.checkpoint.writer import Checkpoints
from wafer.optim.step import TrainState
from wafer.profiling.rates import RateTracker
from wafer.profiling.window import StepProfiler
from wafer.session.build import Run
from wafer.session.evaluate import evaluate_and_write
from wafer.session.foreign import export_hf
from wafer.session.loop import Session, train
from wafer.session.metrics import TrainProgress, write_performance
from wafer.session.persist import Resumed, errors_name, resume, save
from wafer.sparsity.costs import missed_level
from wafer.sparsity.stored import sentinel
from wafer.sparsity.stored.inference import computed_params

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Where a training run ended."""

    state: TrainState  #: after the last step
    scores: dict[int, dict[str, float]]  #: step -> metrics of the evaluation there
    checkpoints: tuple[pathlib.Path, ...]  #: folders of the complete ones, oldest first
    rates: RateTracker | None  #: samples per second, or None when no step was taken
    stop: int  #: number of the signal that ended it early, else 0


def train_run(run: Run, folder: pathlib.Path, began: float) -> Outcome:
    """Train, and in ``train_and_eval`` evaluate every ``eval_frequency`` steps.

    Args:
        run: a training mode's.
        folder: for ``performance.json``.
        began: ``time.perf_counter()`` when the user's command began.

    Raises:
        TrainingError: the loss is NaN or infinite.
        CheckpointError: a checkpoint that does not fit, or could not be written.
    """
    settings, data = run.cfg.runconfig, run.train
    if data is None:  # the configuration was checked for this mode
        raise DataError("train_input: missing; training needs it")
    samples = run.experiment.batch("train").samples
    epoch = settings.steps_per_epoch or data.batches(samples)
    checkpoints = Checkpoints(run.model_dir, settings.max_checkpoints, settings.checkpoint_root)
    checkpoints.remove_leftovers()
    resumed = resume(run)
    state = resumed.state
    start = int(state.step)
    until = start + total_steps(settings, start, epoch)
    session = Session(
        profiler=_profiler(run, until - start) if start < until else None,
        loader=_loader_at(run, data, resumed),
        checkpoints=checkpoints,
        writer=run.writer("train"),
        progress=TrainProgress(until, start),
        began=began,
    )
    evaluates = settings.mode == "train_and_eval" and start < until
    stretch = (settings.eval_frequency or epoch or until) if evaluates else until
    _announce(run, start, until, stretch if evaluates else 0)
    scores: dict[int, dict[str, float]] = {}
    try:
        if settings.save_initial_checkpoint and resumed.path is None:
            save(run, session.checkpoints, state, session.loader.state())
        if evaluates:
            scores[start] = evaluate_and_write(run, state)
        with session.progress:
            while (step := int(state.step)) < until and not session.stop:
                end = min(until, step - step % stretch + stretch)
                every = settings.checkpoint_steps  # without the key the last step is kept
                keep = end == until if every is None else every > 0
                state = train(run, session, state, end, keep=keep)
                if evaluates and not session.stop:
                    scores[int(state.step)] = evaluate_and_write(run, state, len(scores))
        if session.rates is not None:
            write_performance(folder, session.rates, run.num_csx)
        complete = tuple(map(checkpoints.path, checkpoints.steps()))
    finally:
        session.close()
    if settings.export and not session.stop:
        _export(run, state)
    return Outcome(state, scores, complete, session.rates, session.stop)


def _export(run: Run, state: TrainState) -> None:
    """Write the weights as a Hugging Face folder; every process must call it."""
    stored = on_host(run.engine.export(state)[0])
    if jax.process_index() == 0:
        params = sentinel.decode(stored, {}).params  # refuses other NaN
        params = computed_params(run.experiment.sparsifier, params)
        export_hf(run.experiment.model, params, run.model_dir, int(state.step))


def save_first(run: Run) -> pathlib.Path:
    """Save the state in which training begins.

    Args:
        run: a training mode's.

    Raises:
        DataError: no training data, whose place is in a checkpoint.
        CheckpointError: the run has checkpoints, or none could be written.
    """
    checkpoints = Checkpoints(run.model_dir)
    if run.train is None:
        raise DataError("train_input: missing; training needs it")
    if checkpoints.steps():
        raise CheckpointError(
            f"{checkpoints.folder}: holds checkpoints already ({checkpoints.steps()}); expected "
            "none. Choose another model_dir"
        )
    samples = run.experiment.batch("train").samples
    loader = run.train.loader(samples, num_epochs=None)
    try:
        return save(run, checkpoints, resume(run).state, loader.state())
    finally:
        loader.close()


def _loader_at(run: Run, data: Dataset, resumed: Resumed) -> Loader:
    """Open the training data where a checkpoint left it, past the samples to skip."""
    samples = run.experiment.batch("train").samples
    task = jax.process_index(), jax.process_count()
    loader = data.loader(samples, num_epochs=None, task=task)
    if resumed.data is not None:
        with errors_name(resumed.path):
            loader.restore(dict(resumed.data))
    for _ in range((run.cfg.runconfig.skip_samples or 0) // samples):
        next(loader, None)
    return loader


def _announce(run: Run, start: int, until: int, stretch: int) -> None:
    """Say what will be trained, and what will be seen of it."""
    settings = run.cfg.runconfig
    if start == until:
        _LOG.info(
            "The checkpoint is at step %d, runconfig.max_steps is %s: nothing is left to train; "
            "raise max_steps, use num_steps, or start in another model_dir",
            start,
            settings.max_steps,
        )
        return
    _LOG.info(
        "%s steps to step %s in %s; a log line every %s, %s%s",
        f"{until - start:,}",
        f"{until:,}",
        run.model_dir,
        settings.log_steps,
        _checkpoints_in_words(settings),
        f", an evaluation every {stretch:,}" if stretch else "",
    )
    rules = {rule: None for _, rule in run.experiment.sparsifier.groups}
    for line in dict.fromkeys(missed_level(rule, until) for rule in rules):
        if line:
            _LOG.warning("sparsity: %s", line)


def _checkpoints_in_words(settings: RunSection) -> str:
    if settings.checkpoint_steps == 0:
        return "no checkpoint: nothing of it is kept (runconfig.checkpoint_steps: 0)"
    every = settings.checkpoint_steps
    return f"a checkpoint {f'every {every:,}' if every else 'of the last (checkpoint_steps)'}"


def _profiler(run: Run, steps: int) -> StepProfiler | None:
    """Make what ``runconfig.op_profiler_config`` asks for; its steps count from this run's 1."""
    asked = run.cfg.runconfig.op_profiler_config
    if asked is None:
        return None
    if asked.end_step > steps:
        message = f"{asked.end_step}, but this run takes {steps} step(s), counted from its start"
        raise ConfigError([Problem(("runconfig", "op_profiler_config", "end_step"), message)])
    if not run.engine_info.whole_step_program:  # one program serves all layers there
        names = engines_with("whole_step_program")
        message = f"needs execution_strategy: {names}, where operations belong to layers"
        raise ConfigError([Problem(("runconfig", "op_profiler_config"), message)])
    folder = run.model_dir / "profile"
    if jax.process_count() > 1:  # each process traces its own systems
        folder /= f"process-{jax.process_index()}"
    shapes, texts = run.experiment.shapes, run.engine.programs.texts
    return StepProfiler(asked.start_step, asked.end_step, folder, shapes, texts)
