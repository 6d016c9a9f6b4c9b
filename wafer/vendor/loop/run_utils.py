"""``run(model_fn, train_data_fn, eval_data_fn)``: a script of the vendor's first releases, whole.

What ``modelzoo.common.pytorch.run_utils`` was in releases 1.6 to 2.2: the command line, the params
YAML, training, evaluation and checkpoints around a model and two functions that make data. A Linen
module, or a model of ``models.build``, stands where a torch module stood.

    python run.py CPU --params params.yaml --mode train_and_eval --model_dir runs/mine
"""

import argparse
import contextlib
import functools
import logging
import pathlib
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from wafer import sparsity
from wafer.config import RunConfig
from wafer.config.engines import EngineRow
from wafer.config.runconfig import RunSection
from wafer.data.batching.pipeline import Rows
from wafer.data.batching.streams import Streamed
from wafer.data.sections.base import InputSection
from wafer.data.tasks import TASKS, DataTask
from wafer.engines.base import Engine, Features
from wafer.errors import ConfigError, DataError, Problem
from wafer.experiment import BatchShape, Experiment
from wafer.loop import amp, optim
from wafer.loop.machine import RNG, backend
from wafer.loop.tracing.model import Initialised, compile
from wafer.loop.tracing.step import trace
from wafer.loop.utils.data import infer_batch_size, place_batch
from wafer.models.base import Aux, Model
from wafer.models.sections import parse
from wafer.models.user.code import call, place
from wafer.models.user.model import OwnConfig
from wafer.optim.step import Metrics, TrainState
from wafer.session.build import Run
from wafer.session.evaluate import evaluate_every, evaluate_one
from wafer.session.lock import owned
from wafer.session.logs import log_folder
from wafer.session.metrics import read_metrics
from wafer.session.train import train_run
from wafer.session.warm import AheadOfTimeCompiler
from wafer.yamlfile import read_yaml

_LOG = logging.getLogger("wafer")
Params = dict[str, Any]
ModelFunction = Callable[[Params], Any]
DataFunction = Callable[[Params], Iterable[PyTree]]
_MODES = ("train", "eval", "eval_all", "train_and_eval")
_FLAGS: Mapping[str, type] = {
    "model_dir": str,
    "checkpoint_path": str,
    "max_steps": int,
    "eval_steps": int,
    "num_csx": int,
    "seed": int,
}


class BaseModel:
    """A network with its loss, ``PyTorchBaseModel``'s role.

    Subclasses write ``build_model(model_params)``, which returns a Linen module, and
    ``__call__(data)``, which returns the loss: a scalar, (loss, ...), or {"loss": ..., name:
    metric}. ``self.model(...)`` computes.

    Args:
        params: the whole params file.
        model: the network; None builds it from ``params["model"]``.
        device: taken for the vendor's scripts, and not used.
    """

    def __init__(self, params: Params, model: object = None, device: object = None) -> None:
        del device
        self.params = params
        if model is None and not hasattr(self, "model"):
            model = self.build_model(dict(params.get("model") or {}))
        if model is not None:
            self.model = model

    def build_model(self, model_params: Params) -> Any:
        """Make the network."""
        raise NotImplementedError(f"{type(self).__name__} needs build_model(model_params)")

    def __call__(self, data: Any) -> Any:
        """Compute the loss of a batch."""
        raise NotImplementedError(f"{type(self).__name__} needs __call__(data), the loss")


PyTorchBaseModel = BaseModel


def run(
    model_fn: ModelFunction,
    train_data_fn: DataFunction | None = None,
    eval_data_fn: DataFunction | None = None,
    default_params_fn: Callable[[Params], Params | None] | None = None,
    extra_args_parser_fn: Callable[[], object] | None = None,
    *,
    argv: list[str] | None = None,
) -> dict[str, float]:
    """Train and evaluate as the command line says.

    Args:
        model_fn: params -> a ``BaseModel``, or a module that returns its loss.
        train_data_fn: params -> batches of a pass, trees of arrays with the batch as first axis;
            called anew for every pass. A last batch of fewer rows is left out.
        eval_data_fn: params -> batches of one pass, the last of which may have fewer rows.
        default_params_fn: fills params that the file leaves out; may return new ones.
        extra_args_parser_fn: () -> parsers of further flags, which enter ``params["runconfig"]``.
        argv: the words after the script; None takes the command's.

    Returns:
        step, and the last loss and metrics of the evaluation.

    Raises:
        ConfigError: a wrong key or flag.
        ValueError: the user's code fails; with its file and line.
        DataError: batches that are none, or none at all.
        CheckpointError: no checkpoint to evaluate, or one that does not fit.
        SystemExit: a signal ended training, which left a checkpoint.
    """
    began = time.perf_counter()
    _log_to_the_terminal()
    params, settings = _settings(argv, default_params_fn, extra_args_parser_fn)
    job = _run(model_fn, params, settings, {"train": train_data_fn, "eval": eval_data_fn})
    if settings.mode == "eval_all":
        evaluate_every(job)
    elif settings.mode == "eval":
        evaluate_one(job)
    else:
        with owned(job.model_dir):
            outcome = train_run(job, log_folder(job.model_dir, settings.mode), began)
        if outcome.stop:
            sys.exit(128 + outcome.stop)
    return _last_results(job)


def _last_results(run: Run) -> dict[str, float]:
    """Return the last step, its loss, and the metrics of the last evaluation, as logged."""
    results: dict[str, float] = {}
    for record in read_metrics(run.summary_dir / "train")[-1:] if run.train else ():
        results = {name: record[name] for name in ("step", "loss")}
    for record in read_metrics(run.summary_dir / "eval")[-1:] if run.eval_data else ():
        results["step"] = record.pop("step")
        del record["time"]
        results |= {f"eval/{name.removeprefix('eval/')}": v for name, v in record.items()}
    return results


def _log_to_the_terminal() -> None:
    """A script has no logging of its own; one that has keeps it."""
    if not _LOG.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
        _LOG.addHandler(handler)
    if _LOG.getEffectiveLevel() > logging.INFO:
        _LOG.setLevel(logging.INFO)


def _settings(
    argv: list[str] | None,
    default_params_fn: Callable[[Params], Params | None] | None,
    extra: Callable[[], Any] | None,
) -> tuple[Params, RunSection]:
    """Read the command line and the params file."""
    parents = extra() if extra is not None else []
    parents = parents if isinstance(parents, list | tuple) else [parents]
    parser = argparse.ArgumentParser(parents=list(parents), conflict_handler="resolve")
    parser.add_argument("target", nargs="?", choices=("CPU", "GPU", "CSX"), help="where to run")
    parser.add_argument("-p", "--params", required=True, help="params YAML")
    parser.add_argument("-m", "--mode", choices=_MODES)
    for name, kind in _FLAGS.items():
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("-o", dest="model_dir", help="the same as --model_dir")
    words = vars(parser.parse_args(argv))
    path = pathlib.Path(words.pop("params"))
    raw, _ = read_yaml(path)
    if not isinstance(raw, dict):
        raise ConfigError(
            [Problem((), "expected sections: model, optimizer, runconfig")], str(path)
        )
    params: Params = dict(raw)
    if default_params_fn is not None:
        params = call("default_params_fn", default_params_fn, params) or params
    words["target_device"] = words.pop("target")
    given = {key: value for key, value in words.items() if value is not None}
    params["runconfig"] = {**(params.get("runconfig") or {}), **given}
    keys = set(RunSection.model_fields)
    known = {key: value for key, value in params["runconfig"].items() if key in keys}
    return params, parse(RunSection, known)


def _batches(name: str, function: DataFunction | None, params: Params) -> Generator[Rows]:
    """One pass of a function's batches, each a tree in the first place of an array of its rows.

    Raises:
        TypeError: no function.
        DataError: it gives no batches.
        ValueError: it fails; with the line of the user's file.
    """
    if not callable(function):
        raise TypeError(f"run: this mode needs {name}, a function of params that makes batches")
    opened, end = call(name, function, params), object()
    if not hasattr(opened, "__iter__"):
        kind = type(opened).__name__
        raise DataError(f"{name} gave {kind}; expected batches to go through{place(function)}")
    batches = call(name, iter, opened)
    batch = call(name, next, batches, end)
    if batch is end:
        raise DataError(f"{name} gave no batch{place(function)}")
    while batch is not end:
        tree = jax.tree.map(np.asarray, tuple(batch) if isinstance(batch, list) else batch)
        rows = np.empty(infer_batch_size(tree), object)
        rows[0] = tree
        yield {"batch": rows, "attention_mask": np.ones(len(rows), np.int32)}
        batch = call(name, next, batches, end)


# --- the run --------------------------------------------------------------------------------


class _Input(InputSection, task="script"):
    """Batches that only their script knows."""


class _Run(Run):
    """A run whose batches are trees."""

    def place_batch(self, rows: Rows, shape: BatchShape, *, padded: bool = False) -> PyTree:
        """Place a batch on the systems."""
        del shape, padded
        return place_batch(rows["batch"][0])


def _run(
    model_fn: ModelFunction,
    params: Params,
    settings: RunSection,
    functions: Mapping[str, DataFunction | None],
) -> Run:
    """Make the run of a script: its model, and the data that its mode reads."""
    engine = _Statements(model_fn, params, settings)
    inputs, datasets = {}, {}
    for mode, function in functions.items():
        if mode not in settings.mode:
            continue
        opened = functools.partial(_batches, f"{mode}_data_fn", function, params)
        rows = next(opened())["batch"]
        engine.see(rows[0])
        inputs[f"{mode}_input"] = _Input(data_processor=mode, batch_size=len(rows))
        datasets[mode] = Streamed(
            source=[],
            row_length=1,
            open_pass=lambda *_, opened=opened: opened(),
            batch_size=len(rows),
        )
    optimizer = engine.optimizer
    sections = {"runconfig": settings, "model": params.get("model") or {}} | inputs
    if optimizer is not None:
        sections |= {"optimizer": optimizer.section}
    TASKS[_Input.task] = DataTask(lambda *_: {}, engine.tags)
    params_of = lambda key: engine.compiled.params
    return _Run(
        experiment=Experiment(
            cfg=parse(RunConfig, sections),
            model=Model(OwnConfig(name="script"), params_of, (), {}, lambda carry, _: carry),
            shapes={},
            tx=optax.identity() if optimizer is None else optimizer.tx,
            sparsifier=engine.sparsifier,
            scaler=engine.scaler.automaton,
            seed=engine.backend.seed,
        ),
        engine_info=EngineRow("script", ""),
        engine=engine,
        model_dir=pathlib.Path(settings.model_dir),
        train=datasets.get("train"),
        eval_data=datasets.get("eval"),
        ladder=None,
        readers={},
        warmup=AheadOfTimeCompiler(
            engine, jax.random.key(0), train=None, evaluation=None, ahead=False
        ),
    )


class _Statements(Engine):
    """A script's model and optimizer, whose arrays are the slots of a backend."""

    def __init__(self, model_fn: ModelFunction, params: Params, settings: RunSection) -> None:
        self.backend = backend(settings.target_device or "CPU", seed=settings.seed or 0)
        self.backend.use(settings.num_csx)
        self.mesh, self.sparsifier = self.backend.mesh, sparsity.configure(None)
        self.tags: dict[str, str] = {}  # number of a metric -> how it is shown
        self.model = call(getattr(model_fn, "__name__", "model_fn"), model_fn, params)
        if isinstance(self.model, nn.Module | Model):
            self.model = self.compiled = compile(self.model, self.backend)
        else:
            self.compiled = compile(self._network(model_fn), self.backend)
            vars(self.model)["model"] = self.compiled
        section = {"optimizer_type": "AdamW", **(params.get("optimizer") or {})}
        self.scaler = amp.GradScaler(section.pop("loss_scaling_factor", None) or 1.0)
        self.optimizer: optim.SectionOptimizer | None = None
        if "train" in settings.mode:
            self.optimizer = optim.SectionOptimizer(self.compiled.parameters(), section)
        self._train, self._evaluate = trace(self._train_step), trace(self._outputs)

    def _network(self, model_fn: ModelFunction) -> nn.Module | Model:
        network = getattr(self.model, "model", None)
        if isinstance(network, nn.Module | Model) and callable(self.model):
            return network
        raise TypeError(
            f"model_fn gave {type(self.model).__name__}; expected a module that returns its loss, "
            f"or an object whose `model` is a Linen module and whose __call__(data) is the loss"
            f"{place(model_fn)}"
        )

    def see(self, batch: PyTree) -> None:
        """Show a Linen module its first batch, and make what follows from its parameters."""
        if not self.compiled.ready:
            with contextlib.suppress(Initialised):
                self.model(batch)
        self.backend.prepare()

    # --- the state: slots of the backend --------------------------------------------------

    def init(self, key: Array) -> TrainState:
        """See ``Engine``; numbers are drawn from the backend's seed."""
        sparse = self.sparsifier.init(self.compiled.params, key)
        return self._read(jnp.int32(0), sparse)

    def _read(self, step: Array, sparse: sparsity.SparseState) -> TrainState:
        moments = () if self.optimizer is None else self.optimizer.arrays
        slots, variables = self.backend.state, self.compiled.variables
        return TrainState(step, variables, moments, sparse, slots[self.scaler.slot], slots[RNG])

    def _write(self, state: TrainState) -> None:
        self.compiled.variables = state.params
        self.backend.state |= {self.scaler.slot: state.scale, RNG: state.key}
        if self.optimizer is not None:
            self.optimizer.arrays = state.opt_state

    # --- the statements -------------------------------------------------------------------

    def _outputs(self, batch: PyTree) -> dict[str, Array]:
        """Loss and metrics of a batch, whatever form the model gives them in."""
        out = self.model(batch)
        if isinstance(out, tuple | list):
            out = {"loss": out[0]}
        values = dict(out) if isinstance(out, Mapping) else {"loss": out}
        if "loss" not in values or jnp.ndim(values["loss"]) != 0:
            raise TypeError(
                f"{type(self.model).__name__}: expected a scalar loss, (loss, ...) or a dict with "
                f"'loss'; found {jax.tree.map(jnp.shape, out)}"
            )
        return {name: value for name, value in values.items() if jnp.ndim(value) == 0}

    def _train_step(self, batch: PyTree) -> Metrics:
        assert self.optimizer is not None
        loss, scale = self._outputs(batch)["loss"], self.scaler.loss_scale
        norm = amp.optimizer_step(loss, self.optimizer, self.scaler)
        return {"loss": loss, "grad_norm": norm, "loss_scale": scale}

    def step(
        self, state: TrainState, features: Features, *, topology: bool = True
    ) -> tuple[TrainState, Metrics]:
        """See ``Engine``."""
        del topology
        self._write(state)
        self.compiled.train()
        metrics = self._train(features) | {"tokens": jnp.float32(infer_batch_size(features))}
        return self._read(state.step + 1, state.sparse), metrics

    def evaluate(self, state: TrainState, features: Features) -> Aux:
        """See ``Engine``; loss and metrics are weighted by rows."""
        self._write(jax.tree.map(jnp.copy, state))  # a traced step takes its arrays
        self.compiled.eval()
        values, rows = self._evaluate(features), jnp.float32(infer_batch_size(features))
        loss = values.pop("loss")
        self.tags |= {str(i): f"eval/{name}" for i, name in enumerate(values)}
        sums = {f"{i}_sum": value * rows for i, value in enumerate(values.values())}
        return Aux(loss * rows, rows, sums | {"token_sum": rows})
