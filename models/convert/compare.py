"""Differences between two weight files, name by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from models.checkpoint.layout import is_checkpoint
from models.checkpoint.reader import open_params
from models.convert.files import open_tensors
from models.files import require_path

__all__ = ["diff_weights"]


def diff_weights(
    left: str | Path,
    right: str | Path,
    operator: Literal["equal", "allclose"] = "equal",
) -> list[str]:
    """List how two checkpoints differ, one line per tensor; empty when they agree.

    Args:
        left: a folder or a weight file, or a checkpoint of ours (its parameters).
        right: likewise.
        operator: bit for bit, or numpy's allclose after conversion to float32.

    Raises:
        FileNotFoundError: a path that does not exist; names what is near in its folder.
    """
    a, b = _open(left), _open(right)
    lines = [f"only in {left}: {name}" for name in a if name not in b]
    lines += [f"only in {right}: {name}" for name in b if name not in a]
    for name in a:
        if name in b:
            line = _difference(name, np.asarray(a[name]), np.asarray(b[name]), operator)
            lines += [line] if line else []
    return lines


def _open(path: str | Path) -> Mapping[str, Any]:
    require_path(Path(path))
    return open_params(path)[1] if is_checkpoint(Path(path)) else open_tensors(path)


def _difference(name: str, x: np.ndarray, y: np.ndarray, operator: str) -> str:
    if x.shape != y.shape:
        return f"{name}: shape {x.shape} and {y.shape}"
    if operator == "equal":
        if x.dtype != y.dtype:
            return f"{name}: dtype {x.dtype} and {y.dtype}"
        same = x.tobytes() == y.tobytes()
    else:
        same = np.allclose(x.astype(np.float32), y.astype(np.float32), equal_nan=True)
    if same:
        return ""
    gap = np.abs(x.astype(np.float64) - y.astype(np.float64)).max()
    return f"{name}: values differ by up to {gap:.3g}"
