"""One optimizer step as a sweep: down the stages, up again, each branch updated as it is done.

Weights are on the systems for one stage at a time. What stays between the sweeps are the stages'
inputs and, as far as ``residual_bytes`` allows, what their products with weights gave. Updates
that depend on all gradients (clipping by global norm, skipped overflows, a new topology) wait in
the store until the sweep is over and run in a second pass.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from models.base import Aux, Batch, Stage
from sparsity import SparseState
from sparsity.topology import name_code
from wafer.engines.programs import shapes_of
from wafer.engines.stagewise.branches import Branch, Part
from wafer.engines.stagewise.stages import Control, Stages, Where
from wafer.engines.stagewise.traffic import Mover

__all__ = [
    "UNKNOWN",
    "Outcome",
    "Plan",
    "Start",
    "Sweep",
    "Whole",
    "add",
    "counted",
    "evaluate",
    "load_part",
    "make_plan",
    "step_key",
]

add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=0)


class Plan(NamedTuple):
    """What does not change from step to step.

    stages: of the model, in order
    branches: by name, in tree order
    uses: branch -> indices of the stages that read it
    codes: branch -> relative name -> number of its random draws
    """

    stages: tuple[Stage, ...]
    branches: Mapping[str, Branch]
    uses: Mapping[str, tuple[int, ...]]
    codes: Mapping[str, Mapping[str, np.uint32]]

    def of(self, stage: Stage) -> tuple[Branch, ...]:
        """Branches a stage reads."""
        return tuple(self.branches[name] for name in stage.params)

    def key(self, stage: Stage) -> Any:
        """Equal for stages that share their programs."""
        return (stage.kind, *(branch.layer for branch in self.of(stage)))

    def finished_at(self, index: int) -> tuple[str, ...]:
        """Branches whose gradient is whole once the backward sweep has passed a stage."""
        return tuple(name for name, uses in self.uses.items() if uses and uses[0] == index)

    @property
    def unread(self) -> tuple[str, ...]:
        """Branches no stage reads: they decay all the same."""
        return tuple(name for name, uses in self.uses.items() if not uses)


def make_plan(stages: tuple[Stage, ...], branches: Mapping[str, Branch]) -> Plan:
    """Say who reads which branch, and what the random draws of each are numbered by."""
    return Plan(
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


class Outcome(NamedTuple):
    """What a step leaves besides weights and moments.

    aux: sums of the loss
    counters: of the optimizer
    sparse: counters of the sparse state, for each branch that has any
    squares: branch -> squared norm of its gradients
    weight_norms: branch -> norm of its new weights
    density: full name -> share of kept weights, where the topology could change
    norm: [] float32 of all gradients
    finite: [] bool
    """

    aux: Aux
    counters: list[Array]
    sparse: dict[str, SparseState]
    squares: dict[str, Array]
    weight_norms: dict[str, Array]
    density: dict[str, Array]
    norm: Array
    finite: Array

    def metrics(self, scale: Array, *, summaries: bool) -> dict[str, Array]:
        """Return what ``Executor.step`` reports.

        Args:
            scale: the loss scale of the step.
            summaries: add the norms of every branch.
        """
        found = {
            "loss": self.aux.loss_sum / jnp.maximum(self.aux.weight, 1e-9),
            "tokens": self.aux.weight,
            "grad_norm": self.norm,
            "loss_scale": scale,
        }
        if summaries:
            norms = {name: jnp.sqrt(x) for name, x in self.squares.items()}
            found |= {f"per_layer_grad_norm/{name}": x for name, x in norms.items()}
            weights = self.weight_norms.items()
            found |= {f"per_layer_params_norm/{name}": x for name, x in weights}
        return found


def counted(
    before: SparseState, done: Outcome, branches: Mapping[str, Branch], groups: int
) -> SparseState:
    """Merge the counters that the branches advanced, each for the groups it has."""
    indices, targets = before.indices, before.targets
    for group in range(groups):
        owner = next((n for n in done.sparse if group in branches[n].groups), None)
        if owner is not None:
            indices = indices.at[group].set(done.sparse[owner].indices[group])
            targets = targets.at[group].set(done.sparse[owner].targets[group])
    step = before.step + jnp.asarray(done.finite, jnp.int32)
    return before._replace(step=step, indices=indices, targets=targets)


@jax.jit
def step_key(key: Array, step: Array) -> Array:
    """[2] uint32 data of a step's key, from the run's."""
    return jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(key), step))


class Start(NamedTuple):
    """Where the step begins.

    key: [2] uint32 data of the step's key
    scale: [] float32 loss scale
    counters: of the optimizer
    sparse: counters of the sparse state
    """

    key: Array
    scale: Array
    counters: list[Array]
    sparse: SparseState


def load_part(mover: Mover, branch: Branch) -> Part:
    """Bring a branch's weights to the systems."""
    weights = mover.load(f"{branch.name}/weights")
    sparse = branch.masks or branch.patterns
    return branch.part(weights, mover.load(f"{branch.name}/topology") if sparse else {})


class _Fetched(NamedTuple):
    """What a stage, or the update of a branch, needs.

    parts: of its branches
    moments: branch -> optimizer state, of those that are updated now
    grads: leaves held since the sweep, or None
    """

    parts: tuple[Part, ...]
    moments: Mapping[str, list[Array]]
    grads: list[Array] | None = None


class Whole(NamedTuple):
    """What is known of all gradients together.

    norm: global norm
    finite: whether it is a number
    """

    norm: Any
    finite: Any


UNKNOWN = Whole(np.float32(0), np.True_)  # for updates that depend on neither


class Sweep:
    """One step.

    Args:
        plan: stages and branches.
        programs: compiled functions.
        mover: moves the records.
        start: the small arrays of the state.
        change: the topology may change at this step.
        deferred: hold gradients back for a second pass.
        residual_bytes: for what the backward sweep need not compute again, on each system.
    """

    def __init__(
        self,
        plan: Plan,
        programs: Stages,
        mover: Mover,
        start: Start,
        *,
        change: bool,
        deferred: bool,
        residual_bytes: int,
    ) -> None:
        self.plan, self.programs, self.mover, self.start = plan, programs, mover, start
        self.change, self.deferred, self.residual_bytes = change, deferred, residual_bytes
        self._partial: dict[str, Any] = {}  # gradients of branches that earlier stages read too
        self._held: dict[str, Any] = {}  # structure of gradients that wait in the store
        self._denominator: Any = None
        self._counters = start.counters
        self._sparse: dict[str, SparseState] = {}
        self._squares: dict[str, Array] = {}
        self._weight_norms: dict[str, Array] = {}
        self._density: dict[str, Array] = {}

    def run(self, batch: Batch) -> Outcome:
        """Go down, up, and through the second pass if there is one."""
        stages = self.plan.stages
        last = len(stages) - 1
        keep = self._keep(batch)
        order = [*range(last), *reversed(range(last + 1))]  # down, the last one once, and up
        jobs = (functools.partial(self._load, i, up=k >= last) for k, i in enumerate(order))
        fetched = self.mover.ahead(jobs)
        carries: list[Any] = [None]
        saved: list[Any] = []
        for i in range(last):
            forward = self._program("forward", i, keep=keep[i], train=True)
            parts = next(fetched).parts
            carry, kept = forward(parts, carries[-1], self._where(batch, i))
            self.mover.pace("forward", stages[i].name, carry)
            carries.append(carry)
            saved.append(kept)
        aux, cotangent = self._turn(batch, carries.pop(), next(fetched))
        for i in reversed(range(last)):
            now = next(fetched)
            backward = self._program("backward", i, dense=self.change, keep=keep[i])
            back = cotangent, saved.pop()
            grads, cotangent = backward(now.parts, carries.pop(), self._where(batch, i), back)
            self.mover.pace("backward", stages[i].name, cotangent)
            self._settle(i, grads, now)
            del now, grads  # the weights of one stage go before those of the next but one come
        return self._finish(aux)

    def _program(self, role: str, index: int, **static: Any) -> Any:
        stage = self.plan.stages[index]
        at = stage, self.plan.of(stage)
        return self.programs.program(role, at, self.plan.key(stage), **static)

    def _where(self, batch: Batch, index: int) -> Where:
        return Where(batch, self.start.key, np.int32(index))

    def _load(self, index: int, *, up: bool) -> _Fetched:
        stage = self.plan.stages[index]
        parts = tuple(load_part(self.mover, branch) for branch in self.plan.of(stage))
        done = self.plan.finished_at(index) if up and not self.deferred else ()
        return _Fetched(parts, {name: self._moments(name) for name in done})

    def _moments(self, name: str) -> list[Array]:
        return list(self.mover.load(f"{name}/moments").values())

    def _turn(self, batch: Batch, carry: Any, now: _Fetched) -> tuple[Aux, Any]:
        """Run the last stage both ways."""
        index = len(self.plan.stages) - 1
        last = self._program("last", index, dense=self.change)
        where = self._where(batch, index)
        (grads, aux), cotangent = last(now.parts, carry, where, self.start.scale)
        self.mover.pace("backward", self.plan.stages[index].name, aux)
        self._denominator = jnp.maximum(aux.weight, 1e-9) * self.start.scale
        self._settle(index, grads, now)
        return aux, cotangent

    # --- gradients ------------------------------------------------------------------------

    def _settle(self, index: int, grads: tuple[Any, ...], now: _Fetched) -> None:
        """Add up the gradients of a stage's branches; use those that are whole."""
        stage = self.plan.stages[index]
        for name, part, total in zip(stage.params, now.parts, grads, strict=True):
            if name in self._partial:
                total = add(self._partial.pop(name), total)  # noqa: PLW2901
            if self.plan.uses[name][0] != index:
                self._partial[name] = total
            elif self.deferred:
                self._hold(name, part, total)
            else:
                self._update(name, now, part, total, UNKNOWN)

    def _hold(self, name: str, part: Part, grads: Any) -> None:
        branch = self.plan.branches[name]
        measure = self.programs.program("measure", branch, branch.rules, dense=self.change)
        self._squares[name] = measure(part, grads, self._denominator)
        leaves, self._held[name] = jax.tree.flatten(grads)
        record = {str(i): leaf for i, leaf in enumerate(leaves)}
        self.mover.write(f"{name}/grads", record, scratch=True)

    def _update(self, name: str, now: _Fetched, part: Part, grads: Any, whole: Whole) -> None:
        branch = self.plan.branches[name]
        sparse = bool(branch.masks or branch.patterns)
        change = self.change and sparse
        update = self.programs.program("update", branch, branch.rules, change=change)
        control = Control(
            self._denominator, *whole, self.plan.codes[name], self.start.counters, self.start.sparse
        )
        topology = part.masks, part.patterns
        done = update(topology, (part.params, now.moments[name]), grads, control)
        self.mover.pace("update", name, done.squares)
        self.mover.write(f"{name}/weights", branch.weights(done.part))
        moved = {str(i): leaf for i, leaf in enumerate(done.moments)}
        self.mover.write(f"{name}/moments", moved)
        if change:
            self.mover.write(f"{name}/topology", branch.topology(done.part))
            self._density |= {branch.full(key): x for key, x in done.density.items()}
        if sparse:
            self._sparse[name] = done.sparse
        self._counters = done.counters
        self._squares[name] = done.squares
        self._weight_norms[name] = done.weight_norm

    def _finish(self, aux: Aux) -> Outcome:
        """Update what waits, and the branches no stage reads."""
        norm = jnp.sqrt(sum(self._squares.values(), start=jnp.float32(0)))
        finite = jnp.isfinite(norm)
        # A step that overflowed leaves no trace but the smaller loss scale.
        if not (self.programs.scaler.dynamic and not bool(finite)):
            names = [name for name in reversed(tuple(self.plan.branches)) if name in self._held]
            names += self.plan.unread
            jobs = (functools.partial(self._load_branch, name) for name in names)
            for name, now in zip(names, self.mover.ahead(jobs), strict=True):
                grads = self._grads(name, now)
                self._update(name, now, now.parts[0], grads, Whole(norm, finite))
        return Outcome(
            aux=aux,
            counters=self._counters,
            sparse=self._sparse,
            squares=self._squares,
            weight_norms=self._weight_norms,
            density=self._density,
            norm=norm,
            finite=finite,
        )

    def _load_branch(self, name: str) -> _Fetched:
        part = load_part(self.mover, self.plan.branches[name])
        held = name in self._held
        grads = list(self.mover.load(f"{name}/grads").values()) if held else None
        return _Fetched((part,), {name: self._moments(name)}, grads)

    def _grads(self, name: str, now: _Fetched) -> Any:
        if now.grads is not None:
            return jax.tree.unflatten(self._held[name], now.grads)
        branch = self.plan.branches[name]
        ready, _ = self.programs.ready((branch,), now.parts, dense=self.change)
        return jax.tree.map(jnp.zeros_like, ready[name])

    # --- what the backward sweep need not compute again -----------------------------------

    def _keep(self, batch: Batch) -> list[bool]:
        """Choose the stages whose products stay: the last ones, which are needed first."""
        count = len(self.plan.stages) - 1
        if not self.residual_bytes:
            return [False] * count
        at = ("sizes", shapes_of(batch))
        if at not in self.programs.compiled:
            self.programs.compiled[at] = self._sizes(batch)
        left, keep = self.residual_bytes, [False] * count
        for i in reversed(range(count)):
            left -= self.programs.compiled[at][i]
            if left < 0:
                break
            keep[i] = True
        return keep

    def _sizes(self, batch: Batch) -> list[int]:
        """Bytes of each stage's products on each system."""
        carry, sizes = None, []
        systems = self.programs.mesh.size
        for i, stage in enumerate(self.plan.stages[:-1]):
            parts = tuple(branch.shapes for branch in self.plan.of(stage))
            forward = self._program("forward", i, keep=True, train=True)
            carry, kept = jax.eval_shape(forward.jitted, parts, carry, self._where(batch, i))
            total = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(kept))
            sizes.append(total // systems)
        return sizes


def evaluate(
    plan: Plan,
    programs: Stages,
    mover: Mover,
    batch: Batch,
    key: Array,
    *,
    names: tuple[str, ...] = (),
) -> tuple[Aux, dict[str, Array]]:
    """Sum the loss of a batch in one sweep down.

    Returns:
        (sums, the model's outputs of the given names, [N, A, ...]).
    """
    jobs = (
        functools.partial(lambda stage: tuple(load_part(mover, b) for b in plan.of(stage)), stage)
        for stage in plan.stages
    )
    carry: Any = None
    found: Any = None
    for i, (stage, parts) in enumerate(zip(plan.stages, mover.ahead(jobs), strict=True)):
        at = stage, plan.of(stage)
        if i + 1 == len(plan.stages):
            score = programs.program("score", at, plan.key(stage), names=names)
            found = score(parts, carry, batch)
            break
        forward = programs.program("forward", at, plan.key(stage), keep=False, train=False)
        carry, _ = forward(parts, carry, Where(batch, key, np.int32(i)))
        mover.pace("forward", stage.name, carry)
    return found
