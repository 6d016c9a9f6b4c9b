"""Compile while the data is being prepared: the first step of a run should not wait for either."""

import concurrent.futures
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxtyping import Array

from wafer.data.batching.sources import FEATURES, VSL_FEATURES
from wafer.data.inputs import InputSection
from wafer.engines.resident import Executor, Resident
from wafer.engines.state import TrainState

__all__ = ["Warmup", "feature_shapes"]


def feature_shapes(section: InputSection, lead: tuple[int, int], executor: Executor) -> Any:
    """Shapes of a batch's features, where the configuration alone decides them, else None.

    Args:
        section: an input section.
        lead: (N systems, A micro-batches).
        executor: gives the sharding.
    """
    if section.max_sequence_length is None or section.task != "lm" or hasattr(section, "data_dir"):
        return None
    rows = section.batch_size // lead[0]
    shape = (*lead, rows, section.max_sequence_length)
    names = VSL_FEATURES if section.use_vsl else FEATURES
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(names, shape)
    if not section.use_vsl:
        shapes["lengths"] = shape[:-1]
    sharding = NamedSharding(executor.mesh, P("csx"))
    return {
        name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)
        for name, shape in shapes.items()
    }


class Warmup:
    """A thread that makes the first state and compiles the programs the run will need.

    Args:
        executor: compiles them.
        key: of the first state; consumed.
        train: features of a training batch, or None where unknown.
        evaluation: features of an evaluation batch, or None.
    """

    def __init__(self, executor: Executor, key: Array, *, train: Any, evaluation: Any) -> None:
        self._executor, self._key = executor, key
        # The streaming executor's programs are small and few; it compiles them as they come.
        self._resident = executor if isinstance(executor, Resident) else None
        self._pool = concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="compile")
        self._state: concurrent.futures.Future[TrainState] | None = self._pool.submit(
            executor.init, key
        )
        if evaluation is not None and self._resident is not None:
            self._pool.submit(self._compile_evaluation, self._state, evaluation)
        if train is not None and self._resident is not None:
            self._pool.submit(self._compile_step, self._state, train)

    def _compile_step(self, state: Any, features: Any) -> None:
        self._compile(_shapes(state.result()), features, topology=False)

    def _compile_evaluation(self, state: Any, features: Any) -> None:
        if self._resident is not None:
            self._resident.compiled_evaluate(_shapes(state.result()), features)

    def expect_topology(self, state: TrainState, features: Any) -> None:
        """Begin to compile the step that changes the topology; one is due before long."""
        if self._resident is not None:
            self._pool.submit(self._compile, *_shapes((state, features)), topology=True)

    def _compile(self, state: Any, features: Any, *, topology: bool) -> None:
        if self._resident is not None:
            self._resident.compiled_step(state, features, topology=topology)

    def first_state(self) -> TrainState:
        """Return the state of step 0; made again when it was handed out before."""
        future, self._state = self._state, None
        return self._executor.init(self._key) if future is None else future.result()


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)
