"""The books of one step: gradients that are not whole yet, and what each update left.

A sweep and a pipeline visit the stages in different orders and hold weights in different places.
What they owe each gradient is the same, and is written here once: add up the shares of all stages
that read a branch, measure it where updates wait for each other, update the branch, count.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from wafer.engines.stagewise.branches import Branch, BranchArrays
from wafer.engines.stagewise.stages import Places
from wafer.engines.stagewise.updates import BranchUpdate, Control, Updated
from wafer.models.base import Aux, Stage
from wafer.optim.step import TrainState
from wafer.sparsity import SparseState
from wafer.sparsity.topology import name_code

add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b))
_add_into = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=0)


class SweepPlan(NamedTuple):
    """What does not change from step to step."""

    stages: tuple[Stage, ...]  #: of the model, in order
    branches: Mapping[str, Branch]  #: by name, in tree order
    uses: Mapping[str, tuple[int, ...]]  #: branch -> indices of the stages that read it
    #: branch -> relative name -> number of its random draws
    codes: Mapping[str, Mapping[str, np.uint32]]

    def at(self, index: int) -> tuple[Stage, tuple[Branch, ...]]:
        """A stage and the branches it reads: what its programs are traced for."""
        stage = self.stages[index]
        return stage, tuple(self.branches[name] for name in stage.params)

    def completed_at(self, index: int) -> tuple[str, ...]:
        """Branches whose gradient is whole once the backward sweep has passed a stage."""
        return tuple(name for name, uses in self.uses.items() if uses and uses[0] == index)

    @property
    def unread(self) -> tuple[str, ...]:
        """Branches no stage reads: they decay all the same."""
        return tuple(name for name, uses in self.uses.items() if not uses)


def make_plan(stages: tuple[Stage, ...], branches: Mapping[str, Branch]) -> SweepPlan:
    """Return which stages read each branch, and the numbers that its random draws depend on."""
    return SweepPlan(
        stages=stages,
        branches=branches,
        uses={
            name: tuple(i for i, stage in enumerate(stages) if name in stage.params)
            for name in branches
        },
        codes={
            name: {
                key: np.uint32(name_code(branch.full(key)))
                for key in (*branch.masks, *branch.patterns)
            }
            for name, branch in branches.items()
        },
    )


class StepInputs(NamedTuple):
    """Where the step begins."""

    key: Array  #: [2] uint32 data of the step's key
    scale: Array  #: [] float32 loss scale
    counters: list[Array]  #: of the optimizer
    sparse: SparseState  #: counters of the sparse state


def step_inputs(state: TrainState, counters: list[Array]) -> StepInputs:
    """Take the small arrays out of a training state; ``counters`` are the optimizer's."""
    return StepInputs(
        key=_step_key(state.key, state.step),
        scale=state.scale.loss_scale,
        counters=counters,
        sparse=state.sparse._replace(masks={}, patterns={}),
    )


@jax.jit
def _step_key(key: Array, step: Array) -> Array:
    return jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(key), step))


class Whole(NamedTuple):
    """What is known of all gradients together."""

    norm: Any  #: [] float32 global norm
    finite: Any  #: [] bool, whether it is a number


_UNKNOWN = Whole(np.float32(0), np.True_)  # for updates that depend on neither


class GradientLedger:
    """One step's books.

    Attributes:
        counters: of the optimizer, after the step.
        density: full name -> share of kept weights, where the topology could change.

    Args:
        plan: stages and branches.
        places: where their programs run.
        start: the small arrays of the state.
        change: the topology may change at this step.
        donate: sums overwrite their first addend; False where it is still read.
    """

    def __init__(
        self,
        plan: SweepPlan,
        places: Places,
        start: StepInputs,
        *,
        change: bool,
        donate: bool = True,
    ) -> None:
        self.plan, self.places, self.change = plan, places, change
        self.deferred = places.core.defers(change=change)
        self.starts = [places.put(start, place) for place in range(len(places.programs))]
        self.add = _add_into if donate else add
        self.counters = start.counters
        self.density: dict[str, Array] = {}
        self._aux: Aux | None = None
        self._partial: dict[str, Any] = {}  # branch -> gradients of some stages that read it
        # Branch -> small results, all at the first place.
        self._squares: dict[str, Array] = {}
        self._weight_norms: dict[str, Array] = {}
        self._sparse: dict[str, SparseState] = {}

    # --- gradients ------------------------------------------------------------------------

    def count(self, aux: Aux) -> None:
        """Add the loss of a micro-batch; all are there before the first gradient is whole."""
        aux = self.places.put(aux, 0)
        self._aux = aux if self._aux is None else add(self._aux, aux)

    @property
    def aux(self) -> Aux:
        """Sums of the loss, at the first place."""
        if self._aux is None:
            raise RuntimeError("loss: not computed yet; the last stage of the step has not run")
        return self._aux

    @functools.cached_property
    def denominator(self) -> Array:
        """[] float32 that gradients are divided by: tokens times loss scale."""
        return jnp.maximum(self.aux.weight, 1e-9) * self.starts[0].scale

    def add_gradients(
        self, index: int, grads: tuple[PyTree, ...], place: int = 0
    ) -> dict[str, PyTree]:
        """Add the gradients of a stage to those of the stages after it.

        Args:
            index: of the stage.
            grads: of each branch that it reads, over all micro-batches.
            place: where they are.

        Returns:
            Branch -> gradient, of those that no earlier stage reads: they are whole.
        """
        whole = {}
        for name, share in zip(self.plan.stages[index].params, grads, strict=True):
            total = share
            if name in self._partial:
                total = self.add(self.places.put(self._partial.pop(name), place), share)
            book = whole if self.plan.uses[name][0] == index else self._partial
            book[name] = total
        return whole

    def measure(self, name: str, part: BranchArrays, grads: PyTree, place: int = 0) -> None:
        """Note the norm of a whole gradient, for updates that wait for those of all branches."""
        program = self.places.programs[place].program(
            BranchUpdate.measure, self.plan.branches[name]
        )
        squares = program(part, grads, self.places.put(self.denominator, place))
        self._squares[name] = self.places.put(squares, 0)

    # --- updates --------------------------------------------------------------------------

    @property
    def overflowed(self) -> bool:
        """Whether nothing may be updated: the step leaves no trace but the smaller loss scale."""
        return self.places.core.scaler.dynamic and not bool(self._whole.finite)

    @functools.cached_property
    def _whole(self) -> Whole:
        """What updates may know of all gradients: nothing, unless they wait for them."""
        return self._measured() if self.deferred else _UNKNOWN

    def _measured(self) -> Whole:
        norm = jnp.sqrt(sum(self._squares.values(), start=jnp.float32(0)))
        return Whole(norm, jnp.isfinite(norm))

    def update(
        self, name: str, part: BranchArrays, moments: list[Array], grads: PyTree, place: int = 0
    ) -> Updated:
        """Update a branch.

        Args:
            name: of the branch.
            part: its weights; the parameters are donated.
            moments: its optimizer state; donated.
            grads: its whole gradient; None for a branch that no stage reads.
            place: where all of this is.

        Returns:
            What is new; masks and patterns only where they could change.
        """
        branch, start = self.plan.branches[name], self.starts[place]
        programs = self.places.programs[place]
        if grads is None:
            ready, _ = programs.core.prepare((branch,), (part,), dense=self.change)
            grads = jax.tree.map(jnp.zeros_like, ready[name])
        change = self.change and branch.is_sparse
        denominator, whole = self.places.put((self.denominator, self._whole), place)
        control = Control(
            denominator=denominator,
            norm=whole.norm,
            finite=whole.finite,
            codes=self.plan.codes[name],
            counters=start.counters,
            sparse=start.sparse,
        )
        owned = part.params, moments
        program = programs.program(BranchUpdate.apply, branch, change=change)
        updated: Updated = program((part.masks, part.patterns), owned, grads, control)
        small = updated.counters, updated.squares, updated.weight_norm
        self.counters, self._squares[name], self._weight_norms[name] = self.places.put(small, 0)
        if branch.is_sparse:
            self._sparse[name] = self.places.put(updated.sparse, 0)
            self.density |= {branch.full(key): x for key, x in updated.density.items()}
        return updated

    # --- after the step -------------------------------------------------------------------

    @functools.cached_property
    def whole(self) -> Whole:
        """Of the step's gradients, once all are in the books."""
        return self._whole if self.deferred else self._measured()

    def sparse(self) -> SparseState:
        """Merge the counters that the branches advanced, each for the groups it has."""
        sparse = self.starts[0].sparse
        indices, targets = sparse.indices, sparse.targets
        for group in range(len(self.places.core.sparsifier.groups)):
            members = (name for name in self._sparse if group in self.plan.branches[name].groups)
            if (owner := next(members, None)) is not None:
                indices = indices.at[group].set(self._sparse[owner].indices[group])
                targets = targets.at[group].set(self._sparse[owner].targets[group])
        step = sparse.step + jnp.asarray(self.whole.finite, jnp.int32)
        generation = sparse.generation
        for branch in self._sparse.values() if self.change else ():
            generation = jnp.maximum(generation, branch.generation)
        return sparse._replace(step=step, indices=indices, targets=targets, generation=generation)

    def metrics(self) -> dict[str, Array]:
        """Return what ``Engine.step`` reports, with the norms of every branch if asked for."""
        aux = self.aux
        metrics = {
            "loss": aux.loss_sum / jnp.maximum(aux.weight, 1e-9),
            "tokens": aux.weight,
            "grad_norm": self.whole.norm,
            "loss_scale": self.starts[0].scale,
        }
        if self.places.core.summaries:
            for name, squares in self._squares.items():
                metrics[f"per_layer_grad_norm/{name}"] = jnp.sqrt(squares)
            for name, norm in self._weight_norms.items():
                metrics[f"per_layer_params_norm/{name}"] = norm
        return metrics
