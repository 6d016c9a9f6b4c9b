"""What every engine is to the rest of the program: methods on a training state."""

import abc
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from wafer.engines.cluster import shard_batch
from wafer.errors import ConfigError, Problem
from wafer.models.base import Aux
from wafer.optim.step import Metrics, TrainState
from wafer.sparsity import SparseState, Sparsifier
from wafer.sparsity.stored import sentinel

Features = Mapping[str, Any]
Fill = Callable[[Any, Any, SparseState], tuple[SparseState, Any, Any]]


class Engine(abc.ABC):
    """How a model is run. What is about masks and storage alone has a default.

    Attributes:
        sparsifier: of the run; it may be asked about parts of the parameter tree.
        mesh: of the systems.
        programs: what was compiled so far; ``texts()`` gives their HLO. None where a step is not
            one program.
    """

    sparsifier: Sparsifier
    mesh: Mesh
    programs: Any = None

    @abc.abstractmethod
    def init(self, key: Array) -> TrainState:
        """Make the first state. The key is consumed."""

    def place(self, features: Features) -> Features:
        """Send host features [N, A, ...] to the systems."""
        return shard_batch(features, self.mesh)

    @abc.abstractmethod
    def step(
        self, state: TrainState, features: Features, *, topology: bool = True
    ) -> tuple[TrainState, Metrics]:
        """Take one optimizer step; the state is donated.

        Args:
            state: where training stands.
            features: placed features: N systems, A micro-batches each.
            topology: False promises that no sparsity update is due at this step.
        """

    def evaluate(self, state: TrainState, features: Features) -> Aux:
        """Sum loss and metrics over a batch."""
        return self.predict(state, features, ())[0]

    def predict(
        self, state: TrainState, features: Features, names: tuple[str, ...]
    ) -> tuple[Aux, dict[str, Array]]:
        """Evaluate, and also return the model's outputs of these names, [N, A, ...]."""
        del state, features
        message = (
            f"{type(self).__name__} has no predict: it does not give the outputs "
            f"({', '.join(names)}) that this task's metrics read"
        )
        raise ConfigError([Problem(("runconfig", "execution_strategy"), message)])

    def levels(self, state: TrainState) -> Metrics:
        """Report target and actual sparsity of each sparse parameter; see the sparsifier."""
        return _levels(self.sparsifier, state.sparse)

    def export(self, state: TrainState) -> tuple[PyTree, PyTree]:
        """Return (parameters, optimizer state) to store: dense, NaN at pruned positions."""
        return sentinel.encode(state.params, state.opt_state, state.sparse)

    def rebuild(self, state: TrainState, fill: Fill) -> TrainState:
        """Replace a state's large arrays.

        Args:
            state: as the engine made it; consumed. Its small arrays are taken as they are.
            fill: (params, opt_state, sparse) -> (sparse, params, opt_state); called with the
                whole trees, or with any part of them by top-level key.
        """
        sparse, params, opt_state = fill(state.params, state.opt_state, state.sparse)
        return state._replace(sparse=sparse, params=params, opt_state=opt_state)

    def close(self) -> None:  # noqa: B027 (most engines hold neither)
        """Release threads and files."""


@functools.partial(jax.jit, static_argnums=0)
def _levels(sparsifier: Sparsifier, sparse: SparseState) -> Metrics:
    return sparsifier.metrics(sparse)
