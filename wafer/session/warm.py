"""Compile while the data is being prepared: the first step of a run should not wait for either."""

import concurrent.futures
import logging
from typing import Any

from jaxtyping import Array, PyTree

from wafer.engines.resident import structs_of
from wafer.models.user.flags import enter_own_flags
from wafer.optim.step import TrainState

_LOG = logging.getLogger(__name__)


class AheadOfTimeCompiler:
    """A thread that makes the first state and compiles the programs the run will need.

    Args:
        engine: makes the state, and compiles where a step is one program.
        key: of the first state; consumed.
        train: features of a training batch, or None where unknown.
        evaluation: features of an evaluation batch, or None.
        ahead: the engine has ``compiled_step`` and ``compiled_evaluate``; the programs of others
            are small and few, and are compiled as they come.
    """

    def __init__(
        self, engine: Any, key: Array, *, train: PyTree, evaluation: PyTree, ahead: bool
    ) -> None:
        self._engine, self._key, self._ahead = engine, key, ahead
        self._pool = concurrent.futures.ThreadPoolExecutor(3, "compile", enter_own_flags)
        self._state: concurrent.futures.Future[TrainState] | None = self._pool.submit(
            engine.init, key
        )
        if ahead and not (train is None and evaluation is None):
            self._pool.submit(self._compile, self._state, train, evaluation)

    def _compile(
        self,
        state: concurrent.futures.Future[TrainState],
        train: PyTree,
        evaluation: PyTree,
    ) -> None:
        """Compile for the first state's shapes, known before the state is: all at once."""
        try:
            shapes = self._engine.shapes(self._key)
        except Exception as error:  # a user's rule that reads values
            _LOG.debug("Compilation waits for the first state: %s", error)
            shapes = structs_of(state.result())
        if evaluation is not None:
            self._pool.submit(self._engine.compiled_evaluate, shapes, evaluation)
        if train is not None:
            self._engine.compiled_step(shapes, train, topology=False)

    def expect_topology(self, state: TrainState, features: PyTree) -> None:
        """Begin to compile the step that changes the topology; one is due before long."""
        if self._ahead:
            shapes = structs_of((state, features))
            self._pool.submit(self._engine.compiled_step, *shapes, topology=True)

    def first_state(self) -> TrainState:
        """Return the state of step 0; made again when it was handed out before."""
        future, self._state = self._state, None
        return self._engine.init(self._key) if future is None else future.result()
