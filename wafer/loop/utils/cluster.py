"""How many systems a loop runs on."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["CSConfig"]

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
