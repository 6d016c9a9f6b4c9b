"""The ``trainer:`` form of Model Zoo 2.3 and later, turned into the sections of this library.

The tables follow the vendor's own conversion of older files, read backwards. What has no meaning
here is left over, by its path, and said once.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from wafer.errors import ConfigError, Problem
from wafer.vendor.keys import release_of
from wafer.vendor.trainer_schedulers import (
    Path,
    as_list,
    read_class,
    read_mapping,
    read_schedulers,
)

_LOG = logging.getLogger(__name__)


class Upgraded(NamedTuple):
    """What a ``trainer`` is here."""

    sections: dict[str, Any]  #: runconfig, model, optimizer, train_input, eval_input, sparsity
    left: list[str]  #: dotted paths of keys without a meaning here
    #: path of a section or key here -> path of the trainer that it comes from
    origins: dict[Path, Path]


# key of the trainer's part -> (section, key) here
_Table = Mapping[str, tuple[str, str]]


def _same(section: str, names: str) -> dict[str, tuple[str, str]]:
    return {name: (section, name) for name in names.split()}


BACKEND: _Table = _same(
    "runconfig",
    "compile_dir compile_only validate_only enable_distributed main_process_id dist_backend "
    "init_method sync_batchnorm",
) | {"backend_type": ("runconfig", "target_device")}
CLUSTER: _Table = _same(
    "runconfig",
    "num_csx num_workers_per_csx job_labels job_priority job_time_sec mount_dirs python_paths "
    "mgmt_address mgmt_namespace credentials_path disable_version_check",
) | {
    "max_wgt_servers": ("runconfig", "num_wgt_servers"),
    "max_act_per_csx": ("runconfig", "num_act_servers"),
}
_PRECISION: _Table = {
    "enabled": ("model", "mixed_precision"),
    "fp16_type": ("model", "fp16_type"),
    "precision_opt_level": ("runconfig", "precision_opt_level"),
    "log_loss_scale": ("optimizer", "log_summaries"),
} | _same(
    "optimizer",
    "loss_scaling_factor initial_loss_scale steps_per_increase min_loss_scale max_loss_scale "
    "max_gradient_norm max_gradient_value",
)
_LOOP: _Table = _same(
    "runconfig",
    "num_steps max_steps num_epochs steps_per_epoch eval_frequency eval_steps",
) | _same("optimizer", "grad_accum_steps")
_CHECKPOINT: _Table = _same(
    "runconfig",
    "autoload_last_checkpoint disable_strict_checkpoint_loading save_initial_checkpoint",
) | {"steps": ("runconfig", "checkpoint_steps")}
_LOGGING: _Table = _same("runconfig", "log_steps wsc_log_level") | {
    "log_level": ("runconfig", "logging")
}
PARTS = {
    "precision": _PRECISION,
    "loop": _LOOP,
    "checkpoint": _CHECKPOINT,
    "logging": _LOGGING,
}
# callback or logger -> its argument -> (section, key); one that is on or off has the argument ''
CALLBACKS: dict[str, _Table] = {
    "CheckLoss": {"": ("runconfig", "check_loss_values")},
    "ComputeNorm": {"": ("optimizer", "log_summaries")},
    "KeepNCheckpoints": {"n": ("runconfig", "max_checkpoints")},
    "LoadCheckpointStates": {"load_checkpoint_states": ("runconfig", "load_checkpoint_states")},
    "Lora": {"lora_params": ("model", "lora_params")},
    "OpProfiler": {
        "start_step": ("op_profiler_config", "start_step"),
        "end_step": ("op_profiler_config", "end_step"),
    },
    "SelectiveGrad": {"selective_grads": ("optimizer", "selective_grad")},
    "SkipSamples": {"n": ("runconfig", "skip_samples")},
    "ScopedTrainFlags": {"csx.performance.micro_batch_size": ("train_input", "micro_batch_size")},
    "ScopedValidateFlags": {"csx.performance.micro_batch_size": ("eval_input", "micro_batch_size")},
    "TensorBoardLogger": {"summary_dir": ("runconfig", "summary_dir")},
}
_NEED_ARGUMENTS = frozenset({"Lora", "SelectiveGrad", "SkipSamples"})
# These do here what they do there, without being asked.
_ALWAYS = frozenset(
    {
        "DurationProfiler",
        "LogOptimizerParamGroup",
        "LogSparsity",
        "ModelEvalMetrics",
        "ModelZooParamsMetadata",
        "ProgressLogger",
        "RateProfiler",
        "SamplesStreamedInfo",
        "SavePerformanceData",
    }
)


def _keys(path: str) -> Path:
    """Split a dotted path; places in lists are numbers."""
    return tuple(int(part) if part.isdigit() else part for part in path.split("."))


class _Upgrade:
    """One trainer on its way; ``left`` fills up."""

    def __init__(self) -> None:
        self.sections: dict[str, dict[str, Any]] = {}
        self.left: list[str] = []
        self.origins: dict[Path, Path] = {}

    def put(self, section: str, key: str, value: Any, path: Path) -> None:
        """Set a key; the file may say it in two places where both agree."""
        own = self.sections.setdefault(section, {})
        if key == "log_summaries":  # any of its places switches it on
            value = value or own.get(key, False)
        elif key in own and own[key] != value:
            first = self.origins.get((section, key)) or (*self.origins[(section,)], key)
            message = f"{value!r}, but {'.'.join(map(str, first))} is {own[key]!r}; keep one"
            raise ConfigError([Problem(path, message)])
        own[key] = value
        self.origins[section, key] = path

    def fill(self, section: str, value: Any, path: str) -> None:
        """Make a whole section of a part."""
        self.sections[section] = value
        self.origins[section,] = _keys(path)

    def move(self, part: Any, path: str, table: _Table) -> None:
        """Put every key of a part where the table says."""
        for key, value in _mapping(part, path).items():
            if key in table:
                self.put(*table[key], value, (*_keys(path), key))
            else:
                self.left.append(f"{path}.{key}")

    def rest(self, part: Mapping[str, Any], path: str, known: Iterable[str]) -> None:
        self.left += [f"{path}.{key}" for key in part if key not in known]


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    return read_mapping(value, _keys(path))


def _optimizer(up: _Upgrade, value: Any, path: str) -> None:
    name, arguments = read_class(value, _keys(path))
    up.fill("optimizer", {"optimizer_type": name}, f"{path}.{name}")
    for key, own in (arguments or {}).items():
        up.put("optimizer", "learning_rate" if key == "lr" else key, own, (*_keys(path), name, key))


def _schedulers(up: _Upgrade, value: Any, path: str) -> None:
    optimizer = up.sections.get("optimizer", {})
    for key, entries in read_schedulers(value, _keys(path), optimizer).items():
        up.sections.setdefault("optimizer", {})[key] = [entry for entry, _ in entries]
        up.origins["optimizer", key] = _keys(path)
        up.origins |= {("optimizer", key, i): origin for i, (_, origin) in enumerate(entries)}


def _callbacks(up: _Upgrade, value: Any, path: str) -> None:
    for i, entry in enumerate(as_list(value)):
        name, arguments = read_class(entry, (*_keys(path), i))
        table = CALLBACKS.get(name)
        if name in _NEED_ARGUMENTS and not arguments:
            message = (
                f"missing argument {', '.join(CALLBACKS[name])!r}; add it or drop the callback"
            )
            raise ConfigError([Problem((*_keys(path), i, name), message)])
        where = f"{path}.{i}.{name}"
        if table is None and name not in _ALWAYS:
            up.left.append(where)
            continue
        if table and "" in table:
            up.put(*table[""], arguments is not None, _keys(where))
        up.move(arguments, where, table or {})


def _backend(up: _Upgrade, value: Any, path: str) -> None:
    own = dict(_mapping(value, path))
    up.move(own.pop("cluster_config", None), f"{path}.cluster_config", CLUSTER)
    up.move(own, path, BACKEND)


_INIT: dict[str, Callable[[_Upgrade, Any, str], None]] = {
    "model": lambda up, value, path: up.fill("model", dict(_mapping(value, path)), path),
    "device": lambda up, value, path: up.put("runconfig", "target_device", value, _keys(path)),
    "model_dir": lambda up, value, path: up.put("runconfig", "model_dir", value, _keys(path)),
    "seed": lambda up, value, path: up.put("runconfig", "seed", value, _keys(path)),
    "backend": _backend,
    "optimizer": _optimizer,
    "schedulers": _schedulers,
    "sparsity": lambda up, value, path: up.fill("sparsity", value, path),
    "callbacks": _callbacks,
    "loggers": _callbacks,
} | {
    part: lambda up, value, path, table=table: up.move(value, path, table)
    for part, table in PARTS.items()
}


def trainers_of(trainer: Any) -> list[Any]:
    """The trainers of a file, in order; entries of a list may say ``trainer`` once more."""
    if not isinstance(trainer, list | tuple):
        return [trainer]
    return [
        _mapping(entry, f"trainer.{i}").get("trainer", entry) for i, entry in enumerate(trainer)
    ]


def upgrade(trainer: Any, mode: str | None = None) -> Upgraded:
    """Translate the value of ``trainer``.

    Args:
        trainer: ``{init, fit, validate, validate_all}``, or a list with one such trainer.
        mode: of the run; validation data and checkpoint are those of its method. None is that of
            the first method in the file.

    Raises:
        ConfigError: not of that form; several trainers in a row.
    """
    trainers = trainers_of(trainer)
    if len(trainers) != 1:
        message = (
            f"a list of {len(trainers)} trainers; `wafer run` runs them in order, and "
            "wafer.config.load_all reads them"
        )
        raise ConfigError([Problem(("trainer",), message)])
    whole = _mapping(trainers[0], "trainer")
    up = _Upgrade()
    up.rest(whole, "trainer", ("init", "fit", "validate", "validate_all"))
    init = _mapping(whole.get("init"), "trainer.init")
    up.rest(init, "trainer.init", _INIT)
    # What fills a section comes before what adds keys to it.
    for key in sorted(init, key=lambda key: key not in ("model", "optimizer")):
        if key in _INIT and init[key] is not None:
            _INIT[key](up, init[key], f"trainer.init.{key}")
    if "precision" in init:  # the vendor's defaults there are others than in older files
        model = up.sections.setdefault("model", {})
        model.setdefault("mixed_precision", True)
        model.setdefault("fp16_type", "bfloat16")
    _methods(up, whole, mode)
    _fraction(up)
    profile = up.sections.pop("op_profiler_config", None)
    if profile:
        up.sections.setdefault("runconfig", {})["op_profiler_config"] = profile
    return Upgraded(up.sections, up.left, up.origins)


def upgrade_file(raw: Mapping[str, Any], mode: str | None = None) -> Upgraded:
    """Translate a file with a ``trainer``; its sections have the release whose defaults hold.

    Args:
        raw: the file: one ``trainer``, and the vendor's ``release`` where the user says it.
        mode: as ``upgrade``.

    Raises:
        ConfigError: other sections; as ``upgrade``.
    """
    others = [key for key in raw if key not in ("trainer", "release")]
    if others:
        message = f"stands beside `trainer`, which is the whole file; move it: {', '.join(others)}"
        raise ConfigError([Problem((others[0],), message)])
    upgraded = upgrade(raw["trainer"], mode)
    release = raw.get("release")
    if release is None:
        release, key = release_of(upgraded.sections)
        why = f", the last one with {key}" if key else "; for 2.3's add `release: '2.3'` above it"
        _LOG.info("The trainer has the defaults of release %s%s", release, why)
    return upgraded._replace(sections={"release": release} | upgraded.sections)


_METHODS = {"fit": "train", "validate": "eval", "validate_all": "eval_all"}


def _methods(up: _Upgrade, whole: Mapping[str, Any], mode: str | None) -> None:
    """Data and mode: fit trains, and evaluates where it has validation data."""
    methods = [method for method in _METHODS if method in whole]
    own = next((m for m in methods if _METHODS[m] == (mode or "").removesuffix("_and_eval")), None)
    own = own or next(iter(methods), None)
    flags = {name: up.sections.pop(name, {}) for name in ("train_input", "eval_input")}
    for method in sorted(methods, key=lambda method: method == own):  # its data win
        part, path = _mapping(whole[method], f"trainer.{method}"), f"trainer.{method}"
        up.rest(part, path, ("train_dataloader", "val_dataloader", "val_dataloaders", "ckpt_path"))
        if "train_dataloader" in part:
            train = _mapping(part["train_dataloader"], f"{path}.train_dataloader")
            up.fill("train_input", dict(train), f"{path}.train_dataloader")
        name = "val_dataloader" if "val_dataloader" in part else "val_dataloaders"
        if loaders := as_list(part.get(name)):
            where = f"{path}.{name}" + ".0" * isinstance(part[name], list | tuple)
            up.fill("eval_input", dict(_mapping(loaders[0], where)), where)
            up.left += [f"{path}.val_dataloader.{i}" for i in range(1, len(loaders))]
        if part.get("ckpt_path") is not None and method == own:
            up.put("runconfig", "checkpoint_path", part["ckpt_path"], _keys(f"{path}.ckpt_path"))
        if method == own:
            both_too = method == "fit" and loaders
            own_mode = "train_and_eval" if both_too else _METHODS[method]
            up.sections.setdefault("runconfig", {})["mode"] = own_mode
    for section, keys in flags.items():
        for key, value in keys.items():
            origin = up.origins.pop((section, key))
            # An advice on speed, of a file whose batch or systems a flag or an arm may change.
            bounds = type(value) is int and value > 0 and key not in up.sections.get(section, {})
            up.put(section, key, {"explore": {"max": value}} if bounds else value, origin)


def _fraction(up: _Upgrade) -> None:
    """Turn an evaluation frequency that is a share of the run into steps."""
    run = up.sections.get("runconfig", {})
    share = run.get("eval_frequency")
    if not isinstance(share, float):
        return
    steps = run.get("max_steps") or run.get("num_steps")
    del run["eval_frequency"]
    if steps and share > 0:
        run["eval_frequency"] = max(1, round(share * steps))
    elif 0 < share < 1:  # at the end of each epoch is the default
        up.left.append("trainer.init.loop.eval_frequency")
