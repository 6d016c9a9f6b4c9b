"""An ordered map over processes that never runs far ahead of what is consumed."""

import collections
import concurrent.futures
import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from wafer.data.preprocess.encode import Encoder, start_worker
from wafer.models.guarded import dismiss

Item = TypeVar("Item")
Result = TypeVar("Result")


class Pool:
    """Processes with an encoder each; with one process, this one.

    Args:
        executor: the processes, or None to work here.
        ahead: items that may wait or be worked on at once.
    """

    def __init__(self, executor: concurrent.futures.Executor | None, ahead: int) -> None:
        self._executor, self._ahead = executor, ahead

    def map(
        self, function: Callable[[Any], Result], items: Iterable[tuple[Any, Item]]
    ) -> Iterator[tuple[Result, Item]]:
        """Apply a function to the first of each pair, in order; the second travels along."""
        if self._executor is None:
            for argument, item in items:
                yield function(argument), item
            return
        waiting: collections.deque[tuple[concurrent.futures.Future[Result], Item]]
        waiting = collections.deque()
        for argument, item in items:
            waiting.append((self._executor.submit(function, argument), item))
            if len(waiting) > self._ahead:
                future, other = waiting.popleft()
                yield future.result(), other
        while waiting:
            future, other = waiting.popleft()
            yield future.result(), other


@contextlib.contextmanager
def open_pool(encoder: Encoder, processes: int) -> Iterator[Pool]:
    """Start the processes; they end with this block, or with this process."""
    if processes == 1:
        start_worker(encoder, None)
        yield Pool(None, 0)
        return
    dismiss()  # the memory of the process that opened the tokenizer is wanted for these
    executor = concurrent.futures.ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),  # the parent may hold threads and locks
        initializer=start_worker,
        initargs=(encoder, os.getpid()),
    )
    try:
        yield Pool(executor, 2 * processes)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
