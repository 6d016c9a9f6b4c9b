"""``run(model_fn, train_data_fn, eval_data_fn)``: a script of the vendor's first releases, whole.

What ``modelzoo.common.pytorch.run_utils`` was in releases 1.6 to 2.2: the command line, the params
YAML, training, evaluation and checkpoints around a model and two functions that make data. A Linen
module, or a model of ``models.build``, stands where a torch module stood.

    python run.py CPU --params params.yaml --mode train_and_eval --model_dir runs/mine
"""

import argparse
import contextlib
import itertools
import logging
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from wafer.config.runconfig import RunSection
from wafer.errors import ConfigError, DataError, Problem, TrainingError
from wafer.loop import amp, optim
from wafer.loop.distributed import CSConfig
from wafer.loop.files import load, save
from wafer.loop.machine import backend
from wafer.loop.tracing.model import CompiledModel, compile
from wafer.loop.tracing.step import checkpoint_closure, step_closure, trace
from wafer.loop.utils.data import DataExecutor, DataLoader
from wafer.models.base import Model
from wafer.models.checkpoint.layout import complete_checkpoints, step_folders
from wafer.models.sections import parse
from wafer.models.user.code import call, place
from wafer.profile.rates import log_line
from wafer.yamlfile import read_yaml

_LOG = logging.getLogger(__name__)
Params = dict[str, Any]
_MODES = ("train", "eval", "train_and_eval")
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

    def __init__(self, params: Params, model: Any = None, device: Any = None) -> None:
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
    model_fn: Callable[[Params], Any],
    train_data_fn: Callable[[Params], Iterable[Any]] | None = None,
    eval_data_fn: Callable[[Params], Iterable[Any]] | None = None,
    default_params_fn: Callable[[Params], Params | None] | None = None,
    extra_args_parser_fn: Callable[[], Any] | None = None,
    *,
    argv: list[str] | None = None,
) -> dict[str, float]:
    """Train and evaluate as the command line says.

    Args:
        model_fn: params -> a ``BaseModel``, or a module that returns its loss.
        train_data_fn: params -> batches of a pass, trees of arrays with the batch as first axis;
            called anew for every pass.
        eval_data_fn: params -> batches of one pass.
        default_params_fn: fills params that the file leaves out; may return new ones.
        extra_args_parser_fn: () -> parsers of further flags, which enter ``params["runconfig"]``.
        argv: the words after the script; None takes the command's.

    Returns:
        step, and the last loss and metrics of the evaluation.

    Raises:
        ConfigError: a wrong key or flag.
        ValueError: the user's code fails; with its file and line.
        DataError: batches that are none, or none at all.
    """
    _log_to_the_terminal()
    params, settings = _settings(argv, default_params_fn, extra_args_parser_fn)
    with _Job(model_fn, params, settings) as job:
        if settings.mode == "eval":
            job.restore(required=True)
            return job.evaluate(_data(eval_data_fn, "eval_data_fn"))
        train = _data(train_data_fn, "train_data_fn")
        evaluate = None
        if settings.mode == "train_and_eval":
            evaluate = _data(eval_data_fn, "eval_data_fn")
        return job.train(train, evaluate)


def _log_to_the_terminal() -> None:
    """A script has no logging of its own; one that has keeps it."""
    if not _LOG.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
        _LOG.addHandler(handler)
    if _LOG.getEffectiveLevel() > logging.INFO:
        _LOG.setLevel(logging.INFO)


def _data(function: Any, name: str) -> Any:
    if not callable(function):
        raise TypeError(f"run: this mode needs {name}, a function of params that makes batches")
    return function


def _settings(argv: Any, default_params_fn: Any, extra: Any) -> tuple[Params, RunSection]:
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


class _Job:
    """A model on its backend, with the optimizer: what one command works on."""

    def __init__(self, model_fn: Any, params: Params, settings: RunSection) -> None:
        self.params, self.settings = params, settings
        self.folder = pathlib.Path(settings.model_dir) / "checkpoints"
        self.step = 0
        self._stack = contextlib.ExitStack()
        self.device = settings.target_device or "CPU"
        self.backend = backend(self.device, seed=settings.seed or 0)
        with self.backend.device:
            self.model = call(getattr(model_fn, "__name__", "model_fn"), model_fn, params)
        inner = self.model if isinstance(self.model, nn.Module | Model) else self._inner(model_fn)
        self.compiled: CompiledModel = compile(inner, self.backend)
        if inner is self.model:
            self.model = self.compiled
        else:
            vars(self.model)["model"] = self.compiled
        section = dict(params.get("optimizer") or {})
        scale = section.pop("loss_scaling_factor", 1.0)
        self.optimizer: Any = None
        if settings.mode != "eval":
            kind = section.pop("optimizer_type", "AdamW")
            self.optimizer = optim.configure_optimizer(
                kind, params=self.compiled.parameters(), **section
            )
            self.scaler = amp.GradScaler(loss_scale=scale or 1.0)

    def _inner(self, model_fn: Any) -> Any:
        inner = getattr(self.model, "model", None)
        if isinstance(inner, nn.Module | Model) and callable(self.model):
            return inner
        raise TypeError(
            f"model_fn gave {type(self.model).__name__}; expected a module that returns its loss, "
            f"or an object whose `model` is a Linen module and whose __call__(data) is the loss"
            f"{place(model_fn)}"
        )

    def __enter__(self) -> "_Job":
        self._stack.enter_context(self.backend.device)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    # --- checkpoints -----------------------------------------------------------------------

    def restore(self, *, required: bool = False) -> None:
        """Go on from ``checkpoint_path``, or the newest of model_dir."""
        path = self.settings.checkpoint_path
        found = [pathlib.Path(path)] if path else complete_checkpoints(step_folders(self.folder))
        if not found:
            if required:
                raise DataError(f"{self.folder}: no checkpoint to evaluate; train, or name one")
            return
        newest = found[-1]
        state = load(newest)
        self.compiled.load_state_dict(state["model"])
        if self.optimizer is not None and "optimizer" in state:
            self.optimizer.load_state_dict(state["optimizer"])
        self.step = int(state.get("global_step", 0))
        _LOG.info("Continuing from %s at step %d", newest, self.step)

    def save(self) -> None:
        """Write what ``restore`` reads."""
        path = self.folder / str(self.step)
        save(
            {
                "model": self.compiled.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "global_step": self.step,
            },
            path,
        )
        _LOG.info("Saved checkpoint %s", path)

    # --- training and evaluation -------------------------------------------------------------

    def _outputs(self, batch: Any) -> dict[str, Array]:
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

    def train(self, data: Any, evaluate: Any) -> dict[str, float]:
        """Take the steps that are left; evaluate at the end of every stretch."""
        self.restore()
        settings, results = self.settings, {"step": float(self.step)}
        until = settings.max_steps or self.step + (settings.num_steps or 1)
        stretch = (settings.eval_frequency or until) if evaluate else until
        batches = _passes(data, self.params, "train_data_fn", skip=self.step)
        while self.step < until:
            end = min(until, self.step - self.step % stretch + stretch)
            results |= {"loss": self._steps(itertools.islice(batches, end - self.step), end)}
            if evaluate:
                results |= self.evaluate(evaluate)
        return results | {"step": float(self.step)}

    def _steps(self, batches: Iterator[Any], end: int) -> float:
        settings, shown = self.settings, {"loss": float("nan")}
        executor = DataExecutor(
            DataLoader(lambda: batches),
            num_steps=end - self.step,
            cs_config=CSConfig(num_csx=settings.num_csx),
            checkpoint_steps=settings.checkpoint_steps or None,
        )

        @trace
        def training_step(batch: Any) -> dict[str, Array]:
            values = self._outputs(batch)
            amp.optimizer_step(values["loss"], self.optimizer, self.scaler)
            return values

        @step_closure
        def show(values: dict[str, Array]) -> None:
            self.step += 1
            shown["loss"] = float(values["loss"])
            if not np.isfinite(shown["loss"]) and settings.check_loss_values:
                raise TrainingError(f"step {self.step}: the loss is {shown['loss']}")
            if self.step % settings.log_steps == 0:
                rates = executor.profiler.rate, executor.profiler.global_rate
                _LOG.info(log_line(self.device, self.step, shown["loss"], rates))

        keep = checkpoint_closure(self.save)
        self.compiled.train()
        for batch in executor:
            show(training_step(batch))
            keep()
        return shown["loss"]

    def evaluate(self, data: Any) -> dict[str, float]:
        """Average loss and metrics over one pass, weighted by rows."""
        self.compiled.eval()
        outputs = trace(self._outputs)
        totals: dict[str, float] = {}
        rows = 0
        for batch in itertools.islice(
            _pass(data, self.params, "eval_data_fn"), self.settings.eval_steps
        ):
            size = len(jax.tree.leaves(batch)[0])
            rows += size
            for name, value in outputs(batch).items():
                totals[name] = totals.get(name, 0.0) + float(value) * size
        if not rows:
            raise DataError(f"eval_data_fn gave no batch{place(data)}")
        means = {name: total / rows for name, total in totals.items()}
        told = ", ".join(f"{name}={value:.5f}" for name, value in means.items())
        _LOG.info("| Eval Device=%s, Step=%d, %s", self.device, self.step, told)
        return {f"eval/{name}": value for name, value in means.items()} | {"step": float(self.step)}


def _pass(function: Any, params: Params, name: str) -> Iterator[Any]:
    """Batches of one pass as trees of numpy arrays."""
    end = object()
    opened = call(name, function, params)
    if not hasattr(opened, "__iter__"):
        kind = type(opened).__name__
        raise DataError(f"{name} gave {kind}; expected batches to go through{place(function)}")
    batches = call(name, iter, opened)
    while (batch := call(name, next, batches, end)) is not end:
        yield jax.tree.map(np.asarray, tuple(batch) if isinstance(batch, list) else batch)


def _passes(function: Any, params: Params, name: str, *, skip: int) -> Iterator[Any]:
    """Pass after pass, without the batches of steps that were taken already."""
    seen = 0
    while True:
        before = seen
        for batch in _pass(function, params, name):
            seen += 1
            if seen > skip:
                yield batch
        if seen == before:
            raise DataError(f"{name} gave no batch{place(function)}")
