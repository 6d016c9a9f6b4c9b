"""What follows from the run file alone: model, optimizer, sparsifier, scaler, shapes of a batch.

Every command that trains, plans or compiles begins with an ``Experiment``. It holds no arrays and
no files, and starts no backend: how many devices there are is still open when it is built.
Only an optimizer of the user's that meets csr storage is tried, on the first device.

``init`` and ``step`` are the run as pure functions, for programs that hold whole experiments.
"""

import dataclasses
import functools
import logging
import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from wafer import models, sparsity
from wafer.config import DATA_PROCESSORS, RunConfig, load, parse_config
from wafer.data.batching.batches import numbered, to_batch
from wafer.data.batching.dataset import Context, Dataset, build_dataset
from wafer.data.sections.base import InputSection, MicroBatchRange
from wafer.errors import ConfigError, Problem
from wafer.models.counts import forward_flops
from wafer.models.factored.lora import trainable
from wafer.models.paths import Params, named_leaves
from wafer.models.user.flags import own_flags
from wafer.models.user.trust import refusal
from wafer.optim.chain import make_optimizer
from wafer.optim.freeze import train_only
from wafer.optim.groups import with_mup_rates
from wafer.optim.precision import LossScaler, make_scaler
from wafer.optim.rules import WithParamRules
from wafer.optim.sections import UserOptimizer
from wafer.optim.step import Metrics, TrainState, finish_step, first_state, step_key
from wafer.sparsity import Sparsifier
from wafer.sparsity.adapters.optimizers import differences

_LOG = logging.getLogger(__name__)

Part = Literal["train", "eval"]


class BatchShape(NamedTuple):
    """How the rows of a step are laid out: features are [N, A, B, ...]."""

    systems: int  #: N, which share the step
    #: A, that each system takes one after another; gradient accumulation included
    micro_batches: int
    rows: int  #: B, of a micro-batch

    @property
    def samples(self) -> int:
        """Rows of the whole step."""
        return self.systems * self.micro_batches * self.rows


def batch_shape(
    section: InputSection,
    systems: int = 1,
    accumulation: int = 1,
    *,
    copies: int = 1,
    most: int | None = None,
) -> BatchShape:
    """Lay out a step.

    Args:
        section: with ``batch_size`` and ``micro_batch_size``.
        systems: N.
        accumulation: batches of the section whose gradients are averaged before an update.
        copies: of a pipeline on each system, which share its micro-batches.
        most: rows of a micro-batch where the section names none: the largest divisor of a
            copy's share up to this. None takes the share whole.

    Raises:
        ConfigError: no size that the section lets the run choose divides the share.
    """
    share, rows = section.batch_size // systems, section.micro_batch_size
    if not isinstance(rows, int):
        each, least = max(share // copies, 1), 1
        if isinstance(rows, MicroBatchRange):
            least, most = rows.explore.min or 1, rows.explore.max or most
        sizes = [n for n in range(least, min(most or each, each) + 1) if each % n == 0]
        if not sizes:
            message = f"explore from {least} to {most or each}: no size divides {each} rows"
            raise ConfigError([Problem(("micro_batch_size",), message)])
        rows = max(sizes)
    return BatchShape(systems, share // rows * accumulation, rows)


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """A checked run file and everything that follows from it without data, weights or devices.

    Attributes:
        cfg: the configuration.
        model: the model bundle.
        shapes: parameter shapes, from ``jax.eval_shape``.
        tx: optimizer with clipping.
        sparsifier: masks; empty when there is no ``sparsity`` section.
        scaler: loss-scale automaton.
        seed: of weights, masks, dropout and data order.
    """

    cfg: RunConfig
    model: models.Model
    shapes: Params
    tx: optax.GradientTransformation
    sparsifier: Sparsifier
    scaler: LossScaler
    seed: int

    @classmethod
    def from_yaml(cls, path: str | pathlib.Path, **overrides: object) -> Self:
        """Read and check a params YAML.

        Args:
            path: the file.
            **overrides: keys of ``runconfig`` that win over the file's.

        Raises:
            ConfigError: everything that is wrong with the file.
        """
        return cls.from_config(load(path, overrides))

    @classmethod
    @own_flags()
    def from_config(cls, cfg: RunConfig | Mapping[str, object], seed: int | None = None) -> Self:
        """Build model, optimizer and sparsifier.

        Args:
            cfg: the configuration, or its sections, which are checked; one for ``init`` and
                ``step`` alone needs no input section.
            seed: of everything random; None takes ``runconfig.seed``, or 0 where there is none.

        Raises:
            ConfigError: parts of the configuration that do not go together, or that were not seen.
        """
        if not isinstance(cfg, RunConfig):
            cfg = parse_config(cfg, needs_inputs=False)
        if cfg.unseen:
            raise ConfigError([Problem((k,), refusal(name)) for k, name in cfg.unseen.items()])
        model = models.build(cfg.model)
        # The key is made inside: a concrete one would start the backend.
        shapes = jax.eval_shape(lambda: model.init(jax.random.key(0)))
        reads_axes = functools.cache(lambda: _reads_axes(cfg, shapes, model))
        sparsifier = sparsity.configure(
            cfg.sparsity,
            weight_layout=model.weight_layout,
            aliases=model.alias,
            params=shapes,
            accepts=lambda name: model.sparse(name) and not reads_axes(),
            dtype=model.config.dtype,
            flops=lambda: forward_flops(model),
            dense_words=False,
        )
        problems = _conflicts(cfg, model)
        if problems:
            raise ConfigError(problems)
        return cls(
            cfg=cfg,
            model=model,
            shapes=shapes,
            tx=_optimizer(cfg, shapes, model),
            sparsifier=sparsifier,
            scaler=make_scaler(cfg.optimizer, model.config.dtype),
            seed=(cfg.runconfig.seed or 0) if seed is None else seed,
        )

    def init(self, key: jax.Array) -> TrainState:
        """Return the first state: weights, optimizer state, masks; usable under ``jit``.

        Args:
            key: [] random key; consumed. ``wafer train`` begins with ``jax.random.key(seed)``.
        """
        return first_state(self, key)

    def step(
        self, state: TrainState, batch: Any, *, topology: bool = True
    ) -> tuple[TrainState, Metrics]:
        """Take one optimizer step on one batch; usable under ``jit``, ``scan`` and ``vmap``.

        Args:
            state: before the step.
            batch: a ``models.Batch``, or features [B, ...] of one; all of it at once, whatever
                the size of micro-batches.
            topology: False compiles a step that never changes the masks, for steps of which
                ``sparsifier.due`` is false; it computes no gradients of pruned weights.

        Returns:
            (the state after it; ``loss``, ``tokens``, ``grad_norm`` and ``loss_scale``, and norms
            of layers where the file asks for ``log_summaries``: [] float32 each).

        Raises:
            ConfigError: the file has a teacher, whose weights only engines read.
            TypeError: ``topology`` is a traced array.
        """
        if isinstance(topology, Tracer):
            fix = "scan the steps that are due apart from the others (docs/guides/one-jit.md)"
            raise TypeError(f"topology: a traced array; expected True or False. {fix}")
        if self.cfg.distillation is not None:
            message = "an experiment's step has no teacher; drop the section, or use wafer.train"
            raise ConfigError([Problem(("distillation",), message)])
        batch, key = numbered(to_batch(batch), jnp.int32(0)), step_key(state)

        def loss_sum(weights: Any) -> tuple[jax.Array, models.Aux]:
            computes = self.sparsifier.attach(weights, state.sparse)
            _, aux = self.model.loss(computes, batch, key if self.dropout else None)
            return aux.loss_sum * state.scale.loss_scale, aux

        ready = self.sparsifier.prepare(state.params, state.sparse, dense=topology)
        gradients, aux = jax.grad(loss_sum, has_aux=True)(ready)
        return finish_step(self, state, gradients, aux, topology=topology)

    def section(self, part: Part) -> InputSection:
        """Return ``train_input`` or ``eval_input``.

        Raises:
            ConfigError: the file has none.
        """
        section = self.cfg.train_input if part == "train" else self.cfg.eval_input
        if section is None:
            message = f"missing section; there is nothing to {part} on"
            raise ConfigError([Problem((f"{part}_input",), message)])
        return section

    def batch(self, part: Part) -> BatchShape:
        """Lay out a training step, or a batch of the evaluation.

        Raises:
            ConfigError: the file has no such input section.
        """
        optimizer, systems = self.cfg.optimizer, self.cfg.runconfig.num_csx
        if part == "eval" or optimizer is None:
            return batch_shape(self.section(part), systems)
        copies = max(self.cfg.runconfig.num_replicas, 1)
        section, accumulation = self.section(part), optimizer.grad_accum_steps
        return batch_shape(section, systems, accumulation, copies=copies)

    @property
    def portions(self) -> int:
        """Parts of a system's share of the training batch, which copies of a pipeline divide.

        They are its micro-batches where the file says their size, else its rows; a task whose
        rows need each other has one.
        """
        section = self.section("train")
        share, rows = section.batch_size // self.cfg.runconfig.num_csx, section.micro_batch_size
        if section.task == "dpr":
            return 1
        return share // rows if isinstance(rows, int) else share

    def dataset(self, part: Part, folder: str | pathlib.Path) -> Dataset:
        """Read the data of a part.

        Args:
            part: 'train' or 'eval'.
            folder: where a reader that trains a tokenizer keeps it: the run's model_dir.

        Raises:
            ConfigError: the file has no such input section.
            DataError: data that is not what the configuration says.
        """
        context = Context.of(self.model.config, training=part == "train")._replace(
            begins_from=self.cfg.runconfig.checkpoint_path
        )
        return build_dataset(self.section(part), folder, context, self.seed)

    @property
    def dropout(self) -> bool:
        """Whether the model draws dropout masks."""
        return self.model.config.uses_dropout

    @property
    def summaries(self) -> bool:
        """Whether steps report the norms of every layer."""
        return self.cfg.optimizer is not None and self.cfg.optimizer.log_summaries

    @property
    def clips_norm(self) -> bool:
        """Whether the optimizer needs the norm of all gradients before it updates any."""
        optimizer = self.cfg.optimizer
        return optimizer is not None and optimizer.max_gradient_norm is not None

    def moment_bytes(self) -> int:
        """Bytes of the optimizer's state; of branches that are alike only one is traced.

        Every branch has a state of its own, as for the engines that go through a model by layers.
        """
        alike: dict[Any, list[str]] = {}
        trains = trainable(self.model, self.shapes)
        for name, branch in self.shapes.items():
            leaves, structure = jax.tree.flatten(branch)
            kinds = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
            key = structure, kinds, tuple(jax.tree.leaves(trains[name]))
            alike.setdefault(key, []).append(name)
        shared = self._moment_bytes_of({})  # counts of steps, rates
        branches = ((len(names), {names[0]: self.shapes[names[0]]}) for names in alike.values())
        return shared + sum(n * (self._moment_bytes_of(b) - shared) for n, b in branches)

    def _moment_bytes_of(self, shapes: Params) -> int:
        state = jax.tree.leaves(jax.eval_shape(self.tx.init, shapes))
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in state)

    def state_bytes(self) -> tuple[int, int]:
        """Estimate (weights, optimizer state) in bytes; weights stored as csr count when kept."""
        size = lambda leaf: math.prod(leaf.shape) * leaf.dtype.itemsize
        weights, state = sum(map(size, jax.tree.leaves(self.shapes))), self.moment_bytes()
        leaves = dict(named_leaves(self.shapes))
        saved = 0.0
        for name, chosen in self.sparsifier.select(self.shapes).items():
            if chosen.algorithm.compute == "csr":
                saved += size(leaves[name]) * float(chosen.algorithm.sparsity(0, 0))
        kept = 1 - saved / max(weights, 1)
        return round(weights * kept), round(state * kept)


def _optimizer(cfg: RunConfig, shapes: Params, model: models.Model) -> optax.GradientTransformation:
    if cfg.optimizer is None:  # a run that only evaluates
        return optax.identity()
    chosen = named_leaves(trainable(model, shapes))
    section = with_mup_rates(cfg.optimizer, model.config, (name for name, _ in chosen))
    tx = make_optimizer(section, shapes, model.alias)
    extra = optax.with_extra_args_support(tx)
    init, update = own_flags()(extra.init), own_flags()(extra.update)
    flagged = optax.GradientTransformationExtraArgs(init, update)
    tx = WithParamRules(flagged, tx.rule) if isinstance(tx, WithParamRules) else flagged
    if all(trains for _, trains in chosen):
        return tx
    return train_only(tx, frozenset(name for name, trains in chosen if trains))


def _reads_axes(cfg: RunConfig, shapes: Params, model: models.Model) -> bool:
    """Whether the optimizer reads the axes of weights, so that none may be stored as csr.

    Wafer's own declare it. One of the user takes a few steps, where a section may store csr.
    """
    if not isinstance(cfg.optimizer, UserOptimizer):
        return cfg.optimizer is not None and cfg.optimizer.needs_dense
    leaves = named_leaves(shapes)
    names = [name for name, leaf in leaves if len(leaf.shape) == 2 and model.sparse(name)]
    found = differences(_optimizer(cfg, shapes, model), shapes, names)
    if found:
        name, why = next(iter(found.items()))
        _LOG.info("%s reads the axes of weights: %s, %s", cfg.optimizer.optimizer_type, name, why)
    return bool(found)


def _conflicts(cfg: RunConfig, model: models.Model) -> list[Problem]:
    problems: list[Problem] = []
    vocab = getattr(model.config, "vocab_size", math.inf)
    longest = model.config.max_length or math.inf
    takes = model.config.tasks
    for name in ("train_input", "eval_input"):
        section: Any = getattr(cfg, name)
        if section is None:
            continue
        if section.task not in takes:
            message = f"{section.data_processor!r}: {_unfit(cfg.model['name'], section, takes)}"
            problems.append(Problem((name, "data_processor"), message))
            continue
        if section.use_vsl and getattr(model.config, "has_nsp", False):
            message = "rows of several sequences have no next sentence; model.disable_nsp: true"
            problems.append(Problem((name, "use_vsl"), message))
        tokens = getattr(section, "vocab_size", None)
        if tokens is not None and tokens > vocab:
            message = f"{tokens} token ids, but model.vocab_size is {vocab}; make them equal"
            problems.append(Problem((name, "vocab_size"), message))
        length = section.max_sequence_length
        length = None if length is None else length + getattr(section, "tokens_added", 0)
        if length is not None and length > longest:
            message = (
                f"{length} positions, but model.max_position_embeddings is {longest}; "
                "raise that or shorten this"
            )
            problems.append(Problem((name, "max_sequence_length"), message))
    skipped, section = cfg.runconfig.skip_samples, cfg.train_input
    if skipped is not None and section is not None and cfg.optimizer is not None:
        each = section.batch_size * cfg.optimizer.grad_accum_steps
        if skipped % each:
            message = f"{skipped} samples are no whole steps of {each}"
            problems.append(Problem(("runconfig", "skip_samples"), message))
    return (
        problems
        + list(_split_negatives(cfg))
        + list(_no_export(cfg, model))
        + list(_no_student(cfg))
        + list(_no_selection(cfg))
    )


def _split_negatives(cfg: RunConfig) -> Iterator[Problem]:
    """Other questions' contexts are DPR's negatives: a shared-out batch would train otherwise."""
    for name in ("train_input", "eval_input"):
        section: Any = getattr(cfg, name)
        if section is None or section.task != "dpr":
            continue
        if cfg.runconfig.num_csx > 1:
            message = f"{cfg.runconfig.num_csx}: the negatives of a batch must be on one system"
            yield Problem(("runconfig", "num_csx"), message)
        if isinstance(section.micro_batch_size, int | MicroBatchRange):
            message = "a batch in parts has fewer negatives; drop it and choose batch_size"
            yield Problem((name, "micro_batch_size"), message)


def _no_student(cfg: RunConfig) -> Iterator[Problem]:
    """A teacher scores the tokens of a language model; other outputs have no such score."""
    section = cfg.train_input
    if cfg.distillation is not None and section is not None and section.task != "lm":
        message = f"train_input is for {section.task!r}; a teacher needs 'lm', drop the section"
        yield Problem(("distillation",), message)


def _no_selection(cfg: RunConfig) -> Iterator[Problem]:
    """An element that a mask prunes and grows again would train or not by the first weights."""
    if cfg.optimizer is not None and cfg.optimizer.selective_grad and cfg.sparsity is not None:
        message = "not computed here: outliers of sparse weights; drop this or the sparsity section"
        yield Problem(("optimizer", "selective_grad"), message)


def _no_export(cfg: RunConfig, model: models.Model) -> Iterator[Problem]:
    """Hugging Face has no form for some models: say so before the work."""
    if cfg.runconfig.export is None:
        return
    from wafer.models.convert.api import configs_to_hf, require_folded

    try:
        require_folded(model.config)
        configs_to_hf(model.config)
    except ValueError as error:
        yield Problem(("runconfig", "export"), str(error))


def _unfit(model: str, section: InputSection, takes: tuple[str, ...]) -> str:
    if not takes:
        return f"model {model!r} has no loss of its own to train with; it is part of other models"
    fit = [name for name, cls in DATA_PROCESSORS.items() if cls.task in takes]
    return f"its rows are for {section.task!r}; model {model!r} takes those of {', '.join(fit)}"
