"""See a run of a CSL program: the tools of ``wafer.machine.tools.trace``, for Layouts too."""

from wafer.machine.tools import trace
from wafer.machine.tools.trace import *  # noqa: F403

__all__ = trace.__all__
