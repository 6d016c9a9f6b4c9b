"""Moving records between a store and the systems, beside the computation.

One thread reads ahead, another writes back; both are idle where the store is the memory that XLA
computes in. What moved when is recorded on request: ``Event``s make the timeline of a step.
"""

import collections
import concurrent.futures
import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import PyTree

from wafer.engines.cluster import broadcast
from wafer.engines.stagewise.streaming.memoryx import RamStore, Store
from wafer.models.user.flags import enter_own_flags

_WRITES_AHEAD = 2  # branches waiting to be written, at most


class Event(NamedTuple):
    """Something that took time during a step."""

    lane: str  #: 'fetch', 'forward', 'backward', 'update' or 'write'
    name: str  #: stage, branch or record
    begin: float  #: ``time.perf_counter()`` seconds
    end: float  #: ``time.perf_counter()`` seconds


class Mover:
    """Reads records ahead of the sweep and writes them behind it.

    Args:
        store: where they are.
        mesh: of the systems.
        events: recorded into, when given.
    """

    def __init__(self, store: Store, mesh: Mesh, events: list[Event] | None = None) -> None:
        self.store, self.events = store, events
        self.bytes_moved = 0
        self._everywhere = NamedSharding(mesh, P())
        self._local = mesh.local_devices
        self._ram = isinstance(store, RamStore)
        on_host = self._local[0].platform == "cpu"
        self._in_place = self._ram and on_host and mesh.size == 1
        self._pinned = None
        if self._ram and not on_host:  # weights wait in memory the device can copy from by itself
            self._pinned = NamedSharding(mesh, P(), memory_kind="pinned_host")
        self._reader = concurrent.futures.ThreadPoolExecutor(1, "fetch", enter_own_flags)
        self._writer = concurrent.futures.ThreadPoolExecutor(1, "write", enter_own_flags)
        self._writing: dict[str, concurrent.futures.Future[None]] = {}
        self._slots = threading.Semaphore(_WRITES_AHEAD)
        self._running: collections.deque[tuple[str, str, float, Any]] = collections.deque()
        self._idle_since = 0.0

    # --- reading --------------------------------------------------------------------------

    def load(self, record: str) -> dict[str, PyTree]:
        """Bring a record to the systems."""
        pending = self._writing.get(record)
        if pending is not None:
            pending.result()
        leaves = self.store.fetch(record)
        if self._in_place:
            return leaves
        begin = time.perf_counter()
        self.bytes_moved += sum(leaf.size * leaf.dtype.itemsize for leaf in leaves.values())
        if self._pinned is not None:
            placed = jax.device_put(leaves, self._everywhere)
        else:
            placed = {name: broadcast(leaf, self._everywhere) for name, leaf in leaves.items()}
        self._record("fetch", record, begin)
        return placed

    def ahead(self, jobs: Iterable[Callable[[], PyTree]]) -> Iterator[PyTree]:
        """Yield the results of jobs in order, each begun while the one before is used."""
        if self._in_place:
            yield from (job() for job in jobs)
            return
        waiting: collections.deque[concurrent.futures.Future[Any]] = collections.deque()
        try:
            for job in jobs:
                waiting.append(self._reader.submit(job))
                if len(waiting) > 1:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    # --- writing --------------------------------------------------------------------------

    def keep(self, leaves: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """Turn device arrays into what the store holds."""
        if self._in_place:
            return dict(leaves)
        if self._pinned is not None:
            return jax.device_put(dict(leaves), self._pinned)
        # This process's copy of an array that is the same everywhere.
        local = lambda x: np.asarray(x.addressable_data(0) if isinstance(x, jax.Array) else x)
        return {name: local(leaf) for name, leaf in leaves.items()}

    def admit(self, record: str, leaves: Mapping[str, PyTree], *, again: bool) -> None:
        """Put a record's first contents into the store.

        Args:
            record: its name.
            leaves: host or device arrays.
            again: a record of this shape is there already.
        """
        if self._ram:
            leaves = {name: broadcast(leaf, self._everywhere) for name, leaf in leaves.items()}
        put = self.store.put if again else self.store.add
        put(record, self.keep(leaves))

    def write(self, record: str, leaves: Mapping[str, PyTree], *, scratch: bool = False) -> None:
        """Put a record, in the background where that takes time."""
        put = functools.partial(self.store.add, scratch=True) if scratch else self.store.put
        if self._ram:
            put(record, self.keep(leaves))
            return

        def work() -> None:
            try:
                ready = self.keep(leaves)
                begin = time.perf_counter()
                put(record, ready)
                self._record("write", record, begin)
            finally:
                self._slots.release()

        self._slots.acquire()
        self._writing[record] = self._writer.submit(work)

    def commit(self, meta: Mapping[str, object]) -> None:
        """Wait for all writes and make the step current.

        Raises:
            MemoryXError: a write failed; the step before stays current.
        """
        writing, self._writing = self._writing, {}
        for future in writing.values():
            future.result()
        self.store.commit(meta)

    # --- pace and record ------------------------------------------------------------------

    def pace(self, lane: str, name: str, result: PyTree) -> None:
        """Let the host run one program ahead of the systems, no more: memory stays bounded.

        Args:
            lane: of the event.
            name: of the stage.
            result: arrays the program makes, none of which is ever donated.
        """
        self._running.append((lane, name, time.perf_counter(), result))
        while len(self._running) > 1:
            self._finish()

    def _finish(self) -> None:
        lane, name, begin, result = self._running.popleft()
        jax.block_until_ready(result)
        self._record(lane, name, max(begin, self._idle_since))
        self._idle_since = time.perf_counter()

    def _record(self, lane: str, name: str, begin: float) -> None:
        if self.events is not None:
            self.events.append(Event(lane, name, begin, time.perf_counter()))

    def close(self) -> None:
        """End the threads and release the store."""
        self._reader.shutdown(wait=True, cancel_futures=True)
        self._writer.shutdown(wait=True, cancel_futures=True)
        self.store.close()
