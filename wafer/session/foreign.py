"""Weights in other forms: Hugging Face's folders, and files that the entry has readers for."""

import logging
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import PyTree

from wafer.config.loader import model_section_of
from wafer.errors import CheckpointError
from wafer.experiment import Experiment
from wafer.models.base import Model
from wafer.models.checkpoint.layout import CONFIG, OPT_STATE, PARAMS, is_checkpoint
from wafer.models.convert.api import open_hf, to_hf
from wafer.models.convert.same import differences
from wafer.models.convert.standard import offset_norms, order_rotary
from wafer.models.families.decoder_config import DecoderConfig
from wafer.models.families.encoder_config import EncoderConfig
from wafer.models.paths import unflatten
from wafer.models.schema import ModelConfig

_LOG = logging.getLogger(__name__)


def is_hf_folder(path: pathlib.Path) -> bool:
    """Whether a folder is Hugging Face's: ``config.json``, or the two towers of DPR."""
    theirs = (path / "config.json").is_file() or (path / "question_encoder").is_dir()
    return theirs and not is_checkpoint(path)


Reader = Callable[[pathlib.Path, Experiment, bool], dict[str, PyTree]]
"""(file, experiment, whether to read the optimizer's state) -> the arrays of a checkpoint."""
Readers = Mapping[str, Reader]
"""Suffix of a file in another format -> its reader."""


def is_foreign(path: pathlib.Path, readers: Readers) -> bool:
    """Whether weights there are not in our form: a Hugging Face folder, or a file to be read."""
    return path.suffix in readers or is_hf_folder(path)


def load_foreign(
    path: pathlib.Path, experiment: Experiment, readers: Readers, *, with_state: bool = True
) -> tuple[dict[str, PyTree], dict[str, object]]:
    """Load them as a checkpoint: (tree of arrays, record).

    Args:
        path: where ``is_foreign``.
        experiment: the run file's. A folder's own ``config.json`` must compute like its model; a
            file must have its tensors.
        readers: of files.
        with_state: read the optimizer, the loss scale and the step of a file that has them; else
            the checkpoint is of weights alone.

    Raises:
        CheckpointError: damaged or incomplete files, another model or optimizer.
    """
    if path.suffix not in readers:
        return load_hf(path, experiment.model)
    try:
        tree = readers[path.suffix](path, experiment, with_state)
    except CheckpointError:
        raise
    except (OSError, ValueError) as error:
        raise CheckpointError(str(error)) from error
    if OPT_STATE not in tree:
        _LOG.info("%s: weights alone are read, the optimizer begins anew at step 0", path)
    return tree, {CONFIG: {"model": model_section_of(experiment.model.config)}}


def load_hf(
    path: pathlib.Path, model: Model | None = None
) -> tuple[dict[str, PyTree], dict[str, object]]:
    """Load the weights as a checkpoint of weights alone: (tree of arrays, record).

    Args:
        path: the folder.
        model: what the folder's model must compute like; None takes any. Rotary features are
            brought into its order.

    Raises:
        CheckpointError: damaged or incomplete files, or another model.
    """
    config, arrays = open_like(path, model)
    try:
        leaves: Any = dict(arrays)
    except CheckpointError:
        raise
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    config, leaves = _in_order(config, leaves, model)
    values = {name: np.asarray(leaf) for name, leaf in leaves.items()}
    return {PARAMS: unflatten(values)}, {CONFIG: {"model": model_section_of(config)}}


def open_like(path: pathlib.Path, model: Model | None) -> tuple[Any, Iterator[tuple[str, PyTree]]]:
    """Open a Hugging Face folder: its configuration, (name, array), values not read yet.

    Raises:
        CheckpointError: incomplete files, or of another model than ``model``.
    """
    try:
        theirs, arrays = open_hf(path, heads_of=None if model is None else model.config)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    config, _ = _in_order(theirs.config, {}, model)
    if model is not None and (wrong := _unlike(model.config, config)):
        raise CheckpointError(
            f"{path}: its config.json computes another model than the run file's `model`:\n  "
            + "\n  ".join(wrong)
            + "\n`wafer convert convert-config` writes the section that fits"
        )
    return theirs.config, arrays


def _in_order(config: Any, leaves: Mapping[str, Any], model: Model | None) -> tuple[Any, Any]:
    """Bring rotary features into the order of the run file's model, and norms into its form."""
    ours = None if model is None else model.config
    if isinstance(ours, DecoderConfig | EncoderConfig) and type(ours) is type(config):
        config, leaves = offset_norms(config, leaves, ours.norm_type)
        return order_rotary(config, leaves, pairs=ours.rotary_interleaved)
    return config, leaves


_HEADS = ("has_mlm", "has_nsp", "pools", "mlm_nonlinearity", "pooler_nonlinearity")


def _unlike(ours: ModelConfig, theirs: ModelConfig) -> list[str]:
    """What differs besides the heads, which fine-tuning may exchange."""
    if type(ours) is not type(theirs):
        return [f"family: {type(ours).__name__} here, {type(theirs).__name__} there"]
    return [line for line in differences(ours, theirs) if not line.startswith(_HEADS)]


def export_hf(model: Model, params: PyTree, model_dir: pathlib.Path, step: int) -> pathlib.Path:
    """Write weights as ``model_dir``/hf/``step``.

    The folder is that of ``wafer convert``: with the tokenizer and the special ids of the run.

    Args:
        model: of ``params``.
        params: dense, 0 where pruned.
        model_dir: the run's.
        step: of the weights.

    Returns:
        The folder; one that is there already stays as it is.
    """
    folder = model_dir / "hf" / str(step)
    if not folder.exists():
        partial = folder.with_name(f"{step}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a killed run
        to_hf(model, params, partial, text_from=model_dir)
        partial.rename(folder)
    _LOG.info("Exported %s for Hugging Face", folder)
    return folder
