"""The pipelined engine: every stage resident in a region of its own, micro-batches in flight.

Same methods as ``Resident``, same training state, same results:
``schedule`` lays a step out so that no pass sees other weights than in
sequential execution. A branch lives where the first stage that reads it lies; further readers
elsewhere (tied embeddings) get a copy at each step, and their gradients are added at home. Weights
and optimizer state never leave their region otherwise;
activations and their gradients pass from region to region.

Copies of the pipeline share the micro-batches. They differ in the device they lie on, if there are
several, and in nothing else: weights and optimizer state live in the first copy, the others read
its weights, and gradients are added there in the order of the micro-batches. So a state does not
depend on how many copies made it.
"""

import logging
from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import Array

from wafer.engines.base import Features, Fill
from wafer.engines.resident import Resident
from wafer.engines.stagewise.branches import cut_part, describe
from wafer.engines.stagewise.core import Core, Stagewise, core_of
from wafer.engines.stagewise.ledger import GradientLedger, make_plan, step_inputs
from wafer.engines.stagewise.pipeline.flow import Flow, Held, Pipe, evaluate
from wafer.engines.stagewise.pipeline.record import Recorder, Span
from wafer.engines.stagewise.pipeline.regions import Copies, StageRegion, meshes, regions, spread
from wafer.engines.stagewise.pipeline.schedule import bubble
from wafer.engines.stagewise.stages import Places, Stages
from wafer.engines.stagewise.updates import density
from wafer.errors import ConfigError, Problem
from wafer.experiment import Experiment
from wafer.models.base import Aux
from wafer.models.paths import named_leaves
from wafer.optim.step import Metrics, TrainState

_LOG = logging.getLogger(__name__)


class Pipelined(Stagewise):
    """All stages resident, one region each.

    Args:
        core: what to train.
        meshes: of the systems, one for each device that regions are spread over; from
            ``wafer.engines.stagewise.pipeline.regions.meshes``.
        stages: S of the pipeline; None makes a region of every stage of the model.
        copies: of the pipeline, and how they lie on the places; None is one that has them all.
        recompute: compute in the backward pass again what products with weights gave, instead of
            keeping it for every micro-batch in flight.
        events: appended to: when each task of the timetable ran.

    Raises:
        ValueError: more regions than stages, or more devices than regions.
    """

    def __init__(
        self,
        core: Core,
        meshes: tuple[Mesh, ...],
        *,
        stages: int | None = None,
        copies: Copies | None = None,
        recompute: bool = False,
        events: list[Span] | None = None,
    ) -> None:
        super().__init__(core, meshes[0])  # features are placed in the first region
        self.recompute, self.events, self._meshes = recompute, events, meshes
        self.copies = Copies(devices=len(meshes)) if copies is None else copies
        devices = self.copies.devices
        self.regions: tuple[StageRegion, ...] = regions(core.model, core.shapes, stages, devices)
        self._places = Places(tuple(Stages(core, mesh) for mesh in meshes))
        self.programs = self._places.programs[0]
        self._described: Pipe | None = None
        # The branch that each leaf of the optimizer state belongs to; None: the run's counters.
        self._owners: list[str | None] = []

    # --- states ---------------------------------------------------------------------------

    def init(self, key: Array) -> TrainState:
        """See ``Engine``; spread over accelerators, the whole is drawn on the host."""
        mesh = self.mesh
        if len(self._meshes) > 1 and mesh.devices.flat[0].platform != "cpu":
            mesh = jax.make_mesh((1,), ("csx",), devices=jax.devices("cpu")[:1])
        with jax.default_device(mesh.devices.flat[0]):
            core = self.core
            first = Resident(core.model, core.tx, core.whole, core.scaler, mesh).init(key)
        return self._adopt(first)

    def _adopt(self, state: TrainState) -> TrainState:
        """Describe the branches of a state and put each where it lives."""
        core = self.core
        parts = {name: cut_part(name, state.params, state.sparse) for name in state.params}
        branches = {
            name: describe(name, part, core.sparsifier, core.tx) for name, part in parts.items()
        }
        plan = make_plan(core.model.stages, branches)
        self._described = pipe = Pipe(plan, self.regions, self._places, self.copies)
        owner = {}
        for name, branch in branches.items():
            paths = zip(branch.paths, branch.owned, strict=True)
            owner |= {path: name for path, own in paths if own}
            kept = density(parts[name].masks, parts[name].patterns)
            self.density |= {branch.full(key): share for key, share in kept.items()}
        self._owners = [owner.get(path) for path, _ in named_leaves(state.opt_state)]
        where = [NamedSharding(mesh, P()) for mesh in self._meshes]
        held = self._split(state)
        for name, part in held.parts.items():
            home = where[self.regions[pipe.home(name)].place]
            branch = part, held.moments[name]
            held.parts[name], held.moments[name] = jax.device_put(branch, home)
        small = state._replace(
            params=None, opt_state=None, sparse=state.sparse._replace(masks={}, patterns={})
        )
        small, counters = jax.device_put((small, self._counters(state)), where[0])
        return self._state(small._replace(opt_state=state.opt_state), held, counters)

    def _split(self, state: TrainState) -> Held:
        """Take a state apart: weights and optimizer state of each branch."""
        branches = self._pipe.plan.branches
        moments: dict[str, list[Array]] = {name: [] for name in branches}
        for leaf, owner in zip(jax.tree.leaves(state.opt_state), self._owners, strict=True):
            if owner is not None:
                moments[owner].append(leaf)
        own = {name: branch.own(state.params, state.sparse) for name, branch in branches.items()}
        return Held(own, moments)

    def _counters(self, state: TrainState) -> list[Array]:
        """Take the optimizer's counters out of a state."""
        leaves = zip(jax.tree.leaves(state.opt_state), self._owners, strict=True)
        return [leaf for leaf, owner in leaves if owner is None]

    def _state(self, small: TrainState, held: Held, counters: list[Array]) -> TrainState:
        """Put a state together from what ``held`` holds, the optimizer's counters and the rest."""
        rest: dict[str | None, Iterator[Array]] = {None: iter(counters)}
        masks, patterns = {}, {}
        for name, branch in self._pipe.plan.branches.items():
            own = branch.sparse(held.parts[name])
            masks |= own.masks
            patterns |= own.patterns
            rest[name] = iter(held.moments[name])
        leaves = [next(rest[owner]) for owner in self._owners]
        return small._replace(
            params={name: part.params for name, part in held.parts.items()},
            opt_state=jax.tree.structure(small.opt_state).unflatten(leaves),
            sparse=small.sparse._replace(masks=masks, patterns=patterns),
        )

    @property
    def _pipe(self) -> Pipe:
        if self._described is None:
            raise RuntimeError("pipelined: call init (or rebuild) before step; there is no state")
        return self._described

    # --- work -----------------------------------------------------------------------------

    def step(
        self, state: TrainState, features: Features, *, topology: bool = True
    ) -> tuple[TrainState, Metrics]:
        """See ``Engine``."""
        core, held = self.core, self._split(state)
        start = step_inputs(state, self._counters(state))
        recorder = None if self.events is None else Recorder(len(self._meshes))
        change, donate = core.changes(topology=topology), recorder is None
        ledger = GradientLedger(self._pipe.plan, self._places, start, change=change, donate=donate)
        batch = self.programs.batch(features)
        Flow(self._pipe, held, ledger, keep=not self.recompute, recorder=recorder).run(batch)
        if self.events is not None and recorder is not None:
            sizes = len(self.regions), batch.tokens.shape[1], self.copies.number
            self.events += recorder.spans(*sizes, deferred=ledger.deferred)
        self.density |= ledger.density
        scale = core.scaler.update(state.scale, ledger.whole.finite)
        small = state._replace(step=state.step + 1, sparse=ledger.sparse(), scale=scale)
        return self._state(small, held, ledger.counters), ledger.metrics()

    def predict(
        self, state: TrainState, features: Features, names: tuple[str, ...]
    ) -> tuple[Aux, dict[str, Array]]:
        """See ``Engine``."""
        batch = self.programs.batch(features)
        return evaluate(self._pipe, self._split(state).parts, batch, state.key, names)

    # --- checkpoints ----------------------------------------------------------------------

    def rebuild(self, state: TrainState, fill: Fill) -> TrainState:
        """See ``Engine``; through host memory."""
        host = lambda tree: jax.tree.map(np.asarray, tree)
        sparse = state.sparse._replace(
            masks=host(state.sparse.masks), patterns=host(state.sparse.patterns)
        )
        sparse, params, opt_state = fill(host(state.params), host(state.opt_state), sparse)
        return self._adopt(state._replace(sparse=sparse, params=params, opt_state=opt_state))


def problems(experiment: Experiment) -> Iterator[Problem]:
    """A pipeline has at most a stage for each of the model's, and a device for each stage."""
    settings = experiment.cfg.runconfig.pipeline
    names = [stage.name for stage in experiment.model.stages]
    stages = len(names) if settings.stages is None else settings.stages
    if stages > len(names):
        model = experiment.cfg.model["name"]
        message = f"{stages}, but {model!r} has {len(names)}: {', '.join(names)}"
        yield Problem(("runconfig", "pipeline", "stages"), message)
    if settings.devices > stages:
        message = f"{settings.devices}, but the pipeline has {stages} stage(s); use at most that"
        yield Problem(("runconfig", "pipeline", "devices"), message)
    yield from _uneven(experiment)


def _uneven(experiment: Experiment) -> Iterator[Problem]:
    """Copies have equally many micro-batches each."""
    section, copies = experiment.cfg.train_input, experiment.cfg.runconfig.num_replicas
    if section is None or copies < 2 or experiment.portions % copies == 0:
        return
    portions, micro = experiment.portions, section.micro_batch_size
    divisors = [str(n) for n in range(1, portions + 1) if portions % n == 0]
    if section.task == "dpr":
        what = "a batch whose negatives must be in one micro-batch"
    elif isinstance(micro, int):
        what = f"the {portions} micro-batch(es) of {micro} that each system's share has"
    else:
        what = f"the {portions} sequences of each system's share"
    message = (
        f"{copies} copies cannot share {what} (train_input.batch_size {section.batch_size}, "
        f"num_csx {experiment.cfg.runconfig.num_csx}); use {', '.join(divisors[:12])}, or a "
        f"batch_size that {copies} copies divide"
    )
    yield Problem(("runconfig", "num_replicas"), message)


def make(experiment: Experiment, events: list[Span] | None = None) -> Pipelined:
    """Make the engine of an experiment; say how it is laid out and how much of it idles.

    Raises:
        ConfigError: the number of copies is still the compiler's to choose.
        ValueError: fewer devices than systems.
    """
    settings = experiment.cfg.runconfig
    if settings.multireplica or settings.num_replicas < 1:
        message = "is the compiler's choice, which `wafer run` asks it for; here give a number"
        raise ConfigError([Problem(("runconfig", "num_replicas"), message)])
    devices = settings.pipeline.devices
    # Systems first: a mesh has a device of each.
    copies = spread(settings.num_replicas, devices, len(jax.devices()) // settings.num_csx)
    engine = Pipelined(
        core_of(experiment),
        meshes(settings.num_csx, devices * copies.groups),
        stages=settings.pipeline.stages,
        copies=copies,
        recompute=settings.pipeline.recompute,
        events=events,
    )
    if experiment.cfg.train_input is not None:
        stages, count = len(engine.regions), experiment.batch("train").micro_batches
        each = count // copies.number
        _LOG.info(
            "Pipeline: %d %s on %d device(s), %d micro-batch(es) a step: %.1f %% of the "
            "timetable idle%s",
            copies.number,
            f"{'copy' if copies.number == 1 else 'copies'} of {stages} stages",
            devices * copies.groups,
            count,
            100 * bubble(stages, count, copies=copies.number),
            "" if each >= stages else "; a smaller train_input.micro_batch_size fills it",
        )
    return engine
