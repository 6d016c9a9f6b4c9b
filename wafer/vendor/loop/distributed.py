"""How many systems a loop runs on, and which of the processes that load data this one is.

One process loads every batch here, so a loader that shares its rows among streamers keeps all.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

from wafer.loop.elsewhere import explain

_WORD = re.compile(r"[A-Za-z0-9._-]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CSConfig:
    """The vendor's cluster settings; ``num_csx`` acts, the cluster's own keys are accepted.

    Attributes:
        num_csx: systems that share each batch: devices of this machine.
        job_labels: key=value pairs; checked, as the cluster would.

    Raises:
        ValueError: num_csx below 1, or a label that is not key=value.
    """

    num_csx: int = 1
    max_wgt_servers: int | None = None
    max_act_per_csx: int | None = None
    num_workers_per_csx: int = 1
    mgmt_address: str | None = None
    credentials_path: str | None = None
    mount_dirs: Any = None
    python_paths: Any = None
    job_labels: Any = None
    job_priority: str | None = None
    job_time_sec: int | None = None
    debug_args: Any = None
    disable_version_check: bool = False

    def __post_init__(self) -> None:
        """Check what can be wrong."""
        if self.num_csx < 1:
            raise ValueError(f"CSConfig.num_csx: {self.num_csx}, expected at least 1")
        labels = self.job_labels or []
        pairs = [f"{k}={v}" for k, v in labels.items()] if isinstance(labels, Mapping) else labels
        for pair in pairs:
            key, _, value = str(pair).partition("=")
            if not (_WORD.fullmatch(key) and _WORD.fullmatch(value)):
                raise ValueError(
                    f"CSConfig.job_labels: {pair!r}, expected key=value of letters, digits, '.', "
                    "'_' and '-'"
                )


ClusterConfig = CSConfig
"""The name since release 2.3."""


def is_streamer() -> bool:
    """Whether this process only loads data: never here."""
    return False


def is_master_ordinal(local: bool = False) -> bool:
    """Whether this process writes logs and checkpoints: always here."""
    del local
    return True


def get_ordinal() -> int:
    """Return this process's number among those of the loop: 0."""
    return 0


def num_streamers() -> int:
    """Return the number of processes that load data: 1."""
    return 1


def get_streaming_batch_size(effective_batch_size: int) -> int:
    """Return the rows of a batch that this process loads: all."""
    return effective_batch_size


def barrier(*_: object, **__: object) -> None:
    """Wait for the other processes: there are none."""


get_rank = get_streaming_rank = get_ordinal
get_world_size = num_tasks = num_streamers

__getattr__ = functools.partial(explain, __name__)
