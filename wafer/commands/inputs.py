"""What the public functions begin with: an experiment, and a checkpoint with its model."""

import math
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from wafer import models
from wafer.config import parse_config
from wafer.config.loader import model_section_of
from wafer.config.newfile import Start
from wafer.data.text.tokenizer import load_tokenizer
from wafer.errors import errors_of_file
from wafer.experiment import Experiment
from wafer.models.checkpoint.layout import PARAMS, complete_checkpoints, model_section, read_record
from wafer.models.checkpoint.pruned import masks_of
from wafer.models.checkpoint.reader import build_stored, load_params, open_params
from wafer.models.checkpoint.stores import local_path
from wafer.models.checkpoint.verify import checkpoints_in
from wafer.models.convert.api import open_hf, section_from_hf
from wafer.models.convert.tokenizer import find_tokenizer
from wafer.models.errors import CheckpointError
from wafer.models.paths import Params, map_named, named_leaves
from wafer.models.user.flags import own_flags
from wafer.models.user.trust import NamedCode, code_in, looking, trusting, untrusted
from wafer.session.foreign import is_hf_folder, load_hf
from wafer.session.masks import section_that_keeps
from wafer.sparsity import decoding
from wafer.sparsity.kernels import native
from wafer.sparsity.stored.inference import forward_of

KERNELS = ("auto", "csr", "dense")
DTYPES = ("float32", "bfloat16", "int8")
Source = Experiment | str | os.PathLike[str] | Mapping[str, Any]


def experiment_of(source: Source, **overrides: object) -> Experiment:
    """Make an experiment of whatever a user has.

    Args:
        source: an Experiment, the path of a params YAML, or its sections as a mapping.
        **overrides: keys of ``runconfig`` that win over the source's.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    paths = {key: os.fspath(v) for key, v in overrides.items() if isinstance(v, os.PathLike)}
    overrides |= paths
    if isinstance(source, str | os.PathLike):
        with errors_of_file(source):
            return Experiment.from_yaml(pathlib.Path(source), **overrides)
    if isinstance(source, Experiment):
        if not overrides:
            return source
        source = source.cfg.to_dict()
    return Experiment.from_config(parse_config(source, overrides))


def look_at(source: Source, *, trust_code: bool = False, **overrides: object) -> Experiment:
    """Make an experiment as ``experiment_of`` does, for a command that runs nothing.

    Args:
        source: as there; what an Experiment names was imported to make it.
        trust_code: import what the source names.
        **overrides: as there.

    Raises:
        ConfigError: everything that is wrong with it, or it names code that is not trusted.
    """
    known = code_of(source) if isinstance(source, Experiment) else ()
    with trusting(known, trust_code=trust_code), looking():
        return experiment_of(source, **overrides)


def newest_checkpoint(path: str | os.PathLike[str]) -> pathlib.Path:
    """Resolve a checkpoint folder, or a model_dir to its newest complete checkpoint.

    Raises:
        CheckpointError: neither.
    """
    complete = complete_checkpoints(checkpoints_in(local_path(path)))
    if not complete:
        raise CheckpointError(
            f"{path} has no complete checkpoint; expected one with state and meta"
        )
    return complete[-1]


def code_of(source: Source) -> frozenset[NamedCode]:
    """Collect the code that a run file names, which a checkpoint of the same command may name."""
    return code_in(experiment_of(source).cfg.to_dict())


@own_flags()
def load(
    checkpoint: str | os.PathLike[str], *, trust_code: bool = False
) -> tuple[models.Model, Params, dict[str, Any]]:
    """Load a trained model: sparse, finalized and converted checkpoints alike.

    Args:
        checkpoint: a checkpoint folder, a model_dir (its newest checkpoint), or a Hugging Face
            folder.
        trust_code: import code that the checkpoint names, such as a model of your own. It may do
            anything.

    Returns:
        The model, a bundle of pure functions; its parameters as it computes with them, dense,
        pruned weights 0; and the record beside them: ``step``, ``config``, ..., and
        ``tokenizer``, the one that lies with the weights (``tokenizers.Tokenizer``), or None.

    Raises:
        CheckpointError: no readable checkpoint there.
        ValueError: it names code, and ``trust_code`` is False.

    Examples:
        >>> model, params, meta = wafer.load("runs/demo")  # doctest: +SKIP
        >>> logits = model.apply(params, batch)  # doctest: +SKIP
    """
    path = local_path(checkpoint)
    if is_hf_folder(path):
        tree, record = load_hf(path)
        params = tree[PARAMS]
    else:
        path = newest_checkpoint(path)
        params, record = load_params(path)
    with trusting(trust_code=trust_code):
        model, computes = build_stored(record, path, params), forward_of(record, path)
    params = map_named(lambda name, leaf: jnp.asarray(np.asarray(computes(name, leaf))), params)
    tokenizer = find_tokenizer(path)
    return model, params, {**record, "tokenizer": tokenizer and load_tokenizer(tokenizer)}


@own_flags()
def load_decoding(
    checkpoint: str | os.PathLike[str], kernels: str = "auto", dtype: str = "float32"
) -> tuple[models.Model, Params, str]:
    """Load a model to generate with.

    Args:
        checkpoint: as ``load`` takes it.
        kernels: "csr" multiplies by kept values, read tensor by tensor with no dense copy of the
            model; "dense" by all; "auto" is "csr" for a pruned decoder on a CPU.
        dtype: of the weights that csr kernels read, "float32", "bfloat16" or "int8".

    Returns:
        The model, its parameters, and which kernels multiply by them, in words.

    Raises:
        CheckpointError: no readable checkpoint there.
        ValueError: kernels that this model, checkpoint or machine has not.
    """
    for name, value, known in (("kernels", kernels, KERNELS), ("dtype", dtype, DTYPES)):
        if value not in known:
            raise ValueError(f"{name}: {value!r}; choose {' or '.join(known)}")
    why = "you asked for dense ones" if kernels == "dense" else None
    if why is None:
        path = weights_folder(checkpoint)
        model, leaves = _stored(path)
        why = decoding.problem(model)
        if why is None:
            converted = decoding.convert(model, leaves, jnp.dtype(dtype))
            if converted.sparse:
                described = (
                    f"csr kernels ({converted.sparse} of {converted.kernels} weights, "
                    f"{100 * converted.zeros:.1f} % zeros, {dtype}, {native.target()}, "
                    f"{converted.nbytes / 1e6:.1f} MB a step)"
                )
                return model, converted.params, described
            why = f"no kernel of {path} is pruned by a quarter or more"
            if (kernels, dtype) == ("auto", "float32"):
                return model, converted.params, "dense kernels"
    if kernels == "csr":
        raise ValueError(f"kernels: csr does not serve here: {why}; take dense or auto")
    if dtype != "float32":
        raise ValueError(f"dtype: {dtype} is for csr kernels, and these are dense: {why}")
    model, params, _ = load(checkpoint)
    return model, params, "dense kernels"


def weights_folder(checkpoint: str | os.PathLike[str]) -> pathlib.Path:
    """Resolve what ``load`` takes to the folder that holds the weights.

    Raises:
        CheckpointError: no readable checkpoint there.
    """
    path = local_path(checkpoint)
    return path if is_hf_folder(path) else newest_checkpoint(path)


def stored_config(path: pathlib.Path, note: str) -> Any:
    """Read the configuration of a model; neither weights nor other sections are looked at.

    Args:
        path: of ``weights_folder``.
        note: for the refusal of code.

    Raises:
        ValueError: it names no model, or code that the user does not trust.
    """
    if is_hf_folder(path):
        try:
            return models.registry.parse_config(section_from_hf(path))
        except ValueError as error:
            raise CheckpointError(f"{path}: {error}") from error
    with untrusted(path, note):
        return models.registry.parse_config(model_section(read_record(path)[0], path))


def _stored(path: pathlib.Path) -> tuple[models.Model, Iterator[tuple[str, Any]]]:
    """Open the model of a folder: its tensors by name, not yet read where they can be so."""
    if is_hf_folder(path):
        tree, record = load_hf(path)
        return build_stored(record, path), iter(named_leaves(tree[PARAMS]))
    record, stored = open_params(path)
    model, computes = build_stored(record, path, stored), forward_of(record, path)
    return model, ((name, computes(name, leaf)) for name, leaf in stored.items())


def stored_form(
    checkpoint: str | os.PathLike[str],
) -> tuple[dict[str, np.dtype], dict[str, jnp.ndarray]]:
    """Return how a checkpoint holds its weights.

    Args:
        checkpoint: as ``load`` takes it.

    Returns:
        (name -> dtype; name -> mask, bool, true where kept, of the weights that are pruned).
    """
    path = weights_folder(checkpoint)
    if is_hf_folder(path):
        return {name: leaf.dtype for name, leaf in open_hf(path, dtype=None)[1]}, {}
    leaves = {name: np.asarray(leaf) for name, leaf in open_params(path)[1].items()}
    return {name: leaf.dtype for name, leaf in leaves.items()}, masks_of(leaves)


def start_of(checkpoint: str | os.PathLike[str]) -> Start:
    """Describe a checkpoint for a run file that fine-tunes it; weights are read one by one.

    Args:
        checkpoint: as ``load`` takes it.

    Raises:
        CheckpointError: no readable checkpoint there.
    """
    path = weights_folder(checkpoint)
    model, leaves = _stored(path)
    masked: dict[str, tuple[int, int]] = {}
    for name, leaf in leaves:
        pruned = int(np.isnan(np.asarray(leaf, np.float32)).sum())
        if pruned:
            masked[name] = pruned, math.prod(leaf.shape)
    section = section_that_keeps(masked, model) if masked else None
    return Start(path, model_section_of(model.config), section)
