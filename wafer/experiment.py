"""From a checked configuration to what runs: model, optimizer, sparsifier, executor, data.

Nothing here trains or writes checkpoints; ``validate_only`` stops after ``build``.
"""

import dataclasses
import logging
import math
import pathlib
import secrets
from collections.abc import Iterator
from typing import Any

import jax
import optax
from jaxtyping import Array

import models
import sparsity
import vsl
from models.fc_mnist import FcMnistConfig
from models.lora import trainable
from models.paths import named_leaves
from sparsity import Sparsifier
from wafer.config import DATA_PROCESSORS, RunConfig
from wafer.data.batching.batches import host_batch
from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.pipeline import Rows
from wafer.data.inputs import InputSection
from wafer.data.registry import build_dataset
from wafer.data.stats import sequence_lengths
from wafer.data.tasks import context_of, tasks_of
from wafer.engines.choose import make_executor
from wafer.engines.cluster import largest, num_tasks
from wafer.engines.fabric.requirements import fabric_problems
from wafer.engines.resident import Executor
from wafer.engines.state import Scaler, TrainState
from wafer.errors import ConfigError, Problem
from wafer.optim.chain import learning_rates, make_optimizer
from wafer.optim.freeze import train_only
from wafer.optim.mup import with_mup_rates
from wafer.optim.precision import make_scaler
from wafer.session.warm import Warmup, feature_shapes

__all__ = ["Plan", "Run", "build", "plan"]

_SAMPLED = 1024  # sequences whose lengths choose the capacities

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Everything that follows from the configuration alone, without data or weights.

    Attributes:
        cfg: the configuration.
        model: the model bundle.
        shapes: parameter shapes, from ``jax.eval_shape``.
        tx: optimizer with clipping.
        sparsifier: masks; empty when there is no ``sparsity`` section.
        scaler: loss-scale automaton.
        seed: of everything random; drawn when the configuration names none.
    """

    cfg: RunConfig
    model: models.Model
    shapes: Any
    tx: optax.GradientTransformation
    sparsifier: Sparsifier
    scaler: Scaler
    seed: int


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A plan on its machine, with its data.

    Attributes:
        plan: what is trained.
        executor: how.
        model_dir: where everything is written.
        train: training data, or None when only evaluating.
        evals: evaluation data, or None when only training.
        ladder: capacities of stripped streams under ``model.enable_vts``; else None.
        warmup: makes the first state and compiles in the background.
    """

    plan: Plan
    executor: Executor
    model_dir: pathlib.Path
    train: Dataset | None
    evals: Dataset | None
    ladder: vsl.Ladder | None
    warmup: Warmup

    @property
    def cfg(self) -> RunConfig:
        """The configuration."""
        return self.plan.cfg

    @property
    def num_csx(self) -> int:
        """N systems."""
        return self.cfg.runconfig.num_csx

    @property
    def device(self) -> str:
        """Platform the systems are on, as the log line names it."""
        return self.executor.mesh.devices.flat[0].platform.upper()

    def gauges(self, state: TrainState) -> dict[str, Array]:
        """Return what the logs show of a state: learning rates, sparsity levels."""
        rates = learning_rates(state.opt_state)
        return {f"lr/{i}": rate for i, rate in enumerate(rates)} | self.executor.levels(state)

    @property
    def accumulate(self) -> int:
        """Batches whose gradients are averaged before an update."""
        return 1 if self.cfg.optimizer is None else self.cfg.optimizer.grad_accum_steps

    def features(
        self, rows: Rows, section: InputSection, accumulate: int = 1, *, padded: bool = False
    ) -> Any:
        """Place a batch of rows on the systems; ``padded`` keeps rows whole under enable_vts."""
        micro = section.micro_batch_size
        share = section.batch_size // self.num_csx
        parts = share // micro if isinstance(micro, int) else 1
        return self.executor.place(
            host_batch(
                rows,
                self.num_csx // num_tasks(),
                parts * accumulate,
                None if padded else self.ladder,
                largest,
            )
        )


def plan(cfg: RunConfig) -> Plan:
    """Build model, optimizer and sparsifier; no arrays are made.

    Raises:
        ConfigError: parts of the configuration that do not go together.
    """
    model = models.build(cfg.model)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    whole = cfg.optimizer is not None and cfg.optimizer.needs_dense  # factored moments
    sparsifier = sparsity.configure(
        cfg.sparsity,
        aliases=model.alias,
        accepts=lambda name: name.endswith("/kernel") and not whole,
    )
    problems = list(_conflicts(cfg, model))
    if cfg.runconfig.execution_strategy == "fabric":
        problems += fabric_problems(cfg, model, sparsifier)
    if problems:
        raise ConfigError(problems)
    seed = cfg.runconfig.seed
    if seed is None:
        seed = secrets.randbits(31)
        _LOG.info("runconfig.seed is not set; this run uses %d", seed)
    return Plan(
        cfg=cfg,
        model=model,
        shapes=shapes,
        tx=_optimizer(cfg, shapes, model),
        sparsifier=sparsifier,
        scaler=make_scaler(cfg.optimizer, model.config.dtype),
        seed=seed,
    )


def _optimizer(cfg: RunConfig, shapes: Any, model: models.Model) -> optax.GradientTransformation:
    if cfg.optimizer is None:  # a run that only evaluates
        return optax.identity()
    chosen = named_leaves(trainable(model, shapes))
    section = with_mup_rates(cfg.optimizer, model.config, (name for name, _ in chosen))
    tx = make_optimizer(section, shapes, model.alias)
    if all(trains for _, trains in chosen):
        return tx
    return train_only(tx, frozenset(name for name, trains in chosen if trains))


def _conflicts(cfg: RunConfig, model: models.Model) -> list[Problem]:
    problems: list[Problem] = []
    vocab = getattr(model.config, "vocab_size", math.inf)
    longest = getattr(model.config, "max_position_embeddings", math.inf)
    if getattr(model.config, "position_embedding_type", None) == "relative":  # buckets have no end
        longest = math.inf
    takes = tasks_of(model.config)
    for name in ("train_input", "eval_input"):
        section: Any = getattr(cfg, name)
        if section is None:
            continue
        if section.task not in takes:
            message = f"{section.data_processor!r}: {_unfit(cfg.model['name'], section, takes)}"
            problems.append(Problem((name, "data_processor"), message))
            continue
        tokens = getattr(section, "vocab_size", None)
        if tokens is not None and tokens > vocab:
            message = f"{tokens} token ids, but model.vocab_size is {vocab}; make them equal"
            problems.append(Problem((name, "vocab_size"), message))
        length = section.max_sequence_length
        if length is not None and length > longest:
            message = (
                f"{length} positions, but model.max_position_embeddings is {longest}; "
                "raise that or shorten this"
            )
            problems.append(Problem((name, "max_sequence_length"), message))
    if cfg.runconfig.execution_strategy == "pipelined":
        problems += _pipeline(cfg, model)
    return problems + list(_not_built(cfg)) + list(_split_negatives(cfg))


def _pipeline(cfg: RunConfig, model: models.Model) -> Iterator[Problem]:
    """A pipeline has at most a stage for each of the model's, and a device for each stage."""
    settings, names = cfg.runconfig.pipeline, [stage.name for stage in model.stages]
    stages = len(names) if settings.stages is None else settings.stages
    if stages > len(names):
        message = f"{stages}, but {cfg.model['name']!r} has {len(names)}: {', '.join(names)}"
        yield Problem(("runconfig", "pipeline", "stages"), message)
    if settings.devices > stages:
        message = f"{settings.devices}, but the pipeline has {stages} stage(s); use at most that"
        yield Problem(("runconfig", "pipeline", "devices"), message)


def _split_negatives(cfg: RunConfig) -> Iterator[Problem]:
    """Other questions' contexts are DPR's negatives: a shared-out batch would train otherwise."""
    for name in ("train_input", "eval_input"):
        section: Any = getattr(cfg, name)
        if section is None or section.task != "dpr":
            continue
        if cfg.runconfig.num_csx > 1:
            message = f"{cfg.runconfig.num_csx}: the negatives of a batch must be on one system"
            yield Problem(("runconfig", "num_csx"), message)
        if isinstance(section.micro_batch_size, int):
            message = "a batch in parts has fewer negatives; drop it and choose batch_size"
            yield Problem((name, "micro_batch_size"), message)


def _unfit(model: str, section: InputSection, takes: tuple[str, ...]) -> str:
    if not takes:
        return f"model {model!r} has no loss of its own to train with; it is part of other models"
    fit = [name for name, cls in DATA_PROCESSORS.items() if cls.task in takes]
    return f"its rows are for {section.task!r}; model {model!r} takes those of {', '.join(fit)}"


def _not_built(cfg: RunConfig) -> Iterator[Problem]:
    """Name what the vendor's keys ask for and this release does not do; nothing is ignored."""
    settings = cfg.runconfig
    asked = {
        "multireplica": settings.multireplica,
        "num_replicas": settings.num_replicas != 1,
    }
    for key, is_asked in asked.items():
        if is_asked:
            value = getattr(settings, key)
            message = (
                f"{value!r} is not built into this release yet; drop the key (`wafer compile` takes"
                " it and predicts what copies gain)"
            )
            yield Problem(("runconfig", key), message)


def build(cfg: RunConfig) -> Run:
    """Build the run: the plan, its executor on this machine, and the data it names.

    Raises:
        ConfigError: parts of the configuration that do not go together.
        DataError: data that is not what the configuration says.
    """
    made = plan(cfg)
    model_dir = pathlib.Path(cfg.runconfig.model_dir)
    stripped = getattr(made.model.config, "enable_vts", False)
    executor = make_executor(cfg, made, dropout=_uses_dropout(made.model.config))
    warmup = _warmup(cfg, made, executor, stripped=stripped)
    mode = cfg.runconfig.mode
    train = _dataset(cfg.train_input, model_dir, made, training=True) if "train" in mode else None
    return Run(
        plan=made,
        executor=executor,
        model_dir=model_dir,
        train=train,
        evals=_dataset(cfg.eval_input, model_dir, made, training=False) if "eval" in mode else None,
        ladder=_ladder(cfg, train) if stripped else None,
        warmup=warmup,
    )


def _ladder(cfg: RunConfig, train: Dataset | None) -> vsl.Ladder:
    """Choose capacities for the lengths of the training data; any capacity holds any batch."""
    section = cfg.train_input
    if train is None or section is None:
        return vsl.Ladder()
    micro = section.micro_batch_size
    rows = micro if isinstance(micro, int) else section.batch_size // cfg.runconfig.num_csx
    # One rung in reserve: a batch in a thousand is larger than all that were fitted.
    return vsl.fit_ladder(sequence_lengths(train, most=_SAMPLED), rows, shapes=7)


def _warmup(cfg: RunConfig, made: Plan, executor: Executor, *, stripped: bool) -> Warmup:
    """Start compiling what the mode needs, as far as its shapes are known already."""
    settings, shapes = cfg.runconfig, {}
    accumulate = 1 if cfg.optimizer is None else cfg.optimizer.grad_accum_steps
    for part, section, parts in (
        ("train", cfg.train_input, accumulate),
        ("eval", cfg.eval_input, 1),
    ):
        known = part in settings.mode and not stripped and not settings.compile_only
        if known and section is not None and not isinstance(section.micro_batch_size, int):
            shapes[part] = feature_shapes(section, (settings.num_csx, parts), executor)
    return Warmup(
        executor,
        jax.random.key(made.seed),
        train=shapes.get("train"),
        evaluation=shapes.get("eval"),
    )


def _dataset(
    section: InputSection | None, model_dir: pathlib.Path, made: Plan, *, training: bool
) -> Dataset | None:
    if section is None:
        return None
    context: Context = context_of(made.model.config, training=training)
    dataset = build_dataset(section, model_dir, context)
    if section.shuffle_seed is None:
        dataset = dataclasses.replace(dataset, shuffle_seed=made.seed)
    _LOG.info("%s", dataset.summary)
    return dataset


def _uses_dropout(config: Any) -> bool:
    if isinstance(config, FcMnistConfig):
        return config.dropout > 0
    config = getattr(config, "text_model", config)  # LLaVA's tower is not dropped out
    if (getattr(config, "classifier_dropout", None) or 0) > 0:
        return True
    return any(config.dropout(part) > 0 for part in ("residual", "embedding", "attention"))
