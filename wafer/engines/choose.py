"""Which engine runs an experiment, what it cannot run, and making it.

The file names an engine, or free memory decides: weights stay on the device when they fit, and are
streamed otherwise. The estimate counts what grows with the model: weights, optimizer state and
gradients. Activations come on top, so nine tenths of the free memory is the limit.
"""

import functools
import importlib
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import psutil

from wafer.config.engines import ENGINES, EngineRow, engine_row, engines_with
from wafer.engines.base import Engine
from wafer.errors import ConfigError, Problem, WaferError
from wafer.experiment import Experiment
from wafer.models.user.code import call, find, import_code, place

_LOG = logging.getLogger(__name__)
_GIB = 2**30
_SHARE = 0.9  # of the free memory
_KEY = ("runconfig", "execution_strategy")


def free_memory(device: Any) -> int:
    """Bytes a device has left; on a CPU what the system says is available."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats:
        return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return psutil.virtual_memory().available


def choose(experiment: Experiment) -> EngineRow:
    """Return the row of the engine that the file names, or that free memory calls for; say why."""
    settings, device = experiment.cfg.runconfig, jax.local_devices()[0]
    weights, moments = experiment.state_bytes()
    on_host = jax.local_device_count() if device.platform == "cpu" else 1
    copies = min(on_host, settings.num_csx)  # systems that share one memory
    copies /= settings.num_csx if settings.shard_state else 1
    needed, free = (2 * weights + moments) * copies, free_memory(device)
    fits = needed <= _SHARE * free
    asked = settings.execution_strategy
    sharded = settings.shard_state and engines_with("shards")
    name = asked or sharded or ("resident" if fits else "weight_streaming")
    why = "asked for" if asked or sharded else "it fits" if fits else "resident does not fit"
    _LOG.info(
        "Execution: %s (%s). Resident takes %.2f GiB for weights, gradients and optimizer state, "
        "%.2f GiB is free",
        name,
        why,
        needed / _GIB,
        free / _GIB,
    )
    return engine_row(name)


def _functions(row: EngineRow) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """Follow a row's string to what makes the engine, and to ``problems`` of its module, or None.

    Raises:
        ConfigError: the module cannot be imported, or what it has takes no experiment.
    """
    if row.name in ENGINES:
        module = importlib.import_module(row.make.partition(":")[0])
        return getattr(module, row.make.partition(":")[2]), getattr(module, "problems", None)
    try:
        make = find(row.make, ENGINES, "engine")
        lists = getattr(import_code(row.make, "engine"), "problems", None)
        for name, function in ((row.make, make), (_problems_name(row), lists)):
            if function is not None:
                _require_one_argument(name, function)
    except ValueError as error:
        raise ConfigError([Problem(_KEY, str(error))]) from error
    own = lambda name, function: functools.partial(_call, name, function)
    return own(row.make, make), None if lists is None else own(_problems_name(row), lists)


def _problems_name(row: EngineRow) -> str:
    return f"{row.make.partition(':')[0]}:problems"


def _require_one_argument(name: str, function: object) -> None:
    """Refuse what cannot be called with an experiment alone.

    Raises:
        ValueError: names its place.
    """
    if not callable(function):
        raise ValueError(f"{name!r}: expected a function, found {type(function).__name__}")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise ValueError(
            f"{name!r}{place(function)}: {error}; expected a function or class of one argument, "
            "the experiment"
        ) from None


def _call(name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function of the user's; errors of Wafer's own pass.

    Raises:
        ConfigError: it raised something else; with the line of the user's file.
    """
    try:
        return call(name, function, *args, **options)
    except ValueError as error:
        if isinstance(error.__cause__, WaferError):
            raise error.__cause__ from None
        raise ConfigError([Problem(_KEY, str(error))]) from error


def problems(experiment: Experiment, row: EngineRow | None = None) -> list[Problem]:
    """List what the file asks for and an engine does not do.

    Args:
        experiment: what is to run.
        row: of the engine; None takes the one that the file names.

    Raises:
        ConfigError: an engine of the user's that cannot be called.
    """
    row = _named_row(experiment, row)
    own = None if row is None else _functions(row)[1]
    found = [] if own is None else own(experiment)
    found = list(found) if isinstance(found, Iterable) else [found]
    if wrong := [type(one).__name__ for one in found if not isinstance(one, Problem)]:
        message = f"problems gave {wrong[0]}; expected a list of wafer.errors.Problem"
        raise ConfigError([Problem(_KEY, message)])
    return found


def check(experiment: Experiment, row: EngineRow | None = None) -> None:
    """Refuse what an engine does not do; nothing is ignored.

    Raises:
        ConfigError: the file asks for it.
    """
    row = _named_row(experiment, row)
    if complaints := [*problems(experiment, row), *_missing(experiment, row)]:
        raise ConfigError(complaints)


def _named_row(experiment: Experiment, row: EngineRow | None) -> EngineRow | None:
    name = experiment.cfg.runconfig.execution_strategy
    return engine_row(name) if row is None and name is not None else row


def _missing(experiment: Experiment, row: EngineRow | None) -> Iterator[Problem]:
    """What the file asks for and the row of the engine says that it has not."""
    cfg, settings = experiment.cfg, experiment.cfg.runconfig
    asked = {
        # Files of 1.x allow copies whatever runs; only where an engine is named they are wanted.
        "multireplica": settings.multireplica and settings.execution_strategy is not None,
        "num_replicas": settings.num_replicas != 1,
    }
    for key in (key for key, is_asked in asked.items() if is_asked):
        # Copies are of a model that lies on the wafer whole, in regions of its own.
        if row is None or not row.copies:
            message = (
                f"{getattr(settings, key)!r}: copies are of a pipeline, whose stages all stay on"
                f" the wafer; {'this run' if row is None else row.name} has none. Set"
                f" execution_strategy: {engines_with('copies')}, or drop the key (num_csx shares a"
                " batch with any strategy)"
            )
            yield Problem(("runconfig", key), message)
    if settings.shard_state and row is not None and not row.shards:
        message = f"{row.name} keeps no parts of the state on its systems; set"
        message += f" execution_strategy: {engines_with('shards')}, or drop the key"
        yield Problem(("runconfig", "shard_state"), message)
    if row is None:
        return
    if cfg.distillation is not None and not row.distils:
        # A teacher's weights lie on the device beside the student's.
        message = f"{row.name} has no teacher; set runconfig.execution_strategy: "
        yield Problem(
            ("distillation",), message + f"{engines_with('distils')}, or drop the section"
        )
    section = cfg.optimizer
    clips = section is not None and section.selective_grad and section.max_gradient_norm is not None
    if clips and not row.clips_selected:
        # It takes the masks of selected elements, which are not there when the norm is measured.
        message = (
            f"{row.name} does not clip it by norm; set runconfig.execution_strategy: "
            f"{engines_with('clips_selected')}, or use max_gradient_value"
        )
        yield Problem(("optimizer", "selective_grad"), message)


def make(experiment: Experiment, row: EngineRow | None = None, **options: object) -> Engine:
    """Make an engine on this machine.

    Args:
        experiment: what it runs.
        row: of the engine; None is the choice of ``choose``.
        **options: for the engine's own ``make``; those that take a model stage by stage have
            ``events``, a list that says what ran when.

    Raises:
        ConfigError: an unknown engine, or keys that the engine does not support.
        ValueError: fewer devices than systems.
        MemoryXError: a store of weights cannot be made.
    """
    row = choose(experiment) if row is None else row
    check(experiment, row)
    if jax.process_count() > 1 and not row.several_processes:
        message = (
            f"{row.name}: all of it must be in one process, this run has {jax.process_count()}; "
            f"use {engines_with('several_processes')}, or one process"
        )
        raise ConfigError([Problem(_KEY, message)])
    engine = _functions(row)[0](experiment, **options)
    if not isinstance(engine, Engine):
        message = f"{row.make!r} gave {type(engine).__name__}; expected a wafer.engines.Engine"
        raise ConfigError([Problem(_KEY, message)])
    return engine
