"""Order, packing and batching of a source on grain: deterministic, sharded, resumable mid-epoch.

The position of a loader is a small JSON-able dict (grain's own iterator state); a checkpoint
stores it, and a loader that is given it continues with the next batch, bit for bit.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import grain
import numpy as np

from wafer.data.batching.sources import FEATURES, Mixture, Source
from wafer.errors import DataError

Rows = dict[str, np.ndarray]
Transform = Callable[[Rows, np.random.Generator], Rows]
_MOST = 2**48  # samples: grain counts in numbers of 64 bits
_PACKING_BINS = 32  # rows open at once; with 512-token rows about 97 % of the slots are filled


def _vsl_features(packed: Rows) -> Rows:
    """Turn grain's packed rows into the Model Zoo's five VSL features."""
    segments, positions = packed["input_ids_segment_ids"], packed["input_ids_positions"]
    column = np.arange(segments.shape[1])
    last = np.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (0, 1)), constant_values=True)
    ends = np.where(last, column, len(column))  # the nearest segment end at or after each column
    ends = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
    span = np.where(segments > 0, ends - column, 0).astype(np.int32)
    return {
        **{name: packed[name] for name in FEATURES},
        "attention_span": span,
        "position_ids": positions,
    }


def _ordered(source: Source, shuffle: bool, seed: int) -> grain.MapDataset:
    data = grain.MapDataset.source(cast(Sequence[Rows], source)).seed(seed)
    return data.shuffle() if shuffle else data


def _mixed(source: Source, shuffle: bool, seed: int, epochs: int | None) -> grain.MapDataset:
    """The examples of all epochs, in order. Parts of a mixture repeat each at its own pace."""
    if not isinstance(source, Mixture):
        data = _ordered(source, shuffle, seed)
        return data if epochs == 1 else data.repeat(epochs)
    datasets = [_ordered(part, shuffle, seed + i) for i, part in enumerate(source.parts)]
    if epochs == 1:
        return grain.MapDataset.mix(datasets, source.weights)
    mixed = grain.MapDataset.mix([dataset.repeat() for dataset in datasets], source.weights)
    return mixed if epochs is None else mixed[: epochs * len(source)]


def _scaled(state: Any, fn: Callable[[int], int]) -> Any:
    """Change the positions in an iterator's state."""
    if not isinstance(state, dict):
        return state
    return {k: fn(v) if k == "next_index" else _scaled(v, fn) for k, v in state.items()}


def require_place(state: object, expected: object) -> None:
    """Refuse a place in the data that a loader like this one did not give.

    Args:
        state: the checkpoint's.
        expected: that of the loader.

    Raises:
        DataError: other keys, or what is no count.
    """

    def fits(value: Any, like: Any) -> bool:
        if isinstance(like, dict):
            same = isinstance(value, dict) and value.keys() == like.keys()
            return same and all(fits(value[key], like[key]) for key in like)
        return type(value) is type(like) and (type(like) is not int or 0 <= value < _MOST)

    if not fits(state, expected):
        raise DataError(
            f"the checkpoint's place in its data is {str(state)[:80]}, not one of this loader, "
            f"such as {expected}; begin the data anew with "
            "load_checkpoint_states: model,optimizer,sparsity,global_step"
        )


class Loader:
    """Batches of rows, each a dict of [batch_size, ...] arrays.

    Args:
        source: examples of varying length, or rows already of ``row_length``; or a mixture.
        batch_size: rows of this task's share of the batch.
        row_length: S; None when the examples are whole rows already.
        pack: put several examples into each row (first fit) and emit the VSL features.
        shuffle: reshuffle every epoch with ``seed``.
        seed: of the order.
        num_epochs: passes over the source; None repeats for ever.
        drop_last: drop the last incomplete batch; otherwise it is filled with empty rows.
        transform: (example, generator) -> example, with draws that differ from epoch to epoch.
        task: (index, count) of the process, which reads every count-th example. Packed rows are
            built from all examples by every process, which then keeps every count-th row: so the
            order of neither depends on the number of processes.

    Raises:
        DataError: fewer examples than processes.
    """

    def __init__(
        self,
        source: Source,
        *,
        batch_size: int,
        row_length: int | None,
        pack: bool = False,
        shuffle: bool = False,
        seed: int = 0,
        num_epochs: int | None = None,
        drop_last: bool = True,
        transform: Transform | None = None,
        task: tuple[int, int] = (0, 1),
    ) -> None:
        self.batch_size = batch_size
        self._index, self._count = task
        packs = pack and row_length is not None
        self._packs = packs
        self._rows = slice(task[0], None, task[1]) if packs else slice(None)
        data = _mixed(source, shuffle, seed, num_epochs)
        self._due: int | None = None  # batches that every process has to give
        if self._count > 1 and num_epochs is not None and not drop_last and not packs:
            self._due = -(-len(data) // (batch_size * self._count))
        if len(data) < self._count:
            raise DataError(f"{len(data)} example(s) for {self._count} processes; use fewer")
        if transform is not None:
            data = data.seed(seed).random_map(transform)
        # A task's share is every count-th example of the sequence over all epochs, so that the
        # order of the whole does not depend on how many tasks there are.
        if packs:
            batch_size *= self._count
        else:
            data = data[task[0] :: task[1]]
        self._batch_rows = batch_size
        self._last: Rows = {}
        # No reader threads: on two cores they are slower than reading in line.
        rows = data.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=1))
        if packs:
            rows = grain.experimental.FirstFitPackIterDataset(
                rows,
                length_struct=dict.fromkeys(FEATURES, row_length),
                num_packing_bins=_PACKING_BINS,
            )
            batches = rows.batch(batch_size, drop_remainder=drop_last).map(_vsl_features)
        else:
            if row_length is not None:
                cut = lambda v: np.pad(v[:row_length], (0, row_length - len(v[:row_length])))
                rows = rows.map(lambda row: {key: cut(value) for key, value in row.items()})
            batches = rows.batch(batch_size, drop_remainder=drop_last)
        prefetched = grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=2)
        self._iterator = iter(prefetched)

    def __iter__(self) -> Iterator[Rows]:
        """The loader is its own iterator; a second loop goes on where the first stopped."""
        return self

    def __next__(self) -> Rows:
        """The next batch, its missing rows (at the very end) empty."""
        batch = next(self._iterator, None)
        if batch is None:
            if self._due is None or self._due <= 0 or not self._last:
                raise StopIteration
            batch = {k: v[:0] for k, v in self._last.items()}  # other processes have one more
        if self._due is not None:
            self._due, self._last = self._due - 1, batch
        missing = self._batch_rows - len(next(iter(batch.values())))
        if missing:
            batch = {
                k: np.pad(v, [(0, missing)] + [(0, 0)] * (v.ndim - 1)) for k, v in batch.items()
            }
        return {k: v[self._rows] for k, v in batch.items()}

    def state(self) -> dict[str, Any]:
        """Where the next batch begins, whatever the number of processes; JSON-able."""
        state = self._iterator.get_state()
        return state if self._packs else _scaled(state, lambda n: n * self._count)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue as the loader that gave ``state`` would have.

        Raises:
            DataError: a place in another kind of data.
        """
        require_place(state, self._iterator.get_state())
        state = state if self._packs else _scaled(state, lambda n: n // self._count)
        self._iterator.set_state(state)

    def close(self) -> None:
        """Stop the prefetch thread."""
        self._iterator.close()
