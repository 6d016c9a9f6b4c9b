"""When each task of a pipeline ran, by the host's clock."""

import concurrent.futures
import time
from typing import NamedTuple

import jax

from wafer.engines.stagewise.pipeline.schedule import StageTask, needs


class Span(NamedTuple):
    """A task that ran."""

    task: StageTask  #: of the timetable
    begin: float  #: ``time.perf_counter()`` seconds
    end: float  #: ``time.perf_counter()`` seconds


class Recorder:
    """Waits beside the pipeline for what its tasks make; a thread for each device.

    A task begins when it was dispatched, what it needs had ended, and the device's task before had
    ended, whichever is latest.

    Args:
        places: devices (with N systems: groups of them).
    """

    def __init__(self, places: int) -> None:
        self._waiting = [
            concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=f"record-{i}")
            for i in range(places)
        ]
        self._sent: list[tuple[StageTask, int, float, concurrent.futures.Future[float]]] = []

    def dispatched(self, task: StageTask, place: int, begin: float, result: object) -> None:
        """Note a task.

        Args:
            task: just dispatched.
            place: where.
            begin: when its dispatch began.
            result: arrays it makes, none of which is ever donated.
        """

        def wait() -> float:
            jax.block_until_ready(result)
            return time.perf_counter()

        self._sent.append((task, place, begin, self._waiting[place].submit(wait)))

    def spans(self, stages: int, micro_batches: int, copies: int, *, deferred: bool) -> list[Span]:
        """Wait for every task and end the threads; returns them in the order of dispatch."""
        ended: dict[tuple[int, str, int], float] = {}
        idle_since: dict[int, float] = {}
        spans = []
        for task, place, sent, future in self._sent:
            before = needs(task, stages, micro_batches, copies=copies, deferred=deferred)
            begin = max([sent, idle_since.get(place, 0.0), *(ended[need] for need in before)])
            end = max(begin, future.result())  # the threads wake in any order
            ended[task[1:]] = idle_since[place] = end
            spans.append(Span(task, begin, end))
        for pool in self._waiting:
            pool.shutdown()
        return spans
