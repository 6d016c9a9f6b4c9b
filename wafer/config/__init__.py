"""The run file: YAML to a frozen, checked configuration, before any other work.

``load`` reads a params YAML and reports everything that is wrong with it in one ``ConfigError``.
Importing this package does not import jax.
"""

from wafer.config.loader import (
    CLUSTER_DEFAULTS_VARIABLE,
    RunConfig,
    load,
    load_all,
    parse_config,
    unseen_lines,
)
from wafer.config.runconfig import MODES, RunSection, total_steps
from wafer.data.registry import DATA_PROCESSORS
from wafer.data.sections.base import InputSection
from wafer.optim.schedule_sections import SCHEDULERS, Schedule, parse_schedules
from wafer.optim.sections import OPTIMIZERS, Optimizer, parse_optimizer

__all__ = [
    "CLUSTER_DEFAULTS_VARIABLE",
    "DATA_PROCESSORS",
    "MODES",
    "OPTIMIZERS",
    "SCHEDULERS",
    "InputSection",
    "Optimizer",
    "RunConfig",
    "RunSection",
    "Schedule",
    "load",
    "load_all",
    "parse_config",
    "parse_optimizer",
    "parse_schedules",
    "total_steps",
    "unseen_lines",
]
