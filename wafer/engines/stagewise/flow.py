"""One optimizer step of a pipeline: the tasks of the timetable, dispatched in its order.

Nothing here decides an order: ``wafer.engines.stagewise.schedule`` does. Dispatch does not wait for
results, so regions on different devices work at the same time; the host runs two steps of the
timetable ahead of the devices, no more, so that memory stays what the schedule bounds. The programs
are those of weight streaming. The last stage's forward pass, the loss and its gradient are one
program, which runs as its forward task; its backward task is then the rest of that region.
"""

import collections
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxtyping import Array

from models.base import Aux, Batch
from sparsity import SparseState
from wafer.engines.stagewise.branches import Part
from wafer.engines.stagewise.record import Recorder
from wafer.engines.stagewise.regions import Region
from wafer.engines.stagewise.schedule import Task, forward_schedule, schedule
from wafer.engines.stagewise.stages import Control, Stages, Where
from wafer.engines.stagewise.sweep import UNKNOWN, Outcome, Plan, Start, Whole, add

__all__ = ["Flow", "Held", "Pipe", "evaluate"]

_AHEAD = 2  # steps of the timetable
_add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b))  # keeps what a recorder still waits for


class Pipe(NamedTuple):
    """What does not change from step to step.

    plan: stages and branches of the model
    regions: of the pipeline, in order
    programs: compiled functions of each place
    """

    plan: Plan
    regions: tuple[Region, ...]
    programs: tuple[Stages, ...]

    def home(self, name: str) -> int:
        """Region a branch lives in: the first that reads it; 0 where none does."""
        uses = self.plan.uses[name]
        found = (r for r, region in enumerate(self.regions) if uses and uses[0] in region.stages)
        return next(found, 0)

    def put(self, tree: Any, place: int, spec: P | None = None) -> Any:
        """Send arrays to a place: to all its systems, or as they are shared out."""
        if len(self.programs) == 1:
            return tree
        sharding = NamedSharding(self.programs[place].mesh, P() if spec is None else spec)
        return jax.device_put(tree, sharding)

    def program(self, role: str, place: int, index: int, **static: Any) -> Any:
        """Return a role's function for a stage of the model, compiled for a place."""
        stage = self.plan.stages[index]
        at = stage, self.plan.of(stage)
        return self.programs[place].program(role, at, self.plan.key(stage), **static)

    def batches(self, batch: Batch) -> list[list[Batch]]:
        """Cut a batch [N, A, ...] into its A micro-batches [N, 1, ...], for each place."""
        programs = self.programs[0]
        shared = NamedSharding(programs.mesh, P("csx"))
        if "micro-batches" not in programs.compiled:

            def cut(batch: Batch) -> list[Batch]:
                count = range(batch.tokens.shape[1])
                return [jax.tree.map(lambda x: x[:, m : m + 1], batch) for m in count]  # noqa: B023

            programs.compiled["micro-batches"] = jax.jit(cut, out_shardings=shared)
        one = batch.tokens.shape[1] == 1
        first = [batch] if one else programs.compiled["micro-batches"](batch)
        return [self.put(first, i, P("csx")) for i in range(len(self.programs))]

    def weights(self, parts: Mapping[str, Part]) -> dict[tuple[int, str], Part]:
        """Every branch at every place that reads it: a copy, except at home."""
        found = {}
        for region in self.regions:
            for i in region.stages:
                for name in self.plan.stages[i].params:
                    if (region.place, name) not in found:
                        home = self.regions[self.home(name)].place == region.place
                        part = parts[name]
                        found[region.place, name] = part if home else self.put(part, region.place)
        return found


class Held(NamedTuple):
    """Weights and optimizer state, by branch, each where the branch lives.

    parts: branch -> weights
    moments: branch -> its own arrays of the optimizer state
    """

    parts: dict[str, Part]
    moments: dict[str, list[Array]]


class Flow:
    """One step of training.

    Args:
        pipe: stages, regions, programs.
        held: weights and optimizer state; the latter is donated.
        start: the small arrays of the state.
        change: the topology may change at this step.
        deferred: updates wait for the gradients of all stages.
        keep: keep what products with weights gave, so that the backward pass need not compute
            them again.
        recorder: told about every task.
    """

    def __init__(
        self,
        pipe: Pipe,
        held: Held,
        start: Start,
        *,
        change: bool,
        deferred: bool,
        keep: bool,
        recorder: Recorder | None = None,
    ) -> None:
        self.pipe, self.plan, self.held = pipe, pipe.plan, held
        self.change, self.deferred, self.keep = change, deferred, keep
        self._recorder = recorder
        self._add = add if recorder is None else _add
        places = range(len(pipe.programs))
        self._starts: list[Start] = [pipe.put(start, place) for place in places]
        self._weights = pipe.weights(held.parts)
        self._batches: list[list[Batch]] = []
        self._carries: dict[tuple[int, int], Any] = {}  # (region, micro-batch) -> its input
        self._cotangents: dict[tuple[int, int], Any] = {}  # likewise, of its output
        self._saved: dict[tuple[int, int], Any] = {}  # (stage, micro-batch) -> input, products
        self._sums: dict[int, Any] = {}  # stage -> gradients of its branches so far
        self._partial: dict[str, Any] = {}  # gradients of branches that earlier stages read too
        self._ready: dict[str, Any] = {}  # gradients that are whole
        self._aux: Aux | None = None
        self._denominator: Any = None
        self._whole: Whole | None = None
        self._squares: dict[str, Array] = {}
        self._weight_norms: dict[str, Array] = {}
        self._sparse: dict[str, SparseState] = {}
        self._counters: Any = start.counters

    def run(self, batch: Batch) -> Outcome:
        """Work off the timetable; ``held`` holds what is new afterwards."""
        self._batches = self.pipe.batches(batch)
        count, step = len(self._batches[0]), 0
        do = {"forward": self._forward, "backward": self._backward, "update": self._update_region}
        running: collections.deque[list[Any]] = collections.deque([[]])
        if self._recorder is not None:  # what comes before the timetable is no task's time
            jax.block_until_ready((self._batches, self._weights, self._starts))
        for task in schedule(len(self.pipe.regions), count, deferred=self.deferred):
            if task.step != step:
                step = task.step
                running.append([])
                if len(running) > _AHEAD:
                    jax.block_until_ready(running.popleft())
            begin = time.perf_counter()
            made = do[task.phase](task)
            if self._recorder is not None:
                place = self.pipe.regions[task.stage].place
                self._recorder.dispatched(task, place, begin, made)
            running[-1].append(made[0])
        return self._outcome()

    # --- tasks: each returns (what is never donated, what a recorder waits for besides) ---------

    def _stage(self, place: int, index: int, micro: int) -> tuple[tuple[Part, ...], Where]:
        names = self.plan.stages[index].params
        parts = tuple(self._weights[place, name] for name in names)
        batch, key = self._batches[place][micro], self._starts[place].key
        return parts, Where(batch, key, np.int32(index))

    def _forward(self, task: Task) -> tuple[Any, Any]:
        region, micro = self.pipe.regions[task.stage], task.micro
        place, last = region.place, len(self.plan.stages) - 1
        carry = self._carries.pop((task.stage, micro), None)
        for i in region.stages:
            parts, where = self._stage(place, i, micro)
            if i == last:
                return self._turn(task, parts, where, carry)
            forward = self.pipe.program("forward", place, i, keep=self.keep, train=True)
            after, kept = forward(parts, carry, where)
            self._saved[i, micro] = carry, kept
            carry = after
        following = self.pipe.regions[task.stage + 1].place
        self._carries[task.stage + 1, micro] = self.pipe.put(carry, following, P("csx"))
        return carry, None

    def _turn(self, task: Task, parts: Any, where: Where, carry: Any) -> tuple[Any, Any]:
        """Run the last stage both ways."""
        place, index = self.pipe.regions[task.stage].place, len(self.plan.stages) - 1
        last = self.pipe.program("last", place, index, dense=self.change)
        (grads, aux), cotangent = last(parts, carry, where, self._starts[place].scale)
        self._collect(index, grads)
        self._aux = aux if self._aux is None else _add(self._aux, aux)
        self._cotangents[task.stage, task.micro] = cotangent
        return cotangent, grads if self._recorder else None

    def _backward(self, task: Task) -> tuple[Any, Any]:
        region, micro = self.pipe.regions[task.stage], task.micro
        cotangent, made = self._cotangents.pop((task.stage, micro)), []
        watched = cotangent
        for i in reversed(region.stages):
            if i == len(self.plan.stages) - 1:
                continue  # with its forward task
            parts, where = self._stage(region.place, i, micro)
            backward = self.pipe.program(
                "backward", region.place, i, dense=self.change, keep=self.keep
            )
            carry, kept = self._saved.pop((i, micro))
            grads, cotangent = backward(parts, carry, where, (cotangent, kept))
            self._collect(i, grads)
            made.append(grads if self._recorder else None)
            watched = cotangent or watched  # the first stage has an input without gradient
        if task.stage:
            to = self.pipe.regions[task.stage - 1].place
            self._cotangents[task.stage - 1, micro] = self.pipe.put(cotangent, to, P("csx"))
        if micro == len(self._batches[0]) - 1:
            self._settle(region)
        return watched, made

    def _collect(self, index: int, grads: Any) -> None:
        """Add the gradients of a micro-batch to those of the ones before."""
        total = self._sums.get(index)
        self._sums[index] = grads if total is None else self._add(total, grads)

    def _settle(self, region: Region) -> None:
        """Note which gradients are whole once a region has seen every micro-batch."""
        place = region.place
        if self._denominator is None and self._aux is not None:  # the last region is first
            scale = self._starts[place].scale
            self._denominator = jnp.maximum(self._aux.weight, 1e-9) * scale
        for i in reversed(region.stages):
            for name, total in zip(self.plan.stages[i].params, self._sums.pop(i), strict=True):
                if name in self._partial:
                    later = self.pipe.put(self._partial.pop(name), place)
                    total = self._add(later, total)  # noqa: PLW2901
                whole = self.plan.uses[name][0] == i
                (self._ready if whole else self._partial)[name] = total
                if whole and self.deferred:
                    self._measure(name, place, total)

    def _measure(self, name: str, place: int, grads: Any) -> None:
        branch = self.plan.branches[name]
        measure = self.pipe.programs[place].program(
            "measure", branch, branch.rules, dense=self.change
        )
        denominator = self.pipe.put(self._denominator, place)
        self._squares[name] = self.pipe.put(measure(self.held.parts[name], grads, denominator), 0)

    def _update_region(self, task: Task) -> tuple[Any, Any]:
        # A step that overflowed leaves no trace but the smaller loss scale.
        if self.pipe.programs[0].scaler.dynamic and not bool(self._known().finite):
            return None, None
        names = [name for name in self._ready if self.pipe.home(name) == task.stage]
        names += [] if task.stage else self.plan.unread
        place = self.pipe.regions[task.stage].place
        return [self._update(name, place) for name in names], None

    def _known(self) -> Whole:
        """What updates may know of all gradients together."""
        if not self.deferred:
            return UNKNOWN
        if self._whole is None:
            norm = jnp.sqrt(sum(self._squares.values(), start=jnp.float32(0)))
            self._whole = Whole(norm, jnp.isfinite(norm))
        return self._whole

    def _update(self, name: str, place: int) -> Array:
        branch, part, start = self.plan.branches[name], self.held.parts[name], self._starts[place]
        sparse = bool(branch.masks or branch.patterns)
        change = self.change and sparse
        if name in self._ready:
            grads = self._ready.pop(name)
        else:
            ready, _ = self.pipe.programs[place].ready((branch,), (part,), dense=self.change)
            grads = jax.tree.map(jnp.zeros_like, ready[name])
        update = self.pipe.programs[place].program("update", branch, branch.rules, change=change)
        denominator, whole = self.pipe.put((self._denominator, self._known()), place)
        control = Control(
            denominator=denominator,
            norm=whole.norm,
            finite=whole.finite,
            codes=self.plan.codes[name],
            counters=start.counters,
            sparse=start.sparse,
        )
        owned = part.params, self.held.moments[name]
        done = update((part.masks, part.patterns), owned, grads, control)
        new = done.part if change else part._replace(params=done.part.params)
        self.held.parts[name], self.held.moments[name] = new, done.moments
        small = self.pipe.put((done.counters, done.squares, done.weight_norm), 0)
        self._counters, self._squares[name], self._weight_norms[name] = small
        if sparse:
            self._sparse[name] = self.pipe.put(done.sparse, 0)
        return done.squares

    def _outcome(self) -> Outcome:
        if self._aux is None:
            raise RuntimeError("pipelined: the timetable ended without a loss")
        norm = jnp.sqrt(sum(self._squares.values(), start=jnp.float32(0)))
        return Outcome(
            aux=self.pipe.put(self._aux, 0),
            counters=self._counters,
            sparse=self._sparse,
            squares=self._squares,
            weight_norms=self._weight_norms,
            density={},
            norm=norm,
            finite=jnp.isfinite(norm),
        )


def evaluate(
    pipe: Pipe, parts: Mapping[str, Part], batch: Batch, key: Array, names: Sequence[str] = ()
) -> tuple[Aux, dict[str, Array]]:
    """Sum the loss of a batch: forward tasks only.

    Returns:
        (sums, the model's outputs of the given names, [N, A, ...]).
    """
    weights, batches = pipe.weights(parts), pipe.batches(batch)
    keys = [pipe.put(key, place) for place in range(len(pipe.programs))]
    carries: dict[tuple[int, int], Any] = {}
    total, outputs = None, []
    for task in forward_schedule(len(pipe.regions), len(batches[0])):
        region, micro = pipe.regions[task.stage], task.micro
        place, carry = region.place, carries.pop((task.stage, micro), None)
        for i in region.stages:
            mine = tuple(weights[place, name] for name in pipe.plan.stages[i].params)
            if i + 1 == len(pipe.plan.stages):
                score = pipe.program("score", place, i, names=tuple(names))
                aux, found = score(mine, carry, batches[place][micro])
                total = aux if total is None else _add(total, aux)
                outputs.append(found)
                break
            forward = pipe.program("forward", place, i, keep=False, train=False)
            where = Where(batches[place][micro], keys[place], np.int32(i))
            carry, _ = forward(mine, carry, where)
        else:
            following = pipe.regions[task.stage + 1].place
            carries[task.stage + 1, micro] = pipe.put(carry, following, P("csx"))
    joined = {name: jnp.concatenate([o[name] for o in outputs], axis=1) for name in names}
    return pipe.put(total, 0), pipe.put(joined, 0, P("csx"))
