"""The vendor's optimizer states as ours: which of their entries each field of a state is."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wafer.errors import CheckpointError
from wafer.models.checkpoint.moments import field_of
from wafer.models.convert.vendor.state import KEYS, Grouping, OptimizerState, structural_groups
from wafer.models.paths import named_leaves, unflatten
from wafer.optim.groups import ParamGroups
from wafer.optim.sections import Optimizer


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


def vendor_groupings(section: Optimizer, groups: ParamGroups) -> list[Grouping]:
    """Groups that the vendor's optimizer has under a section, the likeliest first.

    By tags in the order of their first parameter, then decay and no decay, then by scaled rates
    in the section's order with the others last (``configure_param_groups`` of the Model Zoo).
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
        return [group for half in halves for group in _apart(sorted(half, key=rank), scale)]

    def scale(name: str) -> float:
        return rank(name)[1]

    by_decay, alone = structural_groups(groups.decays)
    return [by_section, by_decay, alone]


def _apart(names: Sequence[str], key: Callable[[str], Any]) -> list[list[str]]:
    apart: dict[Any, list[str]] = {}
    for name in names:
        apart.setdefault(key(name), []).append(name)
    return list(apart.values())


def our_tree(
    state: OptimizerState, section: Optimizer, template: Any, shapes: Any, where: str
) -> dict[str, Any]:
    """Build the optimizer state of a checkpoint of ours.

    Args:
        state: the vendor's.
        section: the run's optimizer.
        template: shapes of the state that ``make_optimizer`` begins with.
        shapes: of the parameters.
        where: the file, for errors.

    Raises:
        CheckpointError: another optimizer's state.
    """
    keys = KEYS.get(section.optimizer_type)
    if keys is None:
        raise CheckpointError(
            f"{where}: {section.optimizer_type} cannot take its optimizer state over; known: "
            f"{', '.join(KEYS)}. Begin the optimizer anew with --load_checkpoint_states model"
        )
    owners = {name: leaf.shape for name, leaf in named_leaves(shapes)}
    fields = {path: field_of(path, owners) for path, _ in named_leaves(template)}
    with_moments = {parent for parent, _, owner in fields.values() if owner}
    own_step = finished_steps(state, section)
    tree: dict[str, Any] = {}
    for path, leaf in named_leaves(template):
        parent, field, owner = fields[path]
        if owner:
            key = keys.get(field, field)
            if owner not in state.moments.get(key, {}):
                raise CheckpointError(
                    f"{where}: {section.optimizer_type} needs {key!r} of {owner}; the file's "
                    f"optimizer has {', '.join(sorted(state.moments)) or 'no moments'}. Begin the "
                    "optimizer anew with --load_checkpoint_states model"
                )
            tree[path] = state.moments[key][owner]
        elif np.issubdtype(leaf.dtype, np.integer):
            steps = own_step if parent in with_moments else state.scheduled
            tree[path] = np.full(leaf.shape, steps, leaf.dtype)
        else:  # the rates of the last update are for show, and nobody knows them
            tree[path] = np.full(leaf.shape, state.scalars.get(field, 0), leaf.dtype)
    return unflatten(tree)
