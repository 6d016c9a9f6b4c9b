"""Scalars of a loop as TensorBoard events."""

import os
import pathlib
from typing import Any

import tensorboardX

from wafer.loop.machine import current_backend
from wafer.loop.tracing.step import step_closure

_WAITING: dict[str, float] = {}


def SummaryWriter(
    log_dir: str | pathlib.Path | None = None, base_step: int = 0, **keys: Any
) -> tensorboardX.SummaryWriter:
    """Make a writer of TensorBoard events.

    Args:
        log_dir: the folder.
        base_step: accepted for the vendor's signature.
        **keys: of ``tensorboardX.SummaryWriter``.
    """
    del base_step
    return tensorboardX.SummaryWriter(None if log_dir is None else os.fspath(log_dir), **keys)


@step_closure
def summarize_scalar(name: str, value: Any) -> None:
    """Write a scalar at this step with the executor's ``writer``.

    Without a writer the last value waits for ``save_summaries``.
    """
    executor = current_backend().executor
    if executor is not None and executor.writer is not None:
        executor.writer.add_scalar(name, float(value), executor.user_iteration)
    else:
        _WAITING[name] = float(value)


def save_summaries(writer: tensorboardX.SummaryWriter, step: int) -> None:
    """Write the scalars that wait, as releases 1.8 and 1.9 did."""
    for name, value in _WAITING.items():
        writer.add_scalar(name, value, step)
    _WAITING.clear()
