"""The reader of users' loaders: functions called for every pass, their batches checked."""

import inspect
import operator
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from wafer.data.batching.dataset import Context
from wafer.data.batching.pipeline import Rows
from wafer.data.batching.streams import Streamed
from wafer.data.rowfiles.rules import RowGroup, checked_row
from wafer.data.tasks import Features, stored_features
from wafer.errors import DataError
from wafer.models.errors import did_you_mean
from wafer.models.user.code import call, find, place

_OPTIONAL = ("loss_mask",)
_END = object()


def own_batches(cfg: Any, context: Context) -> Streamed:
    """Open a user's loader and look at its first batch.

    Raises:
        DataError: it fails, ends early or yields what no batch is.
    """
    loader = _Loader(cfg, context)
    first = _first(loader)
    rows = [dict(zip(first, row, strict=True)) for row in zip(*first.values(), strict=True)]
    longest = max((v.shape[1] for v in first.values() if v.ndim == 2), default=1)
    return Streamed(
        source=rows,
        row_length=longest,
        complete=True,
        open_pass=loader.batches,
        batch_size=cfg.batch_size,
        length=loader.length,
        summary=f"{cfg.data_processor}: batches of {cfg.batch_size} rows of up to {longest} tokens",
    )


def _first(loader: "_Loader") -> Rows:
    """The first batch, which is checked before any work; it must be whole, or the only one."""
    batches = loader.batches(0, (0, 1))
    batch = next(batches, None)
    if batch is None:
        raise DataError(f"{loader.name} ends without a batch; expected at least one{loader.where}")
    size = len(next(iter(batch.values())))
    if size < loader.rows and next(batches, None) is not None:
        message = f"the first batch has {size} rows; expected {loader.rows} (batch_size)"
        raise DataError(f"{loader.name}: {message}{loader.where}")
    batches.close()
    return batch


class _Loader:
    """A user's function with its arguments, and the rules for what it yields."""

    def __init__(self, cfg: Any, context: Context) -> None:
        self.name, self.rows = repr(cfg.data_processor), cfg.batch_size
        self._cfg, self._context = cfg, context
        self._function = find(cfg.data_processor, (), "data")
        self.where = place(self._function)
        self.length: int | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}

    def _opened(self, epoch: int, task: tuple[int, int]) -> Any:
        cfg, arguments = self._cfg, dict(self._cfg.arguments)
        keys = {name: getattr(cfg, name) for name in type(cfg).model_fields if name != "arguments"}
        keys["batch_size"] = cfg.batch_size // task[1]
        keywords = keys | {
            "training": self._context.training,
            "seed": cfg.shuffle_seed or 0,
            "epoch": epoch,
            "task_id": task[0],
            "num_tasks": task[1],
            "params": {k: v for k, v in keys.items() if v is not None} | arguments,
        }
        parameters = inspect.signature(self._function).parameters
        asked = {k: v for k, v in keywords.items() if k in parameters}
        if "params" in parameters:
            arguments = {k: v for k, v in arguments.items() if k in parameters}
        opened = call(cfg.data_processor, self._function, **asked | arguments)
        if not hasattr(opened, "create_dataloader"):
            return opened
        return call(cfg.data_processor, opened.create_dataloader)

    def batches(self, epoch: int, task: tuple[int, int]) -> Generator[Rows]:
        """One pass, each batch checked."""
        try:
            opened = self._opened(epoch, task)
            if not hasattr(opened, "__iter__"):
                raise DataError(
                    f"{self.name} gave {type(opened).__name__}; expected batches to go through, "
                    f"such as a generator's{self.where}"
                )
            self.length = call(self._cfg.data_processor, operator.length_hint, opened) or None
            batches = call(self._cfg.data_processor, iter, opened)
            number = 0
            while (batch := call(self._cfg.data_processor, next, batches, _END)) is not _END:
                number += 1
                yield self._checked(batch, number, self.rows // task[1])
        except DataError:
            raise
        except ValueError as error:
            raise DataError(str(error)) from error

    def _checked(self, batch: object, number: int, rows: int) -> Rows:
        try:
            arrays = self._arrays(batch, rows)
            self._check_values(arrays)
        except DataError as error:
            raise DataError(f"{self.name}, batch {number}: {error}{self.where}") from None
        return arrays

    def _wanted(self) -> Features:
        """Features of a row as the task has them; () where the model is not known."""
        config = self._context.config
        if config is None:
            return {}
        return stored_features(self._cfg, config)

    def _arrays(self, batch: object, rows: int) -> Rows:
        """The batch as arrays of the right names, dtypes and shapes."""
        if not isinstance(batch, Mapping):
            raise DataError(f"found {type(batch).__name__}; expected a dict of arrays by feature")
        features = self._wanted()
        missing = [name for name in features if name not in batch]
        extra = [name for name in batch if features and name not in (*features, *_OPTIONAL)]
        listed = f"a row for {self._cfg.task!r} has {', '.join(features)}"
        if missing:
            raise DataError(f"{', '.join(missing)} missing; {listed}")
        if extra:
            near = did_you_mean(extra[0], features)
            raise DataError(f"{', '.join(map(str, extra))} unknown{near}; {listed}")
        arrays = {
            name: _array(name, value, features[name].dtype if name in features else "int32")
            for name, value in batch.items()
        }
        sizes = {name: value.shape[:1] for name, value in arrays.items()}
        if len(set(sizes.values())) != 1 or not 0 < next(iter(sizes.values()))[0] <= rows:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise DataError(f"expected {rows} rows in every array (batch_size); found {shapes}")
        self._check_shapes(arrays, features)
        return arrays

    def _check_shapes(self, arrays: Rows, features: Features) -> None:
        """Rows are of the task's form, the same in all batches: a program is one set of shapes."""
        alike: dict[tuple[int, ...], tuple[str, tuple[int, ...]]] = {}
        for name, feature in features.items():
            row, most = arrays[name].shape[1:], feature.shape
            if len(row) != len(most) or any(a > b for a, b in zip(row, most, strict=True)):
                raise DataError(f"{name}: rows of shape {row}; expected {most} at most")
            other, shape = alike.setdefault(most, (name, row))
            if shape != row:
                raise DataError(f"{name}: rows of shape {row}, but {other} has {shape}")
        for name, array in arrays.items():
            first = self._shapes.setdefault(name, array.shape[1:])
            if array.shape[1:] != first:
                raise DataError(
                    f"{name}: rows of shape {array.shape[1:]}, but those of the first batch are "
                    f"{first}; pad all to one length"
                )

    def _check_values(self, arrays: Rows) -> None:
        """The rules of ``wafer data verify``, row by row."""
        lengths = sorted(
            {v.shape[1] for v in arrays.values() if v.ndim == 2 and v.dtype == np.int32}
        )
        named = [
            [k for k, v in arrays.items() if v.dtype == np.int32 and v.shape[1:] == (length,)]
            for length in lengths
        ]
        groups = tuple(
            RowGroup("", _ordered(names), length)
            for names, length in zip(named, lengths, strict=True)
        )
        stacked = [np.stack([arrays[k] for k in group.features], axis=1) for group in groups]
        states = getattr(self._context.config, "epigenetic_vocab_size", None)
        for row, stored in enumerate(zip(*stacked, strict=True)):
            try:
                checked_row(groups, stored, self._context.vocab_size, states)
            except DataError as error:
                raise DataError(f"row {row}: {error}") from None
        labels, classes = arrays.get("labels"), self._context.num_labels
        if labels is None or labels.ndim != 1 or classes is None:
            return
        wrong = labels[(labels < 0) | (labels >= classes)]
        if len(wrong):
            raise DataError(f"label {wrong[0]}; expected 0 to {classes - 1} (model.num_labels)")


def _ordered(names: list[str]) -> tuple[str, ...]:
    """The three of next-token rows first, as the rules know them."""
    first = ("input_ids", "attention_mask", "labels")
    return (*(n for n in first if n in names), *(n for n in names if n not in first))


def _array(name: str, value: object, dtype: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except Exception as error:
        raise DataError(f"{name}: no array can be made of it: {error}") from error
    if array.ndim == 0 or array.dtype.kind not in ("iub" if dtype == "int32" else "iubf"):
        raise DataError(f"{name}: {array.dtype} {array.shape}; expected {dtype} [rows, …]")
    reach = (int(array.min()), int(array.max())) if array.size and dtype == "int32" else (0, 0)
    if not -(2**31) <= reach[0] <= reach[1] < 2**31:
        raise DataError(f"{name}: values beyond 32 bits")
    return array.astype(dtype, copy=False)
