"""A run on its machine: an experiment with its engine, its data and its first programs."""

import dataclasses
import logging
import pathlib
import secrets
from types import MappingProxyType

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from wafer import vsl
from wafer.config import RunConfig
from wafer.config.engines import EngineRow
from wafer.data.batching.batches import feature_shapes, host_batch
from wafer.data.batching.dataset import Dataset
from wafer.data.batching.lengths import sequence_lengths
from wafer.data.batching.pipeline import Rows
from wafer.data.tasks import TASKS
from wafer.engines.base import Engine
from wafer.engines.choose import choose, make
from wafer.engines.cluster import all_max
from wafer.experiment import BatchShape, Experiment, Part
from wafer.optim.chain import learning_rates
from wafer.optim.step import TrainState
from wafer.session.foreign import Readers
from wafer.session.loggers import loggers
from wafer.session.metrics import MetricWriter
from wafer.session.warm import AheadOfTimeCompiler

_SAMPLED = 1024  # sequences whose lengths choose the capacities

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """An experiment on its machine, with its data."""

    experiment: Experiment  #: what is trained
    engine_info: EngineRow  #: what the engine supports
    engine: Engine  #: executes training and evaluation steps
    model_dir: pathlib.Path  #: where everything is written
    train: Dataset | None  #: training data, or None when only evaluating
    eval_data: Dataset | None  #: evaluation data, or None when only training
    #: capacities of stripped streams under ``model.enable_vts``; else None
    ladder: vsl.Ladder | None
    warmup: AheadOfTimeCompiler  #: makes the first state and compiles in the background
    readers: Readers  #: of files in other formats

    @property
    def cfg(self) -> RunConfig:
        """The configuration."""
        return self.experiment.cfg

    @property
    def num_csx(self) -> int:
        """N systems."""
        return self.cfg.runconfig.num_csx

    @property
    def device(self) -> str:
        """Platform the systems are on, as the log line names it."""
        return self.engine.mesh.devices.flat[0].platform.upper()

    @property
    def summary_dir(self) -> pathlib.Path:
        """Folder of the events; other processes than the first keep theirs apart."""
        folder = pathlib.Path(self.cfg.runconfig.summary_dir or self.model_dir)
        return folder if jax.process_index() == 0 else folder / f"process-{jax.process_index()}"

    def writer(self, mode: str) -> MetricWriter:
        """Open the files of metrics of a part, 'train' or 'eval'; the first process has loggers."""
        others = loggers(self.cfg.runconfig, self.model_dir, self.cfg.to_dict())
        return MetricWriter(self.summary_dir / mode, () if jax.process_index() else others)

    def gauges(self, state: TrainState) -> dict[str, Array]:
        """Return what the logs show of a state: learning rates, sparsity levels."""
        rates = learning_rates(state.opt_state)
        return {f"lr/{i}": rate for i, rate in enumerate(rates)} | self.engine.levels(state)

    def place_batch(self, rows: Rows, shape: BatchShape, *, padded: bool = False) -> PyTree:
        """Place a batch of rows on the systems.

        Args:
            rows: of this process.
            shape: how the batch is divided.
            padded: keep rows whole under ``enable_vts``.
        """
        own = shape.systems // jax.process_count()
        ladder = None if padded else self.ladder
        return self.engine.place(host_batch(rows, own, shape.micro_batches, ladder, all_max))


def seed_of(cfg: RunConfig) -> int:
    """Return the file's seed, or draw one, the same in all processes of the run."""
    if cfg.runconfig.seed is not None:
        return cfg.runconfig.seed
    seed = all_max(secrets.randbits(31))
    _LOG.info("runconfig.seed is not set; this run uses %d", seed)
    return seed


def build(experiment: Experiment, readers: Readers = MappingProxyType({})) -> Run:
    """Choose and make the engine on this machine, and read the data that the mode needs.

    Args:
        experiment: what is trained.
        readers: of weights in other formats than ours and Hugging Face's.

    Raises:
        ConfigError: the engine does not do what the configuration asks for.
        DataError: data that is not what the configuration says.
    """
    settings = experiment.cfg.runconfig
    if "train" not in settings.mode:  # masks are the checkpoint's, which is not read yet
        quiet = dataclasses.replace(experiment.sparsifier, quiet=True)
        experiment = dataclasses.replace(experiment, sparsifier=quiet)
    if settings.eleuther_eval_harness is not None and "eval" not in settings.mode:
        _LOG.warning("runconfig.eleuther_eval_harness: mode %s has no evaluation", settings.mode)
    stripped = getattr(experiment.model.config, "enable_vts", False)
    row = choose(experiment)
    engine = make(experiment, row)
    warmup = _warmup(experiment, row, engine, stripped=stripped)
    train = _dataset(experiment, "train")
    return Run(
        experiment=experiment,
        engine_info=row,
        engine=engine,
        model_dir=pathlib.Path(settings.model_dir),
        train=train,
        eval_data=_dataset(experiment, "eval"),
        ladder=_ladder(experiment, train) if stripped else None,
        warmup=warmup,
        readers=readers,
    )


def _dataset(experiment: Experiment, mode: Part) -> Dataset | None:
    settings = experiment.cfg.runconfig
    if mode not in settings.mode:
        return None
    dataset = experiment.dataset(mode, settings.model_dir)
    _LOG.info("%s", dataset.summary)
    return dataset


def _ladder(experiment: Experiment, train: Dataset | None) -> vsl.Ladder:
    """Choose capacities for the lengths of the training data; any capacity holds any batch."""
    if train is None:
        return vsl.Ladder()
    # One rung in reserve: a batch in a thousand is larger than all that were fitted.
    lengths = sequence_lengths(train, most=_SAMPLED)
    return vsl.fit_ladder(lengths, experiment.batch("train").rows, shapes=7)


def _warmup(
    experiment: Experiment, row: EngineRow, engine: Engine, *, stripped: bool
) -> AheadOfTimeCompiler:
    """Start compiling what the mode needs, as far as its shapes are known already."""
    settings, shapes = experiment.cfg.runconfig, {}
    sharding = NamedSharding(engine.mesh, PartitionSpec("csx"))
    modes: tuple[Part, ...] = ("train", "eval")
    for mode in modes:
        if mode not in settings.mode or stripped or settings.compile_only:
            continue
        section, lead = experiment.section(mode), experiment.batch(mode)
        with_outputs = mode == "eval" and TASKS[section.task].scored
        if section.decides_shapes and not with_outputs:
            shapes[mode] = feature_shapes(section, experiment.model.config, lead, sharding)
    return AheadOfTimeCompiler(
        engine,
        jax.random.key(experiment.seed),
        train=shapes.get("train"),
        evaluation=shapes.get("eval"),
        ahead=row.whole_step_program,
    )
