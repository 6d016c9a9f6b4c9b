"""Our sections as the ``trainer:`` form of Model Zoo 2.3 and later; ``trainer_form`` backwards."""

from collections.abc import Mapping
from typing import Any

from wafer.vendor import trainer_form as form
from wafer.vendor.trainer_schedulers import write_optimizer

_Places = dict[tuple[str, str], tuple[str, ...]]

# (section, key) here -> where it stands below ``trainer.init``
_INIT: _Places = {
    ("runconfig", "model_dir"): ("model_dir",),
    ("runconfig", "seed"): ("seed",),
    **{place: ("backend", "cluster_config", key) for key, place in form.CLUSTER.items()},
    **{place: ("backend", key) for key, place in form.BACKEND.items()},
    **{
        place: (part, key)
        for part, table in form.PARTS.items()
        for key, place in table.items()
        if key != "log_loss_scale"
    },
}
# (section, key) here -> (callback, its argument)
_CALLBACKS = {
    place: (name, argument)
    for name, table in form.CALLBACKS.items()
    for argument, place in table.items()
    if place != ("op_profiler_config", argument)
}
_LOGGERS = {"TensorBoardLogger"}
_NOT_FILES = {"mode"}  # a verb of the command line since 2.3


def as_trainer(sections: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Write sections as the value of ``trainer``.

    Args:
        sections: runconfig, model, optimizer, train_input, eval_input, sparsity; keys of 2.2.

    Returns:
        (trainer, dotted paths of keys that have no place in it).
    """
    init: dict[str, Any] = {}
    left: list[str] = []
    run = dict(sections.get("runconfig") or {})
    profile = run.pop("op_profiler_config", None)
    inputs = {part: dict(sections.get(part) or {}) for part in ("train_input", "eval_input")}
    model, optimizer = dict(sections.get("model") or {}), dict(sections.get("optimizer") or {})
    mode, path = run.pop("mode", None), run.pop("checkpoint_path", None)
    given = {"runconfig": run, "model": model, "optimizer": optimizer, **inputs}
    for section, own in given.items():
        for key in list(own):
            if (section, key) in _INIT:
                _put(init, _INIT[section, key], own.pop(key))
            elif (section, key) in _CALLBACKS:
                _add(init, *_CALLBACKS[section, key], own.pop(key))
    if "precision" in init:  # its defaults are others since 2.3
        init["precision"] = {"enabled": False, "fp16_type": "float16"} | init["precision"]
    if profile:
        init.setdefault("callbacks", []).append({"OpProfiler": profile})
    if model:
        init["model"] = model
    if optimizer:
        init |= write_optimizer(optimizer)
    if sections.get("sparsity") is not None:
        init["sparsity"] = sections["sparsity"]
    left += [f"runconfig.{key}" for key in run if key not in _NOT_FILES]
    known = {*given, "sparsity"}
    left += [name for name in sections if name not in known]
    return {"init": init} | _methods(inputs, mode, path), left


def _put(init: dict[str, Any], place: tuple[str, ...], value: Any) -> None:
    *parents, last = place
    for parent in parents:
        init = init.setdefault(parent, {})
    init[last] = value


def _add(init: dict[str, Any], name: str, argument: str, value: Any) -> None:
    """Add a callback; one that is switched off is left out."""
    entries = init.setdefault("loggers" if name in _LOGGERS else "callbacks", [])
    if argument:
        entries.append({name: {argument: value}})
    elif value:
        entries.append({name: {}})


def _methods(inputs: Mapping[str, Any], mode: Any, path: Any) -> dict[str, Any]:
    """Write ``fit`` and ``validate``, each with the data it reads."""
    start = {} if path is None else {"ckpt_path": path}
    methods: dict[str, Any] = {}
    if inputs["train_input"]:
        methods["fit"] = {"train_dataloader": inputs["train_input"], **start}
        if inputs["eval_input"] and mode == "train_and_eval":
            methods["fit"]["val_dataloader"] = inputs["eval_input"]
    if inputs["eval_input"]:
        methods["validate"] = {"val_dataloader": inputs["eval_input"], **start}
    return methods
