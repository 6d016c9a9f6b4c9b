"""The modes of ``wafer run``: train, eval, eval_all, train_and_eval, and the dry ones."""

import contextlib
import logging
import pathlib
import time

from rich.table import Table

from wafer.commands.dry import compile_only, floor_plan, makes_floor_plan, validate_only
from wafer.config import RunConfig, total_steps
from wafer.engines.base import TrainState
from wafer.engines.cluster import lost_workers, num_tasks, task_id
from wafer.errors import CheckpointError, ConfigError, Problem
from wafer.experiment import Experiment
from wafer.profile.window import OpProfiler
from wafer.session.build import Run, build, seed_of
from wafer.session.checkpoint import Checkpoints, load_checkpoint
from wafer.session.evaluate import evaluate
from wafer.session.logs import CONSOLE, log_folder
from wafer.session.loop import Session, train
from wafer.session.metrics import MetricWriter, write_performance
from wafer.session.persist import fresh, resume, save, state_from

__all__ = ["run"]

_LOG = logging.getLogger(__name__)
Scores = dict[int, dict[str, float]]


def run(cfg: RunConfig, began: float | None = None) -> int:
    """Run a checked configuration in its mode.

    Args:
        cfg: the configuration.
        began: ``time.perf_counter()`` when the user's command began; now when None.

    Returns:
        0, or 128 + the signal's number when one ended training early (with a checkpoint).

    Raises:
        WaferError: whatever the user has to fix.
    """
    began = time.perf_counter() if began is None else began
    settings = cfg.runconfig
    if cfg.no_effect:
        _LOG.info("Accepted, no effect on this machine: %s", ", ".join(cfg.no_effect))
    if settings.validate_only:
        validate_only(cfg)
        return 0
    if settings.compile_only and makes_floor_plan(cfg):
        floor_plan(cfg)
        return 0
    job = build(Experiment.from_config(cfg, seed_of(cfg)))
    _LOG.info(
        "%d system(s) on %s, seed %d, model_dir %s",
        job.num_csx,
        job.device,
        job.experiment.seed,
        job.model_dir,
    )
    if settings.compile_only:
        compile_only(job)
        return 0
    folder = log_folder(job.model_dir, settings.mode, task_id())
    (folder / "params.yaml").write_text(cfg.to_yaml())
    try:
        with lost_workers():
            if settings.mode == "eval_all":
                return _eval_all(job)
            if settings.mode == "eval":
                return _eval(job)
            return _train(job, folder, began)
    finally:
        job.engine.close()


def _eval(job: Run) -> int:
    resumed = resume(job)
    if resumed.path is None:
        raise CheckpointError(
            f"{job.model_dir / 'checkpoints'} holds no checkpoint to evaluate; train first, or "
            "name one with --checkpoint_path"
        )
    _evaluate_and_write(job, resumed.state)
    return 0


def _eval_all(job: Run) -> int:
    checkpoints = Checkpoints(job.model_dir)
    paths = [checkpoints.path(step) for step in checkpoints.steps()]
    checkpoints.close()
    if not paths:
        raise CheckpointError(f"{checkpoints.folder} holds no checkpoint; eval_all needs one")
    template = fresh(job)
    for path in paths:
        tree, meta = load_checkpoint(path)
        _evaluate_and_write(job, state_from(job, template, tree, meta, path))
    return 0


def _evaluate_and_write(job: Run, state: TrainState) -> dict[str, float]:
    step = int(state.step)
    results = evaluate(job, state)
    writer = MetricWriter(_summaries(job) / "eval")
    writer.write(step, results)
    writer.close()
    shown = ", ".join(f"{name.removeprefix('eval/')}={v:.5f}" for name, v in results.items())
    _LOG.info("| Eval Device=%s, Step=%d, %s", job.device, step, shown)
    return results


def _summaries(job: Run) -> pathlib.Path:
    """Folder of the events; other processes than the first keep theirs apart."""
    folder = pathlib.Path(job.cfg.runconfig.summary_dir or job.model_dir)
    return folder if task_id() == 0 else folder / f"process-{task_id()}"


def _train(job: Run, folder: pathlib.Path, began: float) -> int:
    settings, data = job.cfg.runconfig, job.train
    if data is None:  # the configuration was checked for this mode
        raise CheckpointError("there is no train_input to train on")
    per_update = job.experiment.batch("train").samples
    epoch = settings.steps_per_epoch or data.batches(per_update)
    resumed = resume(job)
    state = resumed.state
    start = int(state.step)
    until = start + total_steps(settings, start, epoch)
    profiler = _profiler(job, until - start)
    session = Session(
        loader=data.loader(per_update, num_epochs=None, task=(task_id(), num_tasks())),
        checkpoints=Checkpoints(job.model_dir, settings.max_checkpoints),
        writer=MetricWriter(_summaries(job) / "train"),
        console=CONSOLE,
        began=began,
        profiler=profiler,
    )
    if resumed.data is not None:
        session.loader.restore(dict(resumed.data))
    evaluates = settings.mode == "train_and_eval"
    stretch = (settings.eval_frequency or epoch or until) if evaluates else until
    scores: Scores = {}
    try:
        if settings.save_initial_checkpoint and resumed.path is None:
            save(job, session.checkpoints, state, session.loader.state())
        if evaluates:
            scores[start] = _evaluate_and_write(job, state)
        while (done := int(state.step)) < until and not session.stop:
            state = train(job, session, state, min(until, done - done % stretch + stretch))
            if evaluates and not session.stop:
                scores[int(state.step)] = _evaluate_and_write(job, state)
        if session.rates is not None:
            write_performance(folder, session.rates, job.num_csx)
        _finish(job, session, scores)
    finally:
        if session.profiler is not None:
            session.profiler.close()
        session.writer.close()
        session.checkpoints.close()
        session.loader.close()
    return 128 + session.stop if session.stop else 0


def _profiler(job: Run, steps: int) -> OpProfiler | None:
    """Make what ``runconfig.op_profiler_config`` asks for; its steps count from this run's 1."""
    asked = job.cfg.runconfig.op_profiler_config
    if asked is None:
        return None
    if asked.end_step > steps:
        message = f"{asked.end_step}, but this run takes {steps} step(s), counted from its start"
        raise ConfigError([Problem(("runconfig", "op_profiler_config", "end_step"), message)])
    if not job.row.whole_step_program:  # one program serves all layers there
        message = "needs execution_strategy: resident, where operations belong to layers"
        raise ConfigError([Problem(("runconfig", "op_profiler_config"), message)])
    folder = job.model_dir / "profile"
    if num_tasks() > 1:  # each process traces its own systems
        folder /= f"process-{task_id()}"
    shapes, texts = job.experiment.shapes, job.engine.programs.texts
    return OpProfiler(asked.start_step, asked.end_step, folder, shapes, texts)


def _finish(job: Run, session: Session, scores: Scores) -> None:
    """Say what was reached and what to do next."""
    bits = {step: s["eval/bits_per_byte"] for step, s in scores.items() if _has_bits(s)}
    if bits and job.evals is not None:
        table = Table("held-out text", "bits per byte", title="Compression of unseen text")
        for step, value in bits.items():
            table.add_row(f"this model, step {step}", f"{value:.3f}")
        for name, value in job.evals.references.items():
            table.add_row(name, f"{value:.3f}")
        CONSOLE.print(table)
    if session.stop:
        _LOG.info("Stopped early; the same command continues from the checkpoint")
    else:
        _LOG.info("Training completed successfully!")
    if session.rates is not None:
        _LOG.info(
            "Processed %d sample(s) in %.2f seconds.", session.rates.total, session.rates.seconds
        )
    steps = session.checkpoints.steps()
    if steps:
        _next_commands(job, session.checkpoints.path(steps[-1]))


def _has_bits(scores: dict[str, float]) -> bool:
    return "eval/bits_per_byte" in scores


def _next_commands(job: Run, checkpoint: pathlib.Path) -> None:
    with contextlib.suppress(ValueError):  # elsewhere on the disk the absolute path is right
        checkpoint = checkpoint.relative_to(pathlib.Path.cwd())
    CONSOLE.print("\nNext:")
    if (job.model_dir / "tokenizer.json").exists():
        CONSOLE.print(f'  wafer generate --checkpoint_path {checkpoint} --prompt "def read_"')
    if job.experiment.sparsifier:
        CONSOLE.print(f"  wafer finalize -i {checkpoint} -o {job.model_dir}/finalized")
    CONSOLE.print(f"  tensorboard --logdir {_summaries(job)}")
