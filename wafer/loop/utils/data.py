"""Loaders and the loop itself."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from wafer.loop.machine import current_backend
from wafer.loop.utils.cluster import CSConfig
from wafer.profile.rates import RateTracker

__all__ = ["DataExecutor", "DataLoader"]

_LOG = logging.getLogger(__name__)


class DataLoader:
    """A function that makes an iterable of batches; each iteration calls it anew.

    Args:
        fn: returns an iterable of trees of arrays, every one with the batch as first axis.
        args: passed to it.
        kwargs: passed to it.
    """

    def __init__(self, fn: Callable[..., Iterable[Any]], *args: Any, **kwargs: Any) -> None:
        if not callable(fn):
            raise TypeError(
                f"DataLoader takes a function that makes the batches, not {type(fn).__name__}: "
                "DataLoader(get_batches, batch_size)"
            )
        self._make: Callable[[], Iterable[Any]] = lambda: fn(*args, **kwargs)
        self._batches_ahead: Iterable[Any] | None = self._make()

    def __len__(self) -> int:
        """Batches of one pass, where the iterable knows."""
        if self._batches_ahead is None:
            self._batches_ahead = self._make()
        return len(self._batches_ahead)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass."""
        batches, self._batches_ahead = self._batches_ahead, None
        return iter(self._make() if batches is None else batches)


class _Profiler(RateTracker):
    """Samples per second of a loop, under the vendor's names.

    Attributes:
        rate: of the last step.
        global_rate: since the first step.
    """

    rate = global_rate = 0.0

    def add(self, samples: int) -> None:
        """Count a finished step."""
        super().add(samples)
        self.rate, self.global_rate = self.rates()

    @property
    def total_samples(self) -> int:
        """Samples so far."""
        return self.total


class DataExecutor:
    """The loop: ``for step, batch in enumerate(executor, start=1)``.

    Args:
        dataloader: a ``DataLoader``; begun again at the end of each pass.
        num_steps: how many batches; one pass when None.
        checkpoint_steps: every so many steps, and after the last, checkpoint closures run; None
            or 0: never.
        activation_steps: accepted; step closures run at every step.
        cs_config: how many systems share each batch.
        writer: for ``summarize_scalar``.

    Raises:
        ValueError: no length is known, a number that makes no sense, or too few devices.
    """

    def __init__(
        self,
        dataloader: DataLoader,
        num_steps: int | None = None,
        *,
        checkpoint_steps: int | None = None,
        activation_steps: int = 1,
        cs_config: CSConfig | None = None,
        writer: Any = None,
    ) -> None:
        del activation_steps
        if num_steps is None:
            try:
                num_steps = len(dataloader)
            except TypeError:
                raise ValueError(
                    "DataExecutor: the loader's length is unknown; give num_steps"
                ) from None
        if num_steps < 1:
            raise ValueError(f"DataExecutor: num_steps {num_steps}, expected at least 1")
        self.num_steps, self.checkpoint_steps = num_steps, checkpoint_steps or 0
        self.writer, self.user_iteration = writer, 0
        self.profiler = _Profiler()
        self._loader, self._calls = dataloader, []
        self._num_csx = (cs_config or CSConfig()).num_csx

    def __len__(self) -> int:
        """Steps of the loop."""
        return self.num_steps

    @property
    def on_final_iteration(self) -> bool:
        """Whether this step is the last."""
        return self.user_iteration == self.num_steps

    @property
    def is_checkpoint_step(self) -> bool:
        """Whether checkpoint closures run at the end of this step."""
        if not self.checkpoint_steps:
            return False
        return self.on_final_iteration or self.user_iteration % self.checkpoint_steps == 0

    def at_end_of_step(self, call: Callable[[], Any]) -> None:
        """Queue a call for the end of the running step."""
        self._calls.append(call)

    def __iter__(self) -> Iterator[Any]:
        """Run: place batches on the systems, and call the closures after each step."""
        where = current_backend()
        where.use(self._num_csx)
        where.executor, self.user_iteration, self._calls = self, 0, []
        try:
            for batch in self._batches():
                self.user_iteration += 1
                yield self._place(batch)
                self._end_of_step(batch)
        finally:
            if where.executor is self:
                self._run_calls()  # the loop was left by `break`: its last step counts
                where.executor = None

    def _end_of_step(self, batch: Any) -> None:
        jax.block_until_ready(current_backend().state)
        self.profiler.add(_samples(batch))
        self._run_calls()

    def _run_calls(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call()

    def _batches(self) -> Iterator[Any]:
        step = 0
        while step < self.num_steps:
            before = step
            for batch in self._loader:
                yield batch
                step += 1
                if step == self.num_steps:
                    return
            if step == before:
                raise ValueError("DataExecutor: the loader yields no batch")

    def _place(self, batch: Any) -> Any:
        where, count = current_backend(), self._num_csx

        def place(leaf: Any) -> Any:
            shape = np.shape(leaf)
            if shape and shape[0] % count == 0:
                return where.shared_out
            if shape:
                raise ValueError(
                    f"DataExecutor: {count} systems cannot share a batch of {shape[0]} evenly "
                    f"(array of shape {shape})"
                )
            return where.everywhere

        return jax.device_put(batch, jax.tree.map(place, batch))


def _samples(batch: Any) -> int:
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(batch)]
    return next((shape[0] for shape in shapes if shape), 0)
