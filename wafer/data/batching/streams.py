"""Batches that a user's loader yields, made whole: every batch checked, the place in them kept."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from wafer.data.batching.dataset import Dataset
from wafer.data.batching.pipeline import Rows, require_place
from wafer.errors import DataError

# (epoch from 0, (index, count) of the process) -> the checked batches of one pass
Open = Callable[[int, tuple[int, int]], Iterable[Rows]]


class BatchStream:
    """Batches of a loader, pass after pass, as ``pipeline.Loader`` gives them.

    Args:
        open_pass: opens a pass.
        task: (index, count) of the process.
        rows: of a batch of the loader; fewer end a pass.
        parts: batches of the loader in one of this.
        num_epochs: passes; None repeats for ever.
        drop_last: drop what does not fill a batch; otherwise it is filled with empty rows.

    Raises:
        DataError: a pass without a batch, or with a short one before its end.
    """

    def __init__(
        self,
        open_pass: Open,
        *,
        task: tuple[int, int],
        rows: int,
        per_step: int,
        num_epochs: int | None,
        drop_last: bool,
    ) -> None:
        self._open, self._task, self._rows, self._per_step = open_pass, task, rows, per_step
        self._num_epochs, self._drop_last = num_epochs, drop_last
        self._epoch = self._read = 0
        self._batches: Iterator[Rows] | None = None

    def __iter__(self) -> Iterator[Rows]:
        return self

    def __next__(self) -> Rows:
        """The next batch, its missing rows (at the very end) empty."""
        batches: list[Rows] = []
        while len(batches) < self._per_step:
            loaded = self._part()
            if loaded is None:
                break
            batches.append(loaded)
        if not batches or (len(batches) < self._per_step and self._drop_last):
            raise StopIteration
        batch = {name: np.concatenate([piece[name] for piece in batches]) for name in batches[0]}
        missing = self._rows * self._per_step - len(next(iter(batch.values())))
        return {
            name: np.pad(value, [(0, missing)] + [(0, 0)] * (value.ndim - 1))
            for name, value in batch.items()
        }

    def _part(self) -> Rows | None:
        """The next batch of the loader; None after the last pass."""
        while self._num_epochs is None or self._epoch < self._num_epochs:
            if self._batches is None:
                self._batches = iter(self._open(self._epoch, self._task))
            batch = next(self._batches, None)
            if batch is not None:
                self._read += 1
                size = len(next(iter(batch.values())))
                if size == self._rows:
                    return batch
                if next(self._batches, None) is not None:
                    raise DataError(
                        f"batch {self._read} of pass {self._epoch + 1} has {size} rows; expected "
                        f"{self._rows}, and fewer only at the end of a pass"
                    )
            if not self._read or (self._read == 1 and batch is not None and self._drop_last):
                raise DataError(
                    f"pass {self._epoch + 1} ends without a batch of {self._rows} rows; a loader "
                    "is called anew for every pass over the data, and has to begin again"
                )
            self._epoch, self._read, self._batches = self._epoch + 1, 0, None
            if batch is not None and not self._drop_last:
                return batch
        return None

    def state(self) -> dict[str, int]:
        """Where the next batch begins, whatever the number of processes; JSON-able."""
        return {"epoch": self._epoch, "batches": self._read}

    def restore(self, state: dict[str, int]) -> None:
        """Continue as the stream that gave ``state`` would have: what was read is read again.

        Raises:
            DataError: a position of another kind of data, or behind the end of the pass.
        """
        require_place(state, self.state())
        self.close()
        self._epoch, self._read = state["epoch"], state["batches"]
        self._batches = iter(self._open(self._epoch, self._task))
        for index in range(self._read):
            if next(self._batches, None) is None:
                raise DataError(
                    f"pass {self._epoch + 1} ends after {index} batches, but the checkpoint was "
                    f"written after {self._read}; has the data changed?"
                )

    def close(self) -> None:
        """Let go of the loader, so that a generator of it can clean up."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
        self._batches = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Streamed(Dataset):
    """What a user's loader yields; ``source`` holds the rows of its first batch."""

    open_pass: Open  #: opens a pass
    batch_size: int  #: rows of a batch of the loader, over all processes
    length: int | None = None  #: batches of a pass, or None where it is not known

    def batches(self, batch_size: int) -> int | None:
        """Batches of one pass, where the loader has a length."""
        return None if self.length is None else self.length * self.batch_size // batch_size

    def loader(
        self,
        batch_size: int,
        num_epochs: int | None,
        drop_last: bool = True,
        task: tuple[int, int] = (0, 1),
    ) -> Any:
        """Open the passes; a batch of a step may take several of the loader."""
        return BatchStream(
            self.open_pass,
            task=task,
            rows=self.batch_size // task[1],
            per_step=batch_size // self.batch_size,
            num_epochs=num_epochs,
            drop_last=drop_last,
        )
