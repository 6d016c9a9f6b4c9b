"""What a training run carries from step to step, and the loss-scale contract executors use."""

from typing import Any, NamedTuple, Protocol

from jaxtyping import Array

__all__ = ["Scaler", "TrainState"]


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


class Scaler(Protocol):
    """Loss scaling as pure functions (``wafer.optim.precision``)."""

    @property
    def dynamic(self) -> bool:
        """Whether steps that overflow are skipped."""
        ...

    def init(self) -> Any:
        """First state of the automaton."""
        ...

    def scale(self, state: Any) -> Array:
        """[] float32 factor on the loss."""
        ...

    def finite(self, grads: Any) -> Array:
        """[] bool: every unscaled gradient is finite."""
        ...

    def update(self, state: Any, finite: Array) -> Any:
        """State after a step."""
        ...
