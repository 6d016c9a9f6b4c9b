"""What a ``.mdl`` holds besides weights, written: optimizer, schedule, loss scale.

From a checkpoint of ours the sections are built; from another ``.mdl`` they are carried over,
where the new release counts the parameters in the same order.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from wafer.models.alias import is_decayed
from wafer.models.base import Model
from wafer.models.checkpoint.layout import CONFIG, OPT_STATE, PARAMS, SCALE, STEP, record_entry
from wafer.models.checkpoint.lazy import LazyArray
from wafer.models.checkpoint.moments import field_of
from wafer.models.paths import Params, named_leaves
from wafer.optim.sections import Optimizer, parse_optimizer
from wafer.vendor.mdl.file import MdlFile
from wafer.vendor.mdl.optimizer import KEYS, SCALERS, is_constant
from wafer.vendor.mdl.weights import export_weights, numbered_tensors, written_rows
from wafer.vendor.mdl.writer import Leaf, Tree
from wafer.vendor.tensors import is_of_16

# Optimizer -> keys of a parameter group besides lr and weight_decay.
_GROUP_KEYS = {
    "SGD": "momentum dampening nesterov maximize",
    "Adam": "betas eps correct_bias amsgrad",
    "AdamW": "betas eps l2_regularization_rate correct_bias amsgrad",
    "Adamax": "betas eps maximize",
    "RAdam": "betas eps",
    "Lamb": "betas eps adam",
    "Lion": "betas",
    "Adagrad": "lr_decay eps initial_accumulator_value maximize",
    "Adadelta": "rho eps maximize",
    "RMSprop": "alpha eps momentum centered",
    "Rprop": "etas step_sizes",
}
_FIXED = {"correct_bias": True, "l2_regularization_rate": 0.0, "maximize": False}  # no keys of ours
_POWERS = {"Adam": (0, 1), "AdamW": (0, 1), "Adamax": (0,)}  # of which rates a power is kept
_COUNTED = {"RAdam", "Adagrad"}  # have a step of their own
_CARRIED = re.compile(r"optimizer\.(state|param_groups)\.(\d+)\.(.+)")


def _number(value: ArrayLike, dtype: DTypeLike) -> LazyArray:
    array = np.asarray(value, dtype)
    return LazyArray(array.shape, array.dtype, lambda: array)


def training_sections(
    model: Model, record: Mapping[str, object], tree: Params, format_: str
) -> dict[str, Tree]:
    """Build the sections from a checkpoint of ours.

    Args:
        model: that it holds.
        record: beside the arrays.
        tree: the arrays, ones that read themselves too.
        format_: 'cs-X.Y'.

    Returns:
        {} for a checkpoint of weights alone.

    Raises:
        ValueError: an optimizer whose state the files keep otherwise, or groups of its own.
    """
    settings = record_entry(record, "the checkpoint", CONFIG, "optimizer")
    if OPT_STATE not in tree or not settings:
        return {}
    kind = settings.get("optimizer_type")
    if kind not in _GROUP_KEYS:
        raise ValueError(f"the state of {kind} is not written; known: {', '.join(_GROUP_KEYS)}")
    if grouped := [key for key in ("params", "adjust_learning_rate") if settings.get(key)]:
        raise ValueError(f"groups of optimizer.{grouped[0]} are not written")
    section = parse_optimizer(settings)
    shapes = {name: np.shape(leaf) for name, leaf in named_leaves(tree[PARAMS])}
    moments: dict[str, dict[str, Any]] = {}
    steps, rate = record_entry(record, "the checkpoint", STEP) or 0, 0.0
    for path, leaf in named_leaves(tree[OPT_STATE]):
        _, field, owner = field_of(path, shapes)
        if owner and field in KEYS[kind]:
            moments.setdefault(KEYS[kind][field], {})[owner] = leaf
        elif field == "learning_rate":
            rate = float(np.asarray(leaf).ravel()[0])
    tensors = {key: export_weights(model, moment, format_, None) for key, moment in moments.items()}
    groups: tuple[list[str], list[str]] = ([], [])  # that decay, and that do not
    for row in written_rows(model, format_):
        if not is_constant(row.ours[0]):
            groups[0 if is_decayed(row.foreign, row.ours[0]) else 1].append(row.foreign)
    scalars = _scalars(section, steps)
    state = {
        i: {key: values[name] for key, values in tensors.items()} | scalars
        for i, name in enumerate([*groups[0], *groups[1]] if tensors else [])
    }
    param_groups = _param_groups(section, settings.get("weight_decay") or 0.0, groups, rate)
    sections: dict[str, Tree] = {
        "optimizer": {"state": state, "param_groups": param_groups},
        "schedulers": [_schedule(settings.get("learning_rate"), steps)],
    }
    if section.loss_scaling_factor == "dynamic":
        leaves = {name: np.asarray(leaf) for name, leaf in named_leaves(tree[SCALE])}
        sections["grad_scaler"] = {k: _number(leaf, leaf.dtype) for k, leaf in leaves.items()}
    return sections


def _scalars(section: Any, steps: int) -> dict[str, Tree]:
    kind = section.optimizer_type
    powers = _POWERS.get(kind, ()) if getattr(section, "correct_bias", True) else ()
    scalars: dict[str, Tree] = {  # one step ahead: what the next update needs
        f"beta{i + 1}_power": _number(section.betas[i] ** (steps + 1), np.float32) for i in powers
    }
    return scalars | ({"step": _number(steps, np.float32)} if kind in _COUNTED else {})


def _param_groups(
    section: Optimizer,
    decay: float | Sequence[Mapping[str, float]],
    groups: tuple[list[str], list[str]],
    rate: float,
) -> list[Tree]:
    kind = section.optimizer_type
    keys = {key: getattr(section, key, _FIXED.get(key)) for key in _GROUP_KEYS[kind].split()}
    if isinstance(decay, list):  # as records have it; one that is no constant sets its own
        decay = decay[0].get("learning_rate", 0.0)
    name = "l2_regularization_rate" if kind == "Adam" else "weight_decay"
    first, out = 0, []
    for group, strength in zip(groups, (decay, 0.0), strict=True):
        numbers = list(range(first, first + len(group)))
        own = {"weight_decay": 0.0, name: strength}
        out.append({"lr": rate, **own, **keys, "params": numbers})
        first += len(group)
    return out


def _schedule(entries: object, steps: int) -> dict[str, Tree]:
    """State of the scheduler: finished steps, and those of each part of a sequence."""
    state: dict[str, Tree] = {"last_epoch": _number(steps, np.int64)}
    if isinstance(entries, list) and len(entries) > 1:
        begins = np.cumsum([0, *(int(entry.get("total_iters") or 0) for entry in entries[:-1])])
        state["_schedulers"] = [
            {"last_epoch": _number(max(steps - int(begin), 0), np.int64)} for begin in begins
        ]
    return state


def carried_sections(file: MdlFile, model: Model, format_: str) -> dict[str, Tree]:
    """Carry the sections of a ``.mdl`` over to another release.

    Args:
        file: stays open until they are written.
        model: that it holds.
        format_: of the other release, 'cs-X.Y'.

    Raises:
        ValueError: the releases count the parameters differently.
    """
    entries = [m for name in file.entries("optimizer.") if (m := _CARRIED.fullmatch(name))]
    if not entries:
        return {}
    tensors = numbered_tensors(model, file)
    before = [row.ours for row in tensors.values()]
    after = [row.ours for row in written_rows(model, format_)]
    if any(m[1] == "state" for m in entries) and (before != after or is_of_16(tensors)):
        raise ValueError("the releases count the optimizer's parameters differently")
    state: dict[int, dict[str, Any]] = {}
    groups: dict[int, dict[str, Any]] = {}
    # Places of a list are numbers: '10' comes after '9'.
    for entry in sorted(entries, key=lambda m: (int(m[2]), m[3].partition(".")[0], len(m[3]))):
        value = _copied(file, entry[0])
        name, _, list_index = entry[3].partition(".")
        if entry[1] == "state":
            state.setdefault(int(entry[2]), {})[entry[3]] = value
        elif list_index:
            groups.setdefault(int(entry[2]), {}).setdefault(name, []).append(value)
        else:
            groups.setdefault(int(entry[2]), {})[name] = value
    listed: list[Tree] = [
        {k: tuple(v) if isinstance(v, list) and k != "params" else v for k, v in group.items()}
        for _, group in sorted(groups.items())
    ]
    sections: dict[str, Tree] = {"optimizer": {"state": state, "param_groups": listed}}
    for key in ("schedulers.0.last_epoch", "lr_scheduler.last_epoch"):
        if file.entries(key) and "schedulers" not in sections:
            own = _number(int(file.scalar(key) or 0), np.int64)
            sections["schedulers"] = [{"last_epoch": own}]
    scaler = {
        name.rpartition(".")[2]: _copied(file, name)
        for section in SCALERS
        for name in file.entries(f"{section}.")
    }
    return sections | ({"grad_scaler": scaler} if scaler else {})


def _copied(file: MdlFile, name: str) -> Leaf:
    if name not in file:
        return file.scalar(name)
    value = file[name]
    return LazyArray(value.shape, value.dtype, lambda: file[name])
