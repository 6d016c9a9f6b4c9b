"""The contract every model meets: a frozen bundle of pure functions over a dict of parameters.

Execution engines see nothing but this: they fold the stages themselves (weight streaming,
pipelining) or call ``loss`` (resident). A test asserts that both agree.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from wafer.models.paths import Params, pick
from wafer.models.user.flags import own_flags
from wafer.vsl import Layout


class Batch(NamedTuple):
    """One step's input: a flat stream of T token slots.

    Attributes:
        tokens: [T] int32 input ids; anything at padding and slack
        labels: [T] int32 targets, already shifted; read only where ``weights`` is not 0
        weights: [T] float32 loss mask
        layout: where the sequences lie in the stream
        extras: family-specific arrays (segment ids, masked positions, a decoder stream), or none
    """

    tokens: Array
    labels: Array
    weights: Array
    layout: Layout
    extras: Mapping[str, Any] = {}


class Aux(NamedTuple):
    """What a loss reports besides its value; sums, so that shards and micro-batches add up.

    Attributes:
        loss_sum: [] float32 sum of weighted token losses
        weight: [] float32 the denominator: loss = loss_sum / weight
        metrics: name -> [] float32 further sums (for example ``accuracy_sum``)
    """

    loss_sum: Array
    weight: Array
    metrics: Mapping[str, Array]


DropKey = Array | None
"""Random key of a stage's dropout, consumed; None switches dropout off."""
StageFn = Callable[[Params, Any, Batch, DropKey], Any]


@dataclasses.dataclass(frozen=True)
class Stage:
    """One step of the layer sweep.

    Attributes:
        name: unique, also the order users see: 'embed', 'layers_0', ..., 'head'.
        kind: key into ``Model.kinds``; all stages of a kind share one function and compile once.
        params: top-level keys of the parameter tree, in the order the kind's function names them.
            The stage gets them renamed to ``keys_of_kind`` (see ``Model.stage_params``).
    """

    name: str
    kind: str
    params: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)  # identity hash: a bundle is static under jit
class Model:
    """A model as pure functions.

    Attributes:
        config: the frozen configuration it was built from.
        init: key -> params, a plain nested dict of float32 arrays. The key is consumed.
        stages: the sweep in order; never iterate the parameter tree instead, where 'layers_10'
            sorts before 'layers_2'.
        kinds: kind -> (role names, function). The function is ``(stage_params, carry, batch,
            key) -> carry``; ``stage_params`` maps each role name to the branch of the tree that
            the stage lists at the same place, so every layer passes the same tree structure.
        objective: (last carry, batch) -> Aux.
        alias: parameter path -> dotted name, as PyTorch modules have it; filters may match it
            ('*proj_q_dense_layer.weight').
        sparse: parameter path -> whether the model multiplies by a ``SparseWeight`` there.
        weight_layout: what the axes of arrays with three and more are, by glob of names, see
            ``sparsity.configure``; None where there are none, or only convolutions.
    """

    config: Any
    init: Callable[[Array], Params]
    stages: tuple[Stage, ...]
    kinds: Mapping[str, tuple[tuple[str, ...], StageFn]]
    objective: Callable[[Any, Batch], Aux]
    alias: Callable[[str], str] = lambda name: name
    sparse: Callable[[str], bool] = lambda name: name.endswith("/kernel")
    weight_layout: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "init", own_flags()(self.init))

    def stage_params(self, stage: Stage, params: Params) -> dict[str, PyTree]:
        """Take the stage's branches out of the tree, under the kind's role names."""
        roles, _ = self.kinds[stage.kind]
        branches = pick(params, stage.params)
        return {role: branches[key] for role, key in zip(roles, stage.params, strict=True)}

    @own_flags()
    def apply(self, params: Params, batch: Batch, key: Array | None = None) -> PyTree:
        """Fold the stages; returns the last carry (logits [T, V] for language models).

        Args:
            params: the parameter tree; a kernel leaf may be any object that
                ``wafer.models.layers.basic.project`` accepts.
            batch: the input.
            key: dropout key, consumed; None switches dropout off.
        """
        carry: PyTree = None
        for i, stage in enumerate(self.stages):
            stage_key = None if key is None else jax.random.fold_in(key, i)
            fn = self.kinds[stage.kind][1]
            with jax.named_scope(stage.name):  # profiles name operations by parameter path
                carry = fn(self.stage_params(stage, params), carry, batch, stage_key)
        return carry

    @own_flags()
    def loss(self, params: Params, batch: Batch, key: Array | None = None) -> tuple[Array, Aux]:
        """Mean loss and its parts; 0 when no token has weight, NaN if a layout is incomplete."""
        aux = self.objective(self.apply(params, batch, key), batch)
        is_layout = lambda leaf: isinstance(leaf, Layout)
        for layout in filter(is_layout, jax.tree.leaves(batch, is_leaf=is_layout)):
            aux = aux._replace(loss_sum=layout.require_complete(aux.loss_sum))
        return aux.loss_sum / jnp.maximum(aux.weight, 1e-9), aux
