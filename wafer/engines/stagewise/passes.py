"""The passes of one stage: forward, backward, both at the last stage, and scoring.

Pure functions. Each runs on all systems of a mesh at once (``shard_map``, axis 'csx'): weights are
the same everywhere, gradients are summed over the systems (``psum``), the carry stays where it is.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from wafer.data.batching.batches import numbered, to_batch
from wafer.engines.microbatches import (
    add_axis,
    local_shard,
    num_micro_batches,
    scan_micro_batches,
    sum_over_systems,
)
from wafer.engines.stagewise import residuals
from wafer.engines.stagewise.branches import Branch, BranchArrays
from wafer.engines.stagewise.core import Core
from wafer.models.base import Aux, Batch, Stage

Parts = tuple[BranchArrays, ...]


class StageInputs(NamedTuple):
    """What a stage is given beside weights and carry."""

    batch: Batch  #: of every micro-batch
    key: Any  #: [2] uint32 data of the step's key
    index: Any  #: [] int32 of the stage


def make_batch(core: Core, features: PyTree) -> Batch:
    """Make the batch of every micro-batch, its sequences numbered over all systems."""
    del core
    share = local_shard(features)
    count = num_micro_batches(share)
    before = jax.lax.axis_index("csx") * count + jnp.arange(count, dtype=jnp.int32)
    shards = jax.lax.axis_size("csx") * count
    one = lambda item: numbered(to_batch(item[0]), item[1], shards, jax.process_count())
    return add_axis(jax.lax.map(one, (share, before)))


def cut(core: Core, batch: Batch) -> list[Batch]:
    """Cut a batch [N, A, ...] into its A micro-batches [N, 1, ...]."""
    del core
    count = batch.tokens.shape[1]
    return [jax.tree.map(lambda x, m=m: x[:, m : m + 1], batch) for m in range(count)]


@dataclasses.dataclass(frozen=True, eq=False)
class StageCall:
    """The passes of one stage, as they are traced."""

    core: Core  #: what the run is made of
    stage: Stage  #: of the model
    branches: tuple[Branch, ...]  #: that it reads

    def forward(
        self,
        parts: Parts,
        carry: PyTree,
        inputs: StageInputs,
        *,
        keep: bool,
        train: bool,
        dense: bool,
    ) -> tuple[PyTree, PyTree]:
        """Return (the next carry, what the backward pass need not compute again).

        The latter is None unless ``keep``, and is of a backward pass with the same ``dense``:
        without dense gradients several sparse products are one. Dropout acts where the run asks
        for it and ``train``.
        """
        ready, sparse = self.core.prepare(self.branches, parts, dense=dense)

        def micro(item: PyTree) -> tuple[None, PyTree]:
            carry, batch = item
            rest = sparse, batch, self._drop(inputs) if train else None
            if keep:
                return None, residuals.run(self._compute, ready, carry, rest)
            return None, (self._compute(ready, carry, rest), None)

        _, out = scan_micro_batches(micro, local_shard((carry, inputs.batch)))
        return add_axis(out)

    def backward(
        self,
        parts: Parts,
        carry: PyTree,
        inputs: StageInputs,
        back: tuple[PyTree, PyTree],
        *,
        dense: bool,
    ) -> tuple[PyTree, PyTree]:
        """Return (gradients of each branch, cotangent of the carry's float leaves).

        ``back`` is (cotangent of the next carry's, what the forward pass kept or None).
        """
        ready, sparse = self.core.prepare(self.branches, parts, dense=dense)

        def micro(item: PyTree) -> tuple[PyTree, PyTree]:
            carry, batch, cotangent, kept = item
            rest = sparse, batch, self._drop(inputs)
            return residuals.pull_back(self._compute, ready, carry, rest, cotangent, kept=kept)

        grads, cotangent = scan_micro_batches(micro, local_shard((carry, inputs.batch, *back)))
        return sum_over_systems(self._by_branch(grads)), add_axis(cotangent)

    def last(
        self, parts: Parts, carry: PyTree, inputs: StageInputs, scale: Array, *, dense: bool
    ) -> tuple[tuple[PyTree, Aux], PyTree]:
        """Return ((gradients of each branch, sums of the loss), cotangent of the carry).

        The loss is multiplied by ``scale``, the sums are not.
        """
        ready, sparse = self.core.prepare(self.branches, parts, dense=dense)

        def micro(item: PyTree) -> tuple[PyTree, PyTree]:
            carry, batch = item
            floats, others, join = residuals.split(carry)
            rest = sparse, batch, self._drop(inputs)

            def loss(ready: PyTree, floats: PyTree) -> tuple[Array, Aux]:
                out = self._compute(ready, join(floats, others), rest)
                aux = self.core.model.objective(out, batch)
                return aux.loss_sum * scale, aux

            (grads, cotangent), aux = jax.grad(loss, (0, 1), has_aux=True)(ready, floats)
            return (grads, aux), cotangent

        (grads, aux), cotangent = scan_micro_batches(micro, local_shard((carry, inputs.batch)))
        return sum_over_systems((self._by_branch(grads), aux)), add_axis(cotangent)

    def score(
        self, parts: Parts, carry: PyTree, batch: Batch, *, names: tuple[str, ...]
    ) -> tuple[Aux, dict[str, Array]]:
        """Sum the loss without gradients or dropout; also return the outputs of these names."""
        ready, sparse = self.core.prepare(self.branches, parts, dense=False)

        def micro(item: PyTree) -> tuple[Aux, PyTree]:
            carry, batch = item
            out = self._compute(ready, carry, (sparse, batch, None))
            outputs = out if isinstance(out, Mapping) else {"logits": out}
            return self.core.model.objective(out, batch), {name: outputs[name] for name in names}

        total, outputs = scan_micro_batches(micro, local_shard((carry, batch)))
        return sum_over_systems(total), add_axis(outputs)

    @property
    def _compute(self) -> Any:
        return functools.partial(self.core.compute, self.stage)

    def _drop(self, inputs: StageInputs) -> Array | None:
        """[2] uint32 dropout key of the stage, or None; the batch numbers its sequences."""
        if not self.core.dropout:
            return None
        drop = jax.random.fold_in(jax.random.wrap_key_data(inputs.key), inputs.index)
        return jax.random.key_data(drop)

    def _by_branch(self, grads: PyTree) -> tuple[PyTree, ...]:
        return tuple(grads[branch.name] for branch in self.branches)
