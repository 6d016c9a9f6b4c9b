"""Optimizer states of the vendor's checkpoints: from numbers to our parameters, and back.

A file keeps ``optimizer.state.I.KEY`` for the I-th trainable parameter, counted group by group,
inside a group in the order of registration. Which groups there were is not stored, only how many
parameters each had: the caller proposes groups, and the sizes and all shapes have to agree.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wafer.models.base import Model
from wafer.models.convert.engine import Row
from wafer.models.convert.vendor.weights import placed
from wafer.models.counts import abstract_params
from wafer.models.errors import CheckpointError
from wafer.models.paths import named_leaves
from wafer.models.vendor.mdl import MdlFile
from wafer.models.vendor.older import is_of_16

Grouping = Callable[[Sequence[str]], list[list[str]]]
"""Parameter paths in the order of registration -> the groups of the vendor's optimizer."""

_ENTRY = re.compile(r"optimizer\.state\.(\d+)\.(\w+)")
_MEMBER = re.compile(r"optimizer\.param_groups\.(\d+)\.params\.\d+")
_LAST_EPOCHS = ("schedulers.0.last_epoch", "lr_scheduler.last_epoch")
_SCALERS = ("grad_scaler", "amp")
_WEIGHTS_ALONE = "take the weights alone with --load_checkpoint_states model"


_ADAM = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
# Optimizer -> field of our state -> the vendor's key, both per parameter.
KEYS: Mapping[str, Mapping[str, str]] = {
    "SGD": {"trace": "momentum_buffer"},
    "Adam": _ADAM | {"max_exp_avg_sq": "max_exp_avg_sq"},
    "AdamW": _ADAM | {"max_exp_avg_sq": "max_exp_avg_sq"},
    "Adamax": {"mu": "exp_avg", "nu": "exp_inf"},
    "NAdam": _ADAM,
    "RAdam": _ADAM,
    "Lamb": _ADAM,
    "Lion": {"mu": "exp_avg"},
    "Adagrad": {"sum_of_squares": "sum"},
    "Adadelta": {"e_g": "square_avg", "e_x": "acc_delta"},
    "RMSprop": {"nu": "square_avg", "mu": "grad_avg", "trace": "momentum_buffer"},
    "ASGD": {"average": "ax"},
    "Rprop": {"step_sizes": "step_size", "previous": "prev"},
}


class OptimizerState(NamedTuple):
    """What a file holds besides the weights."""

    #: by the vendor's key and our parameter path, arrays in our layout
    moments: dict[str, dict[str, np.ndarray]]
    scalars: dict[str, float]  #: by the vendor's key, of the first parameter that has it
    scheduled: int  #: finished steps of the schedule
    scaler: dict[str, float]  #: of the loss scaler, by the vendor's keys
    step: int  #: the global step


def is_constant(name: str) -> bool:
    """Whether a parameter of ours is a table that the vendor does not train."""
    return name.endswith("/slopes")


def structural_groups(decays: Callable[[str], bool]) -> tuple[Grouping, Grouping]:
    """Return the groups of every file without tags and scaled rates: by decay, and one alone."""

    def by_decay(names: Sequence[str]) -> list[list[str]]:
        return [[n for n in names if decays(n)], [n for n in names if not decays(n)]]

    return by_decay, lambda names: [list(names)]


def read_optimizer_state(
    path: Path, model: Model, groupings: Iterable[Grouping]
) -> OptimizerState | None:
    """Read the optimizer's state of a ``.mdl``.

    Args:
        path: the file, of any release.
        model: that it holds.
        groupings: groups the run may have had, the likeliest first.

    Returns:
        None when the file holds no optimizer, or one of an encoder of release 1.6, whose numbers
        nobody can read: the vendor's converter drops it, too.

    Raises:
        CheckpointError: damaged, of other groups, or of other shapes.
    """
    with MdlFile(path) as file:
        if not file.entries("optimizer.") or is_of_16(placed(model, file)):
            return None
        step = _number(file, "global_step")
        scheduled = next((n for n in _LAST_EPOCHS if file.entries(n)), "global_step")
        scaler = {
            name.rpartition(".")[2]: _number(file, name)
            for section in _SCALERS
            for name in file.entries(f"{section}.")
        }
        moments, scalars = _states(file, model, groupings)
        return OptimizerState(moments, scalars, int(_number(file, scheduled)), scaler, int(step))


def _number(file: MdlFile, name: str) -> float:
    value = file.scalar(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _states(
    file: MdlFile, model: Model, groupings: Iterable[Grouping]
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, float]]:
    """Read ``optimizer.state``: (moments, scalars)."""
    entries = [m for name in file.entries("optimizer.state.") if (m := _ENTRY.fullmatch(name))]
    entries.sort(key=lambda entry: int(entry[1]))
    tensors, rows = set(file), _numbered(file, model, groupings) if entries else []
    shapes = {name: leaf.shape for name, leaf in named_leaves(abstract_params(model))}
    moments: dict[str, dict[str, np.ndarray]] = {}
    scalars: dict[str, float] = {}
    for entry in entries:
        name, number, key = entry[0], int(entry[1]), entry[2]
        if name not in tensors or file.shape(name) == ():
            scalars.setdefault(key, _number(file, name))
        elif number >= len(rows):
            raise CheckpointError(
                f"{file.path}: {name}: the model has {len(rows)} trainable parameters; "
                + _WEIGHTS_ALONE
            )
        else:
            moments.setdefault(key, {}).update(_ours(file, name, rows[number], shapes))
    return moments, scalars


def _numbered(file: MdlFile, model: Model, groupings: Iterable[Grouping]) -> list[Row]:
    """List the rows of the trainable parameters as the file's optimizer counts them."""
    rows = {row.ours[0]: row for row in placed(model, file).values()}
    names = [name for name in rows if not is_constant(name)]
    sizes: dict[int, int] = {}
    for name in file.entries("optimizer.param_groups."):
        if match := _MEMBER.fullmatch(name):
            sizes[int(match[1])] = sizes.get(int(match[1]), 0) + 1
    held = [sizes[group] for group in sorted(sizes)]
    tried = []
    for grouping in groupings:
        groups = grouping(names)
        tried.append([len(group) for group in groups if group])
        if not held or tried[-1] == held:
            return [rows[name] for group in groups for name in group]
    raise CheckpointError(
        f"{file.path}: its optimizer has groups of {held} parameters; this run file gives "
        f"{' or '.join(map(str, tried))}. Use the params file that it was trained with, or "
        + _WEIGHTS_ALONE
    )


def _ours(
    file: MdlFile, name: str, row: Row, shapes: Mapping[str, tuple[int, ...]]
) -> Iterable[tuple[str, np.ndarray]]:
    """Read one moment as those of our parameters."""
    own = [shapes[path] for path in row.ours]
    shape, expected = file.shape(name), row.codec.foreign_shape(own)
    if shape != expected:
        raise CheckpointError(
            f"{file.path}: {name} has shape {shape}; {row.foreign}, to which its number belongs, "
            f"has {expected}. Use the params file that it was trained with, or " + _WEIGHTS_ALONE
        )
    return zip(row.ours, row.codec.to_ours(file.read(name), own), strict=True)
