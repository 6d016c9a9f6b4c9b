"""Bake the zeros in: from a checkpoint with NaN at pruned positions to a plain dense one.

``python -m sparsity.finalize -i IN -o OUT`` reads an Orbax checkpoint (a step's folder) or the
vendor's ``.mdl`` file. Tensors go through one or two at a time, raw ones in blocks, so memory does
not grow with the model. The output appears under its name only when it is complete.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import logging
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import h5py
import numpy as np

from models.base import Model
from models.checkpoint.checksums import checksum
from models.checkpoint.layout import SPARSITY, STATE, amend_record, is_checkpoint, read_record
from models.checkpoint.reader import StoredTree, find_items
from models.checkpoint.writer import TreeWriter, write_arrays, write_params
from models.convert.vendor.weights import open_cs
from models.counts import abstract_params
from models.errors import CheckpointError, plain
from models.files import appearing_whole, remove_partials
from models.paths import named_leaves
from models.registry import settings_of
from models.vendor.mdl import MdlFile
from sparsity.rawcopy import clear_nan, copy_cleared, find_spans, is_float

__all__ = ["Report", "TensorReport", "finalize", "main"]

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TensorReport:
    """What was found in one tensor.

    Attributes:
        name: '/'-path in the checkpoint.
        shape: dense shape.
        dtype: numpy name.
        pruned: positions that held NaN.
        checksum: of the values written, where the source has checksums.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    pruned: int
    checksum: str = ""

    @property
    def sparsity(self) -> float:
        """Share of pruned positions."""
        return self.pruned / max(int(np.prod(self.shape)), 1)


@dataclasses.dataclass(frozen=True)
class Report:
    """What ``finalize`` did.

    Attributes:
        source: the checkpoint read.
        target: the checkpoint written.
        tensors: every tensor, by name.
    """

    source: pathlib.Path
    target: pathlib.Path
    tensors: tuple[TensorReport, ...]

    @property
    def sparse(self) -> tuple[TensorReport, ...]:
        """The tensors that held NaN."""
        return tuple(t for t in self.tensors if t.pruned)

    def lines(self) -> Iterator[str]:
        """Yield the report as text: one line per sparse tensor, then the summary."""
        width = max((len(t.name) for t in self.sparse), default=0)
        for t in self.sparse:
            shape = "x".join(map(str, t.shape))
            yield f"{t.name:<{width}}  {shape:>14}  {t.dtype:<9} {t.sparsity:7.2%} pruned"
        yield self.summary()

    def summary(self) -> str:
        """How much was pruned, in one line."""
        pruned = sum(t.pruned for t in self.sparse)
        levels = [t.sparsity for t in self.sparse]
        span = f" ({min(levels):.1%} to {max(levels):.1%} of each)" if levels else ""
        return (
            f"{len(self.sparse)} of {len(self.tensors)} tensors were sparse{span}; {pruned:,} NaN "
            f"became 0 in {self.target}"
        )


def finalize(
    source: str | os.PathLike[str], target: str | os.PathLike[str], model: Model | None = None
) -> Report:
    """Turn a sentinel checkpoint into a plain one with zeros at pruned positions.

    Args:
        source: a step's folder of an Orbax checkpoint, a folder Orbax saved a tree to, or a
            vendor ``.mdl`` file (read by names and tensors only, nothing in it is executed).
        target: does not exist yet; gets the same layout. From ``.mdl``: a ``.mdl`` of the same
            release where the name ends so, else an Orbax checkpoint.
        model: whose parameters a ``.mdl`` holds, so that the checkpoint is one that runs start
            from; None keeps the tensors under their own names, '.' as tree levels.

    Returns:
        What was found, per tensor.

    Raises:
        FileExistsError: ``target`` exists.
        FileNotFoundError: ``source`` does not exist.
        CheckpointError: names the tensor or file that cannot be read; nothing is written.
        ValueError: a ``.mdl`` is asked for from something else, or does not hold ``model``.
    """
    source, target = pathlib.Path(source).resolve(), pathlib.Path(target).resolve()
    if target.exists():
        raise FileExistsError(f"{target} exists; finalize never overwrites, choose another name")
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist")
    remove_partials(target)
    to_mdl = target.suffix == ".mdl"
    if to_mdl and not source.is_file():
        raise ValueError(f"{target.name}: only a .mdl becomes a .mdl; {source} is a folder")
    if model is not None and (to_mdl or not source.is_file()):
        raise ValueError(f"{target}: a model is named to make a checkpoint of a .mdl alone")
    as_model = None if model is None else functools.partial(_as_model, model)
    read_mdl = as_model or (_clear_mdl if to_mdl else _finalize_mdl)
    with appearing_whole(target) as partial:
        tensors = (read_mdl if source.is_file() else _finalize_orbax)(source, partial)
    return Report(source, target, tuple(tensors))


def _finalize_orbax(source: pathlib.Path, target: pathlib.Path) -> list[TensorReport]:
    items = find_items(source)
    sums = _sums_of(source, items)
    reports: list[TensorReport] = []
    for item in items:
        place = target if item == source else target / item.name
        reports += _convert(StoredTree(item, sums if item.name == STATE else None), place)
    if items != [source]:
        _copy_rest(source, target, items)
        written = {report.name: report.checksum for report in reports if report.checksum}
        amend_record(target, SPARSITY, None if sums is None else written)
    return reports


def _sums_of(source: pathlib.Path, items: list[pathlib.Path]) -> dict[str, str] | None:
    """What the record says of the arrays; refuses a checkpoint of ours without its record."""
    step = source.parent if items == [source] and is_checkpoint(source.parent) else source
    return read_record(step)[1] if step / STATE in items else None


def _convert(tree: StoredTree, target: pathlib.Path) -> list[TensorReport]:
    raw = find_spans(tree) if tree.sums is None else None  # ours are compressed
    if raw is None:
        return _decode_and_write(tree, target)
    spans, small = raw
    pruned = copy_cleared(tree, target, spans)
    writer = TreeWriter(tree, target)
    for name in small:  # inside the index, which is compressed
        value = tree.read(name).copy()
        pruned[name] = clear_nan(value)
        if pruned[name]:
            writer.write(name, value, anew=False)
    writer.commit()
    arrays = {name: tree.open(name) for name in tree}
    return [
        TensorReport(name, tuple(x.shape), x.dtype.numpy_dtype.name, pruned.get(name, 0))
        for name, x in arrays.items()
    ]


def _decode_and_write(tree: StoredTree, target: pathlib.Path) -> list[TensorReport]:
    """Convert arrays that are stored compressed."""
    writer = TreeWriter(tree, target)
    writer.copy_structure()

    def write(name: str, value: np.ndarray, pruned: int) -> None:
        if pruned:
            writer.write(name, value)
        else:
            writer.copy(name)

    reports = _stream(tree, write)
    writer.commit()
    return reports


def _stream(tree: StoredTree, write: Callable[[str, np.ndarray, int], None]) -> list[TensorReport]:
    """Read, clear and write tensors, two at a time, so that both cores have work."""

    def one(name: str) -> TensorReport:
        value = tree.read(name)
        if is_float(value.dtype) and not value.flags.writeable:
            value = value.copy()
        pruned = clear_nan(value) if is_float(value.dtype) else 0
        write(name, value, pruned)
        tensor = TensorReport(name, tuple(value.shape), value.dtype.name, pruned)
        if tree.sums is None:
            return tensor
        return dataclasses.replace(tensor, checksum=checksum(value) if pruned else tree.sums[name])

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, tree))


def _copy_rest(source: pathlib.Path, target: pathlib.Path, items: list[pathlib.Path]) -> None:
    """Copy what is no item of the step."""
    there = {item.name for item in items}
    skip = lambda folder, _: there if pathlib.Path(folder) == source else set()
    shutil.copytree(source, target, ignore=skip, dirs_exist_ok=True)


def _finalize_mdl(source: pathlib.Path, target: pathlib.Path) -> list[TensorReport]:
    reports: list[TensorReport] = []
    with MdlFile(source) as stored:

        def tensors() -> Iterator[tuple[str, np.ndarray]]:
            for name in stored:
                value = stored.read(name)
                pruned = clear_nan(value) if is_float(value.dtype) else 0
                path = name.replace(".", "/")
                reports.append(TensorReport(path, value.shape, value.dtype.name, pruned))
                yield path, value

        names = [name.replace(".", "/") for name in stored]
        write_arrays(target, names, tensors(), {"converted_from": "mdl"})
    return reports


def _as_model(model: Model, source: pathlib.Path, target: pathlib.Path) -> list[TensorReport]:
    """Write the parameters of a model under its names."""
    reports: list[TensorReport] = []

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        for name, value in stored:
            dense = np.array(value, order="C")
            pruned = clear_nan(dense) if is_float(dense.dtype) else 0
            reports.append(TensorReport(name, dense.shape, dense.dtype.name, pruned))
            yield name, dense

    stored = open_cs(source, model)
    names = [name for name, _ in named_leaves(abstract_params(model))]
    write_params(target, settings_of(model.config), names, tensors())
    return reports


def _clear_mdl(source: pathlib.Path, target: pathlib.Path) -> list[TensorReport]:
    """Copy the vendor's file and clear it in place: all else of it stays, byte for byte."""
    reports: list[TensorReport] = []
    with MdlFile(source) as stored:
        shutil.copyfile(source, target)
        with h5py.File(target, "r+") as file:
            for name in stored:
                value = stored.read(name)
                pruned = clear_nan(value) if is_float(value.dtype) else 0
                reports.append(TensorReport(name, value.shape, value.dtype.name, pruned))
                if pruned:
                    dataset: Any = file[stored.dataset(name)]
                    dataset[...] = value.view(dataset.dtype)  # bfloat16 is stored as integers
    return reports


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="finalize", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-i", "--input", required=True, help="checkpoint folder or .mdl file")
    parser.add_argument("-o", "--output", required=True, help="must not exist")
    args = parser.parse_args(argv)
    try:
        report = finalize(args.input, args.output)
    except (CheckpointError, OSError, ValueError) as error:
        sys.stderr.write(plain(f"finalize: {error}\n"))
        return 1
    sys.stdout.write("\n".join(report.lines()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
