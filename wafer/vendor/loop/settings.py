"""``backends.csx``: settings of the vendor's hardware, which may be assigned and change nothing."""

import logging
from typing import Any

from wafer.models.errors import did_you_mean

_LOG = logging.getLogger(__name__)
# Group -> setting -> its value before it is assigned.
CSX_SETTINGS: dict[str, dict[str, Any]] = {
    "cluster": {"auto_taint": True},
    "debug": {
        "compile_crd_memory_gi": None,
        "debug_args": None,
        "execute_crd_memory_gi": None,
        "fabric_type_blacklist": None,
        "ini": None,
        "lazy_initialization": True,
        "retrace_every_iteration": False,
        "wrk_memory_gi": None,
    },
    "performance": {"micro_batch_size": "auto", "transfer_processes": 5},
    "precision": {"optimization_level": 0},
    "storage": {"compression": None, "s3": None},
}


class CsxSettings:
    """A group of settings, or the groups.

    Args:
        where: its name, for messages.
        values: setting -> value, or group -> ``CsxSettings``.
    """

    def __init__(self, where: str, values: dict[str, object]) -> None:
        vars(self).update(values)
        vars(self)["_where"] = where

    def __getattr__(self, name: str) -> Any:
        """Only names that are not there come here."""
        known = [key for key in vars(self) if not key.startswith("_")]
        raise AttributeError(f"{self._where}: no setting {name!r}{did_you_mean(name, known)}")

    def __setattr__(self, name: str, value: object) -> None:
        """Keep a value, and log that it changes nothing here.

        Raises:
            AttributeError: a setting that no release has.
        """
        if vars(self).get(name, self) is self:
            getattr(self, name)
        if value != vars(self)[name]:
            _LOG.info("%s.%s = %r: no effect here", self._where, name, value)
        vars(self)[name] = value


csx = CsxSettings(
    "backends.csx",
    {key: CsxSettings(f"backends.csx.{key}", dict(keys)) for key, keys in CSX_SETTINGS.items()},
)
