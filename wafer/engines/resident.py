"""The resident engine: all weights on the device, one jitted step, the batch shared by N systems.

SwarmX in this engine is a mesh axis: weights are broadcast (replicated), gradients reduced
(``psum``), and the loss is the sum over all tokens of the batch divided by their number, so that
neither the effective batch nor the result depends on N. With ``shard_state`` every system holds a
part of the state instead (``shards``).
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import Array, PyTree

from wafer.data.batching.batches import numbered, to_batch
from wafer.engines.base import Engine, Features, Fill
from wafer.engines.cluster import distribute, swarmx_mesh
from wafer.engines.microbatches import (
    add_axis,
    local_shard,
    num_micro_batches,
    scan_micro_batches,
    sum_over_systems,
)
from wafer.engines.programs import Programs, shapes_of
from wafer.engines.shards import (
    auto_mesh,
    copied_bytes,
    gathering,
    mark,
    spec_of,
    split_axis,
    sum_copied,
    unsplit,
)
from wafer.engines.teacher import KL, Teacher, make_teacher
from wafer.errors import Problem
from wafer.experiment import Experiment
from wafer.models.base import Aux, Model
from wafer.models.checkpoint.tree import on_host
from wafer.optim.precision import LossScaler
from wafer.optim.step import Metrics, TrainState, finish_step, first_state, step_key
from wafer.sparsity import SparseState, Sparsifier
from wafer.sparsity.algorithms.base import Algorithm
from wafer.sparsity.schema import listed
from wafer.sparsity.stored import sentinel

_ALL = P()  # the same on all systems
_LOG = logging.getLogger(__name__)
_MIB = 2**20


class _Reduced(NamedTuple):
    """What the reduce tree delivers: sums over micro-batches and systems."""

    grads: PyTree
    aux: Aux


@dataclasses.dataclass(frozen=True, eq=False)
class Resident(Engine):
    """All weights on the device."""

    model: Model  #: what to train
    #: optimizer, clipping included; its states follow the parameters leaf by leaf
    tx: optax.GradientTransformation
    sparsifier: Sparsifier  #: from ``sparsity.configure``; an empty one leaves everything dense
    scaler: LossScaler  #: loss-scale automaton
    mesh: Mesh  #: from ``swarmx_mesh``
    dropout: bool = False  #: draw dropout masks; False runs the model deterministically
    summaries: bool = False  #: also report the gradient and parameter norms of every layer
    teacher: Teacher | None = None  #: whose outputs the model is drawn to in training, or None
    #: of the state, one on each system; 1 copies it. Else ``model`` is from ``gathering``, and
    #: ``mesh`` from ``auto_mesh``
    parts: int = 1
    programs: Programs = dataclasses.field(default_factory=Programs)  #: what was compiled so far

    def init(self, key: Array) -> TrainState:
        """See ``Engine``; parts are drawn where they lie."""
        if self.parts == 1:
            return self.replicate(first_state(self, key))
        try:
            shapes = self.shapes(key)
        except Exception as error:  # a user's rule that reads values
            _LOG.debug("The first state is drawn whole: %s", error)
            return self.replicate(first_state(self, key))
        total, copied = copied_bytes(shapes, self.parts)
        whole = listed(unsplit(shapes.params, self.parts)) or "none"
        _LOG.info(
            "Sharded state: %.2f MiB in %d parts; %.2f MiB of it are copied to each system: small "
            "arrays, and weights without an axis that %d divides (%s)",
            total / _MIB, self.parts, copied / _MIB, self.parts, whole,
        )  # fmt: skip
        first = functools.partial(first_state, self)
        return jax.jit(first, out_shardings=self._shardings(shapes))(key)

    def shapes(self, key: Array) -> TrainState:
        """Return ``structs_of(init(key))`` without computing anything.

        Args:
            key: [] random key of the first state; not consumed.

        Raises:
            Exception: a user's rule for masks or optimizer reads values, which are not known.
        """
        quiet = dataclasses.replace(self.sparsifier, quiet=True)  # init says what is sparse
        first = functools.partial(first_state, dataclasses.replace(self, sparsifier=quiet))
        state = jax.eval_shape(first, key)
        struct = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
        return jax.tree.map(struct, state, self._shardings(state))

    def replicate(self, state: TrainState) -> TrainState:
        """Bring a state to all systems: whole, or each its parts."""
        return jax.tree.map(distribute, state, self._shardings(state))

    def rebuild(self, state: TrainState, fill: Fill) -> TrainState:
        """See ``Engine``; what is sharded is filled in the host's memory."""
        if self.parts == 1:
            return self.replicate(super().rebuild(state, fill))
        large = on_host((state.params, state.opt_state, state.sparse))
        state = state._replace(params=large[0], opt_state=large[1], sparse=large[2])
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return self.replicate(super().rebuild(state, fill))

    def export(self, state: TrainState) -> tuple[PyTree, PyTree]:
        """See ``Engine``; arrays keep their parts."""
        if self.parts == 1:
            return super().export(state)
        large = (state.params, state.opt_state, state.sparse)
        found = jax.jit(sentinel.unstorable, out_shardings=self._everywhere)
        sentinel.require_storable(jax.device_get(found(state.params, state.sparse)))
        shapes = jax.eval_shape(sentinel.encode, *large)
        return jax.jit(sentinel.encode, out_shardings=self._shardings(shapes))(*large)

    @property
    def _everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, P())

    def _shardings(self, tree: PyTree) -> PyTree:
        """Where the arrays of a tree lie, by their shapes."""
        return jax.tree.map(lambda x: NamedSharding(self.mesh, spec_of(x, self.parts)), tree)

    def _specs(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: spec_of(x, self.parts), tree)

    def _axes(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: split_axis(x, self.parts), tree)

    def place(self, features: Features) -> Features:
        """See ``Engine``. Programs of one system take arrays of the host, in less time."""
        if self.mesh.size > 1:
            return super().place(features)
        narrow = jax.dtypes.canonicalize_dtype  # as arrays of the device are
        return {k: np.asarray(v, narrow(v.dtype)) for k, v in features.items()}

    def step(
        self, state: TrainState, features: Features, *, topology: bool = True
    ) -> tuple[TrainState, Metrics]:
        """See ``Engine``."""
        return self.compiled_step(state, features, topology=topology)(state, features, *self._given)

    @property
    def _given(self) -> tuple[PyTree, ...]:
        """What a step takes besides state and features: a constant of the program is copied."""
        return () if self.teacher is None else (self.teacher.params,)

    def compiled_step(
        self, state: PyTree, features: PyTree, *, topology: bool
    ) -> jax.stages.Compiled:
        """Return the step compiled for these shapes; arguments may be shapes with shardings."""

        def lower() -> jax.stages.Lowered:
            fn = functools.partial(self._step, topology=topology)
            after = self._shardings(state), self._everywhere
            step = jax.jit(fn, donate_argnums=0, out_shardings=after)
            return step.lower(state, self._shared(features), *self._given)

        name = "topology step" if topology else "step"
        return self.programs.get((name, shapes_of((state, features))), lower)

    def compiled_evaluate(
        self, state: PyTree, features: PyTree, names: tuple[str, ...] = ()
    ) -> jax.stages.Compiled:
        """Return the evaluation compiled for these shapes, with the outputs of these names."""

        def lower() -> jax.stages.Lowered:
            evaluate = functools.partial(self._evaluate, names=names)

            def run(state: TrainState, features: Features) -> PyTree:
                axes = self._axes(jax.eval_shape(self.sparsifier.apply, state.params, state.sparse))
                fn = functools.partial(evaluate, axes=axes)
                weights, gives = (state.params, state.sparse), (_ALL, P("csx"))
                return self._over_systems(fn, weights, features, gives=gives)

            return jax.jit(run).lower(state, self._shared(features))

        key = ("prediction" if names else "evaluation", names, shapes_of((state, features)))
        return self.programs.get(key, lower)

    def _shared(self, features: Features) -> PyTree:
        """Shapes of features, shared out as a program takes them."""
        struct = functools.partial(
            jax.ShapeDtypeStruct, sharding=NamedSharding(self.mesh, P("csx"))
        )
        return jax.tree.map(lambda x: struct(x.shape, x.dtype), features)

    def predict(
        self, state: TrainState, features: Features, names: tuple[str, ...]
    ) -> tuple[Aux, dict[str, Array]]:
        """See ``Engine``."""
        return self.compiled_evaluate(state, features, names)(state, features)

    def _step(
        self, state: TrainState, features: Features, *given: PyTree, topology: bool
    ) -> tuple[TrainState, Metrics]:
        with jax.named_scope("mask"):
            ready = self.sparsifier.prepare(state.params, state.sparse, dense=topology)
        computed = jax.eval_shape(self.sparsifier.attach, ready, state.sparse)
        gradients = functools.partial(
            self._gradients, axes=self._axes((ready, computed)), given_axes=self._axes(given)
        )
        rest = step_key(state), state.scale.loss_scale
        gives = _Reduced._make((self._specs(ready), _ALL))  # a spec in place of each tree
        weights = ready, state.sparse
        sums = self._over_systems(gradients, weights, features, rest, *given, gives=gives)
        after, metrics = finish_step(self, state, sums.grads, sums.aux, topology=topology)
        if self.teacher is not None:
            mean = sums.aux.metrics[KL] / jnp.maximum(sums.aux.weight, 1e-9)
            metrics[KL.removesuffix("_sum")] = mean
        return after, metrics

    def _over_systems(
        self,
        fn: Callable[..., PyTree],
        weights: tuple[PyTree, SparseState],
        features: Features,
        *rest: PyTree,
        gives: PyTree,
    ) -> PyTree:
        """Run ``fn`` on every system's share of the batch; its results lie as ``gives`` says."""
        specs = (*self._specs(weights), P("csx"), *self._specs(rest))
        mapped = jax.shard_map(fn, mesh=self.mesh, in_specs=specs, out_specs=gives, check_vma=False)
        return mapped(*weights, features, *rest)

    def _gradients(
        self,
        ready: PyTree,
        sparse: SparseState,
        features: Features,
        rest: tuple[Array, Array],
        *given: PyTree,
        axes: tuple[PyTree, PyTree],
        given_axes: tuple[PyTree, ...],
    ) -> _Reduced:
        """Gradient of the scaled loss sum over this system's tokens, then the reduce tree.

        ``axes`` are those of ``ready`` and of what ``attach`` makes of it.
        """
        key, scale = rest
        given = mark(given, given_axes)
        share = local_shard(features)
        count = num_micro_batches(share)
        before, shards = jax.lax.axis_index("csx") * count, jax.lax.axis_size("csx") * count
        processes = jax.process_count()

        def micro(item: tuple[PyTree, Array]) -> tuple[_Reduced, None]:
            with jax.named_scope("batch"):
                batch = numbered(to_batch(item[0]), before + item[1], shards, processes)
            drop = key if self.dropout else None

            def loss_sum(weights: PyTree) -> tuple[Array, Aux]:
                with jax.named_scope("mask"):
                    compute = mark(self.sparsifier.attach(weights, sparse), axes[1])
                out = self.model.apply(compute, batch, drop)
                with jax.named_scope("loss"):
                    aux = self.model.objective(out, batch)
                if self.teacher is not None:
                    with jax.named_scope("teacher"):
                        aux = self.teacher.mix(given[0], out, batch, aux)
                return aux.loss_sum * scale, aux

            return _Reduced(*jax.grad(loss_sum, has_aux=True)(ready)), None

        sums, _ = scan_micro_batches(micro, (share, jnp.arange(count)))
        return sum_copied(sums, axes[0])

    def _evaluate(
        self,
        params: PyTree,
        sparse: SparseState,
        features: Features,
        *,
        names: tuple[str, ...],
        axes: PyTree,
    ) -> tuple[Aux, dict[str, Array]]:
        compute = mark(self.sparsifier.apply(params, sparse), axes)

        def micro(item: PyTree) -> tuple[Aux, dict[str, Array]]:
            batch = to_batch(item)
            out = self.model.apply(compute, batch)
            outputs = out if isinstance(out, Mapping) else {"logits": out}
            return self.model.objective(out, batch), {name: outputs[name] for name in names}

        total, outputs = scan_micro_batches(micro, local_shard(features))
        return sum_over_systems(total), add_axis(outputs)


def make(experiment: Experiment) -> Resident:
    """Make the engine of an experiment on the first ``num_csx`` devices.

    Raises:
        ValueError: fewer devices than systems.
        CheckpointError: the teacher's checkpoint is none.
        ConfigError: the teacher cannot score what the model learns.
    """
    settings = experiment.cfg.runconfig
    mesh, model, teacher = swarmx_mesh(settings.num_csx), experiment.model, make_teacher(experiment)
    parts = settings.num_csx if settings.shard_state else 1
    if parts > 1:
        mesh, model = auto_mesh(mesh), gathering(model)
        teacher = teacher and teacher._replace(model=gathering(teacher.model))
    if teacher is not None:
        place = lambda leaf: distribute(leaf, NamedSharding(mesh, spec_of(leaf, parts)))
        teacher = teacher._replace(params=jax.tree.map(place, teacher.params))
    return Resident(
        model,
        experiment.tx,
        experiment.sparsifier,
        experiment.scaler,
        mesh,
        dropout=experiment.dropout,
        summaries=experiment.summaries,
        teacher=teacher,
        parts=parts,
    )


def problems(experiment: Experiment) -> list[Problem]:
    """List what the file asks for and sharded state does not do; see ``choose``."""
    if not experiment.cfg.runconfig.shard_state:
        return []
    whole = [
        name
        for name, chosen in experiment.sparsifier.select(experiment.shapes).items()
        if type(chosen.algorithm).forward is not Algorithm.forward
    ]
    if not whole:
        return []
    message = f"{whole[0]} is computed from all of its weights by the sparsity algorithm; drop "
    return [Problem(("runconfig", "shard_state"), message + "the key, or use another algorithm")]


def structs_of(tree: PyTree) -> PyTree:
    """Shape, dtype and sharding of each array: enough to compile for, and nothing is kept alive.

    Arrays of the host have no sharding.
    """

    def struct(x: PyTree) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None))

    return jax.tree.map(struct, tree)
