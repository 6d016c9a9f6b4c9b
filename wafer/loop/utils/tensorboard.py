"""Scalars of a loop as TensorBoard events."""

from typing import Any

from tensorboardX import SummaryWriter

from wafer.loop.machine import current_backend
from wafer.loop.step import step_closure

__all__ = ["SummaryWriter", "summarize_scalar"]


@step_closure
def summarize_scalar(name: str, value: Any) -> None:
    """Write a scalar at this step with the executor's ``writer``; nothing without one."""
    executor = current_backend().executor
    if executor is not None and executor.writer is not None:
        executor.writer.add_scalar(name, float(value), executor.user_iteration)
