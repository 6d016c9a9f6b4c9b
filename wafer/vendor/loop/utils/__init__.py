"""``wafer.loop.utils``: what the vendor keeps under this name."""

import functools

from wafer.loop import distributed as cluster
from wafer.loop.distributed import CSConfig
from wafer.loop.elsewhere import explain
from wafer.loop.utils import data, tensorboard, tracker

__all__ = ["CSConfig", "cluster", "data", "tensorboard", "tracker"]

__getattr__ = functools.partial(explain, __name__)
