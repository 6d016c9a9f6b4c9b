"""Differences between two weight files, name by name."""

from pathlib import Path
from typing import Literal

import numpy as np

from wafer.models.convert.files import open_arrays


def diff_weights(
    left: str | Path,
    right: str | Path,
    operator: Literal["equal", "allclose"] = "equal",
) -> list[str]:
    """List how two checkpoints differ, one line per tensor; empty when they agree.

    A NaN is a pruned weight: how many are NaN in one file alone is counted, and the greatest
    difference is that of the other weights.

    Args:
        left: a folder or a weight file, or a checkpoint of ours (its parameters).
        right: likewise.
        operator: bit for bit, or numpy's allclose after conversion to float32.

    Raises:
        FileNotFoundError: a path that does not exist; names what is near in its folder.
    """
    a, b = open_arrays(Path(left)), open_arrays(Path(right))
    lines = [f"only in {left}: {name}" for name in a if name not in b]
    lines += [f"only in {right}: {name}" for name in b if name not in a]
    for name in a:
        if name in b:
            x, y = np.asarray(a[name]), np.asarray(b[name])
            if difference := _difference(x, y, operator, (str(left), str(right))):
                lines.append(f"{name}: {difference}")
    return lines


def _difference(x: np.ndarray, y: np.ndarray, operator: str, files: tuple[str, str]) -> str:
    """Return how two tensors of these files differ; '' where they agree."""
    if x.shape != y.shape:
        return f"shape {x.shape} and {y.shape}"
    if operator == "equal":
        if x.dtype != y.dtype:
            return f"dtype {x.dtype} and {y.dtype}"
        same = x.tobytes() == y.tobytes()
    else:
        same = np.allclose(x.astype(np.float32), y.astype(np.float32), equal_nan=True)
    if same:
        return ""
    x, y = x.astype(np.float64), y.astype(np.float64)
    pruned = [*_pruned(x, y, *files), *_pruned(y, x, *reversed(files))]
    others = "the other values" if pruned else "values"
    unequal = ~np.isnan(x) & ~np.isnan(y) & (x != y)  # equal infinities differ by 0
    gap = np.abs(x[unequal] - y[unequal]).max(initial=0)
    rest = f"{others} differ by up to {gap:.3g}" if gap else f"{others} are equal"
    return ", ".join([*pruned, rest if gap or pruned else f"{rest}, their bits differ"])


def _pruned(x: np.ndarray, y: np.ndarray, left: str, right: str) -> list[str]:
    """Count the NaN of the left tensor by what the right one holds there."""
    alone = np.isnan(x) & ~np.isnan(y)
    zeros = np.count_nonzero(alone & (y == 0))
    counts = {"0": zeros, "other values": np.count_nonzero(alone) - zeros}
    return [
        f"{count} of {x.size} values are NaN (pruned) in {left} and {there} in {right}"
        for there, count in counts.items()
        if count
    ]
