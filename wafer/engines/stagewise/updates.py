"""The update of one branch, and the norm of its gradients. Pure functions, alike on all systems."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from wafer.engines.stagewise.branches import Branch, BranchArrays, join_opt, split_opt
from wafer.engines.stagewise.core import Core
from wafer.optim.rules import without_frozen
from wafer.sparsity import SparseState, Sparsifier, storage


class Control(NamedTuple):
    """What an update depends on besides the branch."""

    denominator: Array  #: [] float32, gradients are divided by it (tokens times loss scale)
    norm: Array  #: [] float32 global norm of the divided gradients; read where updates wait for it
    #: [] bool, false when a gradient of the step is not; read where updates wait for it
    finite: Array
    codes: Mapping[str, Any]  #: relative name of a sparse parameter -> uint32 of its random draws
    counters: list[Array]  #: of the optimizer, before the step
    sparse: SparseState  #: counters of the sparse state


class Updated(NamedTuple):
    """A branch after its update."""

    part: BranchArrays  #: weights; masks and patterns are empty unless the topology could change
    moments: list[Array]  #: its optimizer state
    counters: list[Array]  #: of the optimizer
    sparse: SparseState  #: counters of the sparse state
    squares: Array  #: [] float32 squared norm of its gradients, of kept weights
    #: relative name -> [] float32 share of kept weights; empty like ``part.masks``
    density: Mapping[str, Array]
    weight_norm: Array  #: [] float32 of the new weights


@dataclasses.dataclass(frozen=True, eq=False)
class BranchUpdate:
    """The update of one branch, as it is traced."""

    core: Core  #: what the run is made of
    branch: Branch  #: whose names rules go by

    def measure(self, part: BranchArrays, grads: PyTree, denominator: Array) -> Array:
        """Squared norm of the gradients at kept weights."""
        kept, _ = self._select(self.core.sparsifier, grads, denominator, self.branch.sparse(part))
        return optax.tree.norm(kept, squared=True)

    def apply(
        self,
        topology: tuple[Mapping[str, Array], Mapping[str, PyTree]],
        owned: tuple[PyTree, list[Array]],
        grads: PyTree,
        control: Control,
        *,
        change: bool,
    ) -> Updated:
        """Divide and select the gradients, step, prune, perhaps choose a new topology.

        Args:
            topology: (masks, patterns); not donated.
            owned: (parameters, optimizer state); donated.
            grads: sums over the batch.
            control: see there.
            change: the topology may change.
        """
        core, branch, (weights, moments) = self.core, self.branch, owned
        codes = {branch.full(name): code for name, code in control.codes.items()}
        sparsifier = dataclasses.replace(core.sparsifier, code_of=codes.__getitem__)
        sparse = branch.sparse(BranchArrays(weights, *topology), control.sparse)
        kept, dense = self._select(sparsifier, grads, control.denominator, sparse)
        params = {branch.name: weights}
        opt_state = join_opt(branch, moments, control.counters)
        extra = {"global_norm": control.norm} if core.norm else {}
        updates, opt_state = core.tx.update(kept, opt_state, params, **extra)
        new: Any = optax.apply_updates(params, updates)
        sparse, new, opt_state = sparsifier.update(
            sparse, new, dense, opt_state, finite=control.finite, topology=change
        )
        new_moments, counters = split_opt(branch, opt_state)
        part = branch.own(new, sparse)
        if not change:
            part = BranchArrays(part.params, {}, {})
        return Updated(
            part=part,
            # Moments keep the precision they are stored in; float32 sums promote bfloat16 ones.
            moments=[m.astype(old.dtype) for m, old in zip(new_moments, moments, strict=True)],
            counters=counters,
            sparse=sparse._replace(masks={}, patterns={}),
            squares=optax.tree.norm(kept, squared=True),
            density=density(part.masks, part.patterns),
            weight_norm=optax.tree.norm(new),
        )

    def _select(
        self, sparsifier: Sparsifier, grads: PyTree, denominator: Array, sparse: SparseState
    ) -> tuple[PyTree, dict[str, Array]]:
        ready = jax.tree.map(lambda g: g / denominator, {self.branch.name: grads})
        kept, dense = sparsifier.split(ready, sparse)
        return without_frozen(self.core.tx, kept), dense


@jax.jit
def density(masks: Mapping[str, Array], patterns: Mapping[str, PyTree]) -> dict[str, Array]:
    """Share of kept weights of each parameter."""
    kept = {name: jnp.mean(mask, dtype=jnp.float32) for name, mask in masks.items()}
    return kept | {name: storage.density(pattern) for name, pattern in patterns.items()}
