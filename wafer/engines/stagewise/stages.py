"""The compiled programs of weight streaming and of pipelines: one table of roles, filled on demand.

There is one program per kind of stage, not per stage: it is traced with the names of the first
stage that asks, and the others pass their arrays under the same relative names. Likewise for the
updates of branches.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import PyTree

from wafer.engines.stagewise.core import Core
from wafer.engines.stagewise.passes import StageCall, StageInputs, cut, make_batch
from wafer.engines.stagewise.updates import BranchUpdate


class Role(NamedTuple):
    """How a function becomes a program."""

    #: makes the function's first argument: (core, *what it is traced for) -> subject
    subject: Callable[..., Any]
    #: of what it is traced for -> equal for all that share the program
    key: Callable[..., Hashable]
    #: where its arrays lie, for each argument; None for a function without an axis of systems
    takes: Any = None
    gives: Any = None  #: where its results lie
    donates: tuple[int, ...] = ()  #: positions of arrays that it overwrites


_ALL, _SHARED = P(), P("csx")  # the same on all systems; shared out among them
_specs: Any = (_SHARED, _ALL, _ALL)
_INPUTS = StageInputs(*_specs)
_of_stage = functools.partial(
    Role, StageCall, lambda stage, branches: (stage.kind, *(branch.layer for branch in branches))
)
_of_batch = Role(lambda core: core, lambda: None, (_SHARED,), _SHARED)
_ROLES: dict[Callable[..., Any], Role] = {
    make_batch: _of_batch,
    cut: _of_batch,
    StageCall.forward: _of_stage((_ALL, _SHARED, _INPUTS), (_SHARED, _SHARED)),
    StageCall.backward: _of_stage((_ALL, _SHARED, _INPUTS, _SHARED), (_ALL, _SHARED)),
    StageCall.last: _of_stage((_ALL, _SHARED, _INPUTS, _ALL), (_ALL, _SHARED)),
    StageCall.score: _of_stage((_ALL, _SHARED, _SHARED), (_ALL, _SHARED)),
    BranchUpdate.measure: Role(BranchUpdate, lambda branch: branch.layer),
    BranchUpdate.apply: Role(BranchUpdate, lambda branch: branch.rules, donates=(1,)),
}


class Stages:
    """The programs of one place.

    Args:
        core: what they are made of.
        mesh: of the systems they run on.

    Attributes:
        compiled: (role, key, choices) -> program.
        sizes: shapes of a batch -> bytes of each stage's products on each system.
    """

    def __init__(self, core: Core, mesh: Mesh) -> None:
        self.core, self.mesh = core, mesh
        self.compiled: dict[tuple[Hashable, ...], Any] = {}
        self.sizes: dict[Hashable, list[int]] = {}

    def program(
        self, function: Callable[..., PyTree], *at: Any, **choices: Hashable
    ) -> Callable[..., PyTree]:
        """Return a function's program, compiled once per key and choices.

        Args:
            function: one of ``_ROLES``.
            at: what it is traced for: a stage and its branches, a branch, or nothing.
            choices: its keywords.
        """
        role = _ROLES[function]
        key = (function.__name__, role.key(*at), *sorted(choices.items()))
        if key not in self.compiled:
            run = functools.partial(function, role.subject(self.core, *at), **choices)
            if role.takes is not None:
                run = jax.shard_map(
                    run, mesh=self.mesh, in_specs=role.takes, out_specs=role.gives, check_vma=False
                )
            self.compiled[key] = jax.jit(run, donate_argnums=role.donates)
        return self.compiled[key]

    def batch(self, features: PyTree) -> PyTree:
        """Make the batch of every micro-batch."""
        return self.program(make_batch)(features)


class Places(NamedTuple):
    """The groups of systems that a run is spread over; weight streaming has one."""

    programs: tuple[Stages, ...]  #: of each

    @property
    def core(self) -> Core:
        """What all programs are made of."""
        return self.programs[0].core

    def put(self, tree: PyTree, place: int, spec: P = _ALL) -> PyTree:
        """Send arrays to a place: to all its systems, or as they are shared out."""
        if len(self.programs) == 1:
            return tree
        return jax.device_put(tree, NamedSharding(self.programs[place].mesh, spec))
