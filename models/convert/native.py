"""Our own checkpoints: a folder with ``state`` (Orbax) and ``meta/metadata`` (JSON).

The trainer's checkpoints and those written here are the same thing; only ``params`` is there, as
a run that starts from converted weights needs no more.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

__all__ = ["read_native", "write_native"]


def write_native(folder: str | Path, settings: Mapping[str, Any], params: Any) -> Path:
    """Write parameters and the ``model`` section they belong to.

    Args:
        folder: must not exist yet.
        settings: the ``model`` section.
        params: our tree.

    Raises:
        FileExistsError: the folder holds a checkpoint already.
    """
    folder = Path(folder).resolve()
    if (folder / "state").exists():
        raise FileExistsError(f"{folder}: holds a checkpoint already; choose another --output-dir")
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(folder / "state", {"params": jax.tree.map(np.asarray, params)})
    checkpointer.close()
    (folder / "meta").mkdir(parents=True, exist_ok=True)
    record = {"step": 0, "config": {"model": dict(settings)}}
    (folder / "meta" / "metadata").write_text(json.dumps(record, indent=2))
    return folder


def read_native(folder: str | Path) -> tuple[dict[str, Any], Any]:
    """Read (``model`` section, parameters) of a checkpoint of ours, the trainer's included.

    Raises:
        ValueError: not such a folder.
    """
    folder = Path(folder).resolve()
    record = folder / "meta" / "metadata"
    if not record.is_file() or not (folder / "state").is_dir():
        raise ValueError(
            f"{folder}: not a checkpoint: expected the folders state and meta, as in "
            "<model_dir>/checkpoints/<step>"
        )
    settings = json.loads(record.read_text())["config"]["model"]
    checkpointer = ocp.StandardCheckpointer()
    tree = checkpointer.restore(folder / "state")
    checkpointer.close()
    return settings, jax.tree.map(np.asarray, tree["params"])
