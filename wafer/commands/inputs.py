"""What the public functions begin with: an experiment, and a checkpoint with its model."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

import models
from models.checkpoint.layout import CHECKPOINTS, PARAMS, is_checkpoint, model_section
from models.checkpoint.reader import load_params
from models.checkpoint.writer import Checkpoints
from models.convert.tokenizer import find_tokenizer
from wafer.config import parse_config
from wafer.data.text.tokenizer import load_tokenizer
from wafer.errors import CheckpointError
from wafer.experiment import Experiment
from wafer.session.foreign import is_hf_folder, load_hf

__all__ = ["Source", "experiment_of", "load", "newest_checkpoint"]

Source = Experiment | str | os.PathLike[str] | Mapping[str, Any]


def experiment_of(source: Source, **overrides: Any) -> Experiment:
    """Make an experiment of whatever a user has.

    Args:
        source: an Experiment, the path of a params YAML, or its sections as a mapping.
        **overrides: keys of ``runconfig`` that win over the source's.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    if isinstance(source, str | os.PathLike):
        return Experiment.from_yaml(pathlib.Path(source), **overrides)
    if isinstance(source, Experiment):
        if not overrides:
            return source
        source = source.cfg.to_dict()
    return Experiment.from_config(parse_config(source, overrides))


def newest_checkpoint(path: str | os.PathLike[str]) -> pathlib.Path:
    """Resolve a checkpoint folder, or a model_dir to its newest checkpoint.

    Raises:
        CheckpointError: neither.
    """
    path = pathlib.Path(path)
    if is_checkpoint(path):
        return path
    if not (path / CHECKPOINTS).is_dir():
        raise CheckpointError(
            f"{path} is neither a checkpoint (<model_dir>/checkpoints/<step>) nor a model_dir "
            "with checkpoints"
        )
    checkpoints = Checkpoints(path)
    steps = checkpoints.steps()
    if not steps:
        raise CheckpointError(f"{path / CHECKPOINTS} holds no complete checkpoint")
    return checkpoints.path(steps[-1])


def load(checkpoint: str | os.PathLike[str]) -> tuple[models.Model, Any, dict[str, Any]]:
    """Load a trained model: sparse, finalized and converted checkpoints alike.

    Args:
        checkpoint: a checkpoint folder, a model_dir (its newest checkpoint), or a Hugging Face
            folder.

    Returns:
        The model, a bundle of pure functions; its parameters, dense, pruned weights 0; and the
        record beside them: ``step``, ``config``, ..., and ``tokenizer``, the one that lies with
        the weights (``tokenizers.Tokenizer``), or None.

    Raises:
        CheckpointError: no readable checkpoint there.

    Examples:
        >>> model, params, meta = wafer.load("runs/demo")  # doctest: +SKIP
        >>> logits = model.apply(params, batch)  # doctest: +SKIP
    """
    path = pathlib.Path(checkpoint)
    if is_hf_folder(path):
        tree, record = load_hf(path)
        params = tree[PARAMS]
    else:
        path = newest_checkpoint(path)
        params, record = load_params(path)
    tokenizer = find_tokenizer(path)
    record = {**record, "tokenizer": tokenizer and load_tokenizer(tokenizer)}
    return models.build(model_section(record, path)), jax.tree.map(jnp.asarray, params), record
