"""The vendor's checkpoints of every release: their names of our parameters, both ways.

Names are those of release 2.1 and later, which ``models.alias`` has; a table says what was called
otherwise before. Between releases no tensor changes its values, axes or dtype.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import PyTree
from numpy.typing import DTypeLike

from wafer import vsl
from wafer.models.base import Model
from wafer.models.checkpoint.pruned import check_weight
from wafer.models.convert.codecs import SAME, TRANSPOSED, trailing_one
from wafer.models.convert.engine import Row, Table, export_tensors, import_tensors, source
from wafer.models.convert.standard import in_pairs
from wafer.models.counts import abstract_params
from wafer.models.errors import SectionError
from wafer.models.lazy import LazyArray
from wafer.models.names import lookup
from wafer.models.paths import named_leaves
from wafer.models.registry import build
from wafer.models.user.yamlfile import read_yaml
from wafer.models.vendor.mdl import MdlFile
from wafer.models.vendor.older import IGNORED_IN_16, names_of_16
from wafer.models.vendor.order import in_order_of_registration
from wafer.models.vendor.writer import Link, Tree, write_mdl

Release = tuple[int, int]
FORMATS: dict[str, Release] = {
    f"cs-{major}.{minor}": (major, minor)
    for major, minors in ((1, range(6, 10)), (2, range(11)))
    for minor in minors
}
_FIRST_WRITTEN: Release = (2, 5)  # earlier ones read a pickle beside the tensors

# (the first release that has the name, the name, what it was called before)
_RENAMED: tuple[tuple[Release, str, str], ...] = (
    ((2, 1), r"position_embeddings\.embed\.weight$", "position_embeddings.weight"),
    (
        (2, 1),
        r"^(encoder|decoder)_embeddings\.position_embed_helper\.",
        r"relative_position_\1.",
    ),
    ((2, 1), r"^embedding_layer\.position_embed_helper\.", "relative_pe_helper."),
)
# From this release experts are modules of their own; before, one tensor held all of a layer.
_SINGLE_EXPERTS: Release = (2, 6)
_EXPERT = re.compile(r"moe/experts_(\d+)/")
FAMILIES = {"decoder", "encoder", "seq2seq"}
# Second names of a tensor: what it is called in the table, and where else it hangs.
_SECOND: dict[str, tuple[tuple[str, str], ...]] = {
    "decoder": (
        (r"^ln_f\.(weight|bias)$", r"transformer_decoder.norm.\1"),
        (r"^embedding_layer\.word_embeddings\.weight$", "lm_head.weight"),
    ),
    "encoder": (
        (
            r"^bert_encoder\.embedding_layer\.word_embeddings\.weight$",
            "bert_mlm_head.classifier.ffn.0.linear_layer.weight",
        ),
    ),
    "seq2seq": (
        (
            r"^encoder_embeddings\.word_embeddings\.weight$",
            "decoder_embeddings.word_embeddings.weight",
        ),
        (r"^encoder_embeddings\.word_embeddings\.weight$", "lm_head.weight"),
    ),
}
_CODECS = {"kernel": TRANSPOSED, "slopes": trailing_one()}  # of the last part of our names
_SLOPES = "embedding_layer.position_embed_helper.slopes"
_COMPUTED = (  # tables that our models compute
    r".*position_embeddings(\.fpe)?",
    r".*\.slopes",
)


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


def _names(model: Model) -> dict[str, str]:
    """Map our parameters to the vendor's names (2.1 and later), without the wrapper's prefix."""
    ours = [name for name, _ in named_leaves(abstract_params(model))]
    theirs = {name: model.alias(name).removeprefix("model.") for name in ours}
    if any(name.startswith("mlm_") for name in ours):
        return theirs
    return {name: re.sub(r"^bert_encoder\.", "bert.", other) for name, other in theirs.items()}


def _table(model: Model, *, fused: bool) -> Table:
    """Build the key table of a model; ``fused`` experts lie in one tensor."""
    names = _names(model)
    stacks: dict[str, list[str]] = {}
    for name in names:
        key = _EXPERT.sub("moe/experts/", name) if fused else name
        stacks.setdefault(key, []).append(name)
    expert = lambda name: int(_EXPERT.findall(name)[0])
    rows = [
        Row(names[key], (key,), _CODECS.get(key.rpartition("/")[2], SAME))
        if key in names
        else Row(_stacked(names[own[0]]), tuple(sorted(own, key=expert)), _Experts())
        for key, own in stacks.items()
    ]
    seconds = _seconds(model.config, names.values())
    others = [re.escape(name) for second in seconds for name in (second, *names_of_16(second))]
    ignored = [*_COMPUTED, *IGNORED_IN_16, *others, r".*_mask"]
    return Table(rows, ignored, lambda name: _spellings(seconds, name))


def _stacked(name: str) -> str:
    name = re.sub(r"experts\.experts\.\d+\.ffn\.", "experts.fused_ffns.", name)
    name = re.sub(r"\.weight$", ".expert_weights", name)
    return re.sub(r"\.bias$", ".expert_biases", name)


def _seconds(cfg: Any, named: Iterable[str]) -> dict[str, str]:
    """Map second names of tensors, where no parameter of ours has them, to the first."""
    named = set(named)
    family = lookup(cfg.name).family
    absent = set()
    if not getattr(cfg, "with_lm_head", True):
        absent.add("lm_head.weight")
    if not any(name.startswith("bert_mlm_head") for name in named):
        absent.add("bert_mlm_head.classifier.ffn.0.linear_layer.weight")
    return {
        second: name
        for pattern, other in _SECOND[family]
        for name in sorted(named)
        if re.search(pattern, name)
        and (second := re.sub(pattern, other, name)) not in named | absent
    }


def renamed(name: str, release: Release) -> str:
    """Say what a release called a tensor; ``name`` is that of 2.1 and later."""
    for first, pattern, old in _RENAMED:
        if release < first:
            name = re.sub(pattern, old, name)
    return name


def _spellings(seconds: Mapping[str, str], name: str) -> Iterator[str]:
    """List where else a release or a layout keeps a tensor, the likeliest first."""
    yield renamed(name, (1, 7))
    yield re.sub(r"(experts\.experts\.\d+)\.ffn\.", r"\1.", name)
    yield re.sub(r"^bert\.", "bert_encoder.", name)
    yield from names_of_16(name)
    yield from (second for second, first in seconds.items() if first == name)


def read_weight(file: MdlFile, name: str) -> np.ndarray:
    """Read a tensor of a ``.mdl``; one of the model has no infinity.

    Args:
        file: open.
        name: of the tensor in it.

    Raises:
        CheckpointError: names the tensor.
    """
    value = file.read(name)
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
        self._all = set(file)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __contains__(self, name: object, /) -> bool:
        return name in self._where

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.shape(self._where[name])

    def __getitem__(self, name: str, /) -> np.ndarray:
        value = read_weight(self._file, self._where[name])
        mask = self._masks[name]
        if mask not in self._all:
            return check_weight(self._file.path, name, value, None)
        kept = self._file.read(mask).astype(bool)
        check_weight(self._file.path, name, np.where(kept, value, 0), ())
        return np.where(kept, value, np.asarray(np.nan, value.dtype))


def placed(model: Model, file: MdlFile) -> dict[str, Row]:
    """Map the name that each tensor of the model has in a file to its row, in the vendor's order.

    Names are without the prefix 'model.'; rows that the file has no tensor for are absent.
    """
    state = _State(file)
    table = _table(model, fused=any("fused_ffns" in name for name in state))
    rows = {name: row for row in table.rows if (name := source(row, table, state)) is not None}
    listed = [key.removeprefix("model.") for key in file.model_keys]
    named = listed if set(rows) <= set(listed) else in_order_of_registration(rows)
    return {name: rows[name] for name in named if name in rows}


def _require_family(cfg: Any) -> None:
    if lookup(cfg.name).family not in FAMILIES:
        raise ValueError(
            f"model {cfg.name!r} does not convert to or from .mdl; the families that do: "
            f"{sorted(FAMILIES)}"
        )


def read_section(path: str | os.PathLike[str], name: str | None = None) -> dict[str, Any]:
    """Read the ``model`` section of a params YAML, of the ``trainer:`` form as well.

    Raises:
        ValueError: there is none.
    """
    try:
        file, _ = read_yaml(path)
    except SectionError as error:
        raise ValueError(f"{path}: {error}") from None
    trainer = file.get("trainer") if isinstance(file, dict) else None
    if isinstance(trainer, dict):
        file = trainer.get("init", {})
    if not isinstance(file, dict) or not isinstance(file.get("model"), dict):
        raise ValueError(f"{path}: expected a params YAML with a model section")
    return ({"name": name} if name else {}) | file["model"]


def read_model(
    path: str | os.PathLike[str],
    name: str | None = None,
    translate: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Model:
    """Build the model of a params YAML; see ``read_section``.

    Args:
        path: the file.
        name: of the model, where the file does not say it.
        translate: ``model`` section of the file -> in our words.

    Raises:
        ValueError: there is none, or one of a function of the user's, which has no other form.
    """
    settings = translate(read_section(path, name))
    try:
        lookup(str(settings.get("name")))
        return build(settings)
    except SectionError as error:
        raise ValueError(f"{path}: {error}") from error


def open_cs(
    path: str | Path,
    model: Model,
    *,
    dtype: DTypeLike | None = None,
    drop_unmatched: bool = False,
) -> Iterator[tuple[str, np.ndarray]]:
    """Open the weights of a ``.mdl`` of any release: (parameter path, array), one at a time.

    Names and shapes are checked before this returns; the file stays open until all are read.

    Args:
        path: the file; which release wrote it is told from its names.
        model: that it holds.
        dtype: of the result; None keeps the file's.
        drop_unmatched: ignore tensors that the model does not have.

    Raises:
        CheckpointError: a damaged file.
        ValueError: tensors that do not fit; all complaints in one message.
    """
    _require_family(model.config)
    file = MdlFile(Path(path))
    state = _State(file)
    table = _table(model, fused=any("fused_ffns" in name for name in state))
    try:
        arrays = import_tensors(model, table, state, dtype=dtype, drop_unmatched=drop_unmatched)
    except ValueError as error:
        file.close()
        raise ValueError(f"{path}: {error}") from None
    return _closing(file, arrays)


def _closing(
    file: MdlFile, arrays: Iterator[tuple[str, np.ndarray]]
) -> Iterator[tuple[str, np.ndarray]]:
    with file:
        yield from arrays


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


def to_cs(
    model: Model,
    params: PyTree,
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
        training: further sections, such as ``optimizer``; see ``training``.
        pruned: names of the parameters whose NaN mark pruned weights; these become 0.

    Raises:
        ContentError: an infinity, or a NaN that marks no pruned weight; names the parameter.
        ValueError: a family or a release that is not written.
    """
    release = writable(format_)
    _require_family(model.config)
    positions = getattr(model.config, "position_embedding_type", "")
    if positions == "fixed":
        raise ValueError(
            f"model {model.config.name!r}: the vendor's files hold the table of fixed positions, "
            "which is not written"
        )
    leaves: dict[str, Any] = dict(named_leaves(params))
    tensors = exported(model, leaves, format_, pruned)
    if positions == "alibi" and "position/slopes" not in leaves:
        slopes = np.asarray(vsl.alibi_slopes(model.config.num_heads), np.float32)[:, None]
        tensors[_SLOPES] = LazyArray(slopes.shape, slopes.dtype, lambda: slopes)
    links = _seconds(model.config, tensors)
    entry = {"version": f"{release[0]}.{release[1]}.0", "model_name": model.config.name}
    state: dict[str, Tree] = {f"model.{name}": tensor for name, tensor in tensors.items()}
    state |= {f"model.{other}": Link(f"model.model.{first}") for other, first in links.items()}
    metadata: list[Tree] = [entry | {"params": {}}]
    tree = {"model": state, **training, "global_step": step, "__metadata__": metadata}
    write_mdl(Path(path), tree, version=entry["version"])


def numbered_rows(model: Model, format_: str) -> dict[str, Row]:
    """Map the names that a release gives a model's tensors to their rows, in its order."""
    table = _table(model, fused=FORMATS[format_] < _SINGLE_EXPERTS)
    rows = {
        re.sub(r"(experts\.experts\.\d+)\.ffn\.", r"\1.", row.foreign): row for row in table.rows
    }
    return {name: rows[name] for name in in_order_of_registration(rows)}


def exported(
    model: Model, leaves: Mapping[str, Any], format_: str, pruned: Collection[str] | None
) -> dict[str, LazyArray]:
    """Map a release's names to tensors that hold the leaves, in its order; they are read late.

    Args:
        model: of ``leaves``.
        leaves: weights, or moments of their shapes, by parameter path.
        format_: 'cs-X.Y'.
        pruned: as ``export_tensors`` takes it.
    """
    cfg, ordered = in_pairs(model.config, leaves)
    table = _table(model, fused=FORMATS[format_] < _SINGLE_EXPERTS)
    listed = export_tensors(build(cfg), table, ordered, pruned=pruned)
    tensors = {lazy.name: lazy for lazy in listed}
    return {name: tensors[row.foreign] for name, row in numbered_rows(model, format_).items()}
