"""What every engine is to the rest of the program: a training state, and methods on it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from jax.sharding import Mesh
from jaxtyping import Array

from models.base import Aux
from sparsity import SparseState, Sparsifier

__all__ = ["Engine", "Features", "Fill", "Metrics", "TrainState"]

Metrics = dict[str, Array]
Features = Mapping[str, Any]
Fill = Callable[[Any, Any, SparseState], tuple[SparseState, Any, Any]]


class TrainState(NamedTuple):
    """Everything a checkpoint must hold besides the data position.

    step: [] int32 finished optimizer steps, skipped ones included
    params: tree of parameters as they are trained (dense, or kept values only)
    opt_state: optax state
    sparse: SparseState of the sparsifier
    scale: state of the loss-scale automaton
    key: [2] uint32 data of the run's base key; step t draws from fold_in(key, t)
    """

    step: Array
    params: Any
    opt_state: Any
    sparse: Any
    scale: Any
    key: Array


class Engine(Protocol):
    """How a model is run; every engine has these methods.

    Attributes:
        sparsifier: of the run; it may be asked about parts of the parameter tree.
        mesh: of the systems.
        programs: what was compiled so far; ``texts()`` gives their HLO.
    """

    @property
    def sparsifier(self) -> Sparsifier:
        """See the class."""
        ...

    @property
    def mesh(self) -> Mesh:
        """See the class."""
        ...

    @property
    def programs(self) -> Any:
        """See the class."""
        ...

    def init(self, key: Array) -> TrainState:
        """Make the first state. The key is consumed."""
        ...

    def place(self, features: Features) -> Features:
        """Send host features [N, A, ...] to the systems."""
        ...

    def step(
        self, state: TrainState, features: Features, *, topology: bool = True
    ) -> tuple[TrainState, Metrics]:
        """Take one optimizer step; the state is donated.

        Args:
            state: where training stands.
            features: placed features: N systems, A micro-batches each.
            topology: False promises that no sparsity update is due at this step.
        """
        ...

    def evaluate(self, state: TrainState, features: Features) -> Aux:
        """Sum loss and metrics over a batch."""
        ...

    def close(self) -> None:
        """Release threads and files."""
        ...

    def levels(self, state: TrainState) -> Metrics:
        """Report target and actual sparsity of each sparse parameter; see the sparsifier."""
        ...

    def export(self, state: TrainState) -> tuple[Any, Any]:
        """Return (parameters, optimizer state) to store: dense, NaN at pruned positions."""
        ...

    def rebuild(self, state: TrainState, fill: Fill) -> TrainState:
        """Replace a state's large arrays.

        Args:
            state: as the engine made it; consumed. Its small arrays are taken as they are.
            fill: (params, opt_state, sparse) -> (sparse, params, opt_state); called with the
                whole trees, or with any part of them by top-level key.
        """
        ...

    def predict(
        self, state: TrainState, features: Features, names: tuple[str, ...]
    ) -> tuple[Aux, dict[str, Array]]:
        """Evaluate, and also return the model's outputs of these names, [N, A, ...]."""
        ...
