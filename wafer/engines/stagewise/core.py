"""What the programs of a run are made of, and what they all need of it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from wafer.engines.base import Engine
from wafer.engines.stagewise.branches import TOPOLOGY_ALONE, Branch, BranchArrays
from wafer.experiment import Experiment
from wafer.models.base import Batch, Model, Stage
from wafer.models.paths import named_leaves
from wafer.optim.precision import LossScaler
from wafer.optim.step import Metrics, TrainState
from wafer.sparsity import SparseState, Sparsifier


@dataclasses.dataclass(frozen=True, eq=False)  # identity hash: a bundle is static under jit
class Core:
    """What is trained; every program of a run reads it while it is traced."""

    model: Model  #: gives the stages
    shapes: Any  #: of its dense parameters
    tx: Any  #: optimizer whose states follow the parameters leaf by leaf
    whole: Sparsifier  #: from ``sparsity.configure``; an empty one leaves everything dense
    #: the same with ``order`` set, so that it may be asked about parts of the tree
    sparsifier: Sparsifier
    scaler: LossScaler  #: loss-scale automaton
    dropout: bool  #: draw dropout masks; False runs the model deterministically
    summaries: bool  #: also report the gradient and parameter norms of every layer
    norm: bool  #: the optimizer's ``update`` takes ``global_norm=`` (clipping by norm)

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
        self, branches: Sequence[Branch], parts: Sequence[BranchArrays], *, dense: bool
    ) -> tuple[PyTree, SparseState]:
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
        self,
        stage: Stage,
        ready: PyTree,
        carry: PyTree,
        rest: tuple[SparseState, Batch, Array | None],
    ) -> PyTree:
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
    model: Model,
    tx: Any,
    sparsifier: Sparsifier,
    scaler: LossScaler,
    *,
    dropout: bool = False,
    summaries: bool = False,
    norm: bool = False,
) -> Core:
    """Bundle what a run is made of; see ``Core``."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    order = sparsifier.order or tuple(name for name, _ in named_leaves(shapes))
    of_parts = dataclasses.replace(sparsifier, order=order, quiet=True)
    return Core(model, shapes, tx, sparsifier, of_parts, scaler, dropout, summaries, norm)


def core_of(experiment: Experiment) -> Core:
    """Bundle what an experiment is made of."""
    return make_core(
        experiment.model,
        experiment.tx,
        experiment.sparsifier,
        experiment.scaler,
        dropout=experiment.dropout,
        summaries=experiment.summaries,
        norm=experiment.clips_norm,
    )


class Stagewise(Engine):
    """What the engines that take a model stage by stage have in common.

    Args:
        core: what is trained.
        mesh: of the systems that features are placed on.
    """

    def __init__(self, core: Core, mesh: Mesh) -> None:
        self.core, self.sparsifier, self.mesh = core, core.sparsifier, mesh
        self.density: dict[str, Array] = {}  # full name -> share of kept weights

    def levels(self, state: TrainState) -> Metrics:
        """See ``Engine``; from what the updates reported."""
        sparse, metrics = state.sparse, {}
        for name, kept in self.density.items():
            rank = sparse.masks[name].ndim if name in sparse.masks else 2
            group = self.sparsifier.group_of(name, rank)
            metrics[f"sparsity/{name}/target"] = sparse.targets[group]
            metrics[f"sparsity/{name}/actual"] = 1 - kept
        return metrics
