"""One optimizer step of a pipeline: the tasks of the timetable, dispatched in its order.

Nothing here decides an order: ``schedule`` does. Dispatch does not wait for
results, so regions on different devices work at the same time; the host runs two steps of the
timetable ahead of the devices, no more, so that memory stays what the schedule bounds. The programs
are those of weight streaming. The last stage's forward pass, the loss and its gradient are one
program, which runs as its forward task; its backward task is then the rest of that region.
"""

import collections
import itertools
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, PyTree

from wafer.engines.stagewise.branches import BranchArrays
from wafer.engines.stagewise.ledger import GradientLedger, SweepPlan, add
from wafer.engines.stagewise.passes import StageCall, StageInputs, cut
from wafer.engines.stagewise.pipeline.record import Recorder
from wafer.engines.stagewise.pipeline.regions import Copies, StageRegion
from wafer.engines.stagewise.pipeline.schedule import StageTask, forward_schedule, schedule
from wafer.engines.stagewise.stages import Places
from wafer.models.base import Aux, Batch

_AHEAD = 2  # steps of the timetable
_SHARED = P("csx")


class Pipe(NamedTuple):
    """What does not change from step to step."""

    plan: SweepPlan  #: stages and branches of the model
    regions: tuple[StageRegion, ...]  #: of the pipeline, in order
    places: Places  #: programs of each place
    #: of the pipeline; weights live in the first, the others read copies of them
    copies: Copies = Copies()

    def home(self, name: str) -> int:
        """Region a branch lives in: the first that reads it; 0 where none does."""
        uses = self.plan.uses[name]
        homes = (r for r, region in enumerate(self.regions) if uses and uses[0] in region.stages)
        return next(homes, 0)

    def program(
        self, function: Callable[..., PyTree], place: int, index: int, **choices: Hashable
    ) -> Callable[..., PyTree]:
        """Return a function's program for a stage of the model, compiled for a place."""
        return self.places.programs[place].program(function, *self.plan.at(index), **choices)

    def batches(self, batch: Batch) -> list[dict[int, Batch]]:
        """Cut a batch [N, A, ...] into its A micro-batches [N, 1, ...], each at its places."""
        one = batch.tokens.shape[1] == 1
        first = [batch] if one else self.places.programs[0].program(cut)(batch)
        return [
            {place: self.places.put(x, place, _SHARED) for place in self.copies.places(micro)}
            for micro, x in enumerate(first)
        ]

    def weights(self, parts: Mapping[str, BranchArrays]) -> dict[tuple[int, str], BranchArrays]:
        """Every branch at every place that reads it: a copy, except at home."""
        weights = {}
        for copy, region in itertools.product(range(self.copies.groups), self.regions):
            place = self.copies.place(region, copy)
            for name in (name for i in region.stages for name in self.plan.stages[i].params):
                if (place, name) not in weights:
                    is_home = self.regions[self.home(name)].place == place
                    put = parts[name] if is_home else self.places.put(parts[name], place)
                    weights[place, name] = put
        return weights


class Held(NamedTuple):
    """Weights and optimizer state, by branch, each where the branch lives."""

    parts: dict[str, BranchArrays]  #: branch -> weights
    moments: dict[str, list[Array]]  #: branch -> its own arrays of the optimizer state


class Flow:
    """One step of training.

    Args:
        pipe: stages, regions, programs.
        held: weights and optimizer state; the latter is donated.
        ledger: of the step.
        keep: keep what products with weights gave, so that the backward pass need not compute
            them again.
        recorder: told about every task.
    """

    def __init__(
        self,
        pipe: Pipe,
        held: Held,
        ledger: GradientLedger,
        *,
        keep: bool,
        recorder: Recorder | None = None,
    ) -> None:
        self.pipe, self.plan, self.held, self.ledger = pipe, pipe.plan, held, ledger
        self.keep = keep
        self._recorder = recorder
        self._weights = pipe.weights(held.parts)
        self._batches: list[dict[int, Batch]] = []  # micro-batch -> place -> the batch
        self._carries: dict[tuple[int, int], Any] = {}  # (region, micro-batch) -> its input
        self._cotangents: dict[tuple[int, int], Any] = {}  # the same -> gradient of its output
        self._saved: dict[tuple[int, int], Any] = {}  # (stage, micro-batch) -> input, products
        self._sums: dict[int, Any] = {}  # stage -> gradients of its branches so far
        self._ready: dict[str, Any] = {}  # gradients that are whole

    def run(self, batch: Batch) -> None:
        """Work off the timetable; ``held`` holds what is new afterwards."""
        self._batches = self.pipe.batches(batch)
        count, copies, step = len(self._batches), self.pipe.copies, 0
        do = {"forward": self._forward, "backward": self._backward, "update": self._update_region}
        running: collections.deque[list[Any]] = collections.deque([[]])
        if self._recorder is not None:  # what comes before the timetable is no task's time
            jax.block_until_ready((self._batches, self._weights, self.ledger.starts))
        stages, deferred = len(self.pipe.regions), self.ledger.deferred
        for task in schedule(stages, count, copies=copies.number, deferred=deferred):
            if task.step != step:
                step = task.step
                running.append([])
                if len(running) > _AHEAD:
                    jax.block_until_ready(running.popleft())
            begin = time.perf_counter()
            results = do[task.phase](task)
            if self._recorder is not None:
                place = copies.place(self.pipe.regions[task.stage], max(task.micro, 0))
                self._recorder.dispatched(task, place, begin, results)
            running[-1].append(results[0])

    # --- tasks: each returns (what is never donated, what a recorder waits for besides) ---------

    def _inputs(
        self, place: int, index: int, micro: int
    ) -> tuple[tuple[BranchArrays, ...], StageInputs]:
        names = self.plan.stages[index].params
        parts = tuple(self._weights[place, name] for name in names)
        batch, key = self._batches[micro][place], self.ledger.starts[place].key
        return parts, StageInputs(batch, key, np.int32(index))

    def _forward(self, task: StageTask) -> tuple[PyTree, PyTree]:
        region, micro = self.pipe.regions[task.stage], task.micro
        place, last = self.pipe.copies.place(region, micro), len(self.plan.stages) - 1
        carry = self._carries.pop((task.stage, micro), None)
        for i in region.stages:
            parts, inputs = self._inputs(place, i, micro)
            if i == last:
                return self._turn(task, parts, inputs, carry)
            options = {"keep": self.keep, "train": True, "dense": self.ledger.change}
            forward = self.pipe.program(StageCall.forward, place, i, **options)
            after, kept = forward(parts, carry, inputs)
            self._saved[i, micro] = carry, kept
            carry = after
        following = self.pipe.copies.place(self.pipe.regions[task.stage + 1], micro)
        self._carries[task.stage + 1, micro] = self.pipe.places.put(carry, following, _SHARED)
        return carry, None

    def _turn(
        self, task: StageTask, parts: Any, inputs: StageInputs, carry: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Run the last stage both ways."""
        region, index = self.pipe.regions[task.stage], len(self.plan.stages) - 1
        place = self.pipe.copies.place(region, task.micro)
        program = self.pipe.program(StageCall.last, place, index, dense=self.ledger.change)
        scale = self.ledger.starts[place].scale
        (grads, aux), cotangent = program(parts, carry, inputs, scale)
        self._collect(index, grads, region)
        self.ledger.count(aux)
        self._cotangents[task.stage, task.micro] = cotangent
        return cotangent, grads if self._recorder else None

    def _backward(self, task: StageTask) -> tuple[PyTree, PyTree]:
        region, micro = self.pipe.regions[task.stage], task.micro
        place = self.pipe.copies.place(region, micro)
        cotangent, watched_too = self._cotangents.pop((task.stage, micro)), []
        watched = cotangent
        for i in reversed(region.stages):
            if i == len(self.plan.stages) - 1:
                continue  # with its forward task
            parts, inputs = self._inputs(place, i, micro)
            backward = self.pipe.program(StageCall.backward, place, i, dense=self.ledger.change)
            carry, kept = self._saved.pop((i, micro))
            grads, cotangent = backward(parts, carry, inputs, (cotangent, kept))
            self._collect(i, grads, region)
            watched_too.append(grads if self._recorder else None)
            watched = cotangent or watched  # the first stage has an input without gradient
        if task.stage:
            to = self.pipe.copies.place(self.pipe.regions[task.stage - 1], micro)
            self._cotangents[task.stage - 1, micro] = self.pipe.places.put(cotangent, to, _SHARED)
        if micro == len(self._batches) - 1:
            self._settle(region)
        return watched, watched_too

    def _collect(self, index: int, grads: PyTree, region: StageRegion) -> None:
        """Add the gradients of a micro-batch to those of the ones before, in the first copy.

        The micro-batches come in order whatever copy they are of, so that the sum has the bits of
        one copy's.
        """
        total, grads = self._sums.get(index), self.pipe.places.put(grads, region.place)
        self._sums[index] = grads if total is None else self.ledger.add(total, grads)

    def _settle(self, region: StageRegion) -> None:
        """Note which gradients are whole once a region has seen every micro-batch."""
        for i in reversed(region.stages):
            for name, total in self.ledger.add_gradients(
                i, self._sums.pop(i), region.place
            ).items():
                self._ready[name] = total
                if self.ledger.deferred:
                    self.ledger.measure(name, self.held.parts[name], total, region.place)

    def _update_region(self, task: StageTask) -> tuple[PyTree, PyTree]:
        if self.ledger.overflowed:
            return None, None
        names = [name for name in self._ready if self.pipe.home(name) == task.stage]
        names += [] if task.stage else self.plan.unread
        place = self.pipe.regions[task.stage].place
        return [self._update(name, place) for name in names], None

    def _update(self, name: str, place: int) -> Array:
        part, moments = self.held.parts[name], self.held.moments[name]
        updated = self.ledger.update(name, part, moments, self._ready.pop(name, None), place)
        self.held.parts[name] = updated.part.over(part)
        self.held.moments[name] = updated.moments
        return updated.squares


def evaluate(
    pipe: Pipe,
    parts: Mapping[str, BranchArrays],
    batch: Batch,
    key: Array,
    names: tuple[str, ...] = (),
) -> tuple[Aux, dict[str, Array]]:
    """Sum the loss of a batch: forward tasks only.

    Returns:
        (sums, the model's outputs of the given names, [N, A, ...]).
    """
    weights, batches, put = pipe.weights(parts), pipe.batches(batch), pipe.places.put
    keys = [put(key, place) for place in range(len(pipe.places.programs))]
    carries: dict[tuple[int, int], Any] = {}
    total: Any = None
    outputs: list[dict[str, Array]] = []
    for task in forward_schedule(len(pipe.regions), len(batches), pipe.copies.number):
        region, micro = pipe.regions[task.stage], task.micro
        place, carry = pipe.copies.place(region, micro), carries.pop((task.stage, micro), None)
        for i in region.stages:
            own = tuple(weights[place, name] for name in pipe.plan.stages[i].params)
            if i + 1 == len(pipe.plan.stages):
                score = pipe.program(StageCall.score, place, i, names=names)
                aux, named = score(own, carry, batches[micro][place])
                aux = put(aux, 0)
                total = aux if total is None else add(total, aux)
                outputs.append(put(named, 0, _SHARED))
                break
            options = {"keep": False, "train": False, "dense": False}
            forward = pipe.program(StageCall.forward, place, i, **options)
            carry, _ = forward(
                own, carry, StageInputs(batches[micro][place], keys[place], np.int32(i))
            )
        else:
            following = pipe.copies.place(pipe.regions[task.stage + 1], micro)
            carries[task.stage + 1, micro] = put(carry, following, _SHARED)
    joined = {name: jnp.concatenate([o[name] for o in outputs], axis=1) for name in names}
    return total, joined
