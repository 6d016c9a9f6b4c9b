"""``wafer.loop.utils``: what the vendor keeps under this name."""

from wafer.loop.utils import data, tensorboard
from wafer.loop.utils.cluster import CSConfig

__all__ = ["CSConfig", "data", "tensorboard"]
