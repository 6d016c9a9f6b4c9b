"""How fast a run's data is read, without the model."""

import itertools
import time
from typing import NamedTuple

import numpy as np

from wafer.data.batching.dataset import Dataset


class ReadingRate(NamedTuple):
    """Batches that were read, and in which time."""

    batches: int  #: their number
    size: int  #: bytes of their arrays
    seconds: float  #: from the first request to the last batch

    def __str__(self) -> str:
        seconds = max(self.seconds, 1e-9)
        return (
            f"{self.batches:,} batches in {self.seconds:.2f} s: {self.batches / seconds:,.1f} "
            f"batches/s, {self.size / seconds / 1e6:,.1f} MB/s"
        )


def reading_rate(
    data: Dataset, batch_size: int, epochs: int = 1, steps: int | None = None
) -> ReadingRate:
    """Read batches as training does, and nothing else.

    Args:
        data: of the run.
        batch_size: rows of a batch.
        epochs: passes over the data.
        steps: batches of a pass at most.
    """
    batches = size = 0
    begin = time.monotonic()
    for _ in range(epochs):
        loader = data.loader(batch_size, num_epochs=1)
        try:
            for batch in itertools.islice(loader, steps):
                batches += 1
                size += sum(np.asarray(values).nbytes for values in batch.values())
        finally:
            loader.close()
    return ReadingRate(batches, size, time.monotonic() - begin)
