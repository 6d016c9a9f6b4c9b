"""Optimizer states in ``.mdl`` files, read: from numbers to our parameters.

A file keeps ``optimizer.state.I.KEY`` for the I-th trainable parameter, counted group by group,
inside a group in the order of registration. Which groups there were is not stored, only how many
parameters each had: groups that the run's section may give are tried, and the sizes and all shapes
have to agree.
"""

import collections
import logging
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from wafer.errors import CheckpointError
from wafer.experiment import Experiment
from wafer.models.base import Model
from wafer.models.checkpoint.layout import OPT_STATE, PARAMS, SCALE, STEP
from wafer.models.checkpoint.moments import field_of
from wafer.models.checkpoint.tree import to_tree
from wafer.models.convert.engine import TensorRow
from wafer.models.counts import abstract_params
from wafer.models.paths import Params, named_leaves, unflatten
from wafer.optim.groups import ParamGroups, make_groups
from wafer.optim.sections import Optimizer
from wafer.vendor.mdl.file import MdlFile
from wafer.vendor.mdl.weights import numbered_tensors, open_weights
from wafer.vendor.tensors import is_of_16

_LOG = logging.getLogger(__name__)
Grouping = Callable[[Sequence[str]], list[list[str]]]
"""Parameter paths in the order of registration -> the groups of the file's optimizer."""

_ENTRY = re.compile(r"optimizer\.state\.(\d+)\.(\w+)")
_MEMBER = re.compile(r"optimizer\.param_groups\.(\d+)\.params\.\d+")
_LAST_EPOCHS = ("schedulers.0.last_epoch", "lr_scheduler.last_epoch")
SCALERS = ("grad_scaler", "amp")  #: sections that the loss scale may be in
_WEIGHTS_ALONE = "take the weights alone with --load_checkpoint_states model"
_ANEW = "Begin the optimizer anew with --load_checkpoint_states model"
_ADAM = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
# Optimizer -> field of our state -> the file's key, both per parameter.
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

    #: by the file's key and our parameter path, arrays in our layout
    moments: dict[str, dict[str, np.ndarray]]
    scalars: dict[str, float]  #: by the file's key, of the first parameter that has it
    scheduled: int  #: finished steps of the schedule
    scaler: dict[str, float]  #: of the loss scaler, by the file's keys
    step: int  #: the global step


def load_mdl(path: Path, experiment: Experiment, with_state: bool) -> dict[str, object]:
    """Load a ``.mdl`` as the arrays of a checkpoint.

    Args:
        path: the file.
        experiment: whose model's tensors it must have. Weights that a mask prunes are NaN.
        with_state: read the optimizer, the loss scale and the step, where the file has them.

    Raises:
        CheckpointError: a damaged file, another model or optimizer.
        ValueError: tensors that do not fit.
    """
    section, model, state = experiment.cfg.optimizer, experiment.model, None
    with MdlFile(path) as file:
        tree: dict[str, object] = {PARAMS: unflatten(dict(open_weights(file, model)))}
        if section is not None and with_state:
            groups = make_groups(section, alias=model.alias)
            state = read_state(file, model, groupings(section, groups))
    if section is None or state is None:
        return tree
    template = jax.eval_shape(experiment.tx.init, experiment.shapes)
    fresh = to_tree(experiment.scaler.init())
    _LOG.info("%s: the optimizer continues at step %d; the data start over", path, state.step)
    return tree | {
        OPT_STATE: our_tree(state, section, template, experiment.shapes, str(path)),
        SCALE: {k: np.asarray(state.scaler.get(k, own), own.dtype) for k, own in fresh.items()},
        STEP: np.int32(state.step),
    }


def is_constant(name: str) -> bool:
    """Whether a parameter of ours is a table that these files' optimizers do not train."""
    return name.endswith("/slopes")


def groupings(section: Optimizer, groups: ParamGroups) -> list[Grouping]:
    """Groups that the file's optimizer has under a section, the likeliest first.

    By tags in the order of their first parameter, then decay and no decay, then by scaled rates
    in the section's order with the others last (``configure_param_groups`` of the Model Zoo); the
    groups of files without tags and scaled rates; one alone.
    """
    factors = [factor for _, factor in section.adjust_learning_rate]

    def rank(name: str) -> tuple[int, float]:
        matches = (i for i, (globs, _) in enumerate(groups.factors) if groups.matches(name, globs))
        place = next(matches, len(factors))
        return place, factors[place] if place < len(factors) else 1.0

    def by_section(names: Sequence[str]) -> list[list[str]]:
        by_tags = _apart(names, lambda name: frozenset(groups.tags_of(name)))
        halves = [half for tagged in by_tags for half in by_decay(tagged)]
        if not factors:
            return halves
        rate = lambda name: rank(name)[1]
        return [group for half in halves for group in _apart(sorted(half, key=rank), rate)]

    def by_decay(names: Sequence[str]) -> list[list[str]]:
        decayed = [name for name in names if groups.decays(name)]
        return [decayed, [name for name in names if not groups.decays(name)]]

    return [by_section, by_decay, lambda names: [list(names)]]


def _apart(names: Sequence[str], key: Callable[[str], Hashable]) -> list[list[str]]:
    apart: dict[Hashable, list[str]] = {}
    for name in names:
        apart.setdefault(key(name), []).append(name)
    return list(apart.values())


def read_state(file: MdlFile, model: Model, groupings: Iterable[Grouping]) -> OptimizerState | None:
    """Read the optimizer's state of a ``.mdl``.

    Args:
        file: of any release.
        model: that it holds.
        groupings: groups the run may have had, the likeliest first.

    Returns:
        None when the file holds no optimizer, or one of an encoder of release 1.6, whose numbers
        nobody can read: the Model Zoo's converter drops it, too.

    Raises:
        CheckpointError: damaged, of other groups, or of other shapes.
    """
    if not file.entries("optimizer."):
        return None
    tensors = numbered_tensors(model, file)
    if is_of_16(tensors):
        return None
    scheduled = next((n for n in _LAST_EPOCHS if file.entries(n)), "global_step")
    scaler = {
        name.rpartition(".")[2]: _number(file, name)
        for section in SCALERS
        for name in file.entries(f"{section}.")
    }
    entries = [m for name in file.entries("optimizer.state.") if (m := _ENTRY.fullmatch(name))]
    rows = _numbered(file, tensors.values(), groupings) if entries else []
    shapes = {name: leaf.shape for name, leaf in named_leaves(abstract_params(model))}
    moments: dict[str, dict[str, np.ndarray]] = {}
    scalars: dict[str, float] = {}
    for entry in sorted(entries, key=lambda entry: int(entry[1])):
        name, number, key = entry[0], int(entry[1]), entry[2]
        if name not in file or file.shape(name) == ():
            scalars.setdefault(key, _number(file, name))
        elif number >= len(rows):
            raise CheckpointError(
                f"{file.path}: {name}: the model has {len(rows)} trainable parameters; "
                + _WEIGHTS_ALONE
            )
        else:
            moments.setdefault(key, {}).update(_ours(file, name, rows[number], shapes))
    steps = int(_number(file, scheduled)), int(_number(file, "global_step"))
    return OptimizerState(moments, scalars, steps[0], scaler, steps[1])


def _number(file: MdlFile, name: str) -> float:
    value = file.scalar(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _numbered(
    file: MdlFile, tensors: Iterable[TensorRow], groupings: Iterable[Grouping]
) -> list[TensorRow]:
    """List the rows of the trainable parameters as the file's optimizer counts them."""
    rows = {row.ours[0]: row for row in tensors}
    names = [name for name in rows if not is_constant(name)]
    members = map(_MEMBER.fullmatch, file.entries("optimizer.param_groups."))
    sizes = collections.Counter(int(member[1]) for member in members if member)
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
    file: MdlFile, name: str, row: TensorRow, shapes: Mapping[str, tuple[int, ...]]
) -> Iterable[tuple[str, np.ndarray]]:
    """Read one moment as those of our parameters."""
    our_shapes = [shapes[path] for path in row.ours]
    shape, expected = file.shape(name), row.codec.foreign_shape(our_shapes)
    if shape != expected:
        raise CheckpointError(
            f"{file.path}: {name} has shape {shape}; {row.foreign}, to which its number belongs, "
            f"has {expected}. Use the params file that it was trained with, or " + _WEIGHTS_ALONE
        )
    return zip(row.ours, row.codec.to_ours(file[name], our_shapes), strict=True)


def finished_steps(state: OptimizerState, section: Optimizer) -> int:
    """Steps that the optimizer has taken, skipped ones not counted.

    The power of the second rate runs one step ahead of the count, and is rounded in every step:
    the global step stands where the two agree to one in a thousand.
    """
    beta = getattr(section, "betas", (0.0, 0.0))[1]
    power = state.scalars.get("beta2_power", 0.0)
    if not (0 < beta < 1 and 1e-36 < power < 1):
        return int(state.scalars.get("step", state.step))
    steps = max(round(math.log(power) / math.log(beta)) - 1, 0)
    return state.step if abs(steps - state.step) <= 1e-3 * state.step else steps


def our_tree(
    state: OptimizerState, section: Optimizer, template: object, shapes: Params, source: str
) -> Params:
    """Build the optimizer state of a checkpoint of ours.

    Args:
        state: the file's.
        section: the run's optimizer.
        template: shapes of the state that ``make_optimizer`` begins with.
        shapes: of the parameters.
        source: the file, for errors.

    Raises:
        CheckpointError: another optimizer's state.
    """
    kind = section.optimizer_type
    if kind not in KEYS:
        raise CheckpointError(
            f"{source}: {kind} cannot take its optimizer state over; known: {', '.join(KEYS)}. "
            + _ANEW
        )
    owners = {name: leaf.shape for name, leaf in named_leaves(shapes)}
    fields = {path: field_of(path, owners) for path, _ in named_leaves(template)}
    with_moments = {parent for parent, _, owner in fields.values() if owner}
    tree: dict[str, np.ndarray] = {}
    for path, leaf in named_leaves(template):
        parent, field, owner = fields[path]
        if owner:
            key = KEYS[kind].get(field, field)
            if owner not in state.moments.get(key, {}):
                raise CheckpointError(
                    f"{source}: {kind} needs {key!r} of {owner}; the file's optimizer has "
                    f"{', '.join(sorted(state.moments)) or 'no moments'}. {_ANEW}"
                )
            tree[path] = state.moments[key][owner]
        elif np.issubdtype(leaf.dtype, np.integer):
            own = parent in with_moments
            steps = finished_steps(state, section) if own else state.scheduled
            tree[path] = np.full(leaf.shape, steps, leaf.dtype)
        else:  # the rates of the last update are for show, and nobody knows them
            tree[path] = np.full(leaf.shape, state.scalars.get(field, 0), leaf.dtype)
    return unflatten(tree)
