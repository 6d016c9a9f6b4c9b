"""How a training state is cut into branches, the unit that weight streaming moves.

A branch is a top-level key of the parameter tree (``embed``, ``layers_3``, ``norm_f``) with
everything that belongs to it: weights in the storage the sparsifier chose, masks or patterns, and
the optimizer state of its parameters. Counters of the optimizer belong to no branch. Names inside
a branch leave its own name out, so that all layers look alike and share their programs.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import optax
from jaxtyping import Array, PyTree

from wafer.engines.programs import shapes_of
from wafer.models.paths import named_leaves
from wafer.optim.rules import rules_of
from wafer.sparsity import SparseState, Sparsifier
from wafer.sparsity.kernels import Pattern

_none: Any = None
TOPOLOGY_ALONE = SparseState({}, {}, *[_none] * 5)  # for programs that count nothing


class BranchArrays(NamedTuple):
    """A branch's weights as a stage's program sees them; names are relative to the branch."""

    params: PyTree  #: the branch of the parameter tree, csr leaves as [nnz] values
    masks: Mapping[str, Array]  #: name -> bool mask
    patterns: Mapping[str, Pattern]  #: name -> pattern

    def over(self, before: "BranchArrays") -> "BranchArrays":
        """Replace ``before``; its masks and patterns stay where this has none."""
        return BranchArrays(
            self.params, {**before.masks, **self.masks}, {**before.patterns, **self.patterns}
        )


@dataclasses.dataclass(frozen=True)
class Branch:
    """What is static about a branch."""

    name: str  #: top-level key
    names: tuple[str, ...]  #: relative names of the parameters, in tree order
    tree: PyTree  #: structure of the parameters
    masks: tuple[str, ...]  #: relative names of parameters stored with a mask
    patterns: tuple[str, ...]  #: relative names of parameters stored as values
    groups: tuple[int | None, ...]  #: of the sparsifier that its parameters belong to
    opt: Any  #: structure of ``tx.init({name: params})``
    paths: tuple[str, ...]  #: name of each optimizer-state array
    #: whether each of them belongs to a parameter; the others are the run's counters
    owned: tuple[bool, ...]
    shapes: Any  #: part, as shapes
    layer: Any  #: equal for branches that a stage's programs may treat alike
    rules: Any  #: equal for branches whose update is the same program

    def full(self, name: str) -> str:
        """Name of a parameter in the whole tree."""
        return f"{self.name}/{name}" if name else self.name

    @property
    def is_sparse(self) -> bool:
        """Whether it has masks or patterns."""
        return bool(self.masks or self.patterns)

    def own(self, params: Mapping[str, PyTree], sparse: SparseState) -> BranchArrays:
        """Take this branch's part of a whole state, which goes by full names."""
        masks = {name: sparse.masks[self.full(name)] for name in self.masks}
        patterns = {name: sparse.patterns[self.full(name)] for name in self.patterns}
        return BranchArrays(params[self.name], masks, patterns)

    def sparse(self, part: BranchArrays, like: SparseState = TOPOLOGY_ALONE) -> SparseState:
        """The sparse state of this branch alone: counters of ``like``, full names."""
        return like._replace(
            masks={self.full(name): mask for name, mask in part.masks.items()},
            patterns={self.full(name): pattern for name, pattern in part.patterns.items()},
        )

    def records(self, part: BranchArrays, moments: Iterable[PyTree]) -> dict[str, dict[str, Array]]:
        """What a store holds of the branch: kind of record -> its arrays."""
        patterns = {
            f"pattern:{name}:{field}": array
            for name, pattern in part.patterns.items()
            for field, array in pattern._asdict().items()
        }
        return {
            "weights": dict(zip(self.names, jax.tree.leaves(part.params), strict=True)),
            "topology": {f"mask:{name}": mask for name, mask in part.masks.items()} | patterns,
            "moments": {str(i): leaf for i, leaf in enumerate(moments)},
        }

    def part(self, weights: Mapping[str, PyTree], topology: Mapping[str, PyTree]) -> BranchArrays:
        """Undo ``records``, of these two kinds."""
        patterns = {
            name: Pattern(*(topology[f"pattern:{name}:{field}"] for field in Pattern._fields))
            for name in self.patterns
        }
        return BranchArrays(
            params=jax.tree.unflatten(self.tree, list(weights.values())),
            masks={name: topology[f"mask:{name}"] for name in self.masks},
            patterns=patterns,
        )


def cut_part(name: str, params: Mapping[str, PyTree], sparse: SparseState) -> BranchArrays:
    """Cut a branch out of a whole state whose branches are not described yet."""
    own = lambda tree: {
        _relative(key, name): x for key, x in tree.items() if key.split("/")[0] == name
    }
    return BranchArrays(params[name], own(sparse.masks), own(sparse.patterns))


def _relative(name: str, branch: str) -> str:
    """Name of a parameter inside its branch; '' for a branch that is one array."""
    return name.removeprefix(branch).removeprefix("/")


def split_opt(branch: Branch, opt_state: PyTree) -> tuple[list[PyTree], list[PyTree]]:
    """Separate a branch's optimizer state into (its own arrays, the run's counters)."""
    leaves = branch.opt.flatten_up_to(opt_state)
    moments = [leaf for leaf, own in zip(leaves, branch.owned, strict=True) if own]
    return moments, [leaf for leaf, own in zip(leaves, branch.owned, strict=True) if not own]


def join_opt(branch: Branch, moments: Iterable[PyTree], counters: Iterable[PyTree]) -> PyTree:
    """Undo ``split_opt``."""
    own, shared = iter(moments), iter(counters)
    leaves = [next(own) if owned else next(shared) for owned in branch.owned]
    return jax.tree.unflatten(branch.opt, leaves)


def describe(
    name: str, part: BranchArrays, sparsifier: Sparsifier, tx: optax.GradientTransformation
) -> Branch:
    """Describe a branch.

    Args:
        name: top-level key.
        part: arrays or shapes, in their storage.
        sparsifier: decides which group a parameter belongs to.
        tx: the optimizer; one that declares no rules has a program for each branch.
    """
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), part)
    params = {name: shapes.params}
    opt_state = jax.eval_shape(tx.init, params)
    full = [path for path, _ in named_leaves(params)]
    paths = tuple(path for path, _ in named_leaves(opt_state))
    tree = jax.tree.structure(part.params)
    masks, patterns = tuple(part.masks), tuple(part.patterns)
    ranks = {key: part.masks[key].ndim for key in masks} | dict.fromkeys(patterns, 2)
    groups = tuple(
        (key, sparsifier.group_of(f"{name}/{key}" if key else name, rank))
        for key, rank in ranks.items()
    )
    layer = (tree, shapes_of(shapes), groups)
    rules = rules_of(tx, full)
    return Branch(
        name=name,
        names=tuple(_relative(path, name) for path in full),
        tree=tree,
        masks=masks,
        patterns=patterns,
        groups=tuple(group for _, group in groups),
        opt=jax.tree.structure(opt_state),
        paths=paths,
        owned=tuple(f"/{path}".endswith(tuple(f"/{name}" for name in full)) for path in paths),
        shapes=shapes,
        layer=layer,
        rules=(layer, name if rules is None else rules),
    )
