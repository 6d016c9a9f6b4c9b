"""Train and evaluate: ``wafer run``, ``wafer.train``, ``wafer.evaluate``."""

import argparse
import contextlib
import logging
import os
import pathlib
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from wafer.models.user.trust import add_option, looking

if TYPE_CHECKING:
    from wafer.commands.inputs import Source
    from wafer.commands.results import Trained
    from wafer.config import InputSection, RunConfig, RunSection
    from wafer.engines.rendezvous import Peer
    from wafer.experiment import Experiment
    from wafer.session.build import Run
    from wafer.session.train import Outcome

_LOG = logging.getLogger(__name__)

# Flags that override runconfig, with their argparse settings.
_FLAGS: dict[str, dict[str, Any]] = {
    "mode": {"help": "what to do (default: runconfig.mode, or train)"},
    "model_dir": {"help": "folder for checkpoints, logs and events"},
    "checkpoint_path": {"help": "start from this checkpoint, Hugging Face folder or .mdl"},
    "load_checkpoint_states": {"help": "comma list: model,optimizer,sparsity,dataloader,..."},
    "disable_strict_checkpoint_loading": {
        "action": "store_true",
        "help": "keep parameters the checkpoint lacks as initialized (a new head)",
    },
    "is_pretrained_checkpoint": {
        "action": "store_true",
        "help": "take the model only, start at step 0",
    },
    "export": {"choices": ["hf"], "help": "write the trained weights to MODEL_DIR/hf/STEP, too"},
    "num_steps": {"type": int, "help": "steps to train now"},
    "max_steps": {"type": int, "help": "global step to stop at"},
    "num_epochs": {"type": int, "help": "passes over the training data"},
    "eval_steps": {"type": int, "help": "batches per evaluation (default: one epoch)"},
    "num_csx": {"type": int, "help": "systems that share the batch"},
    "shard_state": {"action": "store_true", "help": "keep a part of the state on each system"},
    "execution_strategy": {"help": "where the weights live (default: resident when they fit)"},
    "validate_only": {
        "action": "store_true",
        "help": "check the file and list what will be sparse (`wafer compile` matches kernels)",
    },
    "compile_only": {
        "action": "store_true",
        "help": "compile the step for this machine (`wafer compile` does for the wafer)",
    },
    "logging": {"help": "DEBUG, INFO, WARNING or ERROR"},
    "seed": {"type": int, "help": "of weights, masks, data order and dropout"},
    "job_labels": {"nargs": "+", "metavar": "K=V", "help": "labels that `wafer jobs get` shows"},
    "job_priority": {"choices": ("p1", "p2", "p3"), "help": "shown by `wafer jobs get ID`"},
    "python_paths": {"nargs": "+", "help": "folders of your own modules"},
    "compile_dir": {"help": "where compiled programs are kept (default: ~/.cache)"},
    "multireplica": {
        "action": "store_true",
        "help": "as many copies of a pipelined model as are fastest share a system's batch",
    },
    "num_replicas": {"type": int, "help": "so many copies; -1 is the same as --multireplica"},
}
# Flags of a cluster, without effect here: taken, and named once.
_IGNORED: dict[str, dict[str, Any]] = {
    name: {"nargs": "+"} if name in ("mount_dirs", "debug_args", "ini", "wsc_log_level") else {}
    for name in (
        "mount_dirs",
        "debug_args",
        "ini",
        "wsc_log_level",
        "num_workers_per_csx",
        "num_wgt_servers",
        "num_act_servers",
        "job_time_sec",
        "credentials_path",
        "mgmt_address",
        "mgmt_namespace",
        "debug_args_path",
        "service_dir",
        "dist_addr",
        "dist_backend",
        "init_method",
    )
} | {"disable_version_check": {"action": "store_true"}}
_SHORT = {"mode": "-m", "model_dir": "-o", "execution_strategy": "--execution", "compile_dir": "-c"}


# The first word of the command, and JAX's name of the devices; '': any.
_SYSTEMS = {"CSX": "", "CPU": "cpu", "GPU": "cuda"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    from wafer.config import MODES
    from wafer.config.engines import ENGINES, STRATEGIES

    known = {
        "mode": {"choices": MODES},
        "execution_strategy": {"metavar": f"{{{','.join(ENGINES)},module:object}}"},
    }
    parser.add_argument(
        "system",
        nargs="?",
        type=str.upper,
        choices=tuple(_SYSTEMS),
        help="where: CSX, systems on the devices there are (default), or on these devices alone",
    )
    parser.add_argument(
        "strategy",
        nargs="?",
        choices=STRATEGIES,
        help="the same as --execution_strategy",
    )
    parser.add_argument("-p", "--params", required=True, help="params YAML")
    add_option(parser)
    for name, settings in _FLAGS.items():
        names = [_SHORT[name], f"--{name}"] if name in _SHORT else [f"--{name}"]
        parser.add_argument(*names, dest=name, default=None, **settings, **known.get(name, {}))
    for name, settings in _IGNORED.items():
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS, default=None, **settings)
    several = parser.add_argument_group("several processes (flags, environment or SLURM)")
    several.add_argument("--coordinator", metavar="HOST:PORT", help="of process 0")
    several.add_argument("--num_processes", type=int, help="processes that share the systems")
    several.add_argument("--process_id", type=int, help="of this one, from 0")
    several.add_argument(
        "--heartbeat", type=int, default=100, help="seconds until a silent process is lost"
    )
    several.add_argument(
        "--join_timeout", type=int, default=300, help="seconds until all must have come"
    )
    parser.set_defaults(run=_main)


def _main(args: argparse.Namespace) -> int:
    from wafer.config import load_all
    from wafer.jobs.track import follow_parent, tracked
    from wafer.session.logs import keep_lines, setup_logging

    began = time.perf_counter()
    follow_parent()
    platform = _SYSTEMS[args.system or "CSX"]
    if platform:  # before jax starts
        os.environ["JAX_PLATFORMS"] = platform
    flags = {name: getattr(args, name) for name in (*_FLAGS, *_IGNORED)}
    flags["execution_strategy"] = flags["execution_strategy"] or args.strategy
    keep_lines()
    cfgs = load_all(args.params, flags, _make_data_ahead)
    cfg = max(cfgs, key=_devices)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's own chatter
    from wafer.engines.cluster import membership

    member = membership(args.coordinator, args.num_processes, args.process_id)
    first = member is None or member.index == 0
    setup_logging(cfg.runconfig.logging if first else "WARNING")
    if not first:  # the first process is the job
        return _start(cfgs, member, args, began)
    with tracked(cfg, args.typed) as job:
        return job.ended(_start(cfgs, member, args, began, job.id))


def _start(
    cfgs: "list[RunConfig]",
    member: "Peer | None",
    args: argparse.Namespace,
    began: float,
    job: str = "",
) -> int:
    """Join the other processes, before the first use of any device; then run one after another."""
    from wafer.engines.cluster import joined
    from wafer.errors import errors_of_file
    from wafer.session.facts import run_fingerprint

    with errors_of_file(args.params):
        _prepare(max(cfgs, key=_devices), 1 if member is None else member.count)
        if member is None:
            return _in_order(cfgs, began, job)
        with joined(member, run_fingerprint(cfgs), args.heartbeat, args.join_timeout):
            return _in_order(cfgs, began, job)


def _in_order(cfgs: "list[RunConfig]", began: float, job: str) -> int:
    from wafer.session.logs import close_log

    for number, cfg in enumerate(cfgs, 1):
        if number > 1:  # its lines are not the run's before it
            close_log()
        if len(cfgs) > 1:
            _LOG.info("Trainer %d of %d", number, len(cfgs))
        code = run(cfg, began if number == 1 else None, job)
        if code:
            return code
    return 0


def _make_data_ahead(settings: "RunSection", inputs: "Mapping[str, InputSection]") -> None:
    """Begin what a new run's readers will ask for, in a process beside imports and compilation."""
    from wafer.cache import make_ahead

    begun = pathlib.Path(settings.model_dir, "tokenizer.json").exists()
    if settings.validate_only or settings.compile_only or settings.checkpoint_path or begun:
        return  # no data, or with the tokenizer of its weights
    read = [part for name, part in inputs.items() if name.removesuffix("_input") in settings.mode]
    for function in sorted({part.ahead for part in read if part.ahead}):
        make_ahead(
            function, [part.model_dump(mode="json") for part in read if part.ahead == function]
        )


def _devices(cfg: "RunConfig") -> int:
    return cfg.runconfig.num_csx * cfg.runconfig.pipeline.devices


def _prepare(cfg: "RunConfig", processes: int = 1) -> None:
    """Make this process's systems, before the first use of any; keep compiled programs."""
    from wafer.cache import keep_programs
    from wafer.engines.cluster import prepare

    settings = cfg.runconfig
    prepare(settings.num_csx, processes, settings.pipeline.devices)
    keep_programs(settings.compile_dir)


def run(cfg: "RunConfig", began: float | None = None, job_id: str = "") -> int:
    """Run a checked configuration in its mode.

    Args:
        cfg: the configuration.
        began: ``time.perf_counter()`` when the user's command began; now when None.
        job_id: what ``wafer jobs`` calls it.

    Returns:
        0, or 128 + the signal's number when one ended training early (with a checkpoint).

    Raises:
        WaferError: whatever the user has to fix.
    """
    from wafer.commands.planning.copies import with_copies
    from wafer.experiment import Experiment
    from wafer.session.build import seed_of
    from wafer.session.evaluate import evaluate_every, evaluate_one
    from wafer.session.train import train_run

    began = time.perf_counter() if began is None else began
    settings = cfg.runconfig
    if cfg.no_effect:
        _LOG.info("Accepted, no effect on this machine: %s", ", ".join(cfg.no_effect))
    if settings.only_looks:
        with looking():
            _plan(cfg)
        return 0
    experiment = Experiment.from_config(cfg, seed_of(cfg))
    with _owned(cfg, job_id), _built(with_copies(experiment)) as job, _logged(job) as folder:
        if settings.mode == "eval_all":
            evaluate_every(job)
        elif settings.mode == "eval":
            evaluate_one(job)
        else:
            outcome = train_run(job, folder, began)
            _report(job, outcome)
            return 128 + outcome.stop if outcome.stop else 0
    return 0


def _plan(cfg: "RunConfig") -> None:
    """Check a configuration or compile it: the modes that train nothing."""
    from wafer.commands.planning.copies import with_copies
    from wafer.commands.planning.dry import (  # imports the compiler
        compile_only,
        floor_plan,
        makes_floor_plan,
        validate_only,
    )
    from wafer.experiment import Experiment
    from wafer.session.build import seed_of

    if cfg.runconfig.validate_only:
        validate_only(cfg)
    elif makes_floor_plan(cfg):
        floor_plan(cfg)
    else:
        with _built(with_copies(Experiment.from_config(cfg, seed_of(cfg)))) as job:
            compile_only(job)


@contextlib.contextmanager
def _owned(cfg: "RunConfig", job_id: str = "") -> "Iterator[None]":
    """Keep other runs out of the model_dir of one that trains; the first process does.

    Checkpoints at an object store are brought there.
    """
    import jax

    from wafer.session.lock import owned, require_contained_files

    settings = cfg.runconfig
    require_contained_files(pathlib.Path(settings.model_dir))
    trains, root = "train" in settings.mode, settings.checkpoint_root
    alone = not trains or jax.process_index() > 0
    folder = pathlib.Path(settings.model_dir)
    with contextlib.nullcontext() if alone else owned(folder, job_id):
        if root is not None:
            from wafer.models.checkpoint.layout import CHECKPOINTS
            from wafer.models.checkpoint.stores import synchronize

            every, anew = settings.mode == "eval_all", not settings.autoload_last_checkpoint
            synchronize(root, folder / CHECKPOINTS, trains=trains, every=every, anew=anew)
        yield


@contextlib.contextmanager
def _built(experiment: "Experiment") -> "Iterator[Run]":
    """Build a run, say where it is; close its engine in the end."""
    from wafer.models.user.flags import own_flags
    from wafer.session.build import build
    from wafer.vendor.mdl.optimizer import load_mdl

    line = "%d system(s) on %s, seed %d, model_dir %s"
    with own_flags():
        job = build(experiment, {".mdl": load_mdl})
        _LOG.info(line, job.num_csx, job.device, experiment.seed, job.model_dir)
        try:
            yield job
        finally:
            job.engine.close()


@contextlib.contextmanager
def _logged(job: "Run") -> Iterator[pathlib.Path]:
    """Open the folder of a run's log, its file as it was understood in it."""
    import jax

    from wafer.engines.cluster import lost_workers
    from wafer.session.logs import log_folder

    folder = log_folder(job.model_dir, job.cfg.runconfig.mode, jax.process_index())
    (folder / "params.yaml").write_text(job.cfg.to_yaml())
    with lost_workers():
        yield folder


def train(source: "Source", **overrides: object) -> "Trained":
    """Train what a run file describes; a second call continues from the newest checkpoint.

    Args:
        source: an Experiment, the path of a params YAML, or its sections as a mapping.
        **overrides: keys of ``runconfig`` that win over the source's: ``model_dir``,
            ``max_steps``, ``mode="train_and_eval"``, ...

    Returns:
        Checkpoints, metrics and parameters.

    Raises:
        ConfigError: everything that is wrong with the file.
        DataError: data that is not what the file says.
        TrainingError: the loss is NaN or infinite.
        CheckpointError: a checkpoint that does not fit, or could not be written.
        KeyboardInterrupt: Ctrl-C, once a checkpoint of the last step is written. SIGTERM, too, is
            raised anew then.

    Examples:
        >>> trained = wafer.train(
        ...     "models/configs/gpt_pystdlib.yaml", model_dir="runs/demo", max_steps=100
        ... )  # doctest: +SKIP
        >>> [record["loss"] for record in trained.metrics]  # doctest: +SKIP
    """
    from wafer.commands.inputs import experiment_of
    from wafer.commands.results import Trained
    from wafer.session.metrics import read_metrics
    from wafer.session.train import train_run
    from wafer.sparsity.stored import sentinel
    from wafer.sparsity.stored.inference import computed_params

    began = time.perf_counter()
    experiment = experiment_of(source, **overrides)
    if "train" not in experiment.cfg.runconfig.mode:
        experiment = experiment_of(experiment, mode="train")
    with _called(experiment) as (job, folder):
        outcome = train_run(job, folder, began)
        params, _ = job.engine.export(outcome.state)
        trained = Trained(
            model_dir=job.model_dir,
            summary_dir=job.summary_dir,
            step=int(outcome.state.step),
            params=computed_params(job.experiment.sparsifier, sentinel.decode(params, {}).params),
            checkpoints=outcome.checkpoints,
            scores=outcome.scores,
            metrics=read_metrics(job.summary_dir / "train"),
            stop=outcome.stop,
        )
    if outcome.stop:  # now that the checkpoint is complete: also for the caller's loop
        signal.raise_signal(outcome.stop)
    return trained


def init_checkpoint(source: "Source", **overrides: object) -> pathlib.Path:
    """Write the checkpoint of step 0, from which training goes on as if it had begun there.

    Args:
        source: an Experiment, the path of a params YAML, or its sections as a mapping.
        **overrides: keys of ``runconfig`` that win over the source's.

    Raises:
        ConfigError: everything that is wrong with the file.
        CheckpointError: the run has checkpoints, or none could be written.
    """
    from wafer.commands.inputs import experiment_of
    from wafer.session.train import save_first

    with _called(experiment_of(source, **overrides, mode="train")) as (job, _):
        return save_first(job)


def evaluate(
    source: "Source", checkpoint: str | os.PathLike[str] | None = None, **overrides: object
) -> dict[str, float]:
    """Evaluate a checkpoint on a run file's ``eval_input``.

    Args:
        source: an Experiment, the path of a params YAML, or its sections as a mapping.
        checkpoint: its folder, or a run's for its newest; None is the newest in ``model_dir``.
            With a checkpoint and no ``model_dir`` nothing is written.
        **overrides: keys of ``runconfig`` that win over the source's.

    Returns:
        ``loss`` in nats per token, the task's metrics by tag, and
        ``eval/bits_per_byte`` where the data is text.

    Raises:
        ConfigError: everything that is wrong with the file.
        CheckpointError: no checkpoint, or one that does not fit.
        DataError: no evaluation data.

    Examples:
        >>> wafer.evaluate(
        ...     "models/configs/gpt_pystdlib.yaml", model_dir="runs/demo"
        ... )["loss"]  # doctest: +SKIP
    """
    from wafer.commands.inputs import experiment_of, newest_checkpoint
    from wafer.experiment import Experiment
    from wafer.models.checkpoint.layout import CHECKPOINTS
    from wafer.session.evaluate import evaluate_one

    if checkpoint is not None:
        runs = pathlib.Path(checkpoint, CHECKPOINTS).is_dir()
        overrides["checkpoint_path"] = newest_checkpoint(checkpoint) if runs else checkpoint
    experiment = experiment_of(source, **overrides, mode="eval")
    given = experiment if "model_dir" in overrides else source
    settings = (given if isinstance(given, Experiment) else experiment).cfg.runconfig
    with tempfile.TemporaryDirectory() as folder:
        if checkpoint is not None and "model_dir" not in settings.model_fields_set:
            experiment = experiment_of(experiment, model_dir=folder)
        with _called(experiment) as (job, _):
            return evaluate_one(job)


@contextlib.contextmanager
def _called(experiment: "Experiment") -> "Iterator[tuple[Run, pathlib.Path]]":
    """Build a run for a caller in Python, whose JAX may have started."""
    cfg = experiment.cfg
    named = {"train_input": cfg.train_input, "eval_input": cfg.eval_input}
    _make_data_ahead(cfg.runconfig, {name: part for name, part in named.items() if part})
    with contextlib.suppress(RuntimeError):  # then its devices are what there is
        _prepare(cfg)
    with _owned(cfg), _built(experiment) as job, _logged(job) as folder:
        yield job, folder


def _report(job: "Run", outcome: "Outcome") -> None:
    """Say what was reached and what to do next."""
    from rich.table import Table

    from wafer.session.hints import after_training, next_lines, tensorboard
    from wafer.session.logs import CONSOLE

    key = "eval/bits_per_byte"
    bits = {step: metrics[key] for step, metrics in outcome.scores.items() if key in metrics}
    if bits and job.eval_data is not None:
        table = Table("held-out text", "bits per byte", title="Compression of unseen text")
        for step, value in bits.items():
            table.add_row(f"this model, step {step}", f"{value:.3f}")
        for name, value in job.eval_data.references.items():
            table.add_row(name, f"{value:.3f}")
        CONSOLE.print(table)
    if outcome.stop:
        _LOG.info("Stopped early; the same command continues from the checkpoint")
    elif outcome.rates is not None:
        _LOG.info("Training completed successfully!")
    if outcome.rates is not None:
        total, seconds = outcome.rates.total, outcome.rates.seconds
        _LOG.info("Processed %d sample(s) in %.2f seconds.", total, seconds)
    if not outcome.checkpoints:
        return
    lines = after_training(job, outcome.checkpoints[-1])
    CONSOLE.print("\n" + "\n".join(next_lines([*lines, tensorboard(job.summary_dir)])))
