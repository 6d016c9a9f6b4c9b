"""The streaming engine: weights stay in MemoryX and visit the systems one layer at a time.

Same methods as ``Resident``, same training state, same results; the parameters, moments and masks
in the state are handles (``LazyArray``) that read the store when numpy asks for them. As with any
donated state, they show the newest step only.
"""

import contextlib
import functools
import logging
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import Array, PyTree

from wafer.engines.base import Features, Fill
from wafer.engines.cluster import broadcast, swarmx_mesh
from wafer.engines.stagewise.branches import (
    TOPOLOGY_ALONE,
    Branch,
    cut_part,
    describe,
    join_opt,
    split_opt,
)
from wafer.engines.stagewise.core import Core, Stagewise, core_of
from wafer.engines.stagewise.ledger import GradientLedger, SweepPlan, make_plan, step_inputs
from wafer.engines.stagewise.stages import Places, Stages
from wafer.engines.stagewise.streaming.blockfile import spill
from wafer.engines.stagewise.streaming.memoryx import FileStore, RamStore, Store
from wafer.engines.stagewise.streaming.sweep import StreamingSweep, evaluate
from wafer.engines.stagewise.streaming.traffic import Event, Mover
from wafer.engines.stagewise.updates import density
from wafer.experiment import Experiment
from wafer.models.base import Aux
from wafer.models.checkpoint.lazy import LazyArray
from wafer.models.paths import map_named, named_leaves
from wafer.optim.step import Metrics, TrainState
from wafer.sparsity import SparseState
from wafer.sparsity.stored import sentinel

_LOG = logging.getLogger(__name__)
_GIB, _MIB = 2**30, 2**20
_SHARE = 0.9  # of the free memory
_none: Any = None


class Streaming(Stagewise):
    """Weights in a store, one layer on the systems.

    Args:
        core: what to train.
        mesh: from ``swarmx_mesh``.
        store: where the weights live; host RAM when None.
        residual_bytes: memory on each system for products with weights, which the backward sweep
            then need not compute again; the last layers come first. 0 keeps layer inputs only.
        events: appended to: what was fetched, computed and written when.
    """

    def __init__(
        self,
        core: Core,
        mesh: Mesh,
        *,
        store: Store | None = None,
        residual_bytes: int = 0,
        events: list[Event] | None = None,
    ) -> None:
        super().__init__(core, mesh)
        self.residual_bytes, self._names = residual_bytes, tuple(core.shapes)
        self.mover = Mover(RamStore() if store is None else store, mesh, events)
        self.programs = Stages(core, mesh)
        self._branches: dict[str, Branch] = {}
        self._plan: SweepPlan | None = None
        self._frame: Any = None

    # --- states ---------------------------------------------------------------------------

    def init(self, key: Array) -> TrainState:
        """See ``Engine``; drawn branch by branch where the store is a file."""
        weights, sparse_key, run_key = jax.random.split(key, 3)
        counters: list[Any] = []
        for name, tree in self._draw(weights):
            params = {name: tree}
            sparse = self.sparsifier.init(params, sparse_key)
            params, opt_state = self.sparsifier.prune(params, self.core.tx.init(params), sparse)
            counters = self._admit(name, params, opt_state, sparse)
        self.core.whole.log_selection(self.core.whole.select(self.core.shapes))
        state = TrainState(
            step=jnp.int32(0),
            params=None,
            opt_state=None,
            sparse=self.sparsifier.blank(sparse_key),
            scale=self.core.scaler.init(),
            key=jax.random.key_data(run_key),
        )
        return self._begin(state, counters)

    def _draw(self, key: Array) -> Iterator[tuple[str, PyTree]]:
        if isinstance(self.mover.store, RamStore):
            params = dict(self.core.model.init(key))
            for name in self._names:
                yield name, params.pop(name)
            return
        for name in self._names:  # the other branches are dead code
            yield name, jax.jit(lambda k, name=name: self.core.model.init(k)[name])(key)

    def _admit(
        self, name: str, params: PyTree, opt_state: PyTree, sparse: SparseState
    ) -> list[PyTree]:
        """Put a branch into the store; returns the optimizer's counters."""
        part = cut_part(name, params, sparse)
        branch = describe(name, part, self.sparsifier, self.core.tx)
        moments, counters = split_opt(branch, opt_state)
        again = self._branches.get(name) == branch
        for kind, leaves in branch.records(part, moments).items():
            self.mover.admit(f"{name}/{kind}", leaves, again=again)
        self._branches[name] = branch
        kept = density(part.masks, part.patterns)
        self.density |= {branch.full(key): share for key, share in kept.items()}
        return counters

    def _begin(self, state: TrainState, counters: list[Array]) -> TrainState:
        """Make the plan of the sweep and the state around the records."""
        self._plan = make_plan(self.core.model.stages, self._branches)
        self._frame = self._handles()
        self.mover.commit({"step": int(state.step)})
        sparse = state.sparse._replace(masks={}, patterns={})
        small = state._replace(params=None, opt_state=None, sparse=sparse)
        everywhere = NamedSharding(self.mesh, P())
        small, counters = jax.tree.map(lambda x: broadcast(x, everywhere), (small, counters))
        return self._state(small, counters)

    def _handles(self) -> TrainState:
        """Build the state with a handle to the store in place of every large array.

        The optimizer state is a list of leaves, counters as their positions.
        """
        store, shapes = self.mover.store, {}

        def handle(record: str, leaf: str, like: PyTree) -> LazyArray:
            read = lambda: np.asarray(store.view(record)[leaf])
            return LazyArray(tuple(like.shape), np.dtype(like.dtype), read, f"{record}/{leaf}")

        params, masks, patterns, moments = {}, {}, {}, {}
        for name, branch in self._branches.items():
            shapes[name] = branch.shapes.params
            opt_shapes = jax.eval_shape(self.core.tx.init, {name: shapes[name]})
            own, counters = split_opt(branch, opt_shapes)
            handles = {
                kind: {leaf: handle(f"{name}/{kind}", leaf, x) for leaf, x in leaves.items()}
                for kind, leaves in branch.records(branch.shapes, own).items()
            }
            part = branch.part(handles["weights"], handles["topology"])
            sparse = branch.sparse(part)
            params[name] = part.params
            masks |= sparse.masks
            patterns |= sparse.patterns
            opt_state = join_opt(branch, handles["moments"].values(), range(len(counters)))
            moments |= dict(named_leaves(opt_state))
        opt_state = map_named(
            lambda path, _: moments[path], jax.eval_shape(self.core.tx.init, shapes)
        )
        sparse = TOPOLOGY_ALONE._replace(masks=masks, patterns=patterns)
        return TrainState(_none, params, jax.tree.flatten(opt_state), sparse, _none, _none)

    def _state(self, small: TrainState, counters: list[Array]) -> TrainState:
        """Put a state together: the handles, the optimizer's counters, and the rest."""
        leaves, tree = self._frame.opt_state
        filled = [counters[leaf] if isinstance(leaf, int) else leaf for leaf in leaves]
        stored = self._frame.sparse
        return small._replace(
            params=self._frame.params,
            opt_state=tree.unflatten(filled),
            sparse=small.sparse._replace(masks=stored.masks, patterns=stored.patterns),
        )

    def _counters(self, opt_state: PyTree) -> list[PyTree]:
        """Take the optimizer's counters out of a state that ``_begin`` framed."""
        leaves, tree = self._frame.opt_state
        values = zip(leaves, tree.flatten_up_to(opt_state), strict=True)
        counters = {leaf: value for leaf, value in values if isinstance(leaf, int)}
        return [counters[i] for i in range(len(counters))]

    # --- work -----------------------------------------------------------------------------

    def step(
        self, state: TrainState, features: Features, *, topology: bool = True
    ) -> tuple[TrainState, Metrics]:
        """See ``Engine``."""
        start = step_inputs(state, self._counters(state.opt_state))
        change = self.core.changes(topology=topology)
        ledger = GradientLedger(self._sweep, Places((self.programs,)), start, change=change)
        sweep = StreamingSweep(ledger, self.mover, residual_bytes=self.residual_bytes)
        sweep.run(self.programs.batch(features))
        self.density |= ledger.density
        # RAM commits nothing, so nothing is waited for there.
        in_ram = isinstance(self.mover.store, RamStore)
        self.mover.commit({"step": 0 if in_ram else int(state.step) + 1})
        scale = self.core.scaler.update(state.scale, ledger.whole.finite)
        small = state._replace(step=state.step + 1, sparse=ledger.sparse(), scale=scale)
        return self._state(small, ledger.counters), ledger.metrics()

    @property
    def _sweep(self) -> SweepPlan:
        if self._plan is None:
            raise RuntimeError("streaming: call init (or rebuild) before step; there is no state")
        return self._plan

    def predict(
        self, state: TrainState, features: Features, names: tuple[str, ...]
    ) -> tuple[Aux, dict[str, Array]]:
        """See ``Engine``."""
        batch = self.programs.batch(features)
        return evaluate(self._sweep, self.programs, self.mover, batch, state.key, names=names)

    # --- checkpoints ----------------------------------------------------------------------

    def _whole(self, name: str, counters: list[np.ndarray]) -> tuple[PyTree, PyTree, SparseState]:
        """Read a branch on the host: (params, optimizer state, sparse state) by full names."""
        branch, view = self._branches[name], self.mover.store.view
        host = lambda kind: {k: np.asarray(x) for k, x in view(f"{name}/{kind}").items()}
        part = branch.part(host("weights"), host("topology"))
        opt_state = join_opt(branch, host("moments").values(), counters)
        return {name: part.params}, opt_state, branch.sparse(part)

    def export(self, state: TrainState) -> tuple[PyTree, PyTree]:
        """See ``Engine``; one branch at a time, file stores through a file that is unlinked."""
        counters = [np.asarray(x) for x in self._counters(state.opt_state)]
        store = self.mover.store
        params, moments = {}, {}
        with contextlib.ExitStack() as stack:
            keep = np.asarray
            if isinstance(store, FileStore):
                file = stack.enter_context(tempfile.TemporaryFile(dir=store.folder))
                keep = functools.partial(spill, file)
            for name, branch in self._branches.items():
                own, opt_state, sparse = self._whole(name, counters)
                if branch.is_sparse:
                    own, opt_state = jax.tree.map(keep, sentinel.encode(own, opt_state, sparse))
                params |= own
                moments |= dict(named_leaves(opt_state))
        shapes = jax.eval_shape(self.core.tx.init, params)
        return params, map_named(lambda path, _: moments[path], shapes)

    def rebuild(self, state: TrainState, fill: Fill) -> TrainState:
        """See ``Engine``; branch by branch."""
        counters: list[Any] = []
        before = [np.asarray(x) for x in self._counters(state.opt_state)]
        sparse = state.sparse
        for name in self._names:
            params, opt_state, own = self._whole(name, before)
            own = own._replace(
                step=sparse.step, indices=sparse.indices, targets=sparse.targets, key=sparse.key
            )
            new, params, opt_state = fill(params, opt_state, own)
            counters = self._admit(name, params, opt_state, new)
            sparse = new
        return self._begin(state._replace(sparse=sparse), counters)

    def close(self) -> None:
        """End the threads and release the store."""
        self.mover.close()


def make(experiment: Experiment, events: list[Event] | None = None) -> Streaming:
    """Make the engine of an experiment, and its store.

    Raises:
        ValueError: fewer devices than systems.
        MemoryXError: the store cannot be made.
    """
    settings = experiment.cfg.runconfig
    return Streaming(
        core_of(experiment),
        swarmx_mesh(settings.num_csx),
        store=_store(experiment),
        residual_bytes=settings.memoryx.residual_mib * _MIB,
        events=events,
    )


def _store(experiment: Experiment) -> Store:
    """Open the store the file names; a file where RAM cannot hold it and none is named."""
    settings, size = experiment.cfg.runconfig, sum(experiment.state_bytes())
    section = settings.memoryx
    kind = section.store
    too_large = size > _SHARE * psutil.virtual_memory().available
    if kind == "ram" and too_large and "store" not in section.model_fields_set:
        kind = "file"
    if kind == "ram":
        _LOG.info("MemoryX: %.2f GiB in host memory", size / _GIB)
        return RamStore()
    folder = pathlib.Path(section.path or settings.model_dir) / "memoryx"
    if jax.process_count() > 1:
        folder /= f"process-{jax.process_index()}"
    on_disk = size * (2 if section.durable else 1)
    _LOG.info("MemoryX: %.2f GiB in %s (file of %.2f GiB)", size / _GIB, folder, on_disk / _GIB)
    return FileStore(folder, durable=section.durable)
