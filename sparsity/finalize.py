"""Bake the zeros in: from a checkpoint with NaN at pruned positions to a plain dense one.

``python -m wafer.sparsity.finalize -i IN -o OUT`` is the script; ``wafer finalize`` reads more.
Tensors go through one or two at a time, raw ones in blocks, so memory does not grow with the
model. The output appears under its name only when it is complete.
"""

import argparse
import dataclasses
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

import numpy as np
from jaxtyping import PyTree

from wafer.models.checkpoint.checksums import ArrayRecord
from wafer.models.checkpoint.layout import (
    CONFIG,
    PARAMS,
    PRUNED,
    SPARSITY,
    STATE,
    amend_record,
    is_checkpoint,
    read_record,
    record_entry,
)
from wafer.models.checkpoint.reader import StoredTree, build_stored, find_items
from wafer.models.checkpoint.writer import require_written, write_tree
from wafer.models.errors import CheckpointError, plain
from wafer.models.files import atomic_write, remove_partials, require_contained, require_path
from wafer.models.names import preset_of
from wafer.models.registry import model_keys
from wafer.models.shown.html import table
from wafer.models.user.trust import is_user_defined, untrusted
from wafer.sparsity.stored.inference import forward_of

_BLOCK = 1 << 20  # bytes; stays in a core's cache from reading through clearing


@dataclasses.dataclass(frozen=True)
class TensorReport:
    """One tensor of a finalized checkpoint."""

    name: str  #: '/'-path in the checkpoint
    array: ArrayRecord  #: shape, dtype and checksum of the values written
    pruned: int  #: positions that held NaN

    @property
    def shape(self) -> tuple[int, ...]:
        """Dense shape."""
        return self.array.shape

    @property
    def dtype(self) -> str:
        """Numpy's name."""
        return self.array.dtype

    @property
    def sparsity(self) -> float:
        """Share of pruned positions."""
        return self.pruned / max(int(np.prod(self.shape)), 1)


@dataclasses.dataclass(frozen=True)
class Report:
    """What ``finalize`` did."""

    source: pathlib.Path  #: the checkpoint read
    target: pathlib.Path | str  #: the checkpoint written, or its address at an object store
    tensors: tuple[TensorReport, ...]  #: every tensor, by name

    @property
    def sparse(self) -> tuple[TensorReport, ...]:
        """The tensors that held NaN."""
        return tuple(t for t in self.tensors if t.pruned)

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        rows = [
            (t.name, "x".join(map(str, t.shape)), t.dtype, f"{t.sparsity:.2%}") for t in self.sparse
        ]
        return table(self.summary(), ("tensor", "shape", "dtype", "pruned"), rows)

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


def finalize(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Report:
    """Turn a sentinel checkpoint into a plain one with zeros at pruned positions.

    Args:
        source: a step's folder of an Orbax checkpoint, or a folder Orbax saved a tree to.
        target: does not exist yet; gets the same layout.

    Returns:
        What was found, per tensor.

    Raises:
        FileExistsError: ``target`` exists.
        FileNotFoundError: ``source`` does not exist.
        CheckpointError: names the tensor or file that cannot be read, or the arrays that are not
            those of the record's model; nothing is written.
    """
    source, target = pathlib.Path(source).resolve(), pathlib.Path(target).resolve()
    check_paths(source, target)
    with atomic_write(target) as partial:
        tensors = _finalize_orbax(source, partial)
    return Report(source, target, tuple(tensors))


def check_paths(source: pathlib.Path, target: pathlib.Path) -> None:
    """Refuse paths that ``finalize`` does not take, and remove what a killed one left.

    Raises:
        FileExistsError: ``target`` exists.
        FileNotFoundError: ``source`` does not exist.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists; finalize never overwrites, choose another name")
    require_path(source)
    remove_partials(target)


def dense_tensors(
    tensors: Iterable[tuple[str, np.ndarray]], reports: list[TensorReport]
) -> Iterator[tuple[str, np.ndarray]]:
    """Put 0 at every NaN.

    Args:
        tensors: (name, [...] array), one at a time.
        reports: gets one of each tensor.

    Yields:
        The same, without NaN; an array that can be written to is changed in place.
    """
    for name, stored in tensors:
        named = stored.dtype.name.startswith(("bfloat", "float"))  # ml_dtypes' among them
        floats = named or np.issubdtype(stored.dtype, np.floating)
        whole = stored.flags.writeable and stored.flags.c_contiguous
        value = stored if whole or not floats else stored.copy("C")
        pruned = clear_nan(value) if floats else 0
        reports.append(TensorReport(name, ArrayRecord.of(value), pruned))
        yield name, value


def _finalize_orbax(source: pathlib.Path, target: pathlib.Path) -> list[TensorReport]:
    require_contained(source)
    items = find_items(source)
    # A checkpoint of ours without its record is refused.
    step = source.parent if items == [source] and is_checkpoint(source.parent) else source
    record, sums = read_record(step) if step / STATE in items else ({}, None)
    computes, prefix = forward_of(record, source), f"{PARAMS}/"

    def used(name: str, leaf: PyTree) -> PyTree:
        own = name.startswith(prefix)
        return computes(name.removeprefix(prefix), leaf) if own else leaf

    known = lambda item: (sums, record) if item.name == STATE else (None, None)
    trees = {item: StoredTree(item, *known(item)) for item in items}
    if step / STATE in items:
        _require_arrays(record, source, trees[step / STATE])
    reports: dict[str, list[TensorReport]] = {}
    for item, tree in trees.items():
        place = target if item == source else target / item.name
        reports[item.name] = _convert(tree, place, used)
        if not any(report.pruned for report in reports[item.name]):
            _refuse_live_state(source, set(tree))
    if items != [source]:
        there = {item.name for item in items}
        skip = lambda folder, _: there if pathlib.Path(folder) == source else set()
        shutil.copytree(source, target, ignore=skip, dirs_exist_ok=True)
        written = {report.name: report.array.checksum for report in reports.get(STATE, [])}
        amend_record(target, (SPARSITY, PRUNED), None if sums is None else written)
    return [report for item in reports.values() for report in item]


def _require_arrays(record: Mapping[str, object], source: pathlib.Path, tree: StoredTree) -> None:
    """Compare the arrays with the record's model, unless that is code that is not trusted.

    Raises:
        CheckpointError: they are not the model's; lists them.
    """
    section = record_entry(record, source, CONFIG, "model") or {}
    inner = [section.get(key) for key in model_keys(str(section.get("name")))]
    parts = [part for part in (section, *inner) if isinstance(part, Mapping)]
    names = [str(part["name"]) for part in parts if "name" in part]
    if not section or not all(preset_of(name) or is_user_defined(name, "model") for name in names):
        return  # none, or one that another program registers
    prefix = f"{PARAMS}/"
    held = {name.removeprefix(prefix): tree.leaf(name) for name in tree if name.startswith(prefix)}
    with untrusted(source) as refused:
        try:
            build_stored(record, source, held)
        except ValueError:
            if not refused:
                raise


def _refuse_live_state(source: pathlib.Path, names: Set[str]) -> None:
    """Refuse the weights of a loop beside its sparse state: pruned ones are not NaN there.

    Raises:
        CheckpointError: says what to save instead.
    """
    for name in names:
        folder, field = name[: -len("targets")], name[-len("targets") :]
        if field != "targets" or not names >= {f"{folder}step", f"{folder}indices"}:
            continue
        held = [n for n in names if n.startswith((f"{folder}masks/", f"{folder}patterns/"))]
        if held:
            raise CheckpointError(
                f"{source}: holds a sparse state ({folder.rstrip('/') or 'its masks'}) and weights "
                "as a loop has them; expected NaN at pruned positions. Save what sparsity.encode("
                "params, opt_state, sparse) returns, and finalize that"
            )


def _convert(
    tree: StoredTree, target: pathlib.Path, computes: Callable[[str, PyTree], PyTree]
) -> list[TensorReport]:
    """Write an item's arrays without NaN, and compare what was written with the source."""
    reports: list[TensorReport] = []

    def arrays() -> Iterator[tuple[str, np.ndarray | None]]:
        for name in tree:
            stored = tree.read(name)
            used = computes(name, stored)
            for _, value in dense_tensors([(name, np.asarray(used))], reports):
                yield name, value if reports[-1].pruned or used is not stored else None

    write_tree(tree, target, arrays())
    require_written(target, {report.name: report.array for report in reports})
    return reports


def clear_nan(array: np.ndarray) -> int:
    """Put 0 at every NaN of a C-contiguous float array, in place; return how many there were."""
    flat = array.reshape(-1)
    bits, is_bfloat16 = flat.view(f"u{flat.itemsize}"), flat.dtype.name == "bfloat16"
    step = _BLOCK // flat.itemsize
    pruned = 0
    for start in range(0, flat.size, step):
        block, values = bits[start : start + step], flat[start : start + step]
        # numpy walks bfloat16 element by element
        numbers = (block & 0x7FFF) <= 0x7F80 if is_bfloat16 else np.equal(values, values)
        count = block.size - int(np.count_nonzero(numbers))
        if count:
            np.multiply(block, numbers, out=block)  # a quarter of the time of a masked assignment
            pruned += count
    return pruned


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="finalize", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-i", "--input", required=True, help="checkpoint folder")
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
