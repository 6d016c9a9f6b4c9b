"""The vendor's rules: how a document is cut, and which sequences of a chunk share a row."""

from collections.abc import Sequence

import numpy as np


def next_fit(sequences: Sequence[np.ndarray], length: int) -> list[list[np.ndarray]]:
    """Groups of [F, n]: the longest first, each beside the last one while both fit.

    Pretraining's rule from release 2.4 on. A sequence of more than ``length`` tokens is alone.

    >>> [[s.shape[1] for s in g] for g in next_fit([np.zeros((2, n)) for n in (3, 5, 4)], 8)]
    [[5], [4, 3]]
    """
    groups: list[list[np.ndarray]] = []
    used = length
    for sequence in sorted(sequences, key=lambda s: -s.shape[1]):
        size = sequence.shape[1]
        if used + size > length:
            groups.append([])
            used = 0
        groups[-1].append(sequence)
        used += size
    return groups


def merge_backward(sequences: Sequence[np.ndarray], length: int) -> list[list[np.ndarray]]:
    """Groups of [F, n]: from the last backward, each joins the nearest earlier group it fits in.

    Finetuning's rule, and that of pretraining in release 2.3.

    >>> [[s.shape[1] for s in g] for g in merge_backward([np.zeros((2, n)) for n in (3, 6, 4)], 8)]
    [[3, 4], [6]]
    """
    groups = [[sequence] for sequence in sequences]
    sizes = [sequence.shape[1] for sequence in sequences]
    for i in range(len(groups) - 1, 0, -1):
        fitting = (j for j in range(i - 1, -1, -1) if sizes[i] + sizes[j] <= length)
        j = next(fitting, None)
        if j is not None:
            groups[j] += groups.pop(i)
            sizes[j] += sizes.pop(i)
    return groups


def cut(tokens: np.ndarray, width: int, eos_id: int, exact: bool) -> list[np.ndarray]:
    """Pieces [2, <= width] of a document, the last of which ends with the end mark.

    Args:
        tokens: [2, n] ids and weights.
        width: of a piece.
        eos_id: the end mark, with the weight of the last token.
        exact: a full last piece loses its last token to the mark, as at the vendor's; otherwise
            the mark is one token more.
    """
    tokens = tokens if exact else ended(tokens, tokens.shape[1] + 1, eos_id)
    pieces = [tokens[:, i : i + width] for i in range(0, tokens.shape[1], width)]
    return [*pieces[:-1], ended(pieces[-1], width, eos_id)]


def ended(piece: np.ndarray, width: int, eos_id: int) -> np.ndarray:
    """A piece with an end mark: behind its tokens, or over the last of ``width``."""
    if piece[0, -1] == eos_id:
        return piece
    mark = np.array([[eos_id], [piece[1, -1]]], np.int32)
    return np.concatenate([piece[:, : width - 1], mark], axis=1)
