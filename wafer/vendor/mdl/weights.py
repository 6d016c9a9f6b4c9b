"""Weights of ``.mdl`` files; between releases no tensor changes its values, axes or dtype."""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from wafer import vsl
from wafer.models.base import Model
from wafer.models.checkpoint.lazy import LazyArray
from wafer.models.checkpoint.pruned import check_weight
from wafer.models.convert.codecs import SAME, TRANSPOSED, trailing_one
from wafer.models.convert.engine import Table, TensorRow, export_tensors, import_tensors, source
from wafer.models.convert.standard import in_pairs
from wafer.models.errors import CheckpointError
from wafer.models.names import lookup
from wafer.models.paths import Params, named_leaves
from wafer.models.registry import build
from wafer.vendor.mdl.file import MdlFile
from wafer.vendor.mdl.writer import Link, Tree, write_mdl
from wafer.vendor.tensors import (
    FAMILIES,
    IGNORED,
    in_order_of_registration,
    second_names,
    tensor_names,
)

Release = tuple[int, int]
FORMATS: dict[str, Release] = {
    f"cs-{major}.{minor}": (major, minor)
    for major, minors in ((1, range(6, 10)), (2, range(11)))
    for minor in minors
}
_FIRST_WRITTEN: Release = (2, 5)  # earlier ones read a pickle beside the tensors
# From this release experts are modules of their own; before, one tensor held all of a layer.
_SINGLE_EXPERTS: Release = (2, 6)
_EXPERT = re.compile(r"moe/experts_(\d+)/")
_CODECS = {"kernel": TRANSPOSED, "slopes": trailing_one()}  # of the last part of our names
_SLOPES = "embedding_layer.position_embed_helper.slopes"


@dataclasses.dataclass(frozen=True)
class _Experts:
    """All experts' matrices as one, [out, experts, in]; ours are [in, out]."""

    def foreign_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        return (shapes[0][-1], len(shapes), *(shapes[0][:-1] or (1,)))

    def to_ours(
        self, tensor: np.ndarray, shapes: Sequence[tuple[int, ...]]
    ) -> tuple[np.ndarray, ...]:
        return tuple(tensor[:, e].T.reshape(shape) for e, shape in enumerate(shapes))

    def to_foreign(self, tensors: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack([x.reshape(-1, x.shape[-1]).T for x in tensors], axis=1)


def mdl_table(model: Model, *, fused: bool) -> Table:
    """Build the key table of a model.

    Args:
        model: of a family that has names in these files.
        fused: one tensor holds all experts of a layer.

    Raises:
        ValueError: another family.
    """
    if lookup(model.config.name).family not in FAMILIES:
        raise ValueError(
            f"model {model.config.name!r} does not convert to or from .mdl; the families that do: "
            f"{sorted(FAMILIES)}"
        )
    spellings: dict[str, list[str]] = {}
    held: dict[str, list[str]] = {}  # tensor -> parameters
    for path, names in tensor_names(model).items():
        of_experts = [name for name in names if "fused_ffns" in name]
        single = re.sub(r"(experts\.experts\.\d+)\.ffn\.", r"\1.", names[0])
        name = of_experts[0] if fused and of_experts else single
        spellings[name] = [n for n in names if n not in of_experts]
        held.setdefault(name, []).append(path)
    seconds = second_names(model.config, held)
    for second, name in seconds.items():
        spellings[name].append(second)
    rows = []
    for name, paths in held.items():
        if "fused_ffns" in name:
            by_number = sorted(paths, key=lambda path: int(_EXPERT.findall(path)[0]))
            rows.append(TensorRow(name, tuple(by_number), _Experts()))
        else:
            codec = _CODECS.get(paths[0].rpartition("/")[2], SAME)
            rows.append(TensorRow(name, (paths[0],), codec))
    return Table(rows, [*IGNORED, *map(re.escape, seconds)], spellings.__getitem__)


def read_weight(file: MdlFile, name: str) -> np.ndarray:
    """Read a tensor of a ``.mdl``; one of the model has no infinity.

    Raises:
        CheckpointError: names the tensor.
    """
    value = file[name]
    return check_weight(file.path, name, value, None) if name.startswith("model.") else value


class _State:
    """The ``model`` section of a file as named tensors; positions that a mask prunes are NaN."""

    def __init__(self, file: MdlFile) -> None:
        self._file = file
        self._where = {
            name.removeprefix("model.").removeprefix("model."): name
            for name in file
            if name.startswith("model.")
        }
        # Releases 2.0 and 2.1 keep masks with the optimizer, 2.2 and later beside the weight.
        self._masks = {name: f"{full}_mask" for name, full in self._where.items()}
        for full in file:
            if match := re.fullmatch(r"optimizer\.sparsity\.state\.(?:model\.)?(.+)\.mask", full):
                self._masks[match[1]] = full

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __contains__(self, name: object, /) -> bool:
        return name in self._where

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.shape(self._where[name])

    def __getitem__(self, name: str, /) -> np.ndarray:
        value = read_weight(self._file, self._where[name])
        mask = self._masks[name]
        if mask not in self._file:
            return value
        kept = self._file[mask].astype(bool)
        check_weight(self._file.path, name, np.where(kept, value, 0), ())
        return np.where(kept, value, np.asarray(np.nan, value.dtype))


def _opened(model: Model, file: MdlFile) -> tuple[_State, Table]:
    state = _State(file)
    return state, mdl_table(model, fused=any("fused_ffns" in name for name in state))


def numbered_tensors(model: Model, file: MdlFile) -> dict[str, TensorRow]:
    """Map the name that each tensor of the model has in a file to its row, in the file's order.

    Rows that the file has no tensor for are absent.
    """
    state, table = _opened(model, file)
    rows = {name: row for row in table.rows if (name := source(row, table, state)) is not None}
    listed = [key.removeprefix("model.") for key in file.model_keys]
    order = listed if set(rows) <= set(listed) else in_order_of_registration(rows)
    return {name: rows[name] for name in order if name in rows}


def open_weights(
    file: MdlFile, model: Model, *, drop_unmatched: bool = False
) -> Iterator[tuple[str, np.ndarray]]:
    """Iterate over the weights of a ``.mdl`` of any release: (parameter path, array).

    Names and shapes are checked before this returns.

    Args:
        file: open until all are read; which release wrote it is told from its names.
        model: that it holds.
        drop_unmatched: ignore tensors that the model does not have.

    Raises:
        CheckpointError: a damaged file.
        ValueError: tensors that do not fit; all complaints in one message.
    """
    try:
        state, table = _opened(model, file)
        return import_tensors(model, table, state, drop_unmatched=drop_unmatched)
    except ValueError as error:
        raise ValueError(f"{file.path}: {error}") from None


def check_mdl(path: Path, model: Model) -> None:
    """Compare names and shapes of a ``.mdl`` with a model; values are not read.

    Raises:
        CheckpointError: a damaged file, or another model.
    """
    with MdlFile(path) as file:
        try:
            open_weights(file, model)
        except ValueError as error:
            raise CheckpointError(str(error)) from error


def writable(format_: str) -> Release:
    """Return the release of a format that is written.

    Raises:
        ValueError: its reader opens pickles only.
    """
    release = FORMATS[format_]
    if release < _FIRST_WRITTEN:
        raise ValueError(
            f"--tgt-fmt {format_}: releases before 2.5 load files with a pickle inside, which is "
            "not written here; ask for cs-2.5 or later"
        )
    return release


def write_weights(
    model: Model,
    params: Params,
    path: str | Path,
    format_: str,
    *,
    step: int = 0,
    training: Mapping[str, Tree] = MappingProxyType({}),
    pruned: Collection[str] = (),
) -> None:
    """Write a ``.mdl`` of weights.

    Args:
        model: of ``params``.
        params: dense parameters, a tree or path -> array; may read themselves.
        path: of the file.
        format_: 'cs-X.Y', 2.5 or later.
        step: the global step.
        training: further sections, such as ``optimizer``; see ``sections``.
        pruned: names of the parameters whose NaN mark pruned weights; these become 0.

    Raises:
        ContentError: an infinity, or a NaN that marks no pruned weight; names the parameter.
        ValueError: a family or a release that is not written.
    """
    version = ".".join(map(str, (*writable(format_), 0)))
    leaves = dict(named_leaves(params))
    positions = getattr(model.config, "position_embedding_type", "")
    if positions == "fixed":
        raise ValueError(
            f"model {model.config.name!r}: a .mdl holds the table of fixed positions, which is not "
            "written"
        )
    tensors = export_weights(model, leaves, format_, pruned)
    if positions == "alibi" and "position/slopes" not in leaves:
        slopes = np.asarray(vsl.alibi_slopes(model.config.num_heads), np.float32)[:, None]
        tensors[_SLOPES] = LazyArray(slopes.shape, slopes.dtype, lambda: slopes)
    state: dict[str, Tree] = {f"model.{name}": tensor for name, tensor in tensors.items()}
    for other, first in second_names(model.config, tensors).items():
        state[f"model.{other}"] = Link(f"model.model.{first}")
    metadata = {"version": version, "model_name": model.config.name, "params": {}}
    tree = {"model": state, **training, "global_step": step, "__metadata__": [metadata]}
    write_mdl(Path(path), tree, version=version)


def written_rows(model: Model, format_: str) -> list[TensorRow]:
    """List the tensors that a release has for a model, in its order."""
    table = mdl_table(model, fused=FORMATS[format_] < _SINGLE_EXPERTS)
    rows = {row.foreign: row for row in table.rows}
    return [rows[name] for name in in_order_of_registration(rows)]


def export_weights(
    model: Model, leaves: Params, format_: str, pruned: Collection[str] | None
) -> dict[str, LazyArray]:
    """Map a release's names to tensors that hold the leaves, in its order; they are read late.

    Args:
        model: of ``leaves``.
        leaves: weights, or moments of their shapes, by parameter path.
        format_: 'cs-X.Y'.
        pruned: as ``export_tensors`` takes it.
    """
    cfg, ordered = in_pairs(model.config, leaves)
    table = Table(written_rows(model, format_))
    tensors = export_tensors(build(cfg), table, ordered, pruned=pruned)
    return {tensor.name: tensor for tensor in tensors}
