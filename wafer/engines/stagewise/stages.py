"""The programs of weight streaming: forward, backward and update of one stage.

There is one program per kind of stage, not per stage: it is traced with the names of the first
stage of its kind, and the others pass their arrays under the same relative names. Every program
runs on all systems of the mesh at once: weights are broadcast, gradients reduced (``psum``), the
carry stays where it is. Arrays between stages lead with [N systems, A micro-batches].
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec as P
from jaxtyping import Array

from models.base import Aux, Batch, Model, Stage
from sparsity import SparseState, Sparsifier
from wafer.data.batching.batches import numbered, to_batch
from wafer.engines.stagewise.branches import Branch, Part, join_opt, split_opt
from wafer.optim.precision import LossScaler

__all__ = ["Control", "Stages", "Updated", "Where", "density"]

Parts = tuple[Part, ...]
_EVERYWHERE, _SHARED = P(), P("csx")


class Where(NamedTuple):
    """A stage's place in the sweep.

    batch: of every micro-batch
    key: [2] uint32 data of the step's key
    index: [] int32 of the stage
    """

    batch: Batch
    key: Any
    index: Any


class Control(NamedTuple):
    """What an update depends on besides the branch.

    denominator: [] float32, gradients are divided by it (tokens times loss scale)
    norm: [] float32 global norm of the divided gradients; read where updates wait for it
    finite: [] bool, false when a gradient of the step is not; read likewise
    codes: relative name of a sparse parameter -> uint32 of its random draws
    counters: of the optimizer, before the step
    sparse: counters of the sparse state
    """

    denominator: Array
    norm: Array
    finite: Array
    codes: Mapping[str, Any]
    counters: list[Array]
    sparse: SparseState


_specs: Any = (_SHARED, _EVERYWHERE, _EVERYWHERE)
_WHERE: Any = Where(*_specs)


class Updated(NamedTuple):
    """A branch after its update.

    part: weights; masks and patterns are empty unless the topology could change
    moments: its optimizer state
    counters: of the optimizer
    sparse: counters of the sparse state
    squares: [] float32 squared norm of its gradients, of kept weights
    density: relative name -> [] float32 share of kept weights; empty like ``part.masks``
    weight_norm: [] float32 of the new weights
    """

    part: Part
    moments: list[Array]
    counters: list[Array]
    sparse: SparseState
    squares: Array
    density: Mapping[str, Array]
    weight_norm: Array


def _saves_products(prim: Any, *_: Any, **params: Any) -> bool:
    """Keep what products with weights gave; everything else is cheap to compute again."""
    if prim.name == "dot_general":
        _, (lhs_batch, rhs_batch) = params["dimension_numbers"]
        return not lhs_batch and not rhs_batch
    return prim.name == "ffi_call"


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _divide(carry: Any) -> tuple[list[Any], list[Any], Callable[[Any, Any], Any]]:
    """Separate a carry into float leaves, others, and the function that puts them together."""
    leaves, tree = jax.tree.flatten(carry)
    kinds = [_is_float(x) for x in leaves]

    def join(floats: Any, others: Any) -> Any:
        a, b = iter(floats), iter(others)
        return jax.tree.unflatten(tree, [next(a) if kind else next(b) for kind in kinds])

    floats = [x for x, kind in zip(leaves, kinds, strict=True) if kind]
    return floats, [x for x, kind in zip(leaves, kinds, strict=True) if not kind], join


def _each(micro: Any, items: Any, count: int) -> tuple[Any, Any]:
    """Run ``micro(item, index) -> (to add up, to stack)`` over the micro-batch axis A."""
    first = micro(jax.tree.map(lambda x: x[0], items), jnp.int32(0))
    if count == 1:
        return first[0], jax.tree.map(lambda x: x[None], first[1])

    def body(total: Any, item: Any) -> tuple[Any, Any]:
        added, stacked = micro(*item)
        return jax.tree.map(jnp.add, total, added), stacked

    rest = jax.tree.map(lambda x: x[1:], items), jnp.arange(1, count)
    total, stacked = jax.lax.scan(body, first[0], rest)
    join = lambda a, b: jnp.concatenate([a[None], b])
    return total, jax.tree.map(join, first[1], stacked)


def _own(tree: Any) -> Any:
    """Drop the axis of systems in this system's share."""
    return jax.tree.map(lambda x: x[0], tree)


def _led(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[None], tree)


def _count(batch: Batch) -> int:
    return batch.tokens.shape[1]


class _Program:
    """A jitted function that remembers what it was called with."""

    def __init__(self, jitted: Any) -> None:
        self.jitted = jitted
        self.shapes: Any = None

    def __call__(self, *args: Any) -> Any:
        if self.shapes is None:
            self.shapes = jax.tree.map(_shape, args)
        return self.jitted(*args)

    def text(self) -> str:
        return self.jitted.lower(*self.shapes).compile().as_text()


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None))


@dataclasses.dataclass(frozen=True, eq=False)
class Stages:
    """Pure functions and their compiled forms.

    Attributes:
        model: gives the stages.
        tx: the optimizer.
        sparsifier: with ``order`` set, so that it may be asked about parts of the tree.
        scaler: loss-scale automaton.
        mesh: of the systems.
        dropout: draw dropout masks.
        norm: the optimizer takes ``global_norm``.
    """

    model: Model
    tx: Any
    sparsifier: Sparsifier
    scaler: LossScaler
    mesh: Mesh
    dropout: bool
    norm: bool
    compiled: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def program(self, role: str, stage: Any, key: Any, **static: Any) -> Any:
        """Return a role's function, compiled once per key and static choice.

        Args:
            role: 'forward', 'backward', 'last', 'score', 'update' or 'measure'.
            stage: (stage, its branches) or branch it is traced with: the first that asks.
            key: equal for all stages (or branches) that share it.
            static: passed to the function.
        """
        at = (role, key, *sorted(static.items()))
        if at not in self.compiled:
            fn, specs, out = getattr(self, f"_{role}_specs")()
            run = functools.partial(fn, stage, **static)
            if specs is not None:
                run = jax.shard_map(
                    run, mesh=self.mesh, in_specs=specs, out_specs=out, check_vma=False
                )
            donate = (1,) if role == "update" else ()
            self.compiled[at] = _Program(jax.jit(run, donate_argnums=donate))
        return self.compiled[at]

    def texts(self) -> list[str]:
        """HLO text of every program that ran, which a profile's operations are looked up in."""
        return [p.text() for p in self.compiled.values() if isinstance(p, _Program) and p.shapes]

    def batch(self, features: Any) -> Batch:
        """Make the batch of every micro-batch; one program per shape of features."""
        if "batch" not in self.compiled:

            def one(item: tuple[Any, Array]) -> Batch:
                features, shard = item
                given = isinstance(features, Batch)
                return numbered(features if given else to_batch(features), shard)

            def own(features: Any) -> Batch:
                mine = _own(features)
                count = jax.tree.leaves(mine)[0].shape[0]
                shards = jax.lax.axis_index("csx") * count + jnp.arange(count, dtype=jnp.int32)
                return _led(jax.lax.map(one, (mine, shards)))

            self.compiled["batch"] = jax.jit(
                jax.shard_map(
                    own, mesh=self.mesh, in_specs=_SHARED, out_specs=_SHARED, check_vma=False
                )
            )
        return self.compiled["batch"](features)

    # --- one stage ------------------------------------------------------------------------

    def ready(self, branches: Sequence[Branch], parts: Parts, *, dense: bool) -> tuple[Any, Any]:
        """Return (what to differentiate at, the sparse state) under full names."""
        params = {b.name: part.params for b, part in zip(branches, parts, strict=True)}
        none: Any = None
        sparse = SparseState({}, {}, none, none, none, none)
        for branch, part in zip(branches, parts, strict=True):
            mine = branch.sparse(part, sparse)
            sparse = sparse._replace(
                masks={**sparse.masks, **mine.masks}, patterns={**sparse.patterns, **mine.patterns}
            )
        return self.sparsifier.prepare(params, sparse, dense=dense), sparse

    def _run(self, stage: Stage, weights: tuple[Any, Any], carry: Any, given: tuple) -> Any:
        """Compute a stage from (ready, sparse), the carry, and (batch, dropout key data)."""
        (ready, sparse), (batch, drop) = weights, given
        compute = self.sparsifier.attach(ready, sparse)
        key = None if drop is None else jax.random.wrap_key_data(drop)
        fn = self.model.kinds[stage.kind][1]
        return fn(self.model.stage_params(stage, compute), carry, batch, key)

    def _drop(self, where: Where) -> Array | None:
        """[2] uint32 dropout key of a stage, or None; the batch numbers its sequences."""
        if not self.dropout:
            return None
        drop = jax.random.fold_in(jax.random.wrap_key_data(where.key), where.index)
        return jax.random.key_data(drop)

    def _stage(self, stage: Stage, join: Any, *, keep: bool) -> tuple[Any, list[Any]]:
        """Return f(ready, float carry leaves, the rest) -> (float leaves, other leaves).

        And a list that holds, once f was traced, what puts those leaves together.
        """
        rejoin: list[Any] = []

        def run(ready: Any, floats: Any, rest: Any) -> tuple[Any, Any]:
            sparse, batch, drop, others = rest
            out = self._run(stage, (ready, sparse), join(floats, others), (batch, drop))
            after, left, together = _divide(out)
            rejoin.append(together)
            return after, left

        # What is kept between the sweeps are products, never weights: those are arguments, which
        # the backward sweep fetches again.
        if keep:
            run = jax.checkpoint(run, policy=_saves_products, prevent_cse=False)
        return run, rejoin

    def _forward_specs(self) -> Any:
        specs = (_EVERYWHERE, _SHARED, _WHERE)
        return self._forward, specs, (_SHARED, _SHARED)

    def _forward(
        self,
        at: tuple[Stage, Sequence[Branch]],
        parts: Parts,
        carry: Any,
        where: Where,
        *,
        keep: bool,
        train: bool,
    ) -> tuple[Any, Any]:
        """Return (the next carry, what the backward sweep need not compute again)."""
        stage, branches = at
        ready, sparse = self.ready(branches, parts, dense=False)

        def micro(item: Any, m: Array) -> tuple[None, Any]:
            carry, batch = item
            drop = self._drop(where) if train else None
            if not keep:
                return None, (self._run(stage, (ready, sparse), carry, (batch, drop)), None)
            floats, others, join = _divide(carry)
            run, rejoin = self._stage(stage, join, keep=True)
            rest = (sparse, batch, drop, others)
            pulled: Any = jax.vjp(run, ready, floats, rest, has_aux=True)
            after, vjp, left = pulled
            return None, (rejoin[-1](after, left), vjp.opaque_residuals)

        _, out = _each(micro, _own((carry, where.batch)), _count(where.batch))
        return _led(out)

    def _backward_specs(self) -> Any:
        specs = (_EVERYWHERE, _SHARED, _WHERE, _SHARED)
        return self._backward, specs, (_EVERYWHERE, _SHARED)

    def _backward(
        self,
        at: tuple[Stage, Sequence[Branch]],
        parts: Parts,
        carry: Any,
        where: Where,
        back: tuple[Any, Any],
        *,
        dense: bool,
        keep: bool,
    ) -> tuple[Any, Any]:
        """Return (gradients of each branch, cotangent of the carry's float leaves).

        ``back`` is (cotangent of the next carry, what the forward sweep kept).
        """
        stage, branches = at
        ready, sparse = self.ready(branches, parts, dense=dense)

        def micro(item: Any, m: Array) -> tuple[Any, Any]:
            carry, batch, cotangent, saved = item
            floats, others, join = _divide(carry)
            run, _ = self._stage(stage, join, keep=keep)
            rest = (sparse, batch, self._drop(where), others)
            pulled: Any = jax.vjp(run, ready, floats, rest, has_aux=True)
            vjp = pulled[1]
            if keep:  # the forward sweep's own; what would compute them again is dead code
                vjp.opaque_residuals = list(saved)
            grads, floats_cotangent, _ = vjp(cotangent)
            return grads, floats_cotangent

        items = _own((carry, where.batch, *back))
        grads, out = _each(micro, items, _count(where.batch))
        mine = tuple(grads[branch.name] for branch in branches)
        return jax.lax.psum(mine, "csx"), _led(out)

    def _last_specs(self) -> Any:
        specs = (_EVERYWHERE, _SHARED, _WHERE, _EVERYWHERE)
        return self._last, specs, (_EVERYWHERE, _SHARED)

    def _last(
        self,
        at: tuple[Stage, Sequence[Branch]],
        parts: Parts,
        carry: Any,
        where: Where,
        scale: Array,
        *,
        dense: bool,
    ) -> tuple[tuple[Any, Aux], Any]:
        """Return ((gradients of each branch, sums of the loss), cotangent of the carry)."""
        stage, branches = at
        ready, sparse = self.ready(branches, parts, dense=dense)

        def micro(item: Any, m: Array) -> tuple[Any, Any]:
            carry, batch = item
            floats, others, join = _divide(carry)
            drop = self._drop(where)

            def loss(ready: Any, floats: Any) -> tuple[Array, Aux]:
                out = self._run(stage, (ready, sparse), join(floats, others), (batch, drop))
                aux = self.model.objective(out, batch)
                return aux.loss_sum * scale, aux

            (grads, cotangent), aux = jax.grad(loss, (0, 1), has_aux=True)(ready, floats)
            return (grads, aux), cotangent

        items = _own((carry, where.batch))
        (grads, aux), cotangent = _each(micro, items, _count(where.batch))
        mine = tuple(grads[branch.name] for branch in branches)
        return jax.lax.psum((mine, aux), "csx"), _led(cotangent)

    def _score_specs(self) -> Any:
        return self._score, (_EVERYWHERE, _SHARED, _SHARED), (_EVERYWHERE, _SHARED)

    def _score(
        self,
        at: tuple[Stage, Sequence[Branch]],
        parts: Parts,
        carry: Any,
        batch: Batch,
        *,
        names: tuple[str, ...],
    ) -> tuple[Aux, dict[str, Array]]:
        """Sum the loss without gradients or dropout; also return the outputs of these names."""
        stage, branches = at
        ready, sparse = self.ready(branches, parts, dense=False)

        def micro(item: Any, m: Array) -> tuple[Aux, Any]:
            del m
            out = self._run(stage, (ready, sparse), item[0], (item[1], None))
            outputs = out if isinstance(out, Mapping) else {"logits": out}
            return self.model.objective(out, item[1]), {name: outputs[name] for name in names}

        total, outputs = _each(micro, _own((carry, batch)), _count(batch))
        return jax.lax.psum(total, "csx"), _led(outputs)

    # --- one branch -----------------------------------------------------------------------

    def _measure_specs(self) -> Any:
        return self._measure, None, None

    def _measure(
        self, branch: Branch, part: Part, grads: Any, denominator: Array, *, dense: bool
    ) -> Array:
        """Squared norm of a branch's gradients at kept weights."""
        del dense  # only tells programs apart
        none: Any = None
        sparse = branch.sparse(part, SparseState({}, {}, none, none, none, none))
        ready = jax.tree.map(lambda g: g / denominator, {branch.name: grads})
        kept, _ = self.sparsifier.split(ready, sparse)
        return optax.tree.norm(kept, squared=True)

    def _update_specs(self) -> Any:
        return self._update, None, None

    def _update(
        self,
        branch: Branch,
        topology: tuple[Any, Any],
        owned: tuple[Any, list[Array]],
        grads: Any,
        control: Control,
        *,
        change: bool,
    ) -> Updated:
        """Apply a branch's gradients: divide, select, step, prune, perhaps a new topology.

        Args:
            branch: whose names rules go by.
            topology: (masks, patterns); not donated.
            owned: (its parameters, its optimizer state); donated.
            grads: sums over the batch.
            control: see there.
            change: the topology may change.
        """
        weights, moments = owned
        part = Part(weights, *topology)
        codes = {branch.full(name): code for name, code in control.codes.items()}
        sparsifier = dataclasses.replace(self.sparsifier, code_of=codes.__getitem__)
        sparse = branch.sparse(part, control.sparse)
        params = {branch.name: part.params}
        ready = jax.tree.map(lambda g: g / control.denominator, {branch.name: grads})
        kept, dense = sparsifier.split(ready, sparse)
        opt_state = join_opt(branch, moments, control.counters)
        extra = {"global_norm": control.norm} if self.norm else {}
        updates, opt_state = self.tx.update(kept, opt_state, params, **extra)
        new: Any = optax.apply_updates(params, updates)
        sparse, new, opt_state = sparsifier.update(
            sparse, new, dense, opt_state, finite=control.finite, topology=change
        )
        mine, after = split_opt(branch, opt_state)
        # Moments keep the precision they are stored in; float32 sums promote bfloat16 ones.
        mine = [m.astype(old.dtype) for m, old in zip(mine, moments, strict=True)]
        strip = lambda tree: {name: tree[branch.full(name)] for name in _names(tree, branch)}
        masks = strip(sparse.masks) if change else {}
        patterns = strip(sparse.patterns) if change else {}
        return Updated(
            part=Part(new[branch.name], masks, patterns),
            moments=mine,
            counters=after,
            sparse=sparse._replace(masks={}, patterns={}),
            squares=optax.tree.norm(kept, squared=True),
            density=density(masks, patterns),
            weight_norm=optax.tree.norm(new),
        )


def _names(tree: Mapping[str, Any], branch: Branch) -> list[str]:
    """Relative names of a branch's parameters in a dict by full name."""
    return [name for name in (*branch.masks, *branch.patterns) if branch.full(name) in tree]


def density(masks: Mapping[str, Array], patterns: Mapping[str, Any]) -> dict[str, Array]:
    """Share of kept weights of each parameter."""
    kept = {name: jnp.mean(mask, dtype=jnp.float32) for name, mask in masks.items()}
    for name, pattern in patterns.items():
        kept[name] = pattern.pointers[-1] / jnp.float32(pattern.shape[0] * pattern.shape[1])
    return kept
