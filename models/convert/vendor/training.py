"""What a ``.mdl`` holds besides weights, written: optimizer, schedule, loss scale.

From a checkpoint of ours the sections are built; from another ``.mdl`` they are carried over,
where the new release counts the parameters in the same order.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from wafer.models.alias import is_decayed
from wafer.models.base import Model
from wafer.models.checkpoint.layout import CONFIG, OPT_STATE, PARAMS, SCALE, STEP, record_entry
from wafer.models.checkpoint.moments import field_of
from wafer.models.convert.vendor.state import KEYS, is_constant
from wafer.models.convert.vendor.weights import exported, numbered_rows, placed
from wafer.models.lazy import LazyArray
from wafer.models.paths import named_leaves
from wafer.models.vendor.mdl import MdlFile
from wafer.models.vendor.older import is_of_16
from wafer.models.vendor.writer import Leaf, Tree

_ADAM = {"betas": (0.9, 0.999), "eps": 1e-6}
# Optimizer -> keys of a parameter group besides lr and weight_decay, with the vendor's defaults.
_GROUP_KEYS: Mapping[str, Mapping[str, Any]] = {
    "SGD": {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False},
    "Adam": _ADAM | {"correct_bias": True, "amsgrad": False},
    "AdamW": _ADAM | {"l2_regularization_rate": 0.0, "correct_bias": True, "amsgrad": False},
    "Adamax": _ADAM | {"maximize": False},
    "RAdam": _ADAM,
    "Lamb": _ADAM | {"adam": False},
    "Lion": {"betas": (0.9, 0.99)},
    "Adagrad": {"lr_decay": 0.0, "eps": 1e-6, "initial_accumulator_value": 0.0, "maximize": False},
    "Adadelta": {"rho": 0.9, "eps": 1e-6, "maximize": False},
    "RMSprop": {"alpha": 0.99, "eps": 1e-8, "momentum": 0.0, "centered": False},
    "Rprop": {"etas": (0.5, 1.2), "step_sizes": (1e-6, 50.0)},
}
_POWERS = {"Adam": (0, 1), "AdamW": (0, 1), "Adamax": (0,)}  # of which rates a power is kept
_COUNTED = {"RAdam", "Adagrad"}  # have a step of their own
_CARRIED = re.compile(r"optimizer\.(state|param_groups)\.(\d+)\.(.+)")
_SCALERS = ("grad_scaler", "amp")


def _number(value: Any, dtype: Any) -> LazyArray:
    array = np.asarray(value, dtype)
    return LazyArray(array.shape, array.dtype, lambda: array)


def training_sections(
    model: Model, record: Mapping[str, Any], tree: Mapping[str, Any], format_: str
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
        ValueError: an optimizer whose state the vendor keeps otherwise, or groups of its own.
    """
    section = record_entry(record, "the checkpoint", CONFIG, "optimizer")
    if OPT_STATE not in tree or not section:
        return {}
    kind = section.get("optimizer_type")
    if kind not in _GROUP_KEYS:
        raise ValueError(f"the state of {kind} is not written; known: {', '.join(_GROUP_KEYS)}")
    if own := [key for key in ("params", "adjust_learning_rate") if section.get(key)]:
        raise ValueError(f"groups of optimizer.{own[0]} are not written")
    shapes = {name: np.shape(leaf) for name, leaf in named_leaves(tree[PARAMS])}
    moments: dict[str, dict[str, Any]] = {}
    steps, rate = record_entry(record, "the checkpoint", STEP) or 0, 0.0
    for path, leaf in named_leaves(tree[OPT_STATE]):
        _, field, owner = field_of(path, shapes)
        if owner and field in KEYS[kind]:
            moments.setdefault(KEYS[kind][field], {})[owner] = leaf
        elif field == "learning_rate":
            rate = float(np.asarray(leaf).ravel()[0])
    tensors = {key: exported(model, own, format_, None) for key, own in moments.items()}
    groups = _two_groups(model, format_)
    scalars = _scalars(kind, section, steps)
    numbered = [name for group in groups for name in group]
    state = {
        i: {key: own[name] for key, own in tensors.items()} | scalars
        for i, name in enumerate(numbered if tensors else [])
    }
    sections: dict[str, Tree] = {
        "optimizer": {"state": state, "param_groups": _param_groups(kind, section, groups, rate)},
        "schedulers": [_schedule(section.get("learning_rate"), steps)],
    }
    if section.get("loss_scaling_factor") == "dynamic":
        leaves = {name: np.asarray(leaf) for name, leaf in named_leaves(tree[SCALE])}
        sections["grad_scaler"] = {k: _number(leaf, leaf.dtype) for k, leaf in leaves.items()}
    return sections


def _two_groups(model: Model, format_: str) -> tuple[list[str], list[str]]:
    """Names of the vendor's that decay, and that do not, as its optimizer counts them."""
    groups: tuple[list[str], list[str]] = ([], [])
    for name, row in numbered_rows(model, format_).items():
        if not is_constant(row.ours[0]):
            groups[0 if is_decayed(name, row.ours[0]) else 1].append(name)
    return groups


def _scalars(kind: str, section: Mapping[str, Any], steps: int) -> dict[str, Tree]:
    betas = section.get("betas", _GROUP_KEYS[kind].get("betas", ()))
    powers = _POWERS.get(kind, ()) if section.get("correct_bias", True) else ()
    scalars: dict[str, Tree] = {
        # one step ahead: what the next update needs
        f"beta{i + 1}_power": _number(float(betas[i]) ** (steps + 1), np.float32)
        for i in powers
    }
    return scalars | ({"step": _number(steps, np.float32)} if kind in _COUNTED else {})


def _param_groups(
    kind: str, section: Mapping[str, Any], groups: tuple[list[str], list[str]], rate: float
) -> list[Tree]:
    keys = {key: section.get(key, default) for key, default in _GROUP_KEYS[kind].items()}
    keys = {key: tuple(v) if isinstance(v, list | tuple) else v for key, v in keys.items()}
    decay = section.get("weight_decay") or 0.0
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


def _schedule(entries: Any, steps: int) -> dict[str, Tree]:
    """State of the scheduler: finished steps, and those of each part of a sequence."""
    state: dict[str, Tree] = {"last_epoch": _number(steps, np.int64)}
    if isinstance(entries, list) and len(entries) > 1:
        begins = np.cumsum([0, *(int(entry.get("total_iters") or 0) for entry in entries[:-1])])
        state["_schedulers"] = [
            {"last_epoch": _number(max(steps - int(begin), 0), np.int64)} for begin in begins
        ]
    return state


def carried_sections(file: MdlFile, model: Model, format_: str) -> dict[str, Tree]:
    """Carry the sections of a ``.mdl`` over to another release; the file stays open until written.

    Raises:
        ValueError: the releases count the parameters differently.
    """
    entries = [m for name in file.entries("optimizer.") if (m := _CARRIED.fullmatch(name))]
    if not entries:
        return {}
    named = placed(model, file)
    before = [row.ours for row in named.values()]
    after = [row.ours for row in numbered_rows(model, format_).values()]
    if any(m[1] == "state" for m in entries) and (before != after or is_of_16(named)):
        raise ValueError("the releases count the optimizer's parameters differently")
    state: dict[int, dict[str, Tree]] = {}
    groups: dict[int, dict[str, Any]] = {}
    # Places of a list are numbers: '10' comes after '9'.
    for entry in sorted(entries, key=lambda m: (int(m[2]), m[3].partition(".")[0], len(m[3]))):
        number, key = int(entry[2]), entry[3]
        if entry[1] == "state":
            state.setdefault(number, {})[key] = _copied(file, entry[0])
            continue
        name, _, place = key.partition(".")
        group = groups.setdefault(number, {})
        if place:
            group.setdefault(name, []).append(_copied(file, entry[0]))
        else:
            group[name] = _copied(file, entry[0])
    listed: list[Tree] = [
        {k: tuple(v) if isinstance(v, list) and k != "params" else v for k, v in group.items()}
        for _, group in sorted(groups.items())
    ]
    sections: dict[str, Tree] = {"optimizer": {"state": state, "param_groups": listed}}
    scaler: dict[str, Tree] = {
        name.rpartition(".")[2]: _copied(file, name)
        for section in _SCALERS
        for name in file.entries(f"{section}.")
    }
    return sections | _carried_schedule(file) | ({"grad_scaler": scaler} if scaler else {})


def _copied(file: MdlFile, name: str) -> Leaf:
    if name not in set(file):
        return file.scalar(name)
    value = file.read(name)
    return LazyArray(value.shape, value.dtype, lambda: file.read(name))


def _carried_schedule(file: MdlFile) -> dict[str, Tree]:
    for section in ("schedulers.0", "lr_scheduler"):
        if file.entries(f"{section}.last_epoch"):
            own = _number(int(file.scalar(f"{section}.last_epoch") or 0), np.int64)
            return {"schedulers": [{"last_epoch": own}]}
    return {}
