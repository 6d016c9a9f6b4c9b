"""Bake a LoRA run's adapters into its weights: ``wafer finalize --fold_lora``."""

import pathlib

import numpy as np

from models.adapters import fold_adapters
from models.convert.native import write_native
from models.lora import is_adapter, lora_of
from models.paths import named_leaves
from models.registry import parse_config
from sparsity import sentinel
from wafer.errors import CheckpointError
from wafer.session.checkpoint import load_checkpoint

__all__ = ["fold_lora"]


def fold_lora(source: str | pathlib.Path, target: str | pathlib.Path) -> list[str]:
    """Write the model without adapters: same outputs, ordinary parameters, pruned weights 0.

    Args:
        source: a checkpoint folder of a run with ``model.lora_params``.
        target: folder to write; a checkpoint of the model alone.

    Returns:
        Lines that say what was done.

    Raises:
        CheckpointError: not a checkpoint, or one without adapters.
        FileExistsError: the target holds a checkpoint already.
    """
    tree, meta = load_checkpoint(source)
    settings = dict(meta["config"]["model"])
    cfg = lora_of(parse_config(settings))
    adapted = [name for name, _ in named_leaves(tree["params"]) if is_adapter(name)]
    if cfg is None or not adapted:
        raise CheckpointError(f"{source} has no adapters (model.lora_params); nothing to fold")
    params = fold_adapters(cfg, sentinel.decode(tree["params"], {}).params)
    for part in (settings, settings.get("text_model", {})):
        part.pop("lora_params", None)
    leaves = [(name, np.asarray(leaf)) for name, leaf in named_leaves(params)]
    path = write_native(target, settings, [name for name, _ in leaves], leaves)
    return [
        f"Folded {len(adapted) // 2} adapters of rank {cfg.r} into their kernels: {path}",
        f"  wafer run ... --checkpoint_path {path}    (drop model.lora_params there)",
        f"  wafer convert convert --src-fmt wafer --tgt-fmt hf ... {path}",
    ]
