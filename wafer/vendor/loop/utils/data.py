"""Loaders and the loop itself."""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace

import jax
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import PyTree

from wafer.data.batching.dataset import Context
from wafer.data.readers.random_rows import random_rows
from wafer.data.registry import parse_input
from wafer.data.sections.rows import RandomDataProcessor
from wafer.loop.distributed import CSConfig
from wafer.loop.elsewhere import explain
from wafer.loop.machine import current_backend
from wafer.profiling.rates import RateTracker

_LOG = logging.getLogger(__name__)


class DataLoader:
    """A function that makes an iterable of batches; each iteration calls it anew.

    Args:
        fn: returns an iterable of trees of arrays, every one with the batch as first axis.
        args: passed to it.
        kwargs: passed to it.
    """

    def __init__(
        self, fn: Callable[..., Iterable[PyTree]], *args: object, **kwargs: object
    ) -> None:
        if not callable(fn):
            raise TypeError(
                f"DataLoader takes a function that makes the batches, not {type(fn).__name__}: "
                "DataLoader(get_batches, batch_size)"
            )
        self._make: Callable[[], Iterable[PyTree]] = lambda: fn(*args, **kwargs)
        self._batches_ahead: Iterable[PyTree] | None = self._make()

    def __len__(self) -> int:
        if self._batches_ahead is None:
            self._batches_ahead = self._make()
        return len(self._batches_ahead)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[PyTree]:
        """Begin a pass."""
        batches, self._batches_ahead = self._batches_ahead, None
        return iter(self._make() if batches is None else batches)


def get_random_dataloader(
    input_params: Mapping[str, object], shuffle: bool = False, num_classes: int = 10
) -> DataLoader:
    """Make random batches for any task, the vendor's stand-in for data.

    Args:
        input_params: ``batch_size``; ``num_examples`` of a pass (1024), ``seed`` (0), ``task``
            ('image', or another of ``wafer.data.tasks.TASKS``). Images take ``image_size`` (28 or
            [height, width]) and ``num_channels`` (1); rows of tokens ``max_sequence_length``
            (128) and ``vocab_size`` (1024). Other keys are left alone.
        shuffle: another order for every pass.
        num_classes: labels are below, unless ``input_params`` has ``num_classes``.

    Returns:
        Batches: (images [B, H, W, C] float32, labels [B] int32), or a dict of the task's features.

    Raises:
        ConfigError: an unknown task, or a number that is none.
    """
    params = {"task": "image", "max_sequence_length": 128, "vocab_size": 1024, "image_size": 28}
    params |= {"num_channels": 1, "num_classes": num_classes, **input_params}
    size = params["image_size"]
    shape = (*((size, size) if isinstance(size, int) else size), params["num_channels"])
    read = {*RandomDataProcessor.model_fields, "task"} - {"image_size"}
    keys = {name: value for name, value in params.items() if name in read}
    section = parse_input({**keys, "data_processor": RandomDataProcessor.__name__})
    states = params["num_classes"]
    model = SimpleNamespace(
        input_shape=shape, has_nsp=True, max_length=None, epigenetic_vocab_size=states
    )
    data = random_rows(section, Context(config=model, input_shape=shape))
    passes = itertools.count()

    def batches() -> Iterator[PyTree]:
        seed = params.get("seed", 0) + next(passes)
        order = dataclasses.replace(data, shuffle=shuffle, shuffle_seed=seed)
        for batch in order.loader(section.batch_size, num_epochs=1):
            is_image = section.task == "image"
            yield (batch["images"], batch["labels"]) if is_image else batch

    return DataLoader(batches)


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

    @property
    def total_time(self) -> float:
        """Seconds so far."""
        return self.seconds

    @property
    def rate_tracker(self) -> "_Profiler":
        """The rates, at the place that releases 2.2+ have for them."""
        return self


class DataExecutor:
    """The loop: ``for step, batch in enumerate(executor, start=1)``.

    Args:
        dataloader: a ``DataLoader``; begun again at the end of each pass.
        num_steps: how many batches; one pass when None.
        checkpoint_steps: every so many steps, and after the last, checkpoint closures run; 0 or
            None: never, but for ``configure``'s.
        activation_steps: accepted; step closures run at every step.
        cs_config: how many systems share each batch; the backend's when None.
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
        writer: object = None,
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
        backend = current_backend()
        self.num_steps = num_steps
        self.checkpoint_steps = checkpoint_steps or backend.checkpoint_steps or 0
        self.writer, self.user_iteration = writer, 0
        self.profiler = _Profiler()
        self._loader, self._calls = dataloader, []
        self.cs_config = cs_config or backend.cluster

    def __len__(self) -> int:
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

    def at_end_of_step(self, call: Callable[[], object]) -> None:
        """Queue a call for the end of the running step."""
        self._calls.append(call)

    def __iter__(self) -> Iterator[PyTree]:
        """Run: place batches on the systems, and call the closures after each step."""
        backend = current_backend()
        backend.use(self.cs_config.num_csx)
        backend.executor, self.user_iteration, self._calls = self, 0, []
        try:
            for batch in self._batches():
                self.user_iteration += 1
                yield place_batch(batch)
                if backend.stops_after:
                    _LOG.info("%s only: the step is fine; nothing ran", backend.stops_after)
                    return
                self._end_of_step(batch)
        finally:
            if backend.executor is self:
                self._run_calls()  # the loop was left by `break`: its last step counts
                backend.executor = None

    def _end_of_step(self, batch: PyTree) -> None:
        jax.block_until_ready(current_backend().state)
        self.profiler.add(infer_batch_size(batch))
        self._run_calls()

    def _run_calls(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call()

    def _batches(self) -> Iterator[PyTree]:
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


def place_batch(batch: PyTree) -> PyTree:
    """Send a batch, a tree of arrays, to the systems of the current backend, which share its rows.

    Raises:
        ValueError: rows that the systems cannot share evenly.
    """
    backend = current_backend()
    count = backend.mesh.size
    host = lambda leaf: leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    batch = jax.tree.map(host, batch)  # tensors of a PyTorch loader are no leaves of JAX

    def sharding(leaf: jax.Array | np.ndarray) -> NamedSharding:
        shape = np.shape(leaf)
        if shape and shape[0] % count:
            raise ValueError(
                f"DataExecutor: {count} systems cannot share a batch of {shape[0]} evenly (array "
                f"of shape {shape})"
            )
        return backend.shared_out if shape else backend.everywhere

    return jax.device_put(batch, jax.tree.map(sharding, batch))


def infer_batch_size(batch: PyTree) -> int:
    """Return the rows of a batch: the first axis of its first array; 0 without one."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(batch)]
    return next((shape[0] for shape in shapes if shape), 0)


def compute_num_steps(
    dataloader: DataLoader,
    initial_step: int = 0,
    *,
    num_steps: int | None = None,
    max_steps: int | None = None,
    num_epochs: int | None = None,
    steps_per_epoch: int | None = None,
    grad_accum_steps: int = 1,
) -> int:
    """Return the steps that a run takes.

    Args:
        dataloader: whose length is one pass.
        initial_step: steps taken before.
        num_steps: how many to take, or
        max_steps: the step to end at, or
        num_epochs: passes over the data.
        steps_per_epoch: of a pass at most.
        grad_accum_steps: batches of a step.

    Raises:
        ValueError: none or several of num_steps, max_steps and num_epochs.
    """
    limits = [value for value in (num_steps, max_steps, num_epochs) if value is not None]
    if len(limits) != 1:
        raise ValueError(
            f"compute_num_steps: found {len(limits)} of num_steps, max_steps and num_epochs; "
            "expected one"
        )
    if num_steps is not None:
        return num_steps
    if max_steps is not None:
        return max(0, max_steps - initial_step)
    one_pass = len(dataloader) // grad_accum_steps
    return limits[0] * min(one_pass, steps_per_epoch or one_pass)


__getattr__ = functools.partial(explain, __name__)
