"""Which share of a dense weight's products a method computes, over a whole training run.

A step multiplies by a weight three times: forward, backward to the inputs, and for the weight's
own gradient. The first two need the weights that compute, the third those that learn; a method
that grows by the dense gradient needs all of them at the steps of its updates (RigL: 2 f_S + f_D
there, 3 f_S elsewhere, Evci et al. 2020).
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wafer.sparsity.algorithms.base import Algorithm

_AGREE = 1e-3  # of levels
_FOLLOWED = 100_000  # updates


class Shares(NamedTuple):
    """Shares of a weight's dense products."""

    training: float  #: of a step's three, mean over the run; 1 is dense
    left: float  #: of the weights, after the last step


class _Updates(NamedTuple):
    """The topology updates of a run."""

    at: np.ndarray  #: [U] int, the steps at whose end they are
    asked: np.ndarray  #: [U] float, scheduled level
    reached: np.ndarray  #: [U] float, level in force after each
    first: float  #: level in force before the first


def _updates_over(algorithm: Algorithm, steps: int, most: int | None = None) -> _Updates:
    starts = algorithm.starts_sparse()
    first = level = float(algorithm.sparsity.at(0)) if starts else 0.0
    due = algorithm.update.due_steps(1, steps + 1) if algorithm.dynamic else ()
    due_steps = np.fromiter(itertools.islice(due, most), int)
    if not len(due_steps):
        return _Updates(due_steps, due_steps.astype(float), due_steps.astype(float), first)
    # A list due at step 0 has used its first.
    number = np.arange(len(due_steps)) + int(algorithm.dynamic and starts)
    asked, drop = (
        np.asarray(jax.vmap(each)(jnp.asarray(due_steps), number % each.length).clip(0, 1), float)
        for each in (algorithm.sparsity, algorithm.drop_fraction)
    )
    reached = np.empty(len(due_steps))
    for i, (goal, share) in enumerate(zip(asked, drop, strict=True)):
        reached[i] = level = algorithm.level_after(float(goal), level, float(share))
    return _Updates(due_steps, asked, reached, first)


def levels_over(algorithm: Algorithm, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Follow a method's level through a run that starts at step 0.

    Returns:
        ([steps + 1] float level in force during each step, and after the last; [steps] bool,
        whether the topology is chosen anew at the end of the step).
    """
    updates = _updates_over(algorithm, steps)
    due = np.zeros(steps, bool)
    due[updates.at - 1] = True
    # in force after each step: the level of the last update so far
    number = np.concatenate([[0], np.cumsum(due)])
    return np.clip(np.concatenate([[updates.first], updates.reached])[number], 0, 1), due


def missed_level(algorithm: Algorithm, steps: int) -> str:
    """Say at which level a run ends that does not end at the scheduled one.

    Args:
        algorithm: the method.
        steps: of the run, which starts at step 0.

    Returns:
        One line, or '' where the levels agree to a thousandth or no topology changes. Runs of
        more than 100,000 updates are not followed.
    """
    updates = _updates_over(algorithm, steps, _FOLLOWED + 1)
    count = len(updates.at)
    if not algorithm.dynamic or count > _FOLLOWED:
        return ""
    end = float(updates.reached[-1]) if count else updates.first
    schedule = algorithm.sparsity
    if schedule.length == 1:
        goal = min(max(schedule.at(steps), 0.0), 1.0)
    else:
        goal = schedule.at(steps, schedule.length - 1)
        goal = goal if count < schedule.length else float(updates.asked[-1])
    if abs(end - goal) <= _AGREE:
        return ""
    if count and abs(updates.asked[-1] - end) > _AGREE:
        why = (
            f"each of its {count:,} updates prunes at most drop_fraction of the weights that are "
            "left; raise drop_fraction or update more often"
        )
    elif count:
        why = f"the last of its {count:,} updates is at step {updates.at[-1]:,} of {steps:,}"
    else:
        why = f"no update is due in {steps:,} steps"
    return f"the level ends at {end:.2%}, not at the scheduled {goal:.2%}: {why}"


def shares_over(algorithm: Algorithm, steps: int) -> Shares:
    """Average a method's shares over a run."""
    levels, due = levels_over(algorithm, steps)
    computes, learns = algorithm.shares(levels[:-1], np.arange(1, steps + 1))
    if algorithm.needs_gradient:
        learns = np.where(due, 1.0, learns)
    return Shares(float(np.mean(2 * computes + learns)) / 3, float(1 - levels[-1]))
