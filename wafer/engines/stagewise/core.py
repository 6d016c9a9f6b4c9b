"""What the programs of a run are made of, and what they all need of it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jaxtyping import Array

from models.base import Batch, Model, Stage
from models.paths import named_leaves
from sparsity import SparseState, Sparsifier
from wafer.engines.stagewise.branches import TOPOLOGY_ALONE, Branch, Part
from wafer.optim.precision import LossScaler

__all__ = ["Core", "levels", "make_core"]


@dataclasses.dataclass(frozen=True, eq=False)  # identity hash: a bundle is static under jit
class Core:
    """What every program of a run reads while it is traced.

    Attributes:
        model: gives the stages.
        shapes: of its dense parameters.
        tx: the optimizer.
        sparsifier: with ``order`` set, so that it may be asked about parts of the tree.
        scaler: loss-scale automaton.
        dropout: draw dropout masks.
        norm: the optimizer's ``update`` takes ``global_norm=``.
    """

    model: Model
    shapes: Any
    tx: Any
    sparsifier: Sparsifier
    scaler: LossScaler
    dropout: bool
    norm: bool

    def changes(self, *, topology: bool) -> bool:
        """Whether a step may change the topology, when one is due."""
        return topology and any(algorithm.dynamic for _, algorithm in self.sparsifier.groups)

    def defers(self, *, change: bool) -> bool:
        """Whether updates wait for the gradients of all stages.

        They do to clip by the global norm, to skip a step that overflowed, and to choose a new
        topology.
        """
        return change or self.norm or self.scaler.dynamic

    def prepare(
        self, branches: Sequence[Branch], parts: Sequence[Part], *, dense: bool
    ) -> tuple[Any, SparseState]:
        """Return (what to differentiate at, the topology), both under full names.

        Args:
            branches: of a stage.
            parts: their weights.
            dense: ask for the gradients of pruned weights too.
        """
        params, sparse = {}, TOPOLOGY_ALONE
        for branch, part in zip(branches, parts, strict=True):
            params[branch.name] = part.params
            own = branch.sparse(part)
            sparse = sparse._replace(
                masks={**sparse.masks, **own.masks}, patterns={**sparse.patterns, **own.patterns}
            )
        return self.sparsifier.prepare(params, sparse, dense=dense), sparse

    def compute(
        self, stage: Stage, ready: Any, carry: Any, rest: tuple[SparseState, Batch, Array | None]
    ) -> Any:
        """Compute a stage.

        Args:
            stage: which.
            ready: weights, from ``prepare``.
            carry: what the stage before returned; None for the first.
            rest: (topology, one micro-batch, [2] uint32 dropout key or None).
        """
        sparse, batch, drop = rest
        weights = self.model.stage_params(stage, self.sparsifier.attach(ready, sparse))
        key = None if drop is None else jax.random.wrap_key_data(drop)
        return self.model.kinds[stage.kind][1](weights, carry, batch, key)


def make_core(
    model: Model, tx: Any, sparsifier: Sparsifier, scaler: LossScaler, *, dropout: bool, norm: bool
) -> Core:
    """Bundle what a run is made of; see ``Core``."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    order = sparsifier.order or tuple(name for name, _ in named_leaves(shapes))
    of_parts = dataclasses.replace(sparsifier, order=order, quiet=True)
    return Core(model, shapes, tx, of_parts, scaler, dropout, norm)


def levels(core: Core, density: Mapping[str, Array], sparse: SparseState) -> dict[str, Array]:
    """Report target and actual sparsity of each parameter, as ``Sparsifier.metrics`` does.

    Args:
        core: what the run is made of.
        density: full name -> share of kept weights.
        sparse: the state that holds the parameters' masks and targets.
    """
    metrics = {}
    for name, kept in density.items():
        rank = sparse.masks[name].ndim if name in sparse.masks else 2
        metrics[f"sparsity/{name}/target"] = sparse.targets[core.sparsifier.group_of(name, rank)]
        metrics[f"sparsity/{name}/actual"] = 1 - kept
    return metrics
