"""Which share of a dense weight's products a method computes, over a whole training run.

A step multiplies by a weight three times: forward, backward to the inputs, and for the weight's
own gradient. The first two need the weights that compute, the third those that learn; a method
that grows by the dense gradient needs all of them at the steps of its updates (RigL: 2 f_S + f_D
there, 3 f_S elsewhere, Evci et al. 2020).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsity.algorithms.base import Algorithm

__all__ = ["Shares", "levels_over", "shares_over"]


class Shares(NamedTuple):
    """Shares of a weight's dense products."""

    training: float  #: of a step's three, mean over the run; 1 is dense
    left: float  #: of the weights, after the last step


def levels_over(algorithm: Algorithm, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Follow a method's level through a run that starts at step 0.

    Returns:
        ([steps + 1] float level in force during each step, and after the last; [steps] bool,
        whether the topology is chosen anew at the end of the step).
    """
    due = np.zeros(steps, bool)
    if algorithm.dynamic:
        due[:] = [bool(algorithm.update(step)) for step in range(1, steps + 1)]
    starts = algorithm.starts_sparse()
    levels = np.full(steps + 1, float(algorithm.sparsity(0, 0)) if starts else 0.0)
    at = np.flatnonzero(due) + 1
    if len(at):
        used = int(algorithm.dynamic and starts)  # a list due at step 0 has used its first
        index = (np.arange(len(at)) + used) % algorithm.sparsity.length
        new = jax.vmap(algorithm.sparsity)(jnp.asarray(at), jnp.asarray(index))
        for step, level in zip(at, np.asarray(new), strict=True):
            levels[step:] = level
    return np.clip(levels, 0, 1), due


def shares_over(algorithm: Algorithm, steps: int) -> Shares:
    """Average a method's shares over a run."""
    levels, due = levels_over(algorithm, steps)
    computes, learns = algorithm.shares(levels[:-1], np.arange(1, steps + 1))
    if algorithm.needs_gradient:
        learns = np.where(due, 1.0, learns)
    return Shares(float(np.mean(2 * computes + learns)) / 3, float(1 - levels[-1]))
