"""``wafer.loop.utils``: what the vendor keeps under this name."""

from typing import Any

from wafer.loop import distributed as cluster
from wafer.loop.distributed import CSConfig
from wafer.loop.elsewhere import explain
from wafer.loop.utils import data, tensorboard, tracker

__all__ = ["CSConfig", "cluster", "data", "tensorboard", "tracker"]


def __getattr__(name: str) -> Any:
    """Say what to use for a name of the vendor's that is not here."""
    explain(__name__, name)
