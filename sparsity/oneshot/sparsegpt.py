"""SparseGPT (Frantar & Alistarh 2023, arXiv:2301.00774): prune, and mend what is left.

Weights are pruned column by column (an input at a time); the error of each column is taken up by
the columns after it, by the inverse of the layer's Hessian x^T x. Float64 on the host.
"""

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float

from wafer.sparsity.schema import SparsityError
from wafer.sparsity.views import UNSTRUCTURED, FanIn, NofM, Structure

BLOCK = 128  # columns whose mask is chosen at once
DAMPING = 0.01  # of the mean of the Hessian's diagonal


def sparsegpt(
    weight: Float[np.ndarray, "K N"],
    gram: Float[np.ndarray, "K K"],
    level: float,
    structure: Structure,
) -> tuple[Float[np.ndarray, "K N"], Bool[np.ndarray, "K N"]]:
    """Prune a matrix so that x @ weight changes least.

    Args:
        weight: inputs by outputs.
        gram: x^T x of the calibration inputs.
        level: share of weights to prune.
        structure: the whole weight, constant fan-in, or n:m along the inputs.

    Returns:
        (weight, 0 where pruned and mended elsewhere; mask, true where kept).

    Raises:
        SparsityError: a structure for which the method is not defined.
    """
    together, rowwise = _chosen_at_once(structure), structure != UNSTRUCTURED
    updated = weight.T.astype(np.float64)  # [N, K]
    mask = np.ones(updated.shape, bool)
    dead = np.diag(gram) == 0  # inputs that are always 0
    hessian = gram.astype(np.float64) + np.diag(dead.astype(np.float64))
    hessian[np.diag_indices_from(hessian)] += DAMPING * np.mean(np.diag(hessian))
    updated[:, dead] = 0
    inverse = scipy.linalg.cholesky(scipy.linalg.inv(hessian), lower=False)
    for start in range(0, updated.shape[1], BLOCK):
        stop = min(start + BLOCK, updated.shape[1])
        block, factor = updated[:, start:stop], inverse[start:stop, start:stop]
        errors = np.zeros_like(block)
        diagonal = np.diag(factor)
        for column in range(stop - start):
            width = together or stop - start
            if column % width == 0:
                here = slice(column, column + width)
                scores = (block[:, here] / diagonal[here]) ** 2
                mask[:, start + column : start + column + width] = _keep(
                    scores, level, rowwise=rowwise
                )
            pruned = ~mask[:, start + column]
            errors[:, column] = np.where(pruned, block[:, column], 0) / diagonal[column]
            block[:, column:] -= np.outer(errors[:, column], factor[column, column:])
            block[pruned, column] = 0
        updated[:, stop:] -= errors @ inverse[start:stop, stop:]
    return updated.T.astype(weight.dtype), mask.T


def _chosen_at_once(structure: Structure) -> int:
    """Columns that are chosen together; 0 for a whole block."""
    if structure == UNSTRUCTURED or isinstance(structure, FanIn):
        return 0
    if isinstance(structure, NofM) and structure.axis == "in" and BLOCK % structure.m == 0:
        return structure.m
    raise SparsityError(
        "sparsegpt prunes whole weights, constant_fan_in, and n:m along the inputs with an m that "
        f"divides {BLOCK}; found {structure}. Take wanda or magnitude for it"
    )


def _keep(scores: np.ndarray, level: float, *, rowwise: bool) -> np.ndarray:
    """Keep the highest scores of all, or of each row; the lowest index first among equals."""
    rows = scores if rowwise else scores.reshape(1, -1)
    number = round((1 - level) * rows.shape[1])
    order = np.argsort(-rows, axis=1, kind="stable")[:, :number]
    kept = np.zeros(rows.shape, bool)
    np.put_along_axis(kept, order, True, axis=1)
    return kept.reshape(scores.shape)
