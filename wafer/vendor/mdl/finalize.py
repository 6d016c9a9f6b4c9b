"""Bake the zeros into a ``.mdl``: to a file of the same release, or to a checkpoint of ours."""

import pathlib
import shutil
from typing import Any

import h5py

from wafer.models.base import Model
from wafer.models.checkpoint.checksums import ArrayRecord
from wafer.models.checkpoint.writer import write_arrays, write_params
from wafer.models.counts import abstract_params
from wafer.models.errors import CheckpointError
from wafer.models.files import atomic_write
from wafer.models.paths import named_leaves
from wafer.models.registry import settings_of
from wafer.sparsity.finalize import Report, TensorReport, check_paths, dense_tensors
from wafer.vendor.mdl.file import MdlFile
from wafer.vendor.mdl.weights import open_weights, read_weight


def finalize_mdl(source: pathlib.Path, target: pathlib.Path, model: Model | None = None) -> Report:
    """Turn a sentinel checkpoint into a plain one with zeros at pruned positions.

    Args:
        source: the ``.mdl``; read by names and tensors only, nothing in it is executed.
        target: does not exist yet; a ``.mdl`` of the same release where the name ends so, else an
            Orbax checkpoint.
        model: whose parameters the file holds, so that the checkpoint is one that runs start
            from; None keeps the tensors under their own names, '.' as tree levels.

    Returns:
        What was found, per tensor.

    Raises:
        FileExistsError: ``target`` exists.
        FileNotFoundError: ``source`` does not exist.
        CheckpointError: names the tensor or file that cannot be read; nothing is written.
        ValueError: it does not hold ``model``.
    """
    source, target = source.resolve(), target.resolve()
    check_paths(source, target)
    reports: list[TensorReport] = []
    with MdlFile(source) as file, atomic_write(target) as partial:
        if model is not None:
            names = [name for name, _ in named_leaves(abstract_params(model))]
            arrays = dense_tensors(open_weights(file, model), reports)
            write_params(partial, settings_of(model.config), names, arrays)
        elif target.suffix == ".mdl":
            _clear(file, partial, reports)
        else:
            stored = {name.replace(".", "/"): name for name in file}
            tensors = ((name, read_weight(file, own)) for name, own in stored.items())
            arrays = dense_tensors(tensors, reports)
            write_arrays(partial, list(stored), arrays, {"converted_from": "mdl"})
    return Report(source, target, tuple(reports))


def _clear(stored: MdlFile, target: pathlib.Path, reports: list[TensorReport]) -> None:
    """Copy the file and clear it in place: all else of it stays, byte for byte."""
    shutil.copyfile(stored.path, target)
    tensors = ((name, read_weight(stored, name)) for name in stored)
    with h5py.File(target, "r+") as file:
        for name, value in dense_tensors(tensors, reports):
            if reports[-1].pruned:
                dataset: Any = file[stored.dataset(name)]
                dataset[...] = value.view(dataset.dtype)  # bfloat16 is stored as integers
    with MdlFile(target) as written:
        wrong = [r.name for r in reports if ArrayRecord.of(written[r.name]) != r.array]
    if wrong:
        raise CheckpointError(f"{target}: tensors read back are not what was written: {wrong[:20]}")
