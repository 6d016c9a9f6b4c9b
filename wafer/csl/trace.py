"""Tools that show a run of a CSL program: those of ``wafer.machine.trace``, for Layouts too."""

from wafer.machine import trace
from wafer.machine.trace import *  # noqa: F403

__all__ = trace.__all__
