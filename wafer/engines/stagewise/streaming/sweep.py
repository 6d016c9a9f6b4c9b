"""One optimizer step as a sweep: down the stages, up again, each branch updated as it is reached.

A branch is a part of the parameters that stages read as one. Its records in the store are weights,
topology, moments (its optimizer state) and, for a while, gradients. A system is one of the devices
that share the batch. Arrays of the batch begin with [N, A]: systems, micro-batches of each.

Weights are on the systems for one stage at a time. What stays between the two ways are the stages'
inputs and, as far as ``residual_bytes`` allows, what their products with weights gave (the
residuals). Where an update depends on all gradients (clipping by global norm, skipped overflows, a
new topology) gradients wait in the store until the sweep is over; updates then run in a second
pass.
"""

import functools
import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PyTree

from wafer.engines.programs import shapes_of
from wafer.engines.stagewise import residuals
from wafer.engines.stagewise.branches import Branch, BranchArrays
from wafer.engines.stagewise.ledger import GradientLedger, SweepPlan
from wafer.engines.stagewise.passes import StageCall, StageInputs
from wafer.engines.stagewise.stages import Stages
from wafer.engines.stagewise.streaming.traffic import Mover
from wafer.models.base import Aux, Batch


def _load_part(mover: Mover, branch: Branch) -> BranchArrays:
    """Bring a branch's weights to the systems."""
    weights = mover.load(f"{branch.name}/weights")
    return branch.part(weights, mover.load(f"{branch.name}/topology") if branch.is_sparse else {})


class _Fetched(NamedTuple):
    """What a stage, or the update of a branch, needs."""

    parts: Mapping[str, BranchArrays]  #: of its branches
    #: branch -> optimizer state, of those that are updated at this stage
    moments: Mapping[str, list[Array]]
    grads: list[Array] | None = None  #: leaves held since the sweep, or None


class StreamingSweep:
    """One step.

    Args:
        ledger: of the step.
        mover: moves the records.
        residual_bytes: for what the backward sweep need not compute again, on each system.
    """

    def __init__(self, ledger: GradientLedger, mover: Mover, *, residual_bytes: int) -> None:
        self.ledger, self.mover, self.residual_bytes = ledger, mover, residual_bytes
        self.plan, self.programs = ledger.plan, ledger.places.programs[0]
        self._held_trees: dict[str, Any] = {}  # structure of gradients that wait in the store

    def run(self, batch: Batch) -> None:
        """Go down, up, and through the second pass if there is one."""
        stages, last = self.plan.stages, len(self.plan.stages) - 1
        keeps = self._keep(batch)
        order = [*range(last), *reversed(range(last + 1))]  # down, the last one once, and up
        jobs = (functools.partial(self._load, i, up=n >= last) for n, i in enumerate(order))
        fetched = self.mover.ahead(jobs)
        carries: list[Any] = [None]
        saved: list[Any] = []  # residuals of each stage, or None
        for i in range(last):
            options = {"keep": keeps[i], "train": True, "dense": self.ledger.change}
            forward = self._program(StageCall.forward, i, **options)
            parts = tuple(next(fetched).parts.values())
            carry, kept = forward(parts, carries[-1], self._inputs(batch, i))
            del parts  # one stage's weights go before those of the next but one come
            self.mover.pace("forward", stages[i].name, carry)
            carries.append(carry)
            saved.append(kept)
        cotangent = self._turn(batch, carries.pop(), next(fetched))
        for i in reversed(range(last)):
            now = next(fetched)
            backward = self._program(StageCall.backward, i, dense=self.ledger.change)
            back = cotangent, saved.pop()
            parts = tuple(now.parts.values())
            grads, cotangent = backward(parts, carries.pop(), self._inputs(batch, i), back)
            self.mover.pace("backward", stages[i].name, cotangent)
            self._settle(i, grads, now)
            del now, parts, grads
        self._second_pass()

    def _program(
        self, function: Callable[..., PyTree], index: int, **choices: Hashable
    ) -> Callable[..., PyTree]:
        return self.programs.program(function, *self.plan.at(index), **choices)

    def _inputs(self, batch: Batch, index: int) -> StageInputs:
        return StageInputs(batch, self.ledger.starts[0].key, np.int32(index))

    def _load(self, index: int, *, up: bool) -> _Fetched:
        _, branches = self.plan.at(index)
        parts = {branch.name: _load_part(self.mover, branch) for branch in branches}
        complete = self.plan.completed_at(index) if up and not self.ledger.deferred else ()
        return _Fetched(parts, {name: self._moments(name) for name in complete})

    def _moments(self, name: str) -> list[Array]:
        return list(self.mover.load(f"{name}/moments").values())

    def _turn(self, batch: Batch, carry: PyTree, now: _Fetched) -> PyTree:
        """Run the last stage both ways."""
        index = len(self.plan.stages) - 1
        program = self._program(StageCall.last, index, dense=self.ledger.change)
        inputs, scale = self._inputs(batch, index), self.ledger.starts[0].scale
        (grads, aux), cotangent = program(tuple(now.parts.values()), carry, inputs, scale)
        self.mover.pace("backward", self.plan.stages[index].name, aux)
        self.ledger.count(aux)
        self._settle(index, grads, now)
        return cotangent

    def _settle(self, index: int, grads: tuple[PyTree, ...], now: _Fetched) -> None:
        """Use the gradients that are whole after a stage: update, or hold them back."""
        for name, total in self.ledger.add_gradients(index, grads).items():
            if self.ledger.deferred:
                self._hold(name, now.parts[name], total)
            else:
                self._update(name, now, total)

    def _hold(self, name: str, part: BranchArrays, grads: PyTree) -> None:
        self.ledger.measure(name, part, grads)
        leaves, self._held_trees[name] = jax.tree.flatten(grads)
        record = {str(i): leaf for i, leaf in enumerate(leaves)}
        self.mover.write(f"{name}/grads", record, scratch=True)

    def _update(self, name: str, now: _Fetched, grads: PyTree) -> None:
        branch = self.plan.branches[name]
        updated = self.ledger.update(name, now.parts[name], now.moments[name], grads)
        self.mover.pace("update", name, updated.squares)
        for kind, leaves in branch.records(updated.part, updated.moments).items():
            if leaves:  # no topology where it stays
                self.mover.write(f"{name}/{kind}", leaves)

    def _second_pass(self) -> None:
        """Update what waits, and the branches no stage reads."""
        if self.ledger.overflowed:
            return
        names = [*self._held_trees, *self.plan.unread]
        jobs = (functools.partial(self._load_branch, name) for name in names)
        for name, now in zip(names, self.mover.ahead(jobs), strict=True):
            held = now.grads
            grads = None if held is None else self._held_trees[name].unflatten(held)
            self._update(name, now, grads)

    def _load_branch(self, name: str) -> _Fetched:
        part = _load_part(self.mover, self.plan.branches[name])
        held = name in self._held_trees
        grads = list(self.mover.load(f"{name}/grads").values()) if held else None
        return _Fetched({name: part}, {name: self._moments(name)}, grads)

    # --- what the backward sweep need not compute again -----------------------------------

    def _keep(self, batch: Batch) -> list[bool]:
        """Choose the stages whose products stay."""
        if not self.residual_bytes:
            return [False] * (len(self.plan.stages) - 1)
        sizes, shapes = self.programs.sizes, shapes_of(batch)
        if shapes not in sizes:
            sizes[shapes] = self._sizes(batch)
        return residuals.fitting(sizes[shapes], self.residual_bytes)

    def _sizes(self, batch: Batch) -> list[int]:
        """Bytes of each stage's products on each system."""
        carry, sizes = None, []
        for i in range(len(self.plan.stages) - 1):
            parts = tuple(branch.shapes for branch in self.plan.at(i)[1])
            forward = self._program(StageCall.forward, i, keep=True, train=True, dense=False)
            carry, kept = jax.eval_shape(forward, parts, carry, self._inputs(batch, i))
            total = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(kept))
            sizes.append(total // self.programs.mesh.size)
        return sizes


def evaluate(
    plan: SweepPlan,
    programs: Stages,
    mover: Mover,
    batch: Batch,
    key: Array,
    *,
    names: tuple[str, ...],
) -> tuple[Aux, dict[str, Array]]:
    """Sum the loss of a batch in one sweep down.

    Returns:
        (sums, the model's outputs of the given names, [N, A, ...]).
    """
    visits = [plan.at(i) for i in range(len(plan.stages))]
    load = lambda branches: tuple(_load_part(mover, branch) for branch in branches)
    fetched = mover.ahead(functools.partial(load, branches) for _, branches in visits)
    *before, last = visits
    carry: PyTree = None
    for i, at in enumerate(before):
        options = {"keep": False, "train": False, "dense": False}
        forward = programs.program(StageCall.forward, *at, **options)
        carry, _ = forward(next(fetched), carry, StageInputs(batch, key, np.int32(i)))
        mover.pace("forward", at[0].name, carry)
    return programs.program(StageCall.score, *last, names=names)(next(fetched), carry, batch)
