"""Weights in other people's forms: Hugging Face's folders, the vendor's ``.mdl``."""

import logging
import pathlib
import shutil
from typing import Any

from models.base import Model
from models.checkpoint.layout import CONFIG, PARAMS, is_checkpoint
from models.convert.api import open_hf, to_hf
from models.convert.same import differences
from models.convert.tokenizer import carry_tokenizer
from models.convert.vendor import open_cs
from models.paths import unflatten
from models.registry import settings_of
from wafer.errors import CheckpointError

__all__ = ["export_hf", "is_foreign", "is_hf_folder", "load_foreign", "load_hf"]

_LOG = logging.getLogger(__name__)


def is_hf_folder(path: pathlib.Path) -> bool:
    """Whether a folder is Hugging Face's: ``config.json``, or the two towers of DPR."""
    theirs = (path / "config.json").is_file() or (path / "question_encoder").is_dir()
    return theirs and not is_checkpoint(path)


def is_foreign(path: pathlib.Path) -> bool:
    """Whether weights there are not in our form: a Hugging Face folder, or a ``.mdl`` file."""
    return path.suffix == ".mdl" or is_hf_folder(path)


def load_foreign(path: pathlib.Path, model: Model) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load them as a checkpoint of weights alone: (tree of arrays, record).

    Args:
        path: where ``is_foreign``.
        model: the run file's. A folder's own ``config.json`` must compute like it; a ``.mdl`` must
            have its tensors. Weights that a mask of the ``.mdl`` prunes are NaN.

    Raises:
        CheckpointError: damaged or incomplete files, or another model.
    """
    if path.suffix != ".mdl":
        return load_hf(path, model)
    try:
        tree = unflatten(dict(open_cs(path, model)))
    except (OSError, ValueError) as error:
        raise CheckpointError(str(error)) from error
    _LOG.info("%s: weights alone are read, the optimizer begins anew at step 0", path)
    return {PARAMS: tree}, {CONFIG: {"model": settings_of(model.config)}}


def load_hf(
    path: pathlib.Path, model: Model | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load the weights as a checkpoint of weights alone: (tree of arrays, record).

    Args:
        path: the folder.
        model: what the folder's model must compute like; None takes any.

    Raises:
        CheckpointError: damaged or incomplete files, or another model.
    """
    try:
        theirs, arrays = open_hf(path)
        tree = unflatten(dict(arrays))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if model is not None and (wrong := _unlike(model.config, theirs.config)):
        raise CheckpointError(
            f"{path}: its config.json computes another model than the run file's `model`:\n  "
            + "\n  ".join(wrong)
            + "\n`wafer convert convert-config` writes the section that fits"
        )
    return {PARAMS: tree}, {CONFIG: {"model": settings_of(theirs.config)}}


_HEADS = ("has_mlm", "has_nsp", "pools", "mlm_nonlinearity", "pooler_nonlinearity")


def _unlike(ours: Any, theirs: Any) -> list[str]:
    """What differs besides the heads, which fine-tuning may exchange."""
    if type(ours) is not type(theirs):
        return [f"family: {type(ours).__name__} here, {type(theirs).__name__} there"]
    return [line for line in differences(ours, theirs) if not line.startswith(_HEADS)]


def export_hf(model: Model, params: Any, model_dir: pathlib.Path, step: int) -> pathlib.Path:
    """Write weights as ``model_dir``/hf/``step``; what is pruned is 0, the tokenizer goes along.

    Args:
        model: of ``params``.
        params: as checkpoints hold them, NaN where pruned.
        model_dir: the run's.
        step: of the weights.

    Returns:
        The folder; one that is there already stays as it is.
    """
    folder = model_dir / "hf" / str(step)
    if not folder.exists():
        partial = folder.with_name(f"{step}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a killed run
        to_hf(model, params, partial)
        carry_tokenizer(model_dir, partial)
        partial.rename(folder)
    _LOG.info("Exported %s for Hugging Face", folder)
    return folder
