"""Keys of ``runconfig``: how long, how often, where, on how many systems.

Keys that steer a cluster are accepted, and reported once as having no effect.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveInt

from wafer.config.engines import ENGINES, FabricSection, MemoryX, Pipeline, engine_name
from wafer.errors import ConfigError, Problem
from wafer.models.files import STORES, require_local
from wafer.models.sections import Bool, Choice, Section

MODES = ("train", "eval", "eval_all", "train_and_eval")
_STATES = (
    "model",
    "optimizer",
    "sparsity",
    "dataloader",
    "grad_scaler",
    "lr_scheduler",
    "global_step",
)


class ClusterKeys(Section):
    """Keys of clusters, schedulers and debuggers: accepted, no effect here."""

    target_device: str | None = None
    precision_opt_level: Annotated[int, Field(ge=0, le=2)] | None = None
    num_workers_per_csx: NonNegativeInt | None = None
    num_act_servers: PositiveInt | None = None
    num_wgt_servers: Annotated[int, Field(gt=0, le=24)] | None = None
    job_time_sec: PositiveInt | None = None
    mount_dirs: Any = None
    credentials_path: Any = None
    mgmt_address: Any = None
    mgmt_namespace: Any = None
    service_dir: Any = None
    disable_version_check: Bool | None = None
    debug_args_path: Any = None
    debug_args: Any = None
    ini: Any = None
    wsc_log_level: Any = None
    compile_crd_memory_gi: PositiveInt | None = None
    execute_crd_memory_gi: PositiveInt | None = None
    wrk_memory_gi: PositiveInt | None = None
    act_memory_gi: PositiveInt | None = None
    cmd_memory_gi: PositiveInt | None = None
    wgt_memory_gi: PositiveInt | None = None
    transfer_processes: PositiveInt | None = None
    retrace_every_iteration: Bool | None = None
    lazy_initialization: Bool | None = None
    drop_data: Bool | None = None
    use_cstorch_optimizer_step: Bool | None = None
    use_cs_grad_accum: Bool | None = None
    use_appliance_data: Bool | None = None
    skip_train_recv_activations: Bool | None = None
    save_stream_size: Bool | None = None
    show_debug_metrics: Bool | None = None
    enable_summaries: Bool | None = None
    save_summary_steps: PositiveInt | None = None
    save_losses: Bool | None = None
    log_input_summaries: Bool | None = None
    dump_activations: Bool | None = None
    autogen_policy: str | None = None
    experimental: Any = None
    experimental_api: Bool | None = None
    enable_distributed: Bool | None = None
    dist_backend: str | None = None
    dist_addr: str | None = None
    init_method: str | None = None
    main_process_id: NonNegativeInt | None = None
    sync_batchnorm: Bool | None = None


class OpProfiler(Section):
    """``{start_step, end_step}``: the steps, both included, that are profiled per operation."""

    start_step: PositiveInt  #: first step that is profiled
    end_step: PositiveInt  #: last step that is profiled

    def model_post_init(self, _: object) -> None:
        """Check the order."""
        if self.end_step < self.start_step:
            raise ValueError(f"end_step {self.end_step} is before start_step {self.start_step}")


class Wandb(Section):
    """Metrics also go to Weights & Biases, if these keys are there: arguments of ``wandb.init``."""

    project: str | None = None  #: project; None is wandb's default
    entity: str | None = None  #: user or team
    group: str | None = None  #: runs that are shown together
    job_type: str | None = None  #: kind of run within a group
    run_name: str | None = None  #: name that is shown
    run_id: str | None = None  #: None is a new one, kept in ``model_dir``/wandb/run_id
    tags: tuple[str, ...] | None = None  #: labels
    #: what to do with a run of this id that is there
    resume: Annotated[Literal["allow", "must", "never", "auto"], Choice] = "allow"
    #: None is what WANDB_MODE says; 'offline' keeps the files for ``wandb sync``
    mode: Annotated[Literal["online", "offline", "disabled"], Choice] | None = None


class MLflow(Section):
    """Metrics also go to a run of MLflow, if these keys are there."""

    #: server or database; None is ``model_dir``/mlflow.db, files beside it in mlartifacts
    tracking_uri: str | None = None
    experiment: str = "wafer"  #: experiment that the run belongs to
    run_name: str | None = None  #: name that is shown


def _names(value: object) -> object:
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


class HarnessTasks(Section):
    """Which tasks the EleutherAI harness runs, and how."""

    #: names, as a list or with commas between them
    tasks: Annotated[tuple[str, ...], BeforeValidator(_names), Field(min_length=1)]
    include_path: str | None = None  #: folder with definitions of tasks, beside the harness's own
    #: solved examples before each question; None is the task's own number
    num_fewshot: NonNegativeInt | None = None
    #: questions of each task, from the first; below 1 a share; None is all
    limit: Annotated[float, Field(gt=0)] | None = None
    #: tokens of a generated answer at most; None is the task's own number, or 256
    max_tokens: PositiveInt | None = None
    #: above 0 answers are sampled; None is the task's own
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_k: PositiveInt | None = None  #: sample from the k likeliest tokens
    #: sample from the likeliest tokens with this probability
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None


class EleutherEvalHarness(Section):
    """Each evaluation also runs tasks of the EleutherAI harness, if these keys are there."""

    eeh_args: HarnessTasks  #: tasks, and how they are run
    every_n_vals: PositiveInt = 1  #: evaluations from one run of the tasks to the next
    batch_size: PositiveInt = 8  #: answers that are generated together
    #: tokens that the model reads at once; None is its number of positions
    max_sequence_length: PositiveInt | None = None
    #: ``tokenizer.json``, or its folder; None is the one beside the weights
    tokenizer_file_path: str | None = None
    #: token that ends texts; None is what the files beside the tokenizer name
    eos_id: NonNegativeInt | None = None
    seed: NonNegativeInt = 1234  #: of sampled answers


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _store(value: str) -> str:
    if not re.match(f"({STORES})://[^/]", value):
        raise ValueError("expected s3://BUCKET/PATH or gs://BUCKET/PATH; folders: model_dir")
    return value


_Path = Annotated[str, AfterValidator(require_local)]


def _states(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
        raise ValueError("expected a comma-separated list")
    names = tuple(n.strip() for n in names if n.strip())
    if names == ("all",):
        return None
    unknown = [n for n in names if n not in _STATES]
    if unknown:
        raise ValueError(f"unknown state {unknown[0]!r}; allowed: {', '.join(_STATES)}")
    return names


def _paths(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _labels(value: object) -> object:
    """Read labels as a mapping, or as the list of key=value that a flag gives."""
    if isinstance(value, list | tuple):
        pairs = [str(item).partition("=") for item in value]
        value = {key: text if equals else None for key, equals, text in pairs}
    if isinstance(value, dict):
        for key, text in value.items():
            if not all(re.fullmatch(r"[A-Za-z0-9._-]+", str(t)) for t in (key, text or "")):
                raise ValueError("expected key=value of letters, digits, '.', '_' and '-'")
    return value


class RunSection(ClusterKeys):
    """What ``runconfig`` takes."""

    #: what to do; see ``MODES``
    mode: Annotated[Literal["train", "eval", "eval_all", "train_and_eval"], Choice] = "train"
    #: where checkpoints, logs and summaries go
    model_dir: Annotated[_Path, Field(min_length=1)] = "./model_dir"
    max_steps: PositiveInt | None = None  #: train until this global step
    num_steps: PositiveInt | None = None  #: train so many steps from where the run starts
    num_epochs: PositiveInt | None = None  #: train so many passes over the data
    steps_per_epoch: PositiveInt | None = None  #: length of a pass; None is the data's own
    eval_steps: PositiveInt | None = None  #: batches of an evaluation; None is one pass
    #: training steps between evaluations in ``train_and_eval``; None is one pass over the data
    eval_frequency: PositiveInt | None = None
    #: steps between checkpoints; the last step is always saved. None saves the last step alone, 0
    #: saves none
    checkpoint_steps: NonNegativeInt | None = None
    save_initial_checkpoint: Bool = False  #: also save step 0
    max_checkpoints: PositiveInt | None = None  #: keep the newest so many; None keeps all
    autoload_last_checkpoint: Bool = True  #: continue from the newest checkpoint in ``model_dir``
    #: s3:// or gs:// place that gets a copy of each checkpoint, and from which a run goes on
    checkpoint_root: Annotated[str, AfterValidator(_store)] | None = None
    #: load this one instead; a Hugging Face folder or a ``.mdl`` has weights
    checkpoint_path: str | None = None
    #: load only these parts of it
    load_checkpoint_states: Annotated[tuple[str, ...] | None, BeforeValidator(_states)] = None
    disable_strict_checkpoint_loading: Bool = False  #: accept missing and left-over parameters
    is_pretrained_checkpoint: Bool = False  #: load the model only and start at step 0
    #: 'hf' writes the trained weights as a Hugging Face folder, ``model_dir``/hf/STEP
    export: Annotated[Literal["hf"] | None, Choice] = None
    #: steps between log lines; the step before an evaluation or the end has one too
    log_steps: PositiveInt = 10
    #: level of the log
    logging: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_upper)
    ] = "INFO"
    #: where TensorBoard events go; None is ``model_dir``/train and /eval
    summary_dir: _Path | None = None
    wandb: Wandb | None = None  #: where metrics go beside the events
    mlflow: MLflow | None = None  #: where metrics go beside the events
    #: tasks of the EleutherAI harness that evaluations run
    eleuther_eval_harness: EleutherEvalHarness | None = None
    check_loss_values: Bool = True  #: stop at a NaN or infinite loss
    #: where compiled programs and floor plans are kept; in the cache folder if unset
    compile_dir: _Path | None = None
    #: folders in which Python looks for modules of the user, after all others
    python_paths: Annotated[tuple[str, ...] | None, BeforeValidator(_paths)] = None
    #: training samples left out where a run begins or goes on; whole steps
    skip_samples: PositiveInt | None = None
    #: of parameters, dropout, masks and data order
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    num_csx: PositiveInt = 1  #: systems that share the batch
    #: keep weights, gradients and optimizer state in ``num_csx`` parts, one on each system; layers
    #: gather their weights when they compute
    shard_state: Bool = False
    #: copies on each system in pipelined execution, which share its batch; -1 lets the compiler
    #: choose
    num_replicas: Annotated[int, Field(ge=-1)] = 1
    multireplica: Bool = False  #: same as ``num_replicas: -1``
    compile_only: Bool = False  #: compile and report, do not run
    validate_only: Bool = False  #: check the configuration and shapes only
    #: name of an engine (``wafer.config.engines``), or 'module:object' of the user's own; None lets
    #: free memory decide
    execution_strategy: Annotated[str | None, BeforeValidator(engine_name)] = None
    memoryx: MemoryX = MemoryX()  #: where streamed weights live
    pipeline: Pipeline = Pipeline()  #: stages and devices of pipelined execution
    #: part of the wafer that `wafer compile` and execution on the fabric place kernels on
    fabric: FabricSection = FabricSection()
    op_profiler_config: OpProfiler | None = None  #: steps to profile
    #: key-value pairs that ``wafer jobs get`` shows
    job_labels: Annotated[dict[str, Any] | None, BeforeValidator(_labels)] = None
    #: shown by ``wafer jobs get ID``; runs do not wait for each other
    job_priority: Annotated[Literal["p1", "p2", "p3"], Choice] | None = None

    def model_post_init(self, _: object) -> None:
        """Check the keys against each other and against the mode."""
        problems = list(self._conflicts())
        if self.mode in ("train", "train_and_eval"):
            problems += self._durations()
        if problems:
            raise ConfigError(problems)

    def _conflicts(self) -> list[Problem]:
        problems = []
        if self.compile_only and self.validate_only:
            problems.append(Problem(("compile_only",), "excludes 'validate_only'; keep one"))
        if self.num_epochs is not None and self.num_steps is not None:
            problems.append(
                Problem(("num_steps",), "excludes 'num_epochs'; keep the one that is meant")
            )
        fields = type(self).model_fields
        for row in ENGINES.values():
            if self.execution_strategy == row.name or not row.section:
                continue
            if getattr(self, row.section) != fields[row.section].default:
                message = f"is read only with execution_strategy: {row.name}; add that or drop this"
                problems.append(Problem((row.section,), message))
        if self.num_replicas == 0:
            problems.append(Problem(("num_replicas",), "0: expected -1 or a whole number > 0"))
        if self.mode == "eval_all" and self.checkpoint_path is not None:
            message = "eval_all evaluates every checkpoint in model_dir; drop it or use mode eval"
            problems.append(Problem(("checkpoint_path",), message))
        if self.is_pretrained_checkpoint and self.load_checkpoint_states is not None:
            message = "excludes 'load_checkpoint_states' (it means load_checkpoint_states: model)"
            problems.append(Problem(("is_pretrained_checkpoint",), message))
        return problems

    def _durations(self) -> list[Problem]:
        problems = []
        if self.max_steps is None and self.num_steps is None and self.num_epochs is None:
            message = "missing; training needs one of max_steps, num_steps, num_epochs"
            problems.append(Problem(("max_steps",), message))
        return problems

    @property
    def only_looks(self) -> bool:
        """Whether the file is checked or compiled, and not run."""
        return self.validate_only or self.compile_only

    @property
    def devices(self) -> int:
        """Devices of the whole run."""
        return self.num_csx * self.pipeline.devices

    @property
    def no_effect(self) -> tuple[str, ...]:
        """Keys the file sets that mean nothing on this machine."""
        return tuple(k for k in ClusterKeys.model_fields if k in self.model_fields_set)


def total_steps(run: RunSection, global_step: int, data_steps: int | None) -> int:
    """Optimizer steps still to do: the least of what the three keys ask for; 0: finished.

    Args:
        run: the section; ``steps_per_epoch`` wins over ``data_steps``.
        global_step: steps already in the checkpoint.
        data_steps: steps of one pass over the data; None when unknown.

    Raises:
        ConfigError: ``num_epochs`` and nobody knows the length of an epoch.
    """
    limits = []
    if run.num_epochs is not None:
        per_epoch = run.steps_per_epoch or data_steps
        if not per_epoch:
            message = "the data's length is unknown; add steps_per_epoch or use num_steps"
            raise ConfigError([Problem(("runconfig", "num_epochs"), message)])
        limits.append(run.num_epochs * per_epoch)
    if run.num_steps is not None:
        limits.append(run.num_steps)
    if run.max_steps is not None:
        limits.append(max(run.max_steps - global_step, 0))
    return min(limits)
